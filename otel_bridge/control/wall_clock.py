"""Says when the wall clock was set: breakers do not go by it, but whoever reads the audit log does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_bridge.contracts import Clock

log = structlog.get_logger(__name__)

_SET = 1.0
"""Seconds between wall clock and elapsed time, from which on the clock was set, not slewed."""


class WallClock:
    """To be looked at every now and then.

    Args:
        clock: the wall clock, and elapsed time.
        audit: takes target, event, cause and reason.
    """

    def __init__(self, clock: Clock, audit: Callable[[str, str, str, str], None]) -> None:
        self._clock = clock
        self._audit = audit
        self._ahead = self._measure()

    def look(self) -> None:
        """Say so where it was set since the last look."""
        before, self._ahead = self._ahead, self._measure()
        moved = self._ahead - before
        if abs(moved) < _SET:
            return
        reason = (
            f"the wall clock was set by {moved:+.1f} s, or the machine slept; breakers and leases go by "
            "elapsed time"
        )
        log.warning("the wall clock was set", seconds=moved)
        self._audit("", "clock", "set", reason)

    def _measure(self) -> float:
        return self._clock.time_ns() / 1e9 - self._clock.monotonic()
