"""Whether a destination is believed to be up, and when a request is to blame instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from otel_bridge.backoff import RetryPolicy

SUSPECT_AFTER = 3
"""Failures in a row that may be a request's own fault before others are tried in its place."""
MOST_SUSPECTS = 3
"""When so many requests fail like that in a row, it is the destination."""


class Health:
    """What the last tries say about a destination.

    While it is down, one try at a time goes out, each after its wait; the first success opens the gate again.

    Attributes:
        era: grows whenever what is believed changes.
    """

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._failures = 0
        self.era = 0
        self._blocked_until = 0.0
        self._throttled_until = 0.0

    @property
    def down(self) -> bool:
        """Whether the last try failed."""
        return self._failures > 0

    @property
    def open_at(self) -> float:
        """The monotonic time from which a try is allowed; in the past when one is allowed now."""
        return max(self._blocked_until, self._throttled_until)

    def allowed(self, consumers: int, now: float) -> int:
        """How many tries may be in flight."""
        if now < self.open_at:
            return 0
        return 1 if self.down else consumers

    def failed(self, era: int, now: float, asked: float | None) -> None:
        """Note a failed try that began in `era`; `asked` is the wait that the destination wants.

        Tries that were already under way when another one failed count as one failure with it.
        """
        if asked is not None:
            self._throttled_until = max(self._throttled_until, now + self._policy.delay(1, asked))
        if era != self.era:
            return
        self._failures += 1
        self.era += 1
        self._blocked_until = now + self._policy.delay(self._failures)

    def succeeded(self) -> None:
        """Note a delivery. A wait that the destination asked for still stands."""
        if self.down:
            self._failures = 0
            self.era += 1
            self._blocked_until = 0.0


class Suspects:
    """Requests that fail in a way that may be their own fault: they run into the timeout, or are aborted.

    Such a one must not hold up all others for ever: after a few failures it rests while the next are tried.
    If these fail too, it was the destination, and the oldest is tried first again until one goes through.
    """

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._failures: dict[int, int] = {}
        self._rest_until: dict[int, float] = {}
        self._believed = True

    @property
    def known(self) -> frozenset[int]:
        """Requests under suspicion, which are to be sent by themselves."""
        return frozenset(self._rest_until)

    def resting(self, now: float) -> frozenset[int]:
        """Requests that are not to be tried now."""
        return frozenset(number for number, until in self._rest_until.items() if now < until)

    def failed(self, number: int, now: float) -> bool:
        """Note a doubtful failure; True when the request, not the destination, is to blame by now."""
        if not self._believed:
            return False
        self._failures[number] = self._failures.get(number, 0) + 1
        if self._failures[number] < SUSPECT_AFTER:
            return False
        if number not in self._rest_until and len(self._rest_until) + 1 >= MOST_SUSPECTS:
            self._believed = False
            self._failures.clear()
            self._rest_until.clear()
            return False
        was_known = number in self._rest_until
        self._rest_until[number] = now + self._policy.delay(self._failures[number])
        return was_known

    def delivered(self, number: int | None) -> None:
        """Note that a request went through."""
        self._believed = True
        if number is not None:
            self._failures.pop(number, None)
            self._rest_until.pop(number, None)
