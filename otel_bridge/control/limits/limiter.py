"""Whether limits let a request through, and what its span says of it later."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, NamedTuple

import structlog

from otel_bridge import catalog
from otel_bridge.control.limits.local import LocalBuckets
from otel_bridge.control.limits.shared import SharedBuckets

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_bridge.contracts import Clock
    from otel_bridge.control.config import ControlConfig
    from otel_bridge.control.limits.claims import Claim, Claims
    from otel_bridge.control.limits.local import Draw, Drawn, Limit, Settled
    from otel_bridge.telemetry import Telemetry

    Audit = Callable[[str, str, str, str], None]

log = structlog.get_logger(__name__)

RESULTS = ("allowed", "refused", "too_large", "would_refuse")
OUTCOMES = ("settled", "unreserved", "expired", "implausible", "dropped")
_MEANS = {
    "local": "this bridge's own buckets decide, from where the shared ones were",
    "closed": "no limit is enforced",
    "open": "every request that a limit concerns is refused",
}
_WAIT_WITHOUT_REDIS = 2.0
_SPREAD = 0.2
"""Share of a wait that is added by chance, so that those who were refused do not return together."""
_LONGEST_SPREAD = 10.0
_SHORTEST = 0.001
_SWEEP_INTERVAL = 1.0


class Verdict(NamedTuple):
    """What limits say of a request.

    Attributes:
        limit: the one that refuses; None: it may pass.
        reason: why, for people.
        retry_after: seconds, spread; 0: it will never be let through as it is.
        degraded: whether Redis could not be asked.
    """

    limit: Limit | None = None
    reason: str = ""
    retry_after: float = 0.0
    degraded: bool = False


class Limiter:
    """All limits of this bridge.

    Args:
        config: all of `control`.
        claims: reads what requests want.
        telemetry: for metrics.
        clock: for time.
        audit: takes target, event, cause and reason.
        draw: numbers in [0, 1).
    """

    def __init__(
        self,
        config: ControlConfig,
        claims: Claims,
        telemetry: Telemetry,
        clock: Clock,
        audit: Audit,
        *,
        draw: Callable[[], float] = random.random,
    ) -> None:
        limits = config.limits
        self.limits = claims.limits
        self._clock = clock
        self._audit = audit
        self._draw = draw
        self._most_tokens = limits.most_tokens
        results = telemetry.counter(catalog.LIMIT_DECISIONS)
        self._results = {
            (limit.number, result): results.labels(limit.name, result)
            for limit in self.limits
            for result in RESULTS
        }
        self._tokens = telemetry.counter(catalog.LIMIT_TOKENS)
        self._settlements = telemetry.counter(catalog.LIMIT_SETTLEMENTS)
        self._buckets = telemetry.gauge(catalog.LIMIT_BUCKETS)
        self._overflows = telemetry.counter(catalog.LIMIT_OVERFLOWS)
        self._overflowing: set[str] = set()
        self._swept = clock.monotonic()
        self.local = LocalBuckets(
            self.limits, clock, limits.settle_within, limits.max_buckets, told=self._take_note
        )
        redis = config.redis
        self._when_cut_off = limits.when_cut_off or (redis.when_cut_off if redis is not None else "local")
        self.shared = (
            SharedBuckets(redis, clock, telemetry, limits.settle_within, say=self._say, told=self._settled)
            if redis is not None
            else None
        )
        for limit in self.limits:
            self._buckets.labels(limit.name).set(0)
            self._overflows.labels(limit.name)
            if limit.settles:
                for kind in ("reserved", "returned", "overrun"):
                    self._tokens.labels(limit.name, kind)
        for outcome in OUTCOMES:
            self._settlements.labels(outcome)

    async def start(self) -> None:
        """Reach Redis, where there is one; raises StartError."""
        if self.shared is not None:
            await self.shared.start()

    async def stop(self, deadline: float) -> None:
        """Bring what waits for Redis."""
        if self.shared is not None:
            await self.shared.stop(deadline)

    @property
    def asks_others(self) -> bool:
        """Whether `take` has to be awaited."""
        return self.shared is not None and not self.shared.cut_off

    @property
    def _degraded(self) -> bool:
        return self.shared is not None and self.shared.cut_off

    def take_here(self, claim: Claim, trace: str) -> Verdict:
        """Whether a request may pass, by what this process knows; takes what it wants if so."""
        return self._never(claim) or self._take_own(claim, trace)

    async def take(self, claim: Claim, trace: str) -> Verdict:
        """The same, asked of Redis where that can be reached."""
        refused = self._never(claim)
        if refused is not None:
            return refused
        if self.shared is not None and self.asks_others:
            drawn = await self.shared.take(claim.draws, trace)
            if drawn is not None:
                for draw, found in zip(claim.draws, drawn, strict=True):
                    self.local.follow(draw, found.level)
                return self._judge(claim, drawn, degraded=False)
        return self._take_own(claim, trace)

    def _take_own(self, claim: Claim, trace: str) -> Verdict:
        degraded = self._degraded
        if degraded and self._when_cut_off == "closed":
            return Verdict(degraded=True)
        if degraded and self._when_cut_off == "open":
            return self._without_redis(claim)
        return self._judge(claim, self.local.take(claim.draws, trace), degraded=degraded)

    def settle(self, trace: str, used: float, end: int) -> None:
        """What the span of a request says that it used; from any thread.

        Args:
            trace: in hex.
            used: tokens.
            end: when the span ended, unix nanoseconds.
        """
        if not 0 <= used <= self._most_tokens:
            self._settlements.labels("implausible").inc()
            return
        settled = self.local.settle(trace, used, end)
        if settled is not None or self.shared is None:
            self._settled(trace, settled)
        else:
            self.shared.settle(trace, used, end)

    def tick(self) -> None:
        """Let go of what is idle; to be called now and then."""
        now = self._clock.monotonic()
        if now - self._swept < _SWEEP_INTERVAL:
            return
        self._swept = now
        self.local.sweep()
        for limit in self.limits:
            self._buckets.labels(limit.name).set(self.local.count(limit))

    def describe(self, most: int) -> dict[str, Any]:
        """All limits, each with its emptiest buckets, for operators."""
        return {
            "degraded": self._degraded,
            "shared": self.shared is not None,
            "open_reservations": self.local.open_reservations,
            "limits": [self._describe(limit, most) for limit in self.limits],
        }

    def _describe(self, limit: Limit, most: int) -> dict[str, Any]:
        config = limit.config
        return {
            "name": limit.name,
            "unit": config.unit,
            "by": list(config.by),
            "match": dict(config.match),
            "amount": config.amount,
            "per_seconds": config.per,
            "burst": limit.capacity,
            "dry_run": config.dry_run,
            "buckets": self.local.count(limit),
            "emptiest": [
                {
                    "bucket": key,
                    "level": round(level, 3),
                    "reservations": reservations,
                    "full_in_seconds": round((limit.capacity - level) / limit.rate, 3),
                }
                for key, level, reservations in self.local.emptiest(limit, most)
            ],
        }

    def _never(self, claim: Claim) -> Verdict | None:
        """A refusal for good, if the request is more than a limit ever admits."""
        refused = None
        for limit, amount in claim.too_large:
            if limit.config.dry_run:
                self._results[limit.number, "would_refuse"].inc()
                continue
            self._results[limit.number, "too_large"].inc()
            refused = Verdict(
                limit,
                f"the request is taken for {amount:.0f} {limit.config.unit}, and limit {limit.name} never "
                f"admits more than {limit.capacity:g} at once",
            )
        return refused

    def _judge(self, claim: Claim, drawn: Sequence[Drawn], *, degraded: bool) -> Verdict:
        short = [
            (found.wait, draw)
            for draw, found in zip(claim.draws, drawn, strict=True)
            if found.wait and not draw.limit.config.dry_run
        ]
        if short:
            for _, draw in short:
                self._results[draw.limit.number, "refused"].inc()
            wait, draw = max(short, key=lambda one: one[0])
            return Verdict(draw.limit, _reason(draw), self._spread(wait), degraded)
        for draw, found in zip(claim.draws, drawn, strict=True):
            self._results[draw.limit.number, "would_refuse" if found.wait else "allowed"].inc()
            if draw.limit.settles and not found.wait:
                self._tokens.labels(draw.limit.name, "reserved").inc(draw.amount)
        return Verdict(degraded=degraded)

    def _without_redis(self, claim: Claim) -> Verdict:
        for draw in claim.draws:
            if not draw.limit.config.dry_run:
                reason = "the replicas' store cannot be reached, and limits are refused without it"
                self._results[draw.limit.number, "refused"].inc()
                return Verdict(draw.limit, reason, _WAIT_WITHOUT_REDIS * (1 + self._draw()), degraded=True)
        return Verdict(degraded=True)

    def _spread(self, wait: float) -> float:
        wait = max(wait, _SHORTEST)
        return wait + self._draw() * min(wait * _SPREAD, _LONGEST_SPREAD)

    def _settled(self, _trace: str, settled: list[Settled] | None) -> None:
        if settled is None:
            self._settlements.labels("unreserved").inc()
            return
        self._settlements.labels("settled").inc()
        for limit, change in settled:
            self._tokens.labels(limit, "returned" if change >= 0 else "overrun").inc(abs(change))

    def _take_note(self, word: str, limit: str) -> None:
        if word == "expired":
            self._settlements.labels("expired").inc()
            return
        self._overflows.labels(limit).inc()
        if limit not in self._overflowing:
            self._overflowing.add(limit)
            log.warning(
                "all buckets of a limit are in use, so newcomers share one; raise control.limits.max_buckets",
                limit=limit,
            )

    def _say(self, word: str, reason: str) -> None:
        if word == "limits_cut_off":
            reason = f"{reason}; {_MEANS[self._when_cut_off]}"
        log.warning("limits", event_word=word, reason=reason)
        self._audit("", "store", word, reason)


def _reason(draw: Draw) -> str:
    config = draw.limit.config
    return f"limit {draw.limit.name}: {config.amount:g} {config.unit} in {config.per:g} s"
