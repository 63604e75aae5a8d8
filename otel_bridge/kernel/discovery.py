"""Finds in running processes what the probes need: where threads keep their span, which libraries they use.

A process is looked at soon after its exec, then at growing intervals, since what matters is often loaded
late: an interpreter imports its TLS module or the context publisher long after it began.
"""

from __future__ import annotations

import os
import re
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import structlog

from otel_bridge.errors import BridgeError
from otel_bridge.model import KernelEventKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np
    from numpy.typing import NDArray

    from otel_bridge.contracts import Clock

log = structlog.get_logger(__name__)

PROC = Path("/proc")
AGES = (0.05, 0.25, 0.7, 2.0, 3.0, 4.0, 5.0, 10.0, 15.0, 30.0)
"""Seconds between the looks at one process; the last repeats."""

_EXECUTABLE = 2  # in "r-xp"
_MAPS_FIELDS = 6


class Layout(Protocol):
    """What `thread_context.locate` finds."""

    @property
    def offset(self) -> int:
        """From the thread pointer, or from the module's block."""

    @property
    def module(self) -> int:
        """The loader's number; 0 when the offset is static."""

    @property
    def dtv_pointer(self) -> int:
        """From the thread pointer to the DTV's address."""

    @property
    def dtv_stride(self) -> int:
        """Bytes of a DTV entry."""


@dataclass(frozen=True, slots=True)
class MappedFile:
    """A file whose code a process has mapped.

    Attributes:
        identity: device and inode, as the maps tell them.
        path: as the process names it.
        open_path: where this process reaches it, also in another mount namespace and when it was deleted.
    """

    identity: tuple[str, int]
    path: str
    open_path: str


def mapped_files(pid: int, proc: Path = PROC) -> Iterator[MappedFile]:
    """Files whose code the process has mapped, each once; none when it is gone or a kernel thread."""
    seen: set[tuple[str, int]] = set()
    try:
        lines = (proc / str(pid) / "maps").read_text(errors="surrogateescape").splitlines()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return
    for line in lines:
        fields = line.split(maxsplit=_MAPS_FIELDS - 1)
        if len(fields) < _MAPS_FIELDS or fields[1][_EXECUTABLE] != "x" or not fields[5].startswith("/"):
            continue
        identity = fields[3], int(fields[4])
        if identity not in seen:
            seen.add(identity)
            yield MappedFile(identity, fields[5], _reachable(proc / str(pid), fields[0], fields[5]))


def _reachable(process: Path, addresses: str, path: str) -> str:
    # The link leads to the file itself, whatever became of its name. It takes CAP_CHECKPOINT_RESTORE.
    direct = process / "map_files" / addresses
    if os.access(direct, os.R_OK):
        return str(direct)
    return f"{process}/root{path.removesuffix(' (deleted)')}"


@dataclass(slots=True)
class _Process:
    due: float
    looks: int = 0
    followed: bool = False
    complaint: str = ""


class Discovery:
    """Looks at processes, in a thread of its own.

    Args:
        clock: for the intervals.
        locate: where a process's threads keep their span; None when nowhere (yet).
        follow: told of each process found, with its layout.
        libraries: patterns of file names, each with what to do with such a file.
        scan_interval: seconds between two looks for processes that nobody announced.
        proc: where procfs is mounted.
    """

    def __init__(
        self,
        clock: Clock,
        locate: Callable[[int], Layout | None],
        follow: Callable[[int, Layout], None],
        libraries: list[tuple[str, Callable[[MappedFile], None]]],
        *,
        scan_interval: float,
        proc: Path = PROC,
    ) -> None:
        self._clock = clock
        self._locate = locate
        self._follow = follow
        self._libraries = [(re.compile(pattern), act) for pattern, act in libraries]
        self._scan_interval = scan_interval
        self._proc = proc
        self._processes: dict[int, _Process] = {}
        self._files_done: set[tuple[str, int]] = set()
        self._next_scan = clock.monotonic()
        self._news: list[tuple[int, bool]] = []
        self._wake = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="kernel-discovery", daemon=True)

    def announce(self, records: NDArray[np.void]) -> None:
        """Take in PROCESS_EXEC and PROCESS_EXIT events; called in the reader's thread."""
        started = (records["kind"] == KernelEventKind.PROCESS_EXEC).tolist()
        with self._wake:
            self._news.extend(zip(records["tgid"].tolist(), started, strict=True))
            self._wake.notify()

    @property
    def followed(self) -> frozenset[int]:
        """Processes that publish their spans."""
        return frozenset(pid for pid, process in list(self._processes.items()) if process.followed)

    @property
    def known(self) -> int:
        """How many processes are looked at."""
        return len(self._processes)

    def complaints(self) -> dict[int, str]:
        """Processes that publish their spans and cannot be followed, each with the reason."""
        return {pid: found.complaint for pid, found in list(self._processes.items()) if found.complaint}

    def start(self) -> None:
        """Look at every process now, then go on in a thread."""
        self.step()
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while True:
            wait = self.step()
            with self._wake:
                if not self._stopping and not self._news:
                    self._wake.wait(wait)
                if self._stopping:
                    return

    def step(self) -> float:
        """Do what is due; returns the seconds until there is more."""
        now = self._clock.monotonic()
        self._take_news(now)
        if now >= self._next_scan:
            self._scan(now)
            self._next_scan = now + self._scan_interval
        due = self._next_scan
        for pid, process in list(self._processes.items()):
            if process.due <= now:
                self._look(pid, process)
                process.due = now + AGES[min(process.looks, len(AGES) - 1)]
                process.looks += 1
            due = min(due, process.due)
        return max(0.0, due - self._clock.monotonic())

    def _take_news(self, now: float) -> None:
        with self._wake:
            news, self._news = self._news, []
        for pid, started in news:
            if started:
                self._processes[pid] = _Process(now + AGES[0])
            else:
                self._processes.pop(pid, None)

    def _scan(self, now: float) -> None:
        running = {int(path.name) for path in self._proc.iterdir() if path.name.isdigit()}
        for pid in self._processes.keys() - running:
            del self._processes[pid]
        for pid in running - self._processes.keys():
            self._processes[pid] = _Process(now)

    def _look(self, pid: int, process: _Process) -> None:
        for file in mapped_files(pid, self._proc):
            if file.identity in self._files_done:
                continue
            name = file.path.rpartition("/")[2].removesuffix(" (deleted)")
            for pattern, act in self._libraries:
                if pattern.fullmatch(name):
                    self._files_done.add(file.identity)
                    act(file)
        # Last, so that a process that is followed has its libraries covered.
        self._look_for_context(pid, process)

    def _look_for_context(self, pid: int, process: _Process) -> None:
        if process.followed:
            return
        try:
            layout = self._locate(pid)
        except (ProcessLookupError, FileNotFoundError, PermissionError):
            # Gone; or closed to this process, which `doctor` tells from the missing capability.
            return
        except BridgeError as error:
            if process.complaint != str(error):
                log.warning("a process publishes its spans and cannot be followed", pid=pid, error=str(error))
                process.complaint = str(error)
            return
        process.complaint = ""
        if layout is not None:
            self._follow(pid, layout)
            process.followed = True
