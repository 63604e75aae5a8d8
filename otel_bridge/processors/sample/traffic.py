"""Requests and their durations, second by second: what the rate is made from."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_STEP = 1.02
"""Each bucket of the histogram ends so many times later than the one before: durations are known to 1 %."""
_FIRST = 1e3
"""End of the first bucket, nanoseconds."""
_BUCKETS = 1280
"""Up to 28 hours."""

_QUANTILE = 0.99


class Traffic:
    """One window that slides by the second.

    Attributes:
        requests: in the window that has just ended.
        p99: of their durations, nanoseconds; None when there were too few.
        seconds: how many have ended since the beginning.
    """

    def __init__(self, window: int, min_requests: int) -> None:
        """Begin with nothing.

        Args:
            window: seconds.
            min_requests: with fewer a window has no P99.
        """
        self.requests = 0
        self.p99: float | None = None
        self.seconds = 0
        self._min_requests = min_requests
        self._second = np.zeros(_BUCKETS, np.int64)
        self._window = np.zeros(_BUCKETS, np.int64)
        self._seconds: deque[NDArray[np.int64]] = deque(maxlen=window)

    def add(self, durations: NDArray[np.uint64]) -> None:
        """Count requests in the second that runs; durations in nanoseconds."""
        steps = np.log(np.maximum(durations.astype("<f8"), _FIRST) / _FIRST) / np.log(_STEP)
        buckets = np.minimum(np.ceil(steps), _BUCKETS - 1).astype(np.int64)
        self._second += np.bincount(buckets, minlength=_BUCKETS)

    def end_second(self) -> None:
        """End the second that runs."""
        if len(self._seconds) == self._seconds.maxlen:
            self._window -= self._seconds[0]
        self._window += self._second
        self._seconds.append(self._second)
        self._second = np.zeros(_BUCKETS, np.int64)
        self.seconds += 1
        self.requests = int(self._window.sum())
        self.p99 = self._quantile() if self.requests >= self._min_requests else None

    def _quantile(self) -> float:
        rank = int(np.ceil(_QUANTILE * self.requests))
        bucket = int(np.searchsorted(np.cumsum(self._window), rank))
        return float(_FIRST * _STEP ** (bucket - 0.5))
