"""Memory pressure (PSI): how long tasks wait for memory, by cgroup of followed processes and on the machine.

The kernel renews its averages every two seconds and counts the stalled time by the microsecond; a look a
second misses neither, and needs no trigger per cgroup (nor the right to write that one takes).
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

import structlog

from otel_bridge import catalog, psi
from otel_bridge.errors import BridgeError
from otel_bridge.mounts import PROC
from otel_bridge.readings import Reading

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from pathlib import Path

    from otel_bridge.contracts import Clock
    from otel_bridge.readings import ReadingSink
    from otel_bridge.telemetry import Telemetry

log = structlog.get_logger(__name__)

MACHINE = "/"
"""The root cgroup: all tasks."""

MAX_CGROUPS = 256
"""Cgroups that have figures; each is two series of two metrics."""

RECHECK = 10.0
"""Seconds after which a process is asked again for its cgroup: it may have moved, or be another."""


def unified_cgroup(pid: int, proc: Path = PROC) -> str:
    """A process's cgroup in the unified hierarchy; empty when there is none, or no such process."""
    try:
        lines = (proc / str(pid) / "cgroup").read_text(errors="surrogateescape").splitlines()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ""
    return next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "")


class MemoryPressure:
    """Reads the pressure; shows it as metrics and hands it on as readings.

    Args:
        telemetry: for the metrics.
        clock: when processes are asked for their cgroup again; the readings' time.
        sinks: take the shares as readings.
        proc: where procfs is mounted.

    Raises:
        BridgeError: this kernel counts no memory pressure.
    """

    def __init__(
        self, telemetry: Telemetry, clock: Clock, sinks: Sequence[ReadingSink] = (), proc: Path = PROC
    ) -> None:
        self._share = telemetry.gauge(catalog.KERNEL_MEMORY_PRESSURE)
        self._stalled = telemetry.counter(catalog.KERNEL_MEMORY_STALLED)
        self._clock = clock
        self._sinks = sinks
        self._proc = proc
        self._machine = proc / "pressure" / "memory"
        if psi.read(self._machine) is None:
            raise BridgeError(
                f"{self._machine} tells nothing: it takes Linux 4.20 with CONFIG_PSI=y; "
                "mend with: boot with psi=1"
            )
        self._mount = psi.unified_mount(proc)
        self._asked: dict[int, tuple[float, str]] = {}
        self._totals: dict[tuple[str, str], float] = {}
        self._said_too_many = False

    def update(self, pids: Collection[int]) -> None:
        """Look at the machine, and at the cgroups of these processes; others are forgotten."""
        files = {MACHINE: self._machine}
        for cgroup in self._cgroups_of(pids):
            assert self._mount is not None
            files[cgroup] = psi.file_of(self._mount, cgroup)
        now = self._clock.time_ns()
        readings = [
            self._show(cgroup, field.name, getattr(pressure, field.name), now)
            for cgroup, path in files.items()
            if (pressure := psi.read(path)) is not None
            for field in fields(pressure)
        ]
        self._forget({(reading.labels["cgroup"], reading.labels["tasks"]) for reading in readings})
        for sink in self._sinks:
            sink.take_readings(readings)

    def clear(self) -> None:
        """Show nothing any more."""
        self._forget(set())

    def _cgroups_of(self, pids: Collection[int]) -> Iterable[str]:
        if self._mount is None:
            return ()
        now = self._clock.monotonic()
        asked, self._asked = self._asked, {}
        for pid in pids:
            known = asked.get(pid)
            if known is None or now - known[0] >= RECHECK:
                known = now, unified_cgroup(pid, self._proc)
            self._asked[pid] = known
        # One outside this process's cgroup namespace ("/../…") has no file here.
        names = {name for _, name in self._asked.values() if name not in ("", MACHINE) and "/.." not in name}
        if len(names) > MAX_CGROUPS and not self._said_too_many:
            log.warning("not every cgroup's memory pressure is shown", cgroups=len(names), shown=MAX_CGROUPS)
            self._said_too_many = True
        shown = sorted(names, key=lambda name: ((name, "some") not in self._totals, name))
        return shown[:MAX_CGROUPS]

    def _show(self, cgroup: str, tasks: str, stall: psi.Stall, now: int) -> Reading:
        before = self._totals.get((cgroup, tasks), stall.total)
        self._share.labels(cgroup, tasks).set(stall.share)
        # A cgroup that was made anew under the same name begins at nothing.
        self._stalled.labels(cgroup, tasks).inc(
            stall.total - before if stall.total >= before else stall.total
        )
        self._totals[cgroup, tasks] = stall.total
        labels = {"cgroup": cgroup, "tasks": tasks}
        return Reading(catalog.KERNEL_MEMORY_PRESSURE.name, labels, stall.share, now)

    def _forget(self, there: set[tuple[str, str]]) -> None:
        for series in self._totals.keys() - there:
            self._share.remove(*series)
            self._stalled.remove(*series)
            del self._totals[series]
