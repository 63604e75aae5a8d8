"""When a plain, counted or consecutive condition was completed, in whatever order its items arrive."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

FORGET_EVERY = 256
"""Times that a group keeps for one condition before it looks for old ones."""
KEPT = 10_000
"""Hits, and items between them, that a group keeps at most for one condition."""


class Occurrences:
    """Hits in event time, and the completions that they make.

    A completion is an interval [start, end] of `needed` hits, the last one at `end`. Both ends grow from one
    completion to the next, so the latest one that ended by some time also has the latest start.

    Args:
        needed: how many hits make a completion.
        consecutive: whether nothing but hits may lie between them. An item at the very time of a hit is
            between it and its neighbours.
    """

    __slots__ = ("_consecutive", "_limit", "_misses", "_needed", "_runs", "ends", "hits", "starts")

    def __init__(self, needed: int, *, consecutive: bool) -> None:
        self._needed = needed
        self._consecutive = consecutive
        self._limit = FORGET_EVERY
        self._misses: list[int] = []
        self._runs: list[int] = []
        self.hits: list[int] = []
        self.starts: list[int] = []
        self.ends: list[int] = []

    def hit(self, time: int) -> bool:
        """Take in a hit; whether it may have made a completion."""
        if self.hits and time < self.hits[-1]:
            insort(self.hits, time)
            self._rebuild()
            return True
        self.hits.append(time)
        return self._complete(len(self.hits) - 1)

    def miss(self, times: Sequence[int]) -> bool:
        """Take in items that count and are no hits, in order; whether they may have broken a completion."""
        if self._misses and times[0] < self._misses[-1]:
            self._misses = sorted([*self._misses, *times])
        else:
            self._misses.extend(times)
        if self.hits and times[0] <= self.hits[-1]:
            self._rebuild()
            return True
        return False

    def start_at(self, time: int) -> int | None:
        """Where the latest completion that ended by `time` started."""
        index = bisect_right(self.ends, time)
        return self.starts[index - 1] if index else None

    def last_hit(self, time: int) -> int | None:
        """The latest hit by `time`."""
        index = bisect_right(self.hits, time)
        return self.hits[index - 1] if index else None

    def ends_between(self, after: int, until: int) -> list[int]:
        """The ends of completions later than one time and not later than another."""
        return self.ends[bisect_right(self.ends, after) : bisect_right(self.ends, until)]

    def forget(self, before: int) -> None:
        """Let go of what lies before a time, and of the oldest where there is too much; now and then."""
        if len(self.hits) + len(self._misses) < self._limit:
            return
        gone = max(bisect_left(self.hits, before), len(self.hits) - KEPT)
        if gone > 0:
            del self.hits[:gone], self._runs[:gone]
        gone = max(bisect_left(self._misses, before), len(self._misses) - KEPT)
        if gone > 0:
            del self._misses[:gone]
        gone = max(bisect_left(self.starts, before), len(self.starts) - KEPT)
        if gone > 0:
            del self.starts[:gone], self.ends[:gone]
        # Again only when there is twice as much: so each item is looked at a constant number of times.
        self._limit = max(FORGET_EVERY, 2 * (len(self.hits) + len(self._misses)))

    def _rebuild(self) -> None:
        self._runs.clear()
        self.starts.clear()
        self.ends.clear()
        for index in range(len(self.hits)):
            self._complete(index)

    def _complete(self, index: int) -> bool:
        """Note the run that ends with a hit, and the completion if it makes one; all before are noted."""
        end = self.hits[index]
        goes_on = index > 0 and not (self._consecutive and self._missed(self.hits[index - 1], end))
        # A run may have begun with hits that are forgotten by now.
        run = min(self._runs[index - 1], index) + 1 if goes_on else 1
        self._runs.append(run)
        if run < self._needed:
            return False
        self.starts.append(self.hits[index - self._needed + 1])
        self.ends.append(end)
        return True

    def _missed(self, after: int, until: int) -> bool:
        index = bisect_left(self._misses, after)
        return index < len(self._misses) and self._misses[index] <= until
