"""Where a protected service lives: its network namespaces, found by process, by port or by path."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
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


def find(config: GateConfig, proc: Path = PROC) -> Found:
    """Look for a service; processes that end meanwhile are left out."""
    found = Found()
    if config.namespace is not None:
        with suppress(OSError):
            inode = _inode(config.namespace)
            found.namespaces[inode] = Namespace(inode, config.namespace)
        return found
    for pid in _candidates(config, proc):
        path = proc / str(pid) / "ns" / "net"
        try:
            inode = _inode(path)
            if inode in found.namespaces or not _wanted(config, proc, pid):
                continue
            found.namespaces[inode] = Namespace(inode, path, cgroup_of(pid, proc))
        except PermissionError:
            found.hidden += 1
        except OSError:
            continue
    return found


def _inode(path: Path) -> int:
    return path.stat().st_ino


def _candidates(config: GateConfig, proc: Path) -> list[int]:
    if config.pid is not None:
        return [config.pid]
    return sorted(int(entry.name) for entry in proc.iterdir() if entry.name.isdecimal())


def _wanted(config: GateConfig, proc: Path, pid: int) -> bool:
    if config.pid is not None:
        return True
    if config.process is not None:
        return _is_called(config.process, proc / str(pid))
    return not _listening(proc / str(pid)).isdisjoint(config.ports)


def _is_called(pattern: str, process: Path) -> bool:
    command = (process / "cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ")
    if not command:  # a kernel thread, or one that has ended
        return False
    name = (process / "comm").read_bytes().rstrip(b"\n")
    return any(fnmatchcase(text.decode(errors="replace"), pattern) for text in (name, command))


def _listening(process: Path) -> set[int]:
    """The ports that somebody listens on in a process's namespace."""
    return {port for table in ("tcp", "tcp6") for port in _ports(process / "net" / table)}


def _ports(table: Path) -> Iterator[int]:
    try:
        lines = table.read_text().splitlines()[1:]
    except FileNotFoundError:  # a kernel without IPv6
        return
    for line in lines:
        _, local, _, state = line.split()[:4]
        if state == _LISTENING:
            yield int(local.rpartition(":")[2], 16)


def libraries(inode: int, pattern: str, proc: Path = PROC) -> dict[str, Path]:
    """Files of a name that processes of a namespace have mapped: by device and inode, a path to each."""
    found: dict[str, Path] = {}
    for process in sorted(proc.iterdir()):
        if not process.name.isdecimal():
            continue
        try:
            if _inode(process / "ns" / "net") == inode:
                found |= {mark: process / "root" / path for mark, path in _mapped(process, pattern)}
        except OSError:  # it has ended, or may not be looked at
            continue
    return found


def _mapped(process: Path, pattern: str) -> Iterator[tuple[str, str]]:
    for line in (process / "maps").read_text(errors="surrogateescape").splitlines():
        fields = line.split(None, 5)
        if len(fields) <= _PATH:
            continue
        _, _, _, device, inode, path = fields
        if fnmatchcase(path.rpartition("/")[2], pattern) and not path.endswith(_DELETED):
            yield f"{device} {inode}", path.lstrip("/")


def cgroup_of(pid: int, proc: Path = PROC) -> Path | None:
    """The directory of a process's control group (version 2); None in the root, which is everybody's."""
    for line in (proc / str(pid) / "cgroup").read_text().splitlines():
        number, _, name = line.split(":", 2)
        if number == "0" and name != "/" and (mount := next(iter(mounts("cgroup2", proc)), None)):
            return mount / name.lstrip("/")
    return None
