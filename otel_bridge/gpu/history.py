"""The last minutes of a GPU's readings, as columns that detectors and spans are held against."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


_BUFFERED = 64


class Series:
    """Values with their times, the newest so many of them; written by one thread, read by any."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._times = np.empty(0, np.int64)
        self._values = np.empty(0)
        # Readings come one by one, and are asked for seldom.
        self._added: list[tuple[int, float]] = []
        self._newest = 0
        self._lock = threading.Lock()

    def add(self, moment: int, value: float) -> None:
        """Append one reading; one that is not newer than the last is left out.

        Args:
            moment: unix nanoseconds.
            value: in whatever unit the series has.
        """
        if moment <= self._newest:
            return
        self._newest = moment
        with self._lock:
            self._added.append((moment, value))
            if len(self._added) >= _BUFFERED:
                self._settle()

    def since(self, moment: int = 0) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Times and values from a moment on."""
        with self._lock:
            self._settle()
            times, values = self._times, self._values
        first = int(np.searchsorted(times, moment))
        return times[first:], values[first:]

    def _settle(self) -> None:
        """Make columns of what was added; those that were handed out stay as they are."""
        if not self._added:
            return
        times, values = zip(*self._added, strict=True)
        self._added.clear()
        keep = -self._capacity
        self._times = np.concatenate((self._times, np.array(times, np.int64)))[keep:]
        self._values = np.concatenate((self._values, np.array(values)))[keep:]


def at_start(
    times: NDArray[np.int64], values: NDArray[np.float64], starts: NDArray[np.int64], patience: int
) -> NDArray[np.float64]:
    """For each moment the last value before it; NaN where the last one is too old.

    Args:
        times: of the values, ascending.
        values: of a series.
        starts: moments.
        patience: how old a value may be, in the unit of the times.
    """
    out = np.full(len(starts), np.nan)
    if not len(times):
        return out
    index = np.searchsorted(times, starts, side="right") - 1
    known = (index >= 0) & (starts - times[np.maximum(index, 0)] <= patience)
    out[known] = values[index[known]]
    return out


def worst_within(
    times: NDArray[np.int64],
    values: NDArray[np.float64],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    patience: int,
) -> NDArray[np.float64]:
    """For each interval the largest value in it, the one it began with included; NaN where there is none.

    Args:
        times: of the values, ascending.
        values: of a series.
        starts: of the intervals.
        ends: of the intervals.
        patience: see `at_start`.
    """
    began = at_start(times, values, starts, patience)
    first = np.searchsorted(times, starts, side="right")
    last = np.searchsorted(times, ends, side="right")
    filled = last > first
    inside = np.full(len(starts), np.nan)
    if filled.any():
        bounds = np.stack((first[filled], last[filled]), axis=1).ravel()
        # One more value, since a last bound may lie behind the end; of the pairs every other result counts.
        inside[filled] = np.maximum.reduceat(np.append(values, -np.inf), bounds)[::2]
    worst: NDArray[np.float64] = np.fmax(began, inside)
    return worst
