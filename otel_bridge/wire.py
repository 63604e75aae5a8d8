"""What little of protobuf's wire format is handled outside a codec: single fields, off the hot path."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_VARINT, _FIXED64, _SIZED, _FIXED32 = 0, 1, 2, 5
_MORE = 0x80


def sized_fields(data: bytes, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """The length-delimited fields of a checked message: number, begin and end of the content.

    Ends at a group, which OTLP has none of.
    """
    position = start
    while position < end:
        tag, position = _read_varint(data, position)
        wire_type = tag & 7
        if wire_type == _SIZED:
            size, position = _read_varint(data, position)
            yield tag >> 3, position, position + size
            position += size
        elif wire_type == _VARINT:
            _, position = _read_varint(data, position)
        elif wire_type in (_FIXED64, _FIXED32):
            position += 8 if wire_type == _FIXED64 else 4
        else:
            return


def sized(number: int, content: bytes) -> bytes:
    """A length-delimited field; numbers below 16."""
    return bytes((number << 3 | _SIZED,)) + varint(len(content)) + content


def varint(value: int) -> bytes:
    """A number in protobuf's variable length; not negative."""
    if value < _MORE:
        return bytes((value,))
    if value < _MORE << 7:
        return bytes((value & 0x7F | _MORE, value >> 7))
    out = bytearray()
    while value >= _MORE:
        out.append(value & 0x7F | _MORE)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < _MORE:
            return value, position
        shift += 7
