"""What a gateway is told about one request."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from otel_bridge.breakers import State

if TYPE_CHECKING:
    from otel_bridge.control.config import FallbackConfig

SPREAD = 0.2
"""Share of a wait that is added by chance, so that those who were refused do not return together."""
LONGEST_SPREAD = 10.0
SHORTEST = 0.1
HALF_OPEN_WAIT = 2.0
"""Seconds to come again while probes are under way; the spread is as long again."""


@dataclass(frozen=True, slots=True)
class Decision:
    """An answer.

    Attributes:
        allow: whether the request may go on.
        target: the breaker that refused or probes; else the most particular one asked about.
        state: of that breaker.
        reason: for people; empty when nothing is to be said.
        retry_after: seconds to wait before the next try, spread; 0 when allowed.
        probe: the trace id, in hex, under which the request was admitted as a probe.
        fallback: what the gateway answers instead of 429; None: 429.
        degraded: whether replicas could not be asked.
        limit: the rate limit that refused; empty: a breaker did, or nothing.
    """

    allow: bool
    target: str
    state: State = State.CLOSED
    reason: str = ""
    retry_after: float = 0.0
    probe: str = ""
    fallback: FallbackConfig | None = None
    degraded: bool = False
    limit: str = ""

    @property
    def result(self) -> str:
        """The word in metrics."""
        if not self.allow:
            return "limited" if self.limit else "refused"
        return "probe" if self.probe else "allowed"

    def headers(self) -> dict[str, str]:
        """What is said in headers: of the answer to the gateway, and of what it passes on."""
        headers = {"X-Otel-Bridge-State": self.state.value}
        if self.retry_after:
            headers["Retry-After"] = str(max(1, math.ceil(self.retry_after)))
            headers["X-Retry-After"] = str(math.ceil(self.retry_after * 1000))
        if self.probe:
            headers["X-Otel-Bridge-Probe"] = self.probe
        if self.limit:
            headers["X-Otel-Bridge-Limit"] = self.limit
        return headers


def wait(state: State, remaining: float, draw: float) -> float:
    """Seconds after which a refused request may come again.

    Args:
        state: of the breaker.
        remaining: OPEN: seconds until it ends, as far as is known.
        draw: a number in [0, 1).
    """
    if state is State.HALF_OPEN:
        return HALF_OPEN_WAIT * (1 + draw)
    remaining = max(remaining, SHORTEST)
    return remaining + draw * min(max(remaining * SPREAD, 1.0), LONGEST_SPREAD)
