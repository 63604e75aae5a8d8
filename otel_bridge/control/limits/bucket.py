"""The arithmetic of one token bucket; pure. `scripts.py` does the same in Redis, and a test compares them.

A reservation that is settled for less gives the rest back, but never more than the bucket would hold had the
smaller amount been taken at once: what has run over since is gone. So each reservation has a `claim` on what
may come back, and all claims together never exceed the room in the bucket. That makes this hold for every
stretch of time, however long requests take: what is admitted in it, reckoned by what it finally costs, is at
most capacity + rate x time, plus what requests used beyond their reservations.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

EXACT = 1e-9
"""Share of the capacity by which sums of fractions may be off."""


@dataclass(slots=True)
class Bucket:
    """One bucket.

    Attributes:
        level: what is in it; below 0 after requests used more than they had reserved.
        at: when that was so, in seconds.
        claims: what each reservation may give back, the oldest first.
        claimed: their sum.
    """

    level: float
    at: float
    claims: OrderedDict[int, float] = field(default_factory=OrderedDict)
    claimed: float = 0.0

    def refill(self, capacity: float, rate: float, now: float) -> None:
        """Let time pass; a clock that went back gives nothing."""
        self.level = min(capacity, self.level + max(0.0, now - self.at) * rate)
        self.at = now
        self._limit_claims(capacity)

    def holds(self, amount: float, capacity: float) -> bool:
        """Whether so much can be taken."""
        return self.level >= amount - capacity * EXACT

    def take(self, amount: float) -> None:
        """Take what cannot come back."""
        self.level -= amount

    def reserve(self, number: int, amount: float) -> None:
        """Take what may come back in part; `number` is used once only, and each is larger than the last."""
        self.level -= amount
        self.claims[number] = amount
        self.claimed += amount

    def settle(self, number: int, reserved: float, used: float, capacity: float) -> float:
        """End a reservation; gives what came back, negative what was taken beyond it.

        After `refill`. A number that is not known any more has no claim.
        """
        claim = self.forget(number)
        change = min(reserved - used, claim)
        self.level = min(capacity, self.level + change)
        return change

    def forget(self, number: int) -> float:
        """End a reservation that nobody settled: it costs what it reserved; gives the claim it had."""
        claim = self.claims.pop(number, 0.0)
        self.claimed = self.claimed - claim if self.claims else 0.0
        return claim

    def full(self, capacity: float) -> bool:
        """Whether it is as good as new: a full bucket leaves no claim."""
        return self.level >= capacity * (1 - EXACT)

    def _limit_claims(self, capacity: float) -> None:
        excess = self.claimed - (capacity - self.level)
        while excess > 0 and self.claims:
            number, claim = next(iter(self.claims.items()))
            if claim > excess:
                self.claims[number] = claim - excess
                self.claimed -= excess
                return
            excess -= claim
            self.forget(number)
