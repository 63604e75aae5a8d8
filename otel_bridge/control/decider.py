"""Whether one request may go on: what every gateway interface asks."""

from __future__ import annotations

import random
import secrets
from typing import TYPE_CHECKING

from otel_bridge.breakers import State
from otel_bridge.control import machine
from otel_bridge.control.decision import Decision, wait
from otel_bridge.control.machine import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_bridge.control.board import Board
    from otel_bridge.control.breaker import Breaker

NOBODY_ASKED = "the replicas' store cannot be reached, and control.redis.when_cut_off is open"


class Decider:
    """Answers from what is in memory; only a permit that replicas share is asked for elsewhere.

    Args:
        board: the breakers.
        draw: numbers in [0, 1).
    """

    def __init__(self, board: Board, draw: Callable[[], float] = random.random) -> None:
        self._board = board
        self._draw = draw
        redis = board.config.redis
        self._when_cut_off = redis.when_cut_off if redis is not None else "local"

    async def decide(self, key: str, trace: str) -> Decision:
        """Whether a request may go on.

        Args:
            key: its target; empty when it named none.
            trace: its trace id in hex; empty when it has none.
        """
        decision = self.decide_here(key, trace)
        return decision if decision is not None else await self._decide_together(key, trace)

    def decide_here(self, key: str, trace: str) -> Decision | None:
        """The same without waiting; None when a permit must be had from the replicas first."""
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
                return self.decide_here(key, trace) or Decision(True, key, degraded=True)
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
