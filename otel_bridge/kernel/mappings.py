"""News of every file that any process maps to run code from, as the kernel gives them to profilers.

A "dummy" perf event on each CPU counts nothing; the kernel writes a record into its buffer whenever a
process maps a file executable: process, device, inode, name (perf_event_open(2): PERF_RECORD_MMAP2). So a
library that a process loads late is known at once, and while nothing is loaded nothing is done.

Opening takes CAP_PERFMON, as loading the probes does; reading takes nothing.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from otel_bridge.errors import BridgeError
from otel_bridge.libbpf.system_calls import PERF_ATTRIBUTES, perf_event_open

if TYPE_CHECKING:
    from collections.abc import Iterator

_TYPE_SOFTWARE, _SW_DUMMY = 1, 9
_MMAP, _WATERMARK, _MMAP2 = 1 << 8, 1 << 14, 1 << 23
_HEAD_AT = 1024  # in struct perf_event_mmap_page: data_head, data_tail
_RECORD_LOST, _RECORD_MMAP2 = 2, 10

_HEADER = struct.Struct("<IHH")
_POSITIONS = struct.Struct("<QQ")
_MMAP2_BODY = struct.Struct("<II24xIIQQ8x")  # pid, tid, …, major, minor, inode, generation, …
_NAME_AT = _HEADER.size + _MMAP2_BODY.size

PAGES = 32
"""Of each CPU's buffer: over a thousand records."""

Key = tuple[int, int, int, int]
"""Of a file: major and minor device number, inode, generation of the inode."""


class MappingsError(BridgeError):
    """The kernel gives no such news here; the text says why."""


@dataclass(frozen=True, slots=True)
class Mapped:
    """A process mapped a file.

    Attributes:
        pid: of the process, in this process's pid namespace.
        key: of the file.
        path: as the kernel names it.
    """

    pid: int
    key: Key
    path: str


class _Buffer:
    def __init__(self, fd: int, pages: int) -> None:
        self.fd = fd
        self._size = pages * mmap.PAGESIZE
        self._memory = mmap.mmap(fd, mmap.PAGESIZE + self._size)

    def take(self) -> bytes:
        """All records since the last time, in one piece."""
        head, tail = _POSITIONS.unpack_from(self._memory, _HEAD_AT)
        if head == tail:
            return b""
        first, last = tail % self._size, head % self._size
        data = memoryview(self._memory)[mmap.PAGESIZE :]
        taken = bytes(data[first:last]) if first < last else bytes(data[first:]) + bytes(data[:last])
        data.release()
        struct.pack_into("<Q", self._memory, _HEAD_AT + 8, head)
        return taken

    def close(self) -> None:
        self._memory.close()
        os.close(self.fd)


class MappingNews:
    """The buffers of all CPUs.

    Args:
        pages: of each buffer, a power of two.

    Attributes:
        lost: records that found no room since the last time `lost` was set to 0.

    Raises:
        MappingsError: refused, or not known on this machine.
    """

    def __init__(self, pages: int = PAGES) -> None:
        self.lost = 0
        self._buffers: list[_Buffer] = []
        try:
            for cpu in _online_cpus():
                self._buffers.append(_Buffer(_open(cpu), pages))
        except (OSError, ValueError) as error:
            self.close()
            raise MappingsError(f"no news of mapped files: {error}") from error
        except MappingsError:
            self.close()
            raise

    @property
    def fds(self) -> list[int]:
        """Readable when there is something."""
        return [buffer.fd for buffer in self._buffers]

    def take(self, dull: set[Key]) -> Iterator[Mapped]:
        """What was mapped since the last time, but for files that are in `dull`."""
        for buffer in self._buffers:
            yield from self._parse(buffer.take(), dull)

    def _parse(self, data: bytes, dull: set[Key]) -> Iterator[Mapped]:
        place = 0
        while place + _HEADER.size <= len(data):
            kind, _, size = _HEADER.unpack_from(data, place)
            if size < _HEADER.size:
                raise MappingsError(f"a record of {size} bytes")
            if kind == _RECORD_MMAP2:
                pid, _, *numbers = _MMAP2_BODY.unpack_from(data, place + _HEADER.size)
                key = (numbers[0], numbers[1], numbers[2], numbers[3])
                if numbers[2] and key not in dull:  # without an inode: [vdso] and the like
                    name = data[place + _NAME_AT : place + size].partition(b"\0")[0]
                    yield Mapped(pid, key, os.fsdecode(name))
            elif kind == _RECORD_LOST:
                self.lost += 1
            place += size

    def close(self) -> None:
        """Give the buffers back."""
        for buffer in self._buffers:
            buffer.close()
        self._buffers.clear()


def _online_cpus() -> list[int]:
    with open("/sys/devices/system/cpu/online") as file:  # noqa: PTH123 (a line of text)
        return list(_ranges(file.read()))


def _ranges(text: str) -> Iterator[int]:
    """The numbers of a list like "0-3,8"."""
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _open(cpu: int) -> int:
    attributes = bytearray(PERF_ATTRIBUTES)
    struct.pack_into("<IIQ", attributes, 0, _TYPE_SOFTWARE, PERF_ATTRIBUTES, _SW_DUMMY)
    struct.pack_into("<QI", attributes, 40, _MMAP | _MMAP2 | _WATERMARK, 1)  # wake up for a single byte
    try:
        return perf_event_open(attributes, cpu)
    except OSError as error:
        mend = ": that takes CAP_PERFMON" if error.errno in (errno.EACCES, errno.EPERM) else ""
        raise MappingsError(f"perf_event_open on CPU {cpu}: {error.strerror}{mend}") from error
