"""Where a protected service lives: its network namespaces, found by process, by port or by path."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TYPE_CHECKING

from otel_bridge.mounts import PROC, mounts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from otel_bridge.control.gate.config import GateConfig

_LISTENING = "0A"
_PATH = 5
"""The field of /proc/<pid>/maps that names the file."""
_DELETED = " (deleted)"
_NO_FILE = "0"
"""The inode of what no file was mapped for, such as a stack."""


@dataclass(frozen=True, slots=True)
class Namespace:
    """A network namespace that something is to be guarded in.

    Attributes:
        inode: tells it from all that live now.
        path: opens it; holds while the process that it was found by lives.
        cgroup: the service's control group, a directory; None when it has none of its own.
    """

    inode: int
    path: Path
    cgroup: Path | None = None


@dataclass(slots=True)
class Found:
    """Where a service lives now.

    Attributes:
        namespaces: by inode.
        hidden: processes that could not be looked at.
    """

    namespaces: dict[int, Namespace] = field(default_factory=dict)
    hidden: int = 0

    @property
    def missing(self) -> str:
        """Why there are none; empty when there are."""
        if self.namespaces:
            return ""
        nothing = "nothing runs that fits its configuration"
        if self.hidden:
            return f"{nothing}; {self.hidden} processes could not be looked at: that takes CAP_SYS_PTRACE"
        return nothing


class Processes:
    """One look at the processes of a machine: whatever is asked, and by how many, each is read once.

    Args:
        proc: where procfs is mounted.
    """

    def __init__(self, proc: Path = PROC) -> None:
        self.proc = proc
        self._namespaces: dict[int, int | OSError] = {}
        self._names: dict[int, tuple[str, ...]] = {}
        self._listening: dict[int, frozenset[int]] = {}
        self._files: dict[int, list[tuple[str, str]]] = {}

    @cached_property
    def pids(self) -> list[int]:
        """All of them, ascending."""
        return sorted(int(entry.name) for entry in self.proc.iterdir() if entry.name.isdecimal())

    def namespace(self, pid: int) -> int:
        """The inode of a process's network namespace; raises OSError."""
        found = self._namespaces.get(pid)
        if found is None:
            try:
                found = inode_of(self.proc / str(pid) / "ns" / "net")
            except OSError as error:
                found = error
            self._namespaces[pid] = found
        if isinstance(found, OSError):
            raise found
        return found

    def names(self, pid: int) -> tuple[str, ...]:
        """A process's name and its command line; none where it is the kernel's own. Raises OSError."""
        if pid not in self._names:
            process = self.proc / str(pid)
            command = (process / "cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ")
            # Without: a kernel thread, or one that has ended.
            texts = ((process / "comm").read_bytes().rstrip(b"\n"), command) if command else ()
            self._names[pid] = tuple(text.decode(errors="replace") for text in texts)
        return self._names[pid]

    def listening(self, pid: int) -> frozenset[int]:
        """The ports that somebody listens on in a process's namespace; raises OSError."""
        inode = self.namespace(pid)
        if inode not in self._listening:
            net = self.proc / str(pid) / "net"
            self._listening[inode] = frozenset(
                port for table in ("tcp", "tcp6") for port in _ports(net / table)
            )
        return self._listening[inode]

    def files(self, pid: int) -> list[tuple[str, str]]:
        """What a process has mapped that can be opened: device and inode, and the path. Raises OSError."""
        if pid not in self._files:
            self._files[pid] = list(dict.fromkeys(_mapped(self.proc / str(pid) / "maps")))
        return self._files[pid]


def find(config: GateConfig, processes: Processes) -> Found:
    """Look for a service; processes that end meanwhile are left out."""
    found = Found()
    if config.namespace is not None:
        with suppress(OSError):
            inode = inode_of(config.namespace)
            found.namespaces[inode] = Namespace(inode, config.namespace)
        return found
    proc = processes.proc
    for pid in processes.pids if config.pid is None else [config.pid]:
        try:
            inode = processes.namespace(pid)
            if inode in found.namespaces or not _wanted(config, processes, pid):
                continue
            path = proc / str(pid) / "ns" / "net"
            found.namespaces[inode] = Namespace(inode, path, cgroup_of(pid, proc))
        except PermissionError:
            found.hidden += 1
        except OSError:
            continue
    return found


def inode_of(path: Path) -> int:
    """What tells a namespace apart; raises OSError."""
    return path.stat().st_ino


def _wanted(config: GateConfig, processes: Processes, pid: int) -> bool:
    if config.pid is not None:
        return True
    if config.process is not None:
        return any(fnmatchcase(text, config.process) for text in processes.names(pid))
    return not processes.listening(pid).isdisjoint(config.ports)


def _ports(table: Path) -> Iterator[int]:
    try:
        lines = table.read_text().splitlines()[1:]
    except FileNotFoundError:  # a kernel without IPv6
        return
    for line in lines:
        _, local, _, state = line.split()[:4]
        if state == _LISTENING:
            yield int(local.rpartition(":")[2], 16)


def libraries(inode: int, pattern: str, processes: Processes) -> dict[str, Path]:
    """Files of a name that processes of a namespace have mapped: by device and inode, a path to each."""
    found: dict[str, Path] = {}
    for pid in processes.pids:
        root = processes.proc / str(pid) / "root"
        try:
            if processes.namespace(pid) != inode:
                continue
            for mark, path in processes.files(pid):
                if fnmatchcase(path.rpartition("/")[2], pattern):
                    found[mark] = root / path
        except OSError:  # it has ended, or may not be looked at
            continue
    return found


def _mapped(maps: Path) -> Iterator[tuple[str, str]]:
    for line in maps.read_text(errors="surrogateescape").splitlines():
        fields = line.split(None, 5)
        if len(fields) <= _PATH:
            continue
        _, _, _, device, inode, path = fields
        if inode != _NO_FILE and not path.endswith(_DELETED):
            yield f"{device} {inode}", path.lstrip("/")


def cgroup_of(pid: int, proc: Path = PROC) -> Path | None:
    """The directory of a process's control group (version 2); None in the root, which is everybody's."""
    for line in (proc / str(pid) / "cgroup").read_text().splitlines():
        number, _, name = line.split(":", 2)
        if number == "0" and name != "/" and (mount := next(iter(mounts("cgroup2", proc)), None)):
            return mount / name.lstrip("/")
    return None
