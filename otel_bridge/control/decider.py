"""Whether one request may go on: what every gateway interface asks."""

from __future__ import annotations

import random
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING

from otel_bridge.breakers import State
from otel_bridge.control import machine
from otel_bridge.control.decision import Decision, wait
from otel_bridge.control.machine import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_bridge.control.board import Board
    from otel_bridge.control.breaker import Breaker
    from otel_bridge.control.limits.claims import Claim
    from otel_bridge.control.limits.limiter import Limiter
    from otel_bridge.control.limits.limiter import Verdict as Limited

NOBODY_ASKED = "the replicas' store cannot be reached, and control.redis.when_cut_off is open"


class Decider:
    """Answers from what is in memory; only what replicas share is asked for elsewhere.

    A request that a breaker refuses takes nothing from rate limits, and one that a limit refuses is no probe.

    Args:
        board: the breakers.
        limiter: the rate limits; None: there are none.
        draw: numbers in [0, 1).
    """

    def __init__(
        self, board: Board, limiter: Limiter | None = None, draw: Callable[[], float] = random.random
    ) -> None:
        self._board = board
        self._limiter = limiter
        self._draw = draw
        redis = board.config.redis
        self._when_cut_off = redis.when_cut_off if redis is not None else "local"

    async def decide(self, key: str, trace: str, claim: Claim | None = None) -> Decision:
        """Whether a request may go on.

        Args:
            key: its target; empty when it named none.
            trace: its trace id in hex; empty when it has none.
            claim: what it wants of rate limits.
        """
        running = claim is not None and self._has_permit(key, trace)
        decision = self._ask_breakers(key, trace)
        if decision is None:
            decision = await self._decide_together(key, trace)
        if claim is None or not decision.allow or self._limiter is None:
            return decision
        return self._limit(decision, key, await self._limiter.take(claim, trace), running=running)

    def decide_here(self, key: str, trace: str, claim: Claim | None = None) -> Decision | None:
        """The same without waiting; None when the replicas must be asked first."""
        if claim is None or self._limiter is None:
            return self._ask_breakers(key, trace)
        if self._limiter.asks_others:
            return None
        running = self._has_permit(key, trace)
        decision = self._ask_breakers(key, trace)
        if decision is None or not decision.allow:
            return decision
        return self._limit(decision, key, self._limiter.take_here(claim, trace), running=running)

    def _has_permit(self, key: str, trace: str) -> bool:
        """Whether a request of this trace is a probe that is under way."""
        return any(trace in breaker.record.permits for breaker in self._board.half_open(key))

    def _limit(self, decision: Decision, key: str, said: Limited, *, running: bool) -> Decision:
        """What remains of a decision to let a request through; a probe under way keeps its permit."""
        if said.limit is None:
            return replace(decision, degraded=True) if said.degraded else decision
        board = self._board
        if decision.probe and not running:
            with board.lock:
                for breaker in board.in_the_way(key):
                    board.step(breaker, breaker.step(machine.judge, decision.probe, Verdict.IGNORED))
        return Decision(
            allow=False,
            target=key,
            state=decision.state,
            reason=said.reason,
            retry_after=said.retry_after,
            degraded=decision.degraded or said.degraded,
            limit=said.limit.name,
        )

    def _ask_breakers(self, key: str, trace: str) -> Decision | None:
        """None: a permit must be had from the replicas first."""
        board = self._board
        replicas = board.replicas
        cut_off = replicas is not None and replicas.cut_off
        if cut_off and self._when_cut_off != "local":
            return self._without_replicas(key)
        if not board.refusing:
            return Decision(True, key, degraded=cut_off)
        with board.lock:
            found = board.in_the_way(key)
            for breaker in found:
                if breaker.record.state is State.OPEN or _exhausted(breaker, trace):
                    return self._refusal(breaker)
            if not found:
                return Decision(True, key, degraded=cut_off)
            if replicas is not None and not cut_off:
                return None
            trace = trace or secrets.token_hex(16)
            for breaker in found:
                board.step(breaker, breaker.step(machine.acquire, trace))
            return self._probe(found, trace)

    async def _decide_together(self, key: str, trace: str) -> Decision:
        board = self._board
        assert board.replicas is not None
        trace = trace or secrets.token_hex(16)
        with board.lock:
            found = board.in_the_way(key)
        for breaker in found:
            if await board.replicas.settle(breaker.key, breaker.step(machine.acquire, trace)) is None:
                # Cut off just now: what is known here decides.
                return self._ask_breakers(key, trace) or Decision(True, key, degraded=True)
        with board.lock:
            return self._probe(board.in_the_way(key), trace)

    def _probe(self, found: Sequence[Breaker], trace: str) -> Decision:
        """A probe, if every breaker in the way has given it a permit."""
        for breaker in found:
            if trace not in breaker.record.permits:
                for other in found:
                    self._board.step(other, other.step(machine.judge, trace, Verdict.IGNORED))
                return self._refusal(breaker)
        if not found:
            return Decision(True, "")
        return Decision(True, found[-1].key, State.HALF_OPEN, "a probe", probe=trace)

    def _refusal(self, breaker: Breaker) -> Decision:
        board = self._board
        record = breaker.record
        fallback = breaker.policy.fallback
        return Decision(
            allow=False,
            target=breaker.key,
            state=breaker.traffic(record),
            reason=record.reason or record.cause.value,
            retry_after=wait(record.state, record.until - board.clock.monotonic(), self._draw()),
            fallback=board.config.decisions.fallbacks[fallback] if fallback is not None else None,
            degraded=board.replicas is not None and board.replicas.cut_off,
        )

    def _without_replicas(self, key: str) -> Decision:
        if self._when_cut_off == "closed":
            return Decision(True, key, degraded=True)
        retry_after = wait(State.HALF_OPEN, 0.0, self._draw())
        return Decision(False, key, State.OPEN, NOBODY_ASKED, retry_after, degraded=True)


def _exhausted(breaker: Breaker, trace: str) -> bool:
    """Whether no permit is left."""
    record = breaker.record
    if trace and trace in record.permits:
        return False
    return len(record.permits) + record.passed >= breaker.rules.probes
