"""What breakers refuse, in memory that two processes map: one writes, the other reads without a lock.

A sequence number stands before the content, odd while it is being written. A reader that sees the number it
saw before is done; else it copies the content and takes it only if the number has not moved meanwhile.
Numbers are stored whole, eight bytes at once. The checksum, which the sequence number is part of, is for
machines that show another process writes out of order.
"""

from __future__ import annotations

import mmap
import zlib
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from pathlib import Path

SIZE = 1 << 20
_SEQUENCE, _LENGTH, _CHECKSUM = range(3)
_HEAD = 24
"""Bytes of these three numbers."""
_TRIES = 10
"""A writer that was interrupted half way is not waited for: what was there before goes on."""
TOO_LARGE: dict[str, Any] = {"ask": True, "breakers": {}}
"""What is told when all breakers together have no room: the bridge must be asked each time."""


class Writer:
    """The one that writes; makes the file."""

    def __init__(self, path: Path) -> None:
        with path.open("x+b") as file:
            file.truncate(SIZE)
            self._memory = mmap.mmap(file.fileno(), SIZE)
        self._numbers = memoryview(self._memory)[:_HEAD].cast("Q")
        self._sequence = 0
        self.write(TOO_LARGE)

    def write(self, content: dict[str, Any]) -> None:
        """Put something in the place of what was there; one thread at a time."""
        data = orjson.dumps(content)
        if len(data) > SIZE - _HEAD:
            data = orjson.dumps(TOO_LARGE)
        self._numbers[_SEQUENCE] = self._sequence + 1
        self._sequence += 2
        self._memory[_HEAD : _HEAD + len(data)] = data
        self._numbers[_LENGTH] = len(data)
        self._numbers[_CHECKSUM] = _checksum(data, self._sequence)
        self._numbers[_SEQUENCE] = self._sequence

    def close(self) -> None:
        """Unmap it."""
        self._numbers.release()
        self._memory.close()


class Reader:
    """One that reads."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._memory = mmap.mmap(file.fileno(), SIZE, prot=mmap.PROT_READ)
        self._numbers = memoryview(self._memory)[:_HEAD].cast("Q")
        self._seen = 0

    def read(self) -> dict[str, Any] | None:
        """The content, if it is another than last time and whole; None: go on with what you have."""
        if self._numbers[_SEQUENCE] == self._seen:
            return None
        for _ in range(_TRIES):
            sequence, length, checksum = self._numbers
            if sequence % 2 or length > SIZE - _HEAD:
                continue
            data = self._memory[_HEAD : _HEAD + length]
            if self._numbers[_SEQUENCE] == sequence and _checksum(data, sequence) == checksum:
                self._seen = sequence
                content: dict[str, Any] = orjson.loads(data)
                return content
        return None


def _checksum(data: bytes, sequence: int) -> int:
    return zlib.crc32(data, sequence & 0xFFFFFFFF)
