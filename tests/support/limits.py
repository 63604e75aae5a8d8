"""Makers of rate limits for tests: on a fake clock, with the decisions that they make."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_bridge.control.decider import Decider
from otel_bridge.control.limits.claims import Claims
from otel_bridge.control.limits.limiter import Limiter
from otel_bridge.control.questions import Questions
from tests.support.control import World

if TYPE_CHECKING:
    from otel_bridge import catalog
    from otel_bridge.control.decision import Decision
    from otel_bridge.testing import FakeClock


class Limited:
    """One bridge's limits and breakers, without any listener."""

    def __init__(self, rules: dict[str, Any], *, clock: FakeClock | None = None, **config: Any) -> None:
        limits = {"rules": rules} | config.pop("limits", {})
        self.world = World(clock=clock, limits=limits, **config)
        control = self.world.config
        self.claims = Claims(control.limits, control.targets)
        self.limiter = Limiter(
            control,
            self.claims,
            self.world.telemetry,
            self.world.clock,
            self.world.board.audit,
            draw=lambda: 0.0,
        )
        self.questions = Questions(control.targets, self.claims)
        self.decider = Decider(self.world.board, self.limiter, draw=lambda: 0.0)

    def ask(self, trace: str = "", **told: Any) -> Decision:
        """Whether a request may pass, by what this process knows."""
        extra = {name: str(value) for name, value in told.items()}
        key, found, claim = self.questions.ask({}, extra=extra | ({"trace_id": trace} if trace else {}))
        decision = self.decider.decide_here(key, found, claim)
        assert decision is not None
        return decision

    def passes(self, times: int, **told: Any) -> int:
        """How many of some equal requests pass."""
        return sum(self.ask(**told).allow for _ in range(times))

    def used(self, trace: str, tokens: float) -> None:
        """A span ends now that says so."""
        self.limiter.settle(trace, tokens, self.world.clock.time_ns())

    def level(self, name: str) -> float:
        """What is in the emptiest bucket of a limit."""
        (limit,) = [found for found in self.limiter.limits if found.name == name]
        return self.limiter.local.emptiest(limit, 1)[0][1]

    def count(self, metric: catalog.Metric, **labels: str) -> float:
        """A metric's value."""
        return self.world.telemetry.value(metric, **labels)


def trace(number: int) -> str:
    """A trace id in hex."""
    return f"{number + 1:032x}"
