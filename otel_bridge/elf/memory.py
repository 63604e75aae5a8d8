"""The memory of another process: what is mapped where, and the bytes at an address."""

from __future__ import annotations

import os
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from otel_bridge.errors import BridgeError
from otel_bridge.mounts import PROC

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType


class UnreadableError(BridgeError):
    """There is nothing to read at an address."""


@dataclass(frozen=True, slots=True)
class Mapping:
    """One line of /proc/PID/maps.

    Attributes:
        start: first address.
        end: the address after the last.
        permissions: as in "r-xp".
        offset: bytes into the file.
        device: of the file, "major:minor" in hexadecimal digits.
        inode: of the file; 0 for anonymous memory.
        path: the file, or a name in brackets, or nothing.
    """

    start: int
    end: int
    permissions: str
    offset: int
    device: str
    inode: int
    path: str


class ProcessMemory:
    """Reads one process for as long as it is open; the process runs on meanwhile.

    Args:
        pid: a process, numbered as in the pid namespace that `proc` belongs to.
        proc: where procfs is mounted.

    Raises:
        ProcessLookupError: the process is gone, or has no memory (a kernel thread, a zombie).
        PermissionError: its memory may not be read: that takes the same user, or CAP_SYS_PTRACE.
    """

    def __init__(self, pid: int, proc: Path = PROC) -> None:
        folder = proc / str(pid)
        try:
            self._memory = os.open(folder / "mem", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise ProcessLookupError(f"there is no process {pid}") from error
        try:
            self.mappings = _mappings((folder / "maps").read_text("utf-8", "surrogateescape"), pid)
        except BaseException:
            self.close()
            raise
        self._starts = [mapping.start for mapping in self.mappings]

    def read(self, address: int, size: int) -> bytes:
        """Exactly `size` bytes.

        Raises:
            UnreadableError: some of them are not mapped.
        """
        if not 0 <= address < 1 << 63:
            raise UnreadableError(f"{address:#x} is no address of a process")
        try:
            data = os.pread(self._memory, size, address)
        except OSError as error:
            raise UnreadableError(f"nothing to read at {address:#x}: {error.strerror}") from error
        if len(data) != size:
            raise UnreadableError(f"{size} bytes at {address:#x} wanted, {len(data)} are mapped")
        return data

    def mapping_at(self, address: int) -> Mapping | None:
        """The mapping that an address lies in."""
        index = bisect_right(self._starts, address) - 1
        if index < 0 or address >= self.mappings[index].end:
            return None
        return self.mappings[index]

    def close(self) -> None:
        """Let go of the process."""
        os.close(self._memory)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _mappings(text: str, pid: int) -> list[Mapping]:
    if not text:
        raise ProcessLookupError(f"process {pid} has no memory: a kernel thread, or just gone")
    return [_mapping(line) for line in text.rstrip("\n").split("\n")]


def _mapping(line: str) -> Mapping:
    fields = line.split(maxsplit=5)
    start, _, end = fields[0].partition("-")
    return Mapping(
        start=int(start, 16),
        end=int(end, 16),
        permissions=fields[1],
        offset=int(fields[2], 16),
        device=fields[3],
        inode=int(fields[4]),
        path=fields[5] if len(fields) > 5 else "",  # noqa: PLR2004 - proc(5): anonymous memory has no sixth field
    )
