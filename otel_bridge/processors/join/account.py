"""What the kernel saw of one span: single occurrences as span events, everything added up as attributes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_bridge import catalog
from otel_bridge.model import Match
from otel_bridge.processors.join.schema import SHAPES, Fold, Scalar, shape_of, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

    from otel_bridge.processors.join.schema import Shape

_FOLDS = {summary.attribute.key: summary.fold for shape in SHAPES.values() for summary in shape.summaries}
SUMMARIES = (
    *{s.attribute.key: s.attribute for shape in SHAPES.values() for s in shape.summaries}.values(),
    catalog.KERNEL_CUDA_OUT_OF_MEMORY,
    catalog.KERNEL_USER_EVENTS,
    catalog.KERNEL_EVENTS_DROPPED,
)
"""Every attribute that a span may get."""


class Account:
    """Collects the events of one span.

    Attributes:
        events: the single occurrences, as OTLP span events.
        match: the least exact match among all events.
    """

    def __init__(self, max_events: int) -> None:
        self.events: list[Span.Event] = []
        self.match = Match.THREAD
        self._max_events = max_events
        self._dropped = 0
        self._values: dict[str, int] = {}

    def add(self, record: np.void, match: Match, probe: str) -> None:
        """Take an event in."""
        shape = shape_of(record, probe)
        if shape is None:
            return
        self.match = max(self.match, match)
        for summary in shape.summaries:
            key = summary.attribute.key
            value = 1 if summary.fold is Fold.COUNT else int(record[summary.field])
            self._values[key] = self.fold(key, value, [self._values[key]] if key in self._values else [])
        if not shape.name:
            return
        if len(self.events) < self._max_events:
            self.events.append(_event(shape, record, match))
        else:
            self._dropped += 1

    def summary(self) -> dict[str, int]:
        """Attribute keys and values; a sum of nothing says nothing and is left out."""
        values = {key: value for key, value in self._values.items() if value}
        if self._dropped:
            values[catalog.KERNEL_EVENTS_DROPPED.key] = self._dropped
        return values

    @staticmethod
    def fold(key: str, value: int, others: list[int]) -> int:
        """One value out of several of one attribute."""
        if _FOLDS.get(key) is Fold.MAX:
            return max(value, *others) if others else value
        return value + sum(others)


def _event(shape: Shape, record: np.void, match: Match) -> Span.Event:
    return Span.Event(
        time_unix_nano=int(record["time"]),
        name=shape.name,
        attributes=[KeyValue(key=key, value=_any(value)) for key, value in _attributes(shape, record, match)],
    )


def _attributes(shape: Shape, record: np.void, match: Match) -> Iterator[tuple[str, Scalar]]:
    yield catalog.KERNEL_MATCH.key, match.name.lower()
    for field, attribute in (
        ("duration", catalog.KERNEL_DURATION),
        ("error", catalog.KERNEL_ERROR),
        ("tgid", catalog.KERNEL_PID),
        ("tid", catalog.KERNEL_TID),
    ):
        if record[field]:
            yield attribute.key, int(record[field])
    for field, attribute in shape.fields.items():
        value = shown(field, record)
        if value is not None:
            yield attribute.key, value


def _any(value: Scalar) -> AnyValue:
    return AnyValue(string_value=value) if isinstance(value, str) else AnyValue(int_value=value)
