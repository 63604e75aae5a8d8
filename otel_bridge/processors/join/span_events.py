"""Kernel events as OTLP span events, written as bytes: most of what they say has been said before."""

from __future__ import annotations

import struct
from functools import lru_cache
from itertools import repeat
from typing import TYPE_CHECKING

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_bridge import catalog
from otel_bridge.model import Match
from otel_bridge.processors.join.schema import shown
from otel_bridge.wire import sized, varint

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from otel_bridge.processors.join.schema import Scalar, Shape

_COMMON = (
    ("duration", catalog.KERNEL_DURATION),
    ("error", catalog.KERNEL_ERROR),
    ("tgid", catalog.KERNEL_PID),
    ("tid", catalog.KERNEL_TID),
)
_TIME = struct.Struct("<BQ")
_TIME_TAG = Span.Event.TIME_UNIX_NANO_FIELD_NUMBER << 3 | 1
_NAMES = tuple(match.name.lower() for match in Match)
_REMEMBERED = 1 << 15
_LARGEST = (1 << 63) - 1  # of OTLP's integers; a user probe's may be larger


def write(shape: Shape, records: NDArray[np.void], matches: NDArray[np.uint8]) -> list[bytes]:
    """Each record as a field `events` of a Span, its tag included.

    Args:
        shape: of them all.
        records: of one kind.
        matches: how each one's span was found.
    """
    keys = [catalog.KERNEL_MATCH.key, *(attribute.key for _, attribute in _COMMON)]
    columns: list[list[Scalar | None]] = [[_NAMES[match] for match in matches.tolist()]]
    columns += [[value or None for value in records[field].tolist()] for field, _ in _COMMON]
    for field, attribute in shape.fields.items():
        keys.append(attribute.key)
        columns.append(shown(shape, field, records))
    name = sized(Span.Event.NAME_FIELD_NUMBER, shape.name.encode())
    times = [_TIME.pack(_TIME_TAG, time) for time in records["time"].tolist()]
    # Column by column, so that what is done for each event is done by functions written in C.
    attributes = (map(_attribute, repeat(key), column) for key, column in zip(keys, columns, strict=True))
    bodies = map(b"".join, zip(times, repeat(name), *attributes, strict=False))
    return [_head(len(body)) + body for body in bodies]


@lru_cache
def _head(length: int) -> bytes:
    return bytes((Span.EVENTS_FIELD_NUMBER << 3 | 2,)) + varint(length)


@lru_cache(_REMEMBERED)
def _attribute(key: str, value: Scalar | None) -> bytes:
    if value is None:
        return b""
    if isinstance(value, str):
        content = AnyValue(string_value=value)
    else:
        content = AnyValue(int_value=min(value, _LARGEST))
    return sized(Span.Event.ATTRIBUTES_FIELD_NUMBER, KeyValue(key=key, value=content).SerializeToString())
