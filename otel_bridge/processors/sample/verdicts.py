"""What is known of traces: open ones by what was seen so far, decided ones by their verdict."""

from __future__ import annotations

from typing import NamedTuple

from otel_bridge.processors.sample import reasons as bits
from otel_bridge.processors.sample.reasons import KEEP, Reason, first_of
from otel_bridge.processors.sample.threshold import FULL

_MOST_RATES = 1024


class Verdict(NamedTuple):
    """What becomes of a trace.

    Attributes:
        kept: whether it goes on.
        threshold: what it is said to have been sampled with.
        reason: what decided.
    """

    kept: bool
    threshold: int
    reason: Reason


ALWAYS = {reason: Verdict(kept=True, threshold=0, reason=reason) for reason in Reason if int(reason) & KEEP}
UNWANTED = Verdict(kept=False, threshold=FULL, reason=Reason.UNWANTED)


class _Open(NamedTuple):
    randomness: int
    threshold: int
    unwanted: bool


class Verdicts:
    """Bounded by count, both what is open and what is decided; the first are forgotten first.

    An open trace that is forgotten is decided by its randomness, at the rate of that moment.

    Attributes:
        newly_kept: traces that were open until a span said that they must be kept; the reader empties it.
        wishes: whether any verdict was somebody's wish.
    """

    def __init__(self, capacity: int) -> None:
        self.newly_kept: dict[bytes, Reason] = {}
        self.wishes = False
        self._decided: dict[bytes, Verdict] = {}
        self._open: dict[bytes, _Open] = {}
        self._capacity = capacity
        # Traces of one rate share their verdicts: a remembered trace costs no more than its place.
        self._by_rate: dict[tuple[bool, int], Verdict] = {}

    def __len__(self) -> int:
        """How many traces are known."""
        return len(self._decided) + len(self._open)

    def limit(self, capacity: int) -> None:
        """Remember so many from now on."""
        self._capacity = capacity

    def get(self, trace: bytes) -> Verdict | None:
        """The verdict of a trace; None while it is open, or when it is not known."""
        return self._decided.get(trace)

    def see(self, trace: bytes, randomness: int, threshold: int, reasons: int) -> Verdict | None:
        """Take in what some spans of a trace say; its verdict once there is one.

        Args:
            trace: its id.
            randomness: of the trace.
            threshold: of the rate now; a trace is judged by that of its first span.
            reasons: bits of `Reason`.
        """
        verdict = self._decided.get(trace)
        if verdict is not None:
            return verdict
        seen = self._open.get(trace)
        if reasons & KEEP:
            reason = first_of(reasons & KEEP)
            if seen is not None:
                self.newly_kept[trace] = reason
            return self.decide(trace, ALWAYS[reason])
        unwanted = bool(reasons & bits.UNWANTED)
        if seen is None:
            self._open[trace] = _Open(randomness, threshold, unwanted)
            if len(self._open) > self._capacity:
                del self._open[next(iter(self._open))]
        elif unwanted and not seen.unwanted:
            self._open[trace] = seen._replace(unwanted=True)
        return None

    def close(self, trace: bytes) -> Verdict | None:
        """The verdict of a trace that is no longer waited for; None when nothing is known of it."""
        verdict = self._decided.get(trace)
        if verdict is not None:
            return verdict
        seen = self._open.get(trace)
        if seen is None:
            return None
        return self.decide(
            trace, UNWANTED if seen.unwanted else self.by_rate(seen.randomness, seen.threshold)
        )

    def by_rate(self, randomness: int, threshold: int) -> Verdict:
        """What a rate alone says."""
        key = randomness >= threshold, threshold
        verdict = self._by_rate.get(key)
        if verdict is None:
            if len(self._by_rate) >= _MOST_RATES:
                self._by_rate.clear()
            verdict = self._by_rate[key] = Verdict(*key, Reason.NONE)
        return verdict

    def decide(self, trace: bytes, verdict: Verdict) -> Verdict:
        """Remember a verdict."""
        self._open.pop(trace, None)
        self._decided[trace] = verdict
        self.wishes |= verdict.reason is not Reason.NONE
        while len(self._decided) > self._capacity:
            del self._decided[next(iter(self._decided))]
        return verdict
