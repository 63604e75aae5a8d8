"""The series of one metric: sums, buckets and exemplars in arrays, a row a series."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import numpy as np

from otel_bridge.buckets import OVERFLOW, Buckets, SeriesOfCells

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from otel_bridge.buckets import Outcome
    from otel_bridge.catalog import DerivedMetric

    Mask = NDArray[np.bool_]
    I8 = NDArray[np.int64]
    F8 = NDArray[np.float64]

_FIRST_ROWS = 16

_IDS = np.dtype([("trace_id", "V16"), ("span_id", "V8")])


class Exemplar(NamedTuple):
    """One observation of a bucket that can be looked at."""

    value: float
    time: int  # unix nanoseconds
    trace_id: bytes
    span_id: bytes


@dataclass(frozen=True, slots=True)
class Point:
    """One series at a moment.

    Attributes:
        labels: values by the metric's label keys; None for the overflow series.
        start: unix nanoseconds at which it began.
        counts: observations in each bucket, the last one without an upper bound.
        sum: of all observed values.
        exemplars: one a bucket, None where there is none.
    """

    labels: tuple[str, ...] | None
    start: int
    counts: list[int]
    sum: float
    exemplars: list[Exemplar | None]

    @property
    def count(self) -> int:
        """Of all observations."""
        return sum(self.counts)


class Observed(NamedTuple):
    """The spans of one request, as exemplars are taken from them.

    Attributes:
        spans: batch.SPAN records.
        cells: u4 of each of them, packed.
        ended: i8, when each ended, unix nanoseconds; never in the future.
        now: monotonic seconds.
        wall: unix nanoseconds.
    """

    spans: NDArray[np.void]
    cells: bytes
    ended: I8
    now: float
    wall: int


@dataclass(eq=False, slots=True)
class Reader:
    """An output, which is shown a new series at zero before its values.

    Prometheus's `increase()` sees a step only between two samples: what a series had when it was first
    scraped is lost to it. So each series is exposed at 0 when an output first sees it, and for `hold` seconds
    after that, in which further scrapers of the same output get their zero.
    """

    hold: float = 0.0


class Snapshot(NamedTuple):
    """The series of one metric, copied: what is slow about reading them needs no lock.

    Attributes:
        labels: of each series; None: the overflow.
        zero: which are shown at zero.
        starts: unix nanoseconds.
        sums: of observed values.
        counts: a column a bucket.
        worst: values of exemplars, a column a bucket, negative where there is none; no columns without them.
        worst_time: their unix nanoseconds.
        worst_ids: their trace and span ids.
    """

    labels: list[tuple[str, ...] | None]
    zero: NDArray[np.bool_]
    starts: NDArray[np.uint64]
    sums: F8
    counts: I8
    worst: F8
    worst_time: I8
    worst_ids: NDArray[np.void]

    def points(self) -> list[Point]:
        """Series by series."""
        buckets = self.counts.shape[1]
        nothing = [0] * buckets
        without: list[Exemplar | None] = [None] * buckets
        columns = zip(
            self.labels,
            self.zero.tolist(),
            self.starts.tolist(),
            self.sums.tolist(),
            self.counts.tolist(),
            self._exemplars() if self.worst.size else [without] * len(self.labels),
            strict=True,
        )
        return [
            Point(labels, start, nothing, 0.0, without)
            if at_zero
            else Point(labels, start, counts, total, exemplars)
            for labels, at_zero, start, total, counts, exemplars in columns
        ]

    def _exemplars(self) -> list[list[Exemplar | None]]:
        columns = zip(self.worst.tolist(), self.worst_time.tolist(), self.worst_ids.tolist(), strict=True)
        return [
            [
                Exemplar(value, time, *ids) if value >= 0 else None
                for value, time, ids in zip(*buckets, strict=True)
            ]
            for buckets in columns
        ]


class Namer(Protocol):
    """Who numbers cells; a reload brings another, while requests of the one before are still under way."""

    @property
    def count(self) -> int:
        """Of the cells that are numbered."""

    def labels(self, metric: DerivedMetric, cell: int, variant: str) -> tuple[str, ...]:
        """The values of a metric's labels in a cell, what is observed (`variant`) as the last where given."""


