"""How large a request the destination takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from otel_bridge.contracts import Clock

LEARNED_FOR = 600.0
"""A size limit that the destination made known is kept for so long, seconds."""
SMALLEST_LEARNED = 64 << 10
"""A limit that was only guessed is never remembered below this, bytes."""


class SizeLimit:
    """The largest request that the destination takes: as configured, as it said, or as it seems."""

    def __init__(self, configured: int, clock: Clock) -> None:
        """`configured` is `max_request_size`, bytes."""
        self._configured = configured
        self._clock = clock
        self._learned = 0
        self._told = False
        self._until = 0.0
        self._largest_delivered = 0

    @property
    def bytes(self) -> int:
        """The limit now."""
        return min(self._configured, self._learned) if self._remembered else self._configured

    def forbids(self, size: int) -> bool:
        """Whether a request is known to be too large, not only guessed."""
        return size > self._configured or (self._remembered and self._told and size > self._learned)

    def delivered(self, size: int) -> None:
        """Note a request that went through."""
        self._largest_delivered = max(self._largest_delivered, size)

    def refused(self, size: int, told: int | None) -> int:
        """Note a request that was too large; the answer is the size to cut it to."""
        if told is not None and 0 < told < size:
            self._remember(told, told=True)
            return told
        half = max(size // 2, 1)
        if size > self._largest_delivered:
            # Otherwise as large a request went through before, so the size is hardly the cause.
            self._remember(max(half, self._largest_delivered, SMALLEST_LEARNED), told=False)
        return half

    @property
    def _remembered(self) -> bool:
        return self._clock.monotonic() < self._until

    def _remember(self, limit: int, *, told: bool) -> None:
        self._learned, self._told = limit, told
        self._until = self._clock.monotonic() + LEARNED_FOR
