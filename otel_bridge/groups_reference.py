"""The kernels of `groups` in plain Python: what the native ones are held to, and used where those lack.

Same names, same bytes in and out as `_native.wire`; `groups` says what they mean.
"""

from __future__ import annotations

import math
import re
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_Column = tuple[bytes, bytes]
_Key = tuple[bytes, bytes, bytes]

_MAX_ID = 512
_SERVER = 2
_EVERY_ROLE = 3
_DOWN = 2
_TELLS, _FIRST_OF_CALL, _FIRST_OF_ID = 1, 2, 4
_SUFFIXED = re.compile(rb"(.*)[-_][0-9]{1,4}", re.DOTALL)


def _texts(data: bytes, added: bytes, column: _Column) -> list[bytes]:
    out = []
    for (off,), (length,) in zip(*(struct.iter_unpack("<I", part) for part in column), strict=False):
        text, at = (data, off) if off < len(data) else (added, off - len(data))
        out.append(text[at : at + length] if at + length <= len(text) else b"")
    return out


_ATTRIBUTE = struct.Struct("<q7I2x2B")
_STRING, _BOOL, _INT, _DOUBLE = 1, 2, 3, 4


def sent_values(records: bytes, rows: int, longest: int) -> tuple[bytes, bytes, bytes, int]:
    """Attribute records, spread over rows."""
    offs, lens, numbers = [0] * rows, [0] * rows, [math.nan] * rows
    found = 0
    for value, row, off, length, *_, kind, _ in _ATTRIBUTE.iter_unpack(records):
        if row >= rows:
            continue
        offs[row], lens[row], numbers[row] = 0, 0, math.nan
        if kind == _STRING:
            found |= 1
            offs[row], lens[row] = off, min(length, longest)
        elif kind in (_INT, _DOUBLE):
            found |= 2
            numbers[row] = float(value) if kind == _INT else _double(value)
        elif kind == _BOOL:
            found |= 4
    spread = (
        struct.pack(f"<{rows}I", *offs),
        struct.pack(f"<{rows}I", *lens),
        struct.pack(f"<{rows}d", *numbers),
    )
    return (*spread, found)


def _double(bits: int) -> float:
    value: float = struct.unpack("<d", struct.pack("<q", bits))[0]
    return value


class Cells:
    """Combinations of labels, numbered in the order in which they came."""

    def __init__(self) -> None:
        self._ids: dict[tuple[bytes, tuple[tuple[int, bytes], ...]], int] = {}

    def __len__(self) -> int:
        return len(self._ids)

    def assign(
        self, data: bytes, added: bytes, columns: Sequence[tuple[int, bytes, bytes]], codes: bytes, width: int
    ) -> bytes:
        """The number of each row's combination."""
        texts = [(label, _texts(data, added, (offs, lens))) for label, offs, lens in columns]
        out = bytearray()
        for row in range(len(codes) // width):
            found = tuple((label, column[row]) for label, column in texts if column[row])
            key = (codes[width * row : width * (row + 1)], found)
            out += struct.pack("<I", self._ids.setdefault(key, len(self._ids)))
        return bytes(out)

    def labels(self, number: int, _width: int) -> tuple[bytes, list[tuple[int, bytes]]] | None:
        """The codes of a combination, then its texts, each with its label."""
        for (codes, texts), known in self._ids.items():
            if known == number:
                return codes, list(texts)
        return None

    def clear(self) -> None:
        """Forget all; numbers begin anew."""
        self._ids.clear()


class Calls:
    """Recent calls, in two generations that hold half of the capacity each."""

    def __init__(self, capacity: int) -> None:
        self._half = max(capacity // 2, 1)
        self._marks: list[dict[_Key, int]] = [{}, {}]
        self._ids: list[set[tuple[int, int, bytes, bytes]]] = [set(), set()]
        self._traces: list[set[bytes]] = [set(), set()]

    def __len__(self) -> int:
        return sum(map(len, self._marks))

    def tell(  # noqa: PLR0917 (the native signature)
        self,
        traces: bytes,
        spans: bytes,
        parents: bytes,
        starts: bytes,
        ends: bytes,
        roles: bytes,
        data: bytes,
        added: bytes,
        services: _Column,
        ids: _Column,
    ) -> bytes:
        """For each span whether it tells of a call that no other told of."""
        service, name = _texts(data, added, services), _texts(data, added, ids)
        trace = [traces[at : at + 16] for at in range(0, len(traces), 16)]
        span, parent, start, end = (
            [column[at : at + 8] for at in range(0, len(column), 8)]
            for column in (spans, parents, starts, ends)
        )
        for row, role in enumerate(roles):
            if role:
                self._make_room()
                self._traces[0].add(trace[row])
        known = [row for row in range(len(roles)) if any(trace[row] in half for half in self._traces)]
        known.sort(key=lambda row: (_time(end[row]), -_time(start[row])))
        said = bytearray(len(roles))
        here: dict[tuple[int, int, bytes, bytes], int] = {}
        for row in known:
            role = roles[row]
            if not self._settle(trace[row], span[row], parent[row], service[row], role):
                continue
            said[row] = _TELLS | _FIRST_OF_CALL | _FIRST_OF_ID
            if not 0 < len(name[row]) <= _MAX_ID:
                continue
            if not self._fresh((_FIRST_OF_ID, role, service[row], name[row])):
                said[row] &= ~_FIRST_OF_ID
            call = (_FIRST_OF_CALL, role, service[row], _call_of(role, name[row]))
            if call in here:
                said[here[call]] &= ~_FIRST_OF_CALL
                here[call] = row
            elif self._fresh(call):
                here[call] = row
            else:
                said[row] &= ~_FIRST_OF_CALL
        return bytes(said)

    def _settle(self, trace: bytes, span: bytes, parent: bytes, service: bytes, role: int) -> bool:
        own, above = (trace, span, service), (trace, parent, service)
        root = not any(parent)
        marks = self._marks_of(own)
        if not root:
            marks |= self._marks_of(above) & _EVERY_ROLE << _DOWN
        tells = bool(role) and not marks & (role | role << _DOWN)
        self._mark(own, marks & _EVERY_ROLE << _DOWN | (role << _DOWN if tells else 0))
        if not root:
            self._mark(above, marks & _EVERY_ROLE | role)
        return tells

    def _marks_of(self, key: _Key) -> int:
        return self._marks[0].get(key, 0) | self._marks[1].get(key, 0)

    def _mark(self, key: _Key, bits: int) -> None:
        if self._marks_of(key) & bits != bits:
            self._make_room()
            self._marks[0][key] = self._marks[0].get(key, 0) | bits

    def _fresh(self, key: tuple[int, int, bytes, bytes]) -> bool:
        if key in self._ids[1]:
            return False
        self._make_room()
        if key in self._ids[0]:
            return False
        self._ids[0].add(key)
        return True

    def _make_room(self) -> None:
        if max(len(self._marks[0]), len(self._ids[0]), len(self._traces[0])) >= self._half:
            self._marks = [{}, self._marks[0]]
            self._ids = [set(), self._ids[0]]
            self._traces = [set(), self._traces[0]]


def _call_of(role: int, name: bytes) -> bytes:
    suffixed = _SUFFIXED.fullmatch(name) if role == _SERVER else None
    return suffixed[1] if suffixed else name


def _time(packed: bytes) -> int:
    return int.from_bytes(packed, "little")
