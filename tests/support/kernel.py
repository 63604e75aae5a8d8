"""Kernel tests: real probes, real workers that publish spans, and what the probes said about them."""

from __future__ import annotations

import ctypes.util
import json
import os
import shutil
import subprocess
import sys
import threading
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from otel_bridge.contracts import SystemClock
from otel_bridge.kernel.config import KernelConfig
from otel_bridge.kernel.monitor import KernelMonitor
from otel_bridge.libbpf import OBJECTS
from otel_bridge.telemetry import Telemetry
from tests.support.processes import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from otel_bridge.events import KernelEvents
    from otel_bridge.kernel.loader import AttachedFile
    from otel_bridge.model import KernelEventKind, Match
    from otel_bridge.readings import Reading

ROOT = Path(__file__).parents[2]
WORKER = ROOT / "tests" / "kernel" / "worker.py"
PROBES = ("tcp", "sched", "block", "memory", "tls", "cuda", "drm", "user", "requests", "tls_requests")


def needs_bpf() -> None:
    """Skip where programs cannot be loaded, saying what is missing."""
    if not sys.platform.startswith("linux"):
        pytest.skip("needs Linux")
    if os.geteuid() != 0:
        pytest.skip("needs root: sudo make test")
    if not Path("/sys/kernel/btf/vmlinux").exists():
        pytest.skip("needs a kernel with BTF (CONFIG_DEBUG_INFO_BTF)")
    if ctypes.util.find_library("bpf") is None:
        pytest.skip("needs libbpf: apt-get install libbpf1")
    needs_objects()


def needs_objects() -> None:
    """Build the BPF objects, or skip with what the build needs; current objects cost nothing."""
    if shutil.which("clang") is None or not Path("/usr/include/bpf/bpf_helpers.h").exists():
        if not any(OBJECTS.glob("*.bpf.o")):
            pytest.skip("needs the BPF objects: apt-get install clang llvm libbpf-dev, then make -C bpf")
        return
    subprocess.run(["make", "-s", "-C", str(ROOT / "bpf")], check=True)


def trace_id(number: int) -> bytes:
    """A trace id that is told apart from those of other tests running now."""
    return os.getpid().to_bytes(8, "big") + number.to_bytes(8, "big")


def span_id(number: int) -> bytes:
    """A span id."""
    return number.to_bytes(8, "big")


@dataclass
class Events:
    """A sink that keeps what it is given, and answers questions about it."""

    batches: list[KernelEvents] = field(default_factory=list)

    def take(self, events: KernelEvents) -> None:
        """See `KernelEventSink`."""
        self.batches.append(events)

    def of(self, kind: KernelEventKind, *, tgid: int | None = None) -> NDArray[np.void]:
        """All events of a kind so far, of one process if asked."""
        found = [batch.records[batch.records["kind"] == kind] for batch in list(self.batches)]
        found = [records for records in found if len(records)]
        if not found:
            return np.zeros(0, [("tgid", "<u4"), ("span_id", "V8"), ("trace_id", "V16"), ("match", "u1")])
        # The worst waits come with their stack, the others without.
        fewest = min((records.dtype for records in found), key=lambda dtype: len(dtype.names or ()))
        records = np.concatenate([_cut_to(fewest, records) for records in found])
        return records if tgid is None else records[records["tgid"] == tgid]

    def per_span(self, kind: KernelEventKind, *, match: Match) -> Counter[int]:
        """How many events of a kind each span of this test has; every one must have this match."""
        records = self.of(kind)
        mine = [record for record in records if bytes(record["trace_id"])[:8] == trace_id(0)[:8]]
        assert all(record["match"] == match for record in mine)
        return Counter(int.from_bytes(bytes(record["span_id"]), "big") for record in mine)

    def on_span(self, kind: KernelEventKind, number: int) -> NDArray[np.void]:
        """The events of a kind on one span of this test."""
        records = self.of(kind)
        keep = [
            bytes(record["trace_id"])[:8] == trace_id(0)[:8] and bytes(record["span_id"]) == span_id(number)
            for record in records
        ]
        return records[np.array(keep, bool)] if len(records) else records


def _cut_to(dtype: np.dtype[Any], records: NDArray[np.void]) -> NDArray[np.void]:
    """Records without the fields that others of their kind do not have."""
    if records.dtype == dtype:
        return records
    out = np.zeros(len(records), dtype)
    for name in dtype.names or ():
        out[name] = records[name]
    return out


