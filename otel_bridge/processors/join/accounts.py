"""What the kernel saw of a batch's spans: added up as attributes, single occurrences as span events."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from otel_bridge import catalog
from otel_bridge.model import Match
from otel_bridge.processors.join import span_events
from otel_bridge.processors.join.schema import SHAPES, Fold, shapes_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from otel_bridge.processors.join.schema import Shape

_FOLDS = {summary.attribute.key: summary.fold for shape in SHAPES.values() for summary in shape.summaries}
SUMMARIES = (
    *{s.attribute.key: s.attribute for shape in SHAPES.values() for s in shape.summaries}.values(),
    catalog.KERNEL_CUDA_OUT_OF_MEMORY,
    catalog.KERNEL_USER_EVENTS,
    catalog.KERNEL_EVENTS_DROPPED,
)
"""Every attribute that a span may get."""


class Accounts:
    """Collects the events of a batch's spans.

    Attributes:
        match: the least exact match among each span's events, shape (spans,).
        hit: which spans had any.
        rows: the span of each of `events`.
        events: single occurrences, as fields of a Span.
    """

    def __init__(self, spans: int, max_events: int) -> None:
        self.match = np.full(spans, Match.THREAD, "u1")
        self.hit = np.zeros(spans, np.bool_)
        self.rows: list[int] = []
        self.events: list[bytes] = []
        self._max_events = max_events
        self._written = np.zeros(spans, np.int64)
        self._values: dict[str, NDArray[np.int64]] = {}

    def add(
        self, rows: NDArray[np.intp], records: NDArray[np.void], matches: NDArray[np.uint8], probe: str
    ) -> None:
        """Take events of one probe in.

        Args:
            rows: the span of each.
            records: the events.
            matches: how each one's span was found.
            probe: where they came from.
        """
        for shape, chosen in shapes_of(records, probe):
            if chosen.all():
                self._add(shape, rows, records, matches)
            elif chosen.any():
                self._add(shape, rows[chosen], records[chosen], matches[chosen])

    def _add(
        self,
        shape: Shape | None,
        rows: NDArray[np.intp],
        records: NDArray[np.void],
        matches: NDArray[np.uint8],
    ) -> None:
        self.hit[rows] = True
        if shape is None:
            return
        np.maximum.at(self.match, rows, matches)
        for summary in shape.summaries:
            key = summary.attribute.key
            if summary.fold is Fold.COUNT:
                self.fold(key, rows, np.ones(len(rows), np.int64))
            elif summary.field in (records.dtype.names or ()):
                self.fold(key, rows, records[summary.field].astype(np.int64))
        if shape.name:
            self._write(shape, rows, records, matches)

    def fold(self, key: str, rows: NDArray[np.integer], values: NDArray[np.int64]) -> None:
        """Work values of an attribute into what its spans have of it."""
        total = self._values.get(key)
        if total is None:
            total = self._values[key] = np.zeros(len(self.hit), np.int64)
        if _FOLDS.get(key) is Fold.MAX:
            np.maximum.at(total, rows, values)
        else:
            np.add.at(total, rows, values)

    def _write(
        self,
        shape: Shape,
        rows: NDArray[np.intp],
        records: NDArray[np.void],
        matches: NDArray[np.uint8],
    ) -> None:
        """Write the first occurrences of each span, and count those beyond."""
        order = np.argsort(rows, kind="stable")
        ordered = rows[order]
        # How many of the same span stand in front of each.
        first = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
        place = np.arange(len(ordered)) - np.repeat(first, np.diff(np.r_[first, len(ordered)]))
        kept = order[place + self._written[ordered] < self._max_events]
        kept.sort()
        np.add.at(self._written, rows[kept], 1)
        if len(kept) < len(rows):
            dropped = np.ones(len(rows), np.bool_)
            dropped[kept] = False
            beyond = rows[dropped]
            self.fold(catalog.KERNEL_EVENTS_DROPPED.key, beyond, np.ones(len(beyond), np.int64))
        self.rows += rows[kept].tolist()
        self.events += span_events.write(shape, records[kept], matches[kept])

    def summaries(self) -> Iterator[tuple[str, NDArray[np.intp], NDArray[np.int64]]]:
        """Attribute keys, with the spans that have them and their values; a sum of nothing is left out."""
        for key, values in self._values.items():
            rows = np.flatnonzero(values)
            if len(rows):
                yield key, rows, values[rows]
