"""What breakers refuse, in memory that two processes map: one writes, the other reads without a lock.

A sequence number stands before the content, odd while it is being written. A reader that sees the number it
saw before is done; else it copies the content and takes it only if the number has not moved meanwhile. The
checksum is for machines that show another process writes out of order.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from pathlib import Path

SIZE = 1 << 20
_HEAD = struct.Struct("<QQI4x")
_TRIES = 1000
TOO_LARGE: dict[str, Any] = {"ask": True, "breakers": {}}
"""What is told when all breakers together have no room: the bridge must be asked each time."""


class Writer:
    """The one that writes; makes the file."""

    def __init__(self, path: Path) -> None:
        with path.open("x+b") as file:
            file.truncate(SIZE)
            self._memory = mmap.mmap(file.fileno(), SIZE)
        self._sequence = 0
        self.write({"ask": True, "breakers": {}})

    def write(self, content: dict[str, Any]) -> None:
        """Put something in the place of what was there; one thread at a time."""
        data = orjson.dumps(content)
        if len(data) > SIZE - _HEAD.size:
            data = orjson.dumps(TOO_LARGE)
        self._put(self._sequence + 1, b"")
        self._memory[_HEAD.size : _HEAD.size + len(data)] = data
        self._sequence += 2
        self._put(self._sequence, data)

    def _put(self, sequence: int, data: bytes) -> None:
        _HEAD.pack_into(self._memory, 0, sequence, len(data), zlib.crc32(data))

    def close(self) -> None:
        """Unmap it."""
        self._memory.close()


class Reader:
    """One that reads."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._memory = mmap.mmap(file.fileno(), SIZE, prot=mmap.PROT_READ)
        self._numbers = memoryview(self._memory)[:8].cast("Q")
        self._seen = 0

    def read(self) -> dict[str, Any] | None:
        """The content, if it is another than last time and whole; None: go on with what you have."""
        if self._numbers[0] == self._seen:
            return None
        for _ in range(_TRIES):
            sequence, length, checksum = _HEAD.unpack_from(self._memory)
            if sequence % 2 or length > SIZE - _HEAD.size:
                continue
            data = self._memory[_HEAD.size : _HEAD.size + length]
            if self._numbers[0] == sequence and zlib.crc32(data) == checksum:
                self._seen = sequence
                content: dict[str, Any] = orjson.loads(data)
                return content
        return None
