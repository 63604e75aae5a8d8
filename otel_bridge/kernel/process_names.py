"""What a process is called: its number in its own pid namespace, and its container.

A span says `process.pid` as the process itself counts, the kernel says events as the initial pid namespace
does. What connects the two is handed over as events of dtype `events.PROCESS`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from otel_bridge.events import COMMON, PROCESS
from otel_bridge.model import KernelEventKind

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray


_CONTAINER = re.compile(rb"[0-9a-f]{64}")
_MAX_CONTAINERS = 4096


class ProcessNames:
    """Makes PROCESS events of what the kernel or procfs says.

    Args:
        proc: where procfs is mounted; its pid namespace must be the initial one.
    """

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self._own = _inode_of(proc / "self" / "ns" / "pid")
        self._containers: dict[int, bytes] = {}

    def of_records(self, records: NDArray[np.void]) -> NDArray[np.void]:
        """PROCESS events of the process probe's records."""
        out = np.zeros(len(records), PROCESS)
        for name in (*(COMMON.names or ()), "namespace_pid", "pid_namespace"):
            out[name] = records[name]
        for row, (pid, namespace) in enumerate(
            zip(records["tgid"].tolist(), records["pid_namespace"].tolist(), strict=True)
        ):
            if namespace not in (0, self._own):
                out["container"][row] = self._container(pid, namespace)
        return out

    def of_running(self, pids: Sequence[int]) -> NDArray[np.void]:
        """PROCESS events of processes that nobody announced, as if they began now."""
        out = np.zeros(len(pids), PROCESS)
        out["kind"] = KernelEventKind.PROCESS_EXEC
        for row, pid in enumerate(pids):
            out["tgid"][row] = pid
            out["namespace_pid"][row] = self._namespace_pid(pid)
            namespace = _inode_of(self._proc / str(pid) / "ns" / "pid")
            out["pid_namespace"][row] = namespace
            if namespace not in (0, self._own):
                out["container"][row] = self._container(pid, namespace)
        there: NDArray[np.void] = out[out["namespace_pid"] != 0]
        return there

    def _namespace_pid(self, pid: int) -> int:
        """The last number of NSpid, 0 when the process is gone."""
        try:
            status = (self._proc / str(pid) / "status").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            return 0
        _, found, rest = status.partition(b"\nNSpid:")
        return (
            int(rest.partition(b"\n")[0].split()[-1]) if found else pid
        )  # Linux built without pid namespaces

    def _container(self, pid: int, namespace: int) -> bytes:
        """All processes of a pid namespace are of one container."""
        known = self._containers.get(namespace)
        if known is not None:
            return known
        try:
            groups = (self._proc / str(pid) / "cgroup").read_bytes()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            return b""
        # Container runtimes name the control group after the container; the innermost name is its own.
        names = _CONTAINER.findall(groups.partition(b"\n")[0]) or _CONTAINER.findall(groups)
        if len(self._containers) >= _MAX_CONTAINERS:
            self._containers.clear()
        return self._containers.setdefault(namespace, names[-1] if names else b"")


def _inode_of(path: Path) -> int:
    """Of a namespace; 0 when it may not be looked at, or its process is gone."""
    try:
        return path.stat().st_ino
    except OSError:
        return 0
