"""What the last calls of one target say: runs of slow calls and time-outs, and rates over a window."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from otel_bridge.control.machine import Cause

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_bridge.control.config import PolicyConfig, WindowConfig

    Flags = NDArray[np.bool_]


class Totals(NamedTuple):
    """Calls in a window, and how many of them failed or were slow."""

    calls: int
    errors: int
    slow: int


class Trip(NamedTuple):
    """Why a breaker should open; the reason is for people."""

    cause: Cause
    reason: str


class TimeWindow:
    """The calls of the last seconds, in a ring of buckets.

    A sixtieth of the duration is the grain: what is older than the duration may count for so much longer.
    """

    BUCKETS = 60

    def __init__(self, seconds: float) -> None:
        self._grain = seconds / self.BUCKETS
        self._counts = np.zeros((self.BUCKETS, 3), np.int64)
        self._at = 0

    def add(self, errors: Flags, slow: Flags, now: float) -> None:
        """Count calls that ended about now."""
        self._move(now)
        row = self._counts[self._at % self.BUCKETS]
        row += (len(errors), int(np.count_nonzero(errors)), int(np.count_nonzero(slow)))

    def totals(self, now: float) -> Totals:
        """What is in the window."""
        self._move(now)
        calls, errors, slow = self._counts.sum(axis=0).tolist()
        return Totals(calls, errors, slow)

    def clear(self) -> None:
        """Forget all."""
        self._counts[:] = 0

    def _move(self, now: float) -> None:
        at = int(now / self._grain)
        passed = at - self._at
        if passed <= 0:
            return
        if passed >= self.BUCKETS:
            self._counts[:] = 0
        else:
            self._counts[[(self._at + 1 + step) % self.BUCKETS for step in range(passed)]] = 0
        self._at = at


class CountWindow:
    """The last so many calls."""

    def __init__(self, calls: int) -> None:
        self._errors = np.zeros(calls, np.bool_)
        self._slow = np.zeros(calls, np.bool_)
        self._filled = 0
        self._at = 0

    def add(self, errors: Flags, slow: Flags, _now: float) -> None:
        """Count calls, in the order in which they ended."""
        size = len(self._errors)
        errors, slow = errors[-size:], slow[-size:]
        places = (self._at + np.arange(len(errors))) % size
        self._errors[places] = errors
        self._slow[places] = slow
        self._at = (self._at + len(errors)) % size
        self._filled = min(size, self._filled + len(errors))

    def totals(self, _now: float) -> Totals:
        """What is in the window."""
        return Totals(self._filled, int(np.count_nonzero(self._errors)), int(np.count_nonzero(self._slow)))

    def clear(self) -> None:
        """Forget all."""
        self._errors[:] = False
        self._slow[:] = False
        self._filled = self._at = 0


class Run:
    """How many calls in a row have a flag, across batches."""

    def __init__(self) -> None:
        self.length = 0

    def longest(self, flags: Flags) -> int:
        """The longest run that ends in these calls or goes on in them."""
        if not flags.any():
            self.length = 0
            return 0
        breaks = np.flatnonzero(~flags)
        if not len(breaks):
            self.length += len(flags)
            return self.length
        first = self.length + int(breaks[0])
        gaps = np.diff(np.append(breaks, len(flags))) - 1
        self.length = int(gaps[-1])
        return max(first, int(gaps.max()))


def make_window(config: WindowConfig) -> TimeWindow | CountWindow:
    """The window that a policy asks for."""
    return TimeWindow(config.duration) if config.type == "time" else CountWindow(config.calls)


class Evidence:
    """What one target's calls say, held to its policy."""

    def __init__(self, policy: PolicyConfig) -> None:
        self._policy = policy
        self._window = make_window(policy.window)
        self._slow_run = Run()
        self._timeout_run = Run()

    def add(self, seconds: NDArray[np.float64], errors: Flags, now: float) -> Trip | None:
        """Take calls in, in the order in which they ended; says whether, and why, the breaker should open.

        Args:
            seconds: how long each took.
            errors: whether each failed.
            now: monotonic seconds.
        """
        policy = self._policy
        slow = seconds > policy.slow_calls.threshold
        self._window.add(errors, slow, now)
        run = self._slow_run.longest(slow)
        if policy.timeouts is not None:
            timeouts = self._timeout_run.longest(seconds > policy.timeouts.threshold)
            if timeouts >= policy.timeouts.consecutive:
                limit = f"{policy.timeouts.threshold * 1000:g} ms"
                return Trip(Cause.TIMEOUTS, f"{_in_a_row(timeouts)} took longer than {limit}")
        if policy.slow_calls.consecutive is not None and run >= policy.slow_calls.consecutive:
            limit = f"{policy.slow_calls.threshold * 1000:g} ms"
            were = "was" if run == 1 else "were"
            return Trip(Cause.SLOW_CALLS, f"{_in_a_row(run)} {were} slower than {limit}")
        return self._rates(now)

    def clear(self) -> None:
        """Begin anew: what was seen before an open says nothing about the time after it."""
        self._window.clear()
        self._slow_run.length = self._timeout_run.length = 0

    def _rates(self, now: float) -> Trip | None:
        policy = self._policy
        calls, errors, slow = self._window.totals(now)
        if calls < policy.window.minimum_calls:
            return None
        if policy.errors.rate is not None and errors > policy.errors.rate * calls:
            return Trip(
                Cause.ERROR_RATE, f"{errors} of {calls} calls failed, more than {policy.errors.rate:.0%}"
            )
        rate = policy.slow_calls.rate
        if rate is not None and slow > rate * calls:
            return Trip(Cause.SLOW_RATE, f"{slow} of {calls} calls were slow, more than {rate:.0%}")
        return None


def _in_a_row(calls: int) -> str:
    return "1 call" if calls == 1 else f"{calls} calls in a row"


class Level:
    """How long readings have stayed above a limit, a series at a time.

    A silence longer than `stale_after` ends the time: what was not read has not stayed above anything.
    """

    MOST_SERIES = 10_000

    def __init__(self, limit: float, duration: float, stale_after: float) -> None:
        self._limit = limit
        self._duration = duration
        self._stale_after = stale_after
        self._above: dict[object, tuple[float, float]] = {}

    def read(self, series: object, value: float, now: float) -> float | None:
        """Take a reading in; seconds that the series has been above the limit, if that is long enough."""
        if not value > self._limit:
            self._above.pop(series, None)
            return None
        since, last = self._above.get(series, (now, now))
        if now - last > self._stale_after:
            since = now
        if len(self._above) < self.MOST_SERIES or series in self._above:
            self._above[series] = since, now
        return now - since if now - since >= self._duration else None
