"""So many things a second: a token bucket of one process, for what costs one each."""

from __future__ import annotations

import math


class Allowance:
    """Full at first; what is not spent is saved up to a limit.

    Args:
        a_second: how many more there are each second, above 0.
        most: how many may be saved up, at least 1.
    """

    __slots__ = ("_a_second", "_filled", "_left", "_most")

    def __init__(self, a_second: float, most: float) -> None:
        self._a_second = a_second
        self._most = most
        self._left = most
        self._filled = -math.inf

    def ready(self, now: float) -> bool:
        """Whether one more is allowed at a time, seconds of any clock that does not go back."""
        self._left = min(self._most, self._left + (now - self._filled) * self._a_second)
        self._filled = now
        return self._left >= 1.0

    def take(self, now: float) -> bool:
        """Whether one more is allowed; it is spent then."""
        if not self.ready(now):
            return False
        self._left -= 1.0
        return True