class Series:
    """All series of one metric.

    Args:
        metric: its catalog entry; a counter is a histogram without bounds whose sum is its value.
        limit: of series, not counting that of the overflow.
        exemplar_age: seconds after which an exemplar gives way to any other.
        exemplars: whether any are kept.
    """

    def __init__(
        self, metric: DerivedMetric, *, limit: int, exemplar_age: float, exemplars: bool = True
    ) -> None:
        self.metric = metric
        self.limit = limit
        self.exemplar_age = exemplar_age
        self.overflowed = 0
        self._buckets = Buckets(metric.buckets, exemplars=exemplars)
        self._kept = len(metric.buckets) + 1 if exemplars else 0
        self._starts = np.zeros(0, "<u8")
        self._live = np.zeros(0, np.bool_)
        self._worst_time = np.zeros((0, self._kept), "<i8")
        self._worst_ids = np.zeros((0, self._kept), _IDS)
        self._labels: list[tuple[str, ...] | None] = [None]
        self._row_of: dict[tuple[str, ...], int] = {}
        self._free: list[int] = []
        self._of_cell: WeakKeyDictionary[Namer, dict[str, SeriesOfCells]] = WeakKeyDictionary()
        self._shown: dict[Reader, F8] = {}
        self._grow(_FIRST_ROWS)

    @property
    def rows(self) -> int:
        """How many rows there is memory for."""
        return len(self._live)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays; label texts come on top."""
        arrays = (*self._arrays(), *self._shown.values())
        tables = sum(table.nbytes for table in self._tables())
        return self._buckets.nbytes + tables + sum(array.nbytes for array in arrays)

    def __len__(self) -> int:
        """How many series there are, that of the overflow included once it was used."""
        return int(np.count_nonzero(self._live))

    def observe(
        self,
        observed: Observed,
        mask: Mask,
        values: F8,
        namer: Namer,
        *,
        variant: str = "",
        largest: float = np.inf,
    ) -> tuple[int, int]:
        """Take one value of each of some spans; NaN is none.

        Args:
            observed: the request.
            mask: its spans that have a value.
            values: of all its spans.
            namer: who numbered the cells.
            variant: the value of the metric's last label, where that does not come from the cell.
            largest: that a value may be.

        Returns:
            How many values were refused: negative, and too large.
        """
        tables = self._of_cell.setdefault(namer, {})
        table = tables.get(variant)
        if table is None:
            table = tables[variant] = SeriesOfCells()
        found = self._observe(observed, mask, values, table, largest)
        if found.unknown:
            for cell in found.unknown:
                table.set(cell, self._row(namer.labels(self.metric, cell, variant), observed))
            found = self._observe(observed, mask, values, table, largest)
        self.overflowed += found.overflowed
        if len(found.rows):
            spans = observed.spans[found.rows]
            self._worst_time.reshape(-1)[found.buckets] = observed.ended[found.rows]
            ids = self._worst_ids.reshape(-1)
            ids["trace_id"][found.buckets] = spans["trace_id"]
            ids["span_id"][found.buckets] = spans["span_id"]
        return found.negative, found.too_large

    def _observe(
        self, observed: Observed, mask: Mask, values: F8, table: SeriesOfCells, largest: float
    ) -> Outcome:
        now = observed.now
        return self._buckets.observe(
            mask, observed.cells, values, table, largest=largest, now=now, oldest=now - self.exemplar_age
        )

    def forget_cells(self, namer: Namer) -> None:
        """Cells are numbered anew."""
        self._of_cell.pop(namer, None)

    def expire(self, before: float) -> int:
        """Let go of the series without an observation since `before` (monotonic seconds); how many."""
        rows = np.flatnonzero(self._live & (self._buckets.last() < before))
        if not len(rows):
            return 0
        for row in rows.tolist():
            labels = self._labels[row]
            if labels is not None:
                del self._row_of[labels]
                self._labels[row] = None
                self._free.append(row)
        self._buckets.clear(rows.tolist())
        for array in self._arrays():
            array[rows] = np.zeros((), array.dtype)
        # There is room again: what overflowed may get a series of its own.
        for table in self._tables():
            table.forget([*rows.tolist(), OVERFLOW])
        return len(rows)

    def snapshot(self, reader: Reader, now: float) -> Snapshot:
        """All series as an output is to see them now; one that is new to it is at zero."""
        shown = np.full(self.rows, np.nan)
        before = self._shown.get(reader, shown)
        shown[: len(before)] = before
        shown[~self._live] = np.nan
        fresh = self._live & np.isnan(shown)
        shown[fresh] = now
        self._shown[reader] = shown
        return self._snapshot(fresh | (now - shown < reader.hold))

    def final_snapshot(self) -> Snapshot:
        """All series with their values, also those that were never shown at zero."""
        return self._snapshot(np.zeros(self.rows, np.bool_))

    def _snapshot(self, zero: NDArray[np.bool_]) -> Snapshot:
        rows = np.flatnonzero(self._live)
        sums, counts, worst = self._buckets.read()
        return Snapshot(
            [self._labels[row] for row in rows.tolist()],
            zero[rows],
            self._starts[rows],
            sums[rows],
            counts[rows],
            worst[rows],
            self._worst_time[rows],
            self._worst_ids[rows],
        )

    def _tables(self) -> Iterator[SeriesOfCells]:
        for variants in self._of_cell.values():
            yield from variants.values()

    def _row(self, key: tuple[str, ...], observed: Observed) -> int:
        row = self._row_of.get(key)
        if row is not None:
            return row
        if len(self._row_of) >= self.limit:
            row = OVERFLOW
        elif self._free:
            row = self._free.pop()
        else:
            row = len(self._labels)
            self._labels.append(None)
            if row >= self.rows:
                self._grow(min(2 * row, self.limit + 1))
        if row != OVERFLOW:
            self._labels[row] = key
            self._row_of[key] = row
        if not self._live[row]:
            self._live[row] = True
            self._starts[row] = observed.wall
        return row

    def _arrays(self) -> tuple[NDArray[Any], ...]:
        return self._starts, self._live, self._worst_time, self._worst_ids

    def _grow(self, rows: int) -> None:
        more = rows - self.rows
        self._buckets.grow(rows)
        self._starts, self._live, self._worst_time, self._worst_ids = (
            np.concatenate([one, np.zeros((more, *one.shape[1:]), one.dtype)]) for one in self._arrays()
        )
