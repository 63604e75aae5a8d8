"""Who a process is that uses a GPU: its container, pod and service, its numbers, its cgroup."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from otel_bridge.mounts import PROC

if TYPE_CHECKING:
    from pathlib import Path

_CONTAINER = re.compile(r"[0-9a-f]{64}")
_POD = re.compile(r"pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12})")
_SHORT_ID = 12
_RECHECK = 10.0
"""Seconds after which a process is looked at anew: its number or its cgroup may have changed."""
_ANCESTORS = 4
_MAX_SERVICES = 4096
_PARENT, _START_TIME = 1, 19  # in /proc/<pid>/stat, behind the command's name

UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Process:
    """A process, as procfs shows it.

    Attributes:
        pid: as the initial pid namespace counts.
        began: start time, clock ticks since boot.
        own_pid: as its own pid namespace counts.
        container: its container's id; empty: none.
        pod: UID of its Kubernetes pod; empty: none.
        cgroup: its path in the unified hierarchy; empty: none.
        ancestors: pids of its parent, its parent's parent, ….
    """

    pid: int
    began: int
    own_pid: int
    container: str
    pod: str
    cgroup: str
    ancestors: tuple[int, ...]


class Processes:
    """Looks processes up, and remembers.

    Args:
        proc: where procfs is mounted; its pid namespace must be the initial one.
    """

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._known: dict[int, tuple[float, Process | None]] = {}

    def find(self, pid: int, now: float) -> Process | None:
        """A process; None when there is none of this number, or none that may be looked at.

        Args:
            pid: as the initial pid namespace counts.
            now: monotonic seconds.
        """
        known = self._known.get(pid)
        if known is None or now - known[0] > _RECHECK:
            known = self._known[pid] = now, read_process(pid, self._proc)
        return known[1]

    def keep(self, pids: set[int]) -> None:
        """Forget all others."""
        for pid in self._known.keys() - pids:
            del self._known[pid]


def read_process(pid: int, proc: Path = PROC) -> Process | None:
    """A process as procfs shows it now; None when it is gone before all of it was read."""
    directory = proc / str(pid)
    try:
        stat = _stat(directory)
        status = (directory / "status").read_text(errors="replace")
        groups = (directory / "cgroup").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    own = re.search(r"^NSpid:.*?(\d+)\s*$", status, re.MULTILINE)
    # The unified hierarchy first; the names of containers are the same in all.
    lines = sorted(groups.splitlines(), key=lambda line: not line.startswith("0::"))
    containers = _CONTAINER.findall("\n".join(lines))
    pod = _POD.search(groups)
    return Process(
        pid,
        int(stat[_START_TIME]),
        int(own[1]) if own else pid,
        containers[-1] if containers else "",
        pod[1].replace("_", "-") if pod else "",
        lines[0].removeprefix("0::") if lines and lines[0].startswith("0::") else "",
        tuple(_ancestors(int(stat[_PARENT]), proc)),
    )


def _stat(directory: Path) -> list[str]:
    # Behind the command's name, which may hold blanks and brackets.
    return (directory / "stat").read_text(errors="replace").rpartition(")")[2].split()


def _ancestors(pid: int, proc: Path) -> list[int]:
    found: list[int] = []
    while pid > 1 and len(found) < _ANCESTORS:
        found.append(pid)
        try:
            pid = int(_stat(proc / str(pid))[_PARENT])
        except (OSError, IndexError):
            break
    return found


class Services:
    """Which service a container or process is, as the resources of spans say; any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._names: dict[tuple[str, int], str] = {}

    def learn(self, container: str, own_pid: int, service: str) -> None:
        """A resource said so."""
        if not service:
            return
        with self._lock:
            if len(self._names) >= _MAX_SERVICES:
                self._names.clear()
            self._names[container[:_SHORT_ID], own_pid] = service
            if container:
                self._names[container[:_SHORT_ID], 0] = service

    def name_of(self, process: Process) -> str:
        """The service that a process is of; empty when no span has said.

        A process of no container is found by its own number or an ancestor's, one in a container also by its
        container.
        """
        container = process.container[:_SHORT_ID]
        candidates = [(container, process.own_pid), (container, 0)] if container else [("", process.pid)]
        candidates += [("", pid) for pid in process.ancestors] if not container else []
        with self._lock:
            return next((self._names[key] for key in candidates if key in self._names), "")
