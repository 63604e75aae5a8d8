"""Shares, rates, means and quantiles over a sliding window, for all groups of one condition at once.

A window slides in steps: of its length's sixtieth, or coarser where a change is compared over a long time.
A group costs the same memory whatever passes through it. A quantile needs no values either: by nearest rank
"the quantile is above x" says that more than so many of n values are above x.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from otel_bridge.columns import any_of
from otel_bridge.rules.terms import OPERATORS, Comparison, Dimension, in_unit

if TYPE_CHECKING:
    from numpy.typing import NDArray

STEPS = 60
"""Steps of a window."""
MOST_STEPS = 600
"""Steps of a window and of what it is compared with."""

FALSE, TRUE, UNKNOWN = 0, 1, -1

_HITS, _ITEMS, _SUM = 0, 1, 2


class Level:
    """What one condition has seen, by group.

    Args:
        computes: "ratio", "rate", "mean", "quantile" or "delta".
        settings: of the language.
        window: nanoseconds.
        unit: of the field that is added up or tested; "{hit}" where hits are counted.

    Attributes:
        step: nanoseconds between two places where the window may end.
        steps: of the window.
        covers: nanoseconds that are looked at, what the window is compared with included.
        needs_all: whether there is no answer before all of that time was watched.
    """

    def __init__(self, computes: str, settings: Any, window: int, unit: str) -> None:
        self._computes = computes
        self._settings = settings
        against = round(getattr(settings, "against", 0.0) * 1e9)
        self.step = max(1, window // STEPS, -(-(window + against) // MOST_STEPS))
        self.steps = max(1, round(window / self.step))
        self._before = -(-against // self.step)
        self.covers = (self.steps + self._before) * self.step
        self._head = 0
        self._end = 0
        self._sums = np.zeros((3, 1, self.steps + self._before))
        # What the window and the time before it hold; made anew when the window moves.
        self._now = np.zeros((3, 1))
        self._earlier = np.zeros((3, 1))
        self._free: list[int] = []
        self._rows = 0
        self._threshold = _threshold(computes, settings, unit)
        self.needs_all = computes == "delta" or (computes == "rate" and settings.is_.operator in ("<", "<="))

    def new_row(self) -> int:
        """A row for a group."""
        if self._free:
            return self._free.pop()
        if self._rows == self._sums.shape[1]:
            self._sums, self._now, self._earlier = (
                np.concatenate([part, np.zeros_like(part)], axis=1)
                for part in (self._sums, self._now, self._earlier)
            )
        self._rows += 1
        return self._rows - 1

    def free_row(self, row: int) -> None:
        """Give a group's row back."""
        for part in (self._sums, self._now, self._earlier):
            part[:, row] = 0.0
        self._free.append(row)

    def clear(self) -> None:
        """Forget all that was seen; groups keep their rows."""
        for part in (self._sums, self._now, self._earlier):
            part[:] = 0.0
        self._head = self._end = 0

    def take_over(self, other: Level) -> None:
        """Go on with what the same condition has seen elsewhere."""
        self._sums, self._head, self._end = other._sums, other._head, other._end
        self._now, self._earlier = other._now, other._earlier
        self._free, self._rows = other._free, other._rows

    def move_to(self, time: int) -> None:
        """Let the window end at a time, unless it already ends later."""
        head = time // self.step
        if self._head and head > self._head:
            size = self._sums.shape[2]
            gone = np.arange(self._head + 1, min(head, self._head + size) + 1) % size
            self._sums[:, :, gone] = 0.0
        if head > self._head:
            self._head = head
            self._add_up()
        self._end = max(time, self._end)

    def _add_up(self) -> None:
        size = self._sums.shape[2]
        now = np.arange(self._head - self.steps + 1, self._head + 1) % size
        self._now = self._sums[:, :, now].sum(axis=2)
        if self._before:
            self._earlier = self._sums.sum(axis=2) - self._now

    @property
    def head(self) -> int:
        """The step in which the window ends."""
        return self._head

    @property
    def _seconds(self) -> float:
        """How long the window is now: its last step has only begun."""
        begun = (self._head - self.steps + 1) * self.step
        return max(self._end - begun, self.step) / 1e9

    def idle(self, row: int) -> bool:
        """Whether nothing of a group lies in what is looked at."""
        return not self._sums[_ITEMS, row].any()

    def add(
        self,
        rows: NDArray[np.intp],
        times: NDArray[np.int64],
        hits: NDArray[np.bool_],
        values: NDArray[np.float64] | None,
    ) -> None:
        """Take in items that count, each with its group's row; `values` is the field that is added up."""
        buckets = times // self.step
        size = self._sums.shape[2]
        if self._add_alike(rows, buckets, hits, values):
            return
        fresh = (buckets > self._head - size) & (buckets <= self._head)
        if not fresh.all():
            rows, buckets, hits = rows[fresh], buckets[fresh], hits[fresh]
            values = None if values is None else values[fresh]
        place = (rows, buckets % size)
        weights = [hits.astype(np.float64), np.ones(len(rows))]
        if values is not None:
            weights.append(np.where(hits, values, 0.0))
        in_window = buckets > self._head - self.steps
        groups = self._now.shape[1]
        for which, weight in enumerate(weights):
            np.add.at(self._sums[which], place, weight)
            inside = np.bincount(rows, weight * in_window, groups)
            self._now[which] += inside
            if self._before:
                self._earlier[which] += np.bincount(rows, weight, groups) - inside

    def _add_alike(
        self,
        rows: NDArray[np.intp],
        buckets: NDArray[np.int64],
        hits: NDArray[np.bool_],
        values: NDArray[np.float64] | None,
    ) -> bool:
        """Take in items of one group and one step, as most batches are; False where they are not."""
        row, bucket = rows[0], buckets[0]
        if any_of(buckets != bucket) or any_of(rows != row):
            return False
        size = self._sums.shape[2]
        if not self._head - size < bucket <= self._head:
            return True
        amounts = [float(np.count_nonzero(hits)), float(len(rows))]
        if values is not None:
            amounts.append(float(values[hits].sum()))
        into = self._now if bucket > self._head - self.steps else self._earlier
        for which, amount in enumerate(amounts):
            self._sums[which, row, bucket % size] += amount
            into[which, row] += amount
        return True

    def truth(self, rows: NDArray[np.intp]) -> NDArray[np.int8]:
        """For each group's row whether the condition holds now: TRUE, FALSE, UNKNOWN."""
        now = self._now[:, rows]
        if self._computes == "delta":
            return self._changed(now, self._earlier[:, rows])
        return self._compared(*now)

    def _compared(
        self, hits: NDArray[np.float64], items: NDArray[np.float64], total: NDArray[np.float64]
    ) -> NDArray[np.int8]:
        settings = self._settings
        if self._computes == "rate":
            amount = hits if settings.of is None else total
            return self._holds(amount / self._seconds, np.ones(len(hits), np.bool_))
        if self._computes == "ratio":
            return self._holds(_divided(hits, items), items >= settings.at_least)
        if self._computes == "mean":
            return self._holds(_divided(total, hits), hits >= settings.at_least)
        # Of `items`, `hits` are above (or at least at) the threshold: `quantile_test` decides which.
        rank = np.ceil(settings.q * items)
        above = hits >= items - rank + 1
        truth = above if settings.is_.operator in (">", ">=") else ~above
        known = items >= settings.at_least
        return np.where(known, truth.astype(np.int8), UNKNOWN).astype(np.int8)

    def _changed(self, now: NDArray[np.float64], before: NDArray[np.float64]) -> NDArray[np.int8]:
        settings = self._settings
        enough = (now[_HITS] >= settings.at_least) & (before[_HITS] >= settings.at_least)
        if settings.stat == "mean":
            new, old = _divided(now[_SUM], now[_HITS]), _divided(before[_SUM], before[_HITS])
        else:
            which = _HITS if settings.of is None else _SUM
            new = now[which] / self._seconds
            old = before[which] / (self._before * self.step / 1e9)
            # A rate may fall to nothing; what must be there is the time before.
            enough = before[_HITS] >= settings.at_least
        if settings.is_.quantity.dimension is Dimension.PERCENT:
            return self._holds(_divided(new - old, np.abs(old)), enough & (old != 0))
        return self._holds(new - old, enough)

    def _holds(self, values: NDArray[np.float64], known: NDArray[np.bool_]) -> NDArray[np.int8]:
        truth = OPERATORS[self._settings.is_.operator](values, self._threshold)
        return np.where(known, truth.astype(np.int8), UNKNOWN).astype(np.int8)


def _divided(above: NDArray[np.float64], below: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.divide(above, below, out=np.zeros_like(above), where=below != 0)


def _threshold(computes: str, settings: Any, unit: str) -> float:
    if computes == "ratio" or (computes == "delta" and settings.is_.quantity.dimension is Dimension.PERCENT):
        return in_unit(settings.is_.quantity, "1")
    return in_unit(settings.is_.quantity, unit)


def quantile_test(comparison: Comparison) -> str:
    """Which values to count for a quantile: those ">" or ">=" the threshold.

    Of n sorted values the one at place r = ⌈q·n⌉ is above x if, and only if, n - r + 1 values are above x.
    """
    return ">" if comparison.operator in (">", "<=") else ">="
