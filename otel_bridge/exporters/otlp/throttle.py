"""How often the exporter says the same thing in its log."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from otel_bridge.contracts import Clock

LOG_INTERVAL = 60.0
"""Between two log lines of one kind, seconds."""


class Throttle:
    """One log line of a kind in a while, with the number of those that were left out."""

    def __init__(self, clock: Clock, interval: float = LOG_INTERVAL) -> None:
        self._clock = clock
        self._interval = interval
        self._next: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def due(self, kind: str) -> int | None:
        """How many lines were left out before this one; None when this one is left out too."""
        now = self._clock.monotonic()
        if now < self._next.get(kind, now):
            self._left_out[kind] = self._left_out.get(kind, 0) + 1
            return None
        self._next[kind] = now + self._interval
        return self._left_out.pop(kind, 0)