class Monitor(KernelMonitor):
    """A monitor whose events and readings are kept."""

    def __init__(self, config: KernelConfig) -> None:
        self.events = Events()
        self.readings: list[Reading] = []
        self.telemetry = Telemetry()
        super().__init__(config, self.events, self.telemetry, SystemClock(), readings=[self])

    def take_readings(self, readings: Sequence[Reading]) -> None:
        """See `ReadingSink`."""
        self.readings.extend(readings)

    def table_of_processes(self) -> list[int]:
        """The processes in the kernel's table."""
        assert self._loader is not None
        return self._loader.processes.known()

    def files(self, probe: str) -> list[AttachedFile]:
        """The files that a probe hangs on."""
        assert self._loader is not None
        return list(self._loader._files.get(probe, []))

    def knows(self, pid: int) -> bool:
        """Whether a process is known."""
        assert self._discovery is not None
        return pid in self._discovery._processes

    def known_processes(self) -> int:
        """How many processes are looked at."""
        assert self._discovery is not None
        return self._discovery.known


backend: dict[str, Any] = {}
"""What all configurations say about the back end; set for the time of a test (`each_backend`)."""


def config(*probes: str, **settings: Any) -> KernelConfig:
    """A configuration with these probes only; a probe's own settings are given as `<probe>={…}`."""
    own = {name: settings.pop(name, {}) for name in PROBES}
    return KernelConfig.model_validate(
        {
            "mode": "required",
            "drop_privileges": False,
            "scan_interval": 0.1,
            "sum_interval": 0.05,
            **backend,
            "probes": {name: {"enabled": name in probes, **own[name]} for name in PROBES},
            **settings,
        }
    )


@contextmanager
def monitoring(*probes: str, **settings: Any) -> Iterator[Monitor]:
    """Probes at work; when the block ends everything is read, then taken out of the kernel again."""
    monitor = Monitor(config(*probes, **settings))
    monitor.open()
    try:
        yield monitor
    finally:
        monitor.close()


class Worker:
    """A process that publishes spans through a C library and does as it is told (worker.py)."""

    def __init__(
        self, library: Path, *, prefix: tuple[str, ...] = (), command: list[str] | None = None
    ) -> None:
        self.process = subprocess.Popen(
            command or [*prefix, sys.executable, str(WORKER), str(library)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = int(self._read()["pid"])

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"the worker ended with {self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def send(self, *jobs: dict[str, Any]) -> None:
        """Have jobs done, each in a thread of its own; a job's "span" is published meanwhile."""
        assert self.process.stdin is not None
        for job in jobs:
            if "span" in job:
                job.setdefault("trace_id", trace_id(job["span"]).hex())
                job.setdefault("span_id", span_id(job["span"]).hex())
        self.process.stdin.write(json.dumps(jobs) + "\n")
        self.process.stdin.flush()

    def do(self, *jobs: dict[str, Any]) -> list[Any]:
        """`send`, then wait for what each job answers."""
        self.send(*jobs)
        return self.answers()

    def answers(self) -> list[Any]:
        """Wait for what the jobs sent last answer."""
        answers: list[Any] = self._read()["answers"]
        return answers

    def stop(self) -> None:
        """End it."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


def followed(monitor: Monitor, pid: int) -> None:
    """Wait until the kernel knows where a process keeps its spans."""
    eventually(f"process {pid} is followed", lambda: pid in monitor.followed)


def held() -> tuple[int, int]:
    """How many descriptors and threads this process has."""
    return len(list(Path("/proc/self/fd").iterdir())), threading.active_count()


def nothing_more_held(before: tuple[int, int]) -> None:
    """Wait until this process has no more of either than before: some are there for a moment only."""
    eventually("as few as before", lambda: all(now <= then for now, then in zip(held(), before, strict=True)))


def covers(monitor: Monitor, probe: str, pid: int, name: str) -> bool:
    """Whether a probe hangs on the library of this name that a process has mapped; there may be others."""
    mapped = {
        Path(line.split()[-1]).name
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines()
        if line.rpartition("/")[2].startswith(name)
    }
    files = [Path(f"/proc/self/fd/{file.fd}").readlink() for file in monitor.files(probe)]
    return bool(mapped) and mapped <= {path.name for path in files}


def in_threads(*functions: Any) -> None:
    """Run functions at the same time, and raise what one of them raises."""
    failures: list[BaseException] = []

    def run(function: Any) -> None:
        try:
            function()
        except BaseException as error:  # noqa: BLE001 (handed to the caller below)
            failures.append(error)

    threads = [threading.Thread(target=run, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
