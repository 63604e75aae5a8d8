"""Which event an attribute stands in: columns say the span, a key like "content" means something by event."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_bridge.batch import Batch

_SPAN_EVENTS = 11
_EVENT_NAME = 2
_VARINT, _FIXED64, _SIZED, _FIXED32 = 0, 1, 2, 5


def event_names(batch: Batch, records: NDArray[np.void]) -> list[bytes | None]:
    """For each EVENT record the name of its event; None where that cannot be told."""
    names: list[bytes | None] = [None] * len(records)
    for row in np.unique(records["row"]):
        span = batch.spans[row]
        events = _events(batch.data, int(span["body"]), int(span["off"]) + int(span["len"]))
        for index in np.flatnonzero(records["row"] == row):
            at = int(records["kv_off"][index])
            names[index] = next((name for start, end, name in events if start <= at < end), None)
    return names


def _events(data: bytes, start: int, end: int) -> list[tuple[int, int, bytes]]:
    """Where a span's events lie, and their names."""
    return [
        (first, last, next((data[a:b] for n, a, b in _fields(data, first, last) if n == _EVENT_NAME), b""))
        for number, first, last in _fields(data, start, end)
        if number == _SPAN_EVENTS
    ]


def _fields(data: bytes, position: int, end: int) -> list[tuple[int, int, int]]:
    """The length-delimited fields of a message: number, begin and end of the content."""
    found: list[tuple[int, int, int]] = []
    while position < end:
        tag, position = _varint(data, position)
        wire = tag & 7
        if wire == _SIZED:
            size, position = _varint(data, position)
            found.append((tag >> 3, position, position + size))
            position += size
        elif wire == _VARINT:
            _, position = _varint(data, position)
        elif wire == _FIXED64:
            position += 8
        elif wire == _FIXED32:
            position += 4
        else:
            break  # a group: whatever comes after it is not told apart
    return found


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004 (the last byte of a varint)
            return value, position
        shift += 7
