"""Requests too large for a destination, taken apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from otel_bridge.batch import Plan
from otel_bridge.errors import MalformedRequestError
from otel_bridge.model import Signal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from google.protobuf.message import Message
    from numpy.typing import NDArray
    from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric

    from otel_bridge.batch import Batch
    from otel_bridge.contracts import Codec

_NOTHING_WANTED = Plan(())
_FRAMING = 16
"""The most bytes that a record's tag and length, and the growth of its parents' lengths, add."""


@dataclass(frozen=True, slots=True)
class Part:
    """A request, or a piece of one.

    Attributes:
        items: spans, data points or log records in it.
        divisible: whether it can be taken apart further.
    """

    payload: bytes
    items: int
    divisible: bool = True


def split(signal: Signal, part: Part, limit: int, codec: Codec) -> list[Part]:
    """Pieces of at most `limit` bytes, in order; a single record above it stands alone, not divisible.

    Bytes that cannot be read come back as they are, not divisible.
    """
    try:
        if signal is Signal.TRACES:
            return list(_split_traces(part, limit, codec))
        return list(_split_messages(signal, part, limit))
    except (MalformedRequestError, DecodeError):
        return [Part(part.payload, part.items, divisible=False)]


def _split_traces(part: Part, limit: int, codec: Codec) -> Iterator[Part]:
    batch = codec.scan(part.payload, _NOTHING_WANTED)
    rows = np.flatnonzero(batch.spans["reject"] == 0)
    if not len(rows):
        yield Part(part.payload, part.items, divisible=False)
        return
    sizes = batch.spans["len"].astype(np.int64)
    # Resources and scopes are repeated in each piece that has spans of them: counting them all is safe.
    shared = len(part.payload) - int(sizes.sum())
    start = 0
    while start < len(rows):
        ends = np.cumsum(sizes[rows[start:]]) + shared
        count = max(int(np.searchsorted(ends, limit, side="right")), 1)
        if count == 1 and ends[0] > limit:
            # The estimate says no; the resources of this one span alone may still leave room for many.
            count = _most_that_fit(batch, rows[start:], limit)
        piece = rows[start : start + count]
        yield Part(_only(batch, piece), count, divisible=count > 1)
        start += count


def _most_that_fit(batch: Batch, rows: NDArray[np.intp], limit: int) -> int:
    """How many of the first rows, spliced out, stay within the limit; at least 1. Found by doubling."""
    count = 1
    while count * 2 <= len(rows) and len(_only(batch, rows[: count * 2])) <= limit:
        count *= 2
    return count


def _only(batch: Batch, rows: NDArray[np.intp]) -> bytes:
    mask = np.ones(len(batch.spans), np.bool_)
    mask[rows] = False
    batch.dropped = mask
    return batch.splice()


def _split_messages(signal: Signal, part: Part, limit: int) -> Iterator[Part]:
    """Metrics by metric, logs by log record; the first levels above are repeated in each piece."""
    if signal is Signal.METRICS:
        message_type: type[Message] = ExportMetricsServiceRequest
        resources, scopes, records = "resource_metrics", "scope_metrics", "metrics"
        count: Callable[[Any], int] = _data_points
    else:
        message_type = ExportLogsServiceRequest
        resources, scopes, records = "resource_logs", "scope_logs", "log_records"
        count = _one
    piece = message_type()
    size = items = held = 0
    whole = message_type.FromString(part.payload)
    for resource in getattr(whole, resources):
        resource_shell = _shell(resource, scopes)
        new_resource = True
        for scope in getattr(resource, scopes):
            scope_shell = _shell(scope, records)
            new_scope = True
            above = resource_shell.ByteSize() + scope_shell.ByteSize() + 2 * _FRAMING
            for record in getattr(scope, records):
                added = record.ByteSize() + _FRAMING + (above if new_resource or new_scope else 0)
                if held and size + added > limit:
                    yield Part(piece.SerializeToString(), items, divisible=held > 1)
                    piece, size, items, held = message_type(), 0, 0, 0
                    new_resource = new_scope = True
                    added = record.ByteSize() + _FRAMING + above
                if new_resource:
                    into_resource = getattr(piece, resources).add()
                    into_resource.CopyFrom(resource_shell)
                    new_scope = True
                if new_scope:
                    into_scope = getattr(into_resource, scopes).add()
                    into_scope.CopyFrom(scope_shell)
                new_resource = new_scope = False
                getattr(into_scope, records).append(record)
                size += added
                items += count(record)
                held += 1
    if held:
        yield Part(piece.SerializeToString(), items, divisible=held > 1)


def _shell(message: Message, field: str) -> Message:
    """The message without the records below it; unknown fields stay."""
    shell = type(message)()
    shell.CopyFrom(message)
    shell.ClearField(field)
    return shell


def _one(record: Message) -> int:
    del record
    return 1


def _data_points(metric: Metric) -> int:
    kind = metric.WhichOneof("data")
    return len(getattr(metric, kind).data_points) if kind else 0
