"""How many items a request has: where they stand, and the counting that the native one is held to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from otel_bridge.model import Signal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ITEMS: Mapping[Signal, Sequence[Sequence[int]]] = {
    Signal.TRACES: ((1,), (2,), (2,)),
    Signal.METRICS: ((1,), (2,), (2,), (5, 7, 9, 10, 11), (1,)),
    Signal.LOGS: ((1,), (2,), (2,)),
}
"""The fields that lead from a request to its spans, data points and log records, level by level.

Resource, scope, item; a metric's points are one level further down, in the field of its kind.
"""

_SIZED = 2


def count_items(data: bytes, path: Sequence[Sequence[int]]) -> int:
    """Messages at the end of the path; a message that cannot be read counts nothing."""
    if not path:
        return 1
    wanted, *below = path
    try:
        # A message that knows no field keeps them all, one level of them read.
        fields = UnknownFieldSet(Empty.FromString(data))
    except DecodeError:
        return 0
    found = 0
    for place in range(len(fields)):
        field = fields[place]
        if field.wire_type == _SIZED and field.field_number in wanted:
            found += count_items(field.data, below)
    return found
