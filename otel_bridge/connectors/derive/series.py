"""The series of one metric: sums, buckets and exemplars in arrays, a row a series."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from otel_bridge.catalog import DerivedMetric

    I8 = NDArray[np.int64]
    F8 = NDArray[np.float64]

OVERFLOW = 0
"""The row of the series that takes what exceeds the limit."""
_UNKNOWN = -1
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
        ended: i8, when each ended, unix nanoseconds; never in the future.
        now: monotonic seconds.
        wall: unix nanoseconds.
    """

    spans: NDArray[np.void]
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
        self._bounds = np.array(metric.buckets, "<f8")
        self._buckets = len(metric.buckets) + 1
        self._kept = self._buckets if exemplars else 0
        # Arrays of their own for each field: only those are added to without being copied.
        self._sums = np.zeros(0, "<f8")
        self._last = np.zeros(0, "<f8")
        self._starts = np.zeros(0, "<u8")
        self._live = np.zeros(0, np.bool_)
        self._counts = np.zeros((0, self._buckets), "<i8")
        self._worst = np.zeros((0, self._kept), "<f8")
        self._worst_seen = np.zeros((0, self._kept), "<f8")
        self._worst_time = np.zeros((0, self._kept), "<i8")
        self._worst_ids = np.zeros((0, self._kept), _IDS)
        self._labels: list[tuple[str, ...] | None] = [None]
        self._row_of: dict[tuple[str, ...], int] = {}
        self._free: list[int] = []
        self._of_cell: WeakKeyDictionary[Namer, dict[str, I8]] = WeakKeyDictionary()
        self._shown: dict[Reader, F8] = {}
        self._grow(_FIRST_ROWS)

    @property
    def rows(self) -> int:
        """How many rows there is memory for."""
        return len(self._live)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays; label texts come on top."""
        arrays = (*self._arrays(), *self._tables(), *self._shown.values())
        return sum(array.nbytes for array in arrays)

    def __len__(self) -> int:
        """How many series there are, that of the overflow included once it was used."""
        return int(np.count_nonzero(self._live))

    def observe(
        self,
        observed: Observed,
        rows: I8,
        cells: I8,
        values: F8,
        namer: Namer,
        *,
        variant: str = "",
    ) -> None:
        """Take one value of each of some spans.

        Args:
            observed: the request.
            rows: its spans.
            cells: the cell of each of them.
            values: what is observed; finite.
            namer: who numbered the cells.
            variant: the value of the metric's last label, where that does not come from the cell.
        """
        if not len(rows):
            return
        series = self._series(cells, namer, variant, observed)
        self._last[series] = observed.now
        np.add.at(self._sums, series, values)
        places = series * self._buckets + self._bounds.searchsorted(values)
        np.add.at(self._counts.reshape(-1), places, 1)
        if self._kept:
            self._exemplify(observed, rows, places, values)

    def forget_cells(self, namer: Namer) -> None:
        """Cells are numbered anew."""
        self._of_cell.pop(namer, None)

    def expire(self, before: float) -> int:
        """Let go of the series without an observation since `before` (monotonic seconds); how many."""
        rows = np.flatnonzero(self._live & (self._last < before))
        if not len(rows):
            return 0
        for row in rows.tolist():
            labels = self._labels[row]
            if labels is not None:
                del self._row_of[labels]
                self._labels[row] = None
                self._free.append(row)
        for array in self._arrays():
            array[rows] = np.zeros((), array.dtype)
        self._worst[rows] = -np.inf
        # There is room again: what overflowed may get a series of its own.
        gone = np.zeros(self.rows + 1, np.bool_)
        gone[[*rows, OVERFLOW, _UNKNOWN]] = True
        for table in self._tables():
            table[gone[table]] = _UNKNOWN
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
        return Snapshot(
            [self._labels[row] for row in rows.tolist()],
            zero[rows],
            self._starts[rows],
            self._sums[rows],
            self._counts[rows],
            self._worst[rows],
            self._worst_time[rows],
            self._worst_ids[rows],
        )

    def _tables(self) -> Iterator[I8]:
        for variants in self._of_cell.values():
            yield from variants.values()

    def _series(self, cells: I8, namer: Namer, variant: str, observed: Observed) -> I8:
        tables = self._of_cell.setdefault(namer, {})
        table = tables.get(variant)
        if table is None or namer.count > len(table):
            grown = np.full(2 * namer.count, _UNKNOWN, "<i8")
            if table is not None:
                grown[: len(table)] = table
            table = tables[variant] = grown
        series: I8 = table[cells]
        if series.min() < 0:
            for cell in np.unique(cells[series < 0]).tolist():
                table[cell] = self._row(namer.labels(self.metric, cell, variant), observed)
            series = table[cells]
        self.overflowed += int(np.count_nonzero(series == OVERFLOW))
        return series

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
        return (
            self._sums,
            self._last,
            self._starts,
            self._live,
            self._counts,
            self._worst,
            self._worst_seen,
            self._worst_time,
            self._worst_ids,
        )

    def _grow(self, rows: int) -> None:
        more = rows - self.rows
        grown = [np.concatenate([one, np.zeros((more, *one.shape[1:]), one.dtype)]) for one in self._arrays()]
        self._sums, self._last, self._starts, self._live = grown[:4]
        self._counts, self._worst, self._worst_seen, self._worst_time, self._worst_ids = grown[4:]
        self._worst[-more:] = -np.inf

    def _exemplify(self, observed: Observed, rows: I8, places: I8, values: F8) -> None:
        """Keep the worst recent span of each bucket."""
        worst, seen = self._worst.reshape(-1), self._worst_seen.reshape(-1)
        better = np.flatnonzero((values > worst[places]) | (seen[places] < observed.now - self.exemplar_age))
        if not len(better):
            return
        order = better[np.lexsort((values[better], places[better]))]
        at = places[order]
        last = np.append(at[1:] != at[:-1], [True])
        chosen, at = order[last], at[last]
        spans = observed.spans[rows[chosen]]
        worst[at], seen[at] = values[chosen], observed.now
        self._worst_time.reshape(-1)[at] = observed.ended[rows[chosen]]
        ids = self._worst_ids.reshape(-1)
        ids["trace_id"][at] = spans["trace_id"]
        ids["span_id"][at] = spans["span_id"]
