"""Requests by the id that both sides of a call write down: one id in two traces is a trace that split."""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from otel_bridge.processors.consistency.roles import Service

ENTRY_BYTES = 500
"""What an id costs, in bytes."""

_LONGEST_ID = 256
_NUMBERED = re.compile(rb"(.+)[-_]\d{1,4}")

ENGINE_KEY = "gen_ai.request.id"
"""Engines number what they make of one request: for "cmpl-7" they write "cmpl-7-0"."""


def ids_of(key: str, value: bytes) -> tuple[bytes, ...]:
    """What the other side may have written."""
    numbered = _NUMBERED.fullmatch(value) if key == ENGINE_KEY else None
    return (value, numbered[1]) if numbered else (value,)


class Side(NamedTuple):
    """One side of a call.

    Attributes:
        trace: trace id.
        service: whose span it is.
        start: of the span, unix nanoseconds.
        end: of the span, unix nanoseconds.
    """

    trace: bytes
    service: Service
    start: int
    end: int


class Requests:
    """Bounded by count and by age; the oldest are forgotten first."""

    def __init__(self, max_bytes: int, window: float, share: float) -> None:
        self._capacity = max(1, max_bytes // ENTRY_BYTES)
        self._window = window
        self._share = round(share * (1 << 32))
        self._sides: dict[bytes, tuple[Side, float]] = {}

    @property
    def cost(self) -> int:
        """Bytes held."""
        return ENTRY_BYTES * len(self._sides)

    def meet(self, ids: Iterable[bytes], side: Side, now: float) -> Side | None:
        """Note one side of a request under the ids that it may have on the other.

        Returns:
            The other side, when it is in another trace, of another service, and at the same time; each id
            is told once.
        """
        for request_id in ids:
            if not 0 < len(request_id) <= _LONGEST_ID:
                continue
            known = self._sides.get(request_id)
            if known is not None:
                other, since = known
                if now - since <= self._window and _is_split(other, side):
                    del self._sides[request_id]
                    return other
            # A share of the ids and not of the traces: else both sides of a split would have to be lucky.
            elif zlib.crc32(request_id) < self._share:
                self._sides[request_id] = side, now
                if len(self._sides) > self._capacity:
                    del self._sides[next(iter(self._sides))]
        return None

    def forget(self, now: float) -> None:
        """Let go of what is too old."""
        while self._sides:
            key = next(iter(self._sides))
            if now - self._sides[key][1] <= self._window:
                return
            del self._sides[key]


def _is_split(one: Side, other: Side) -> bool:
    """A client that tries again with the same id, in another trace, is none: the service is the same."""
    return (
        one.trace != other.trace
        and one.service is not other.service
        and one.start <= other.end
        and other.start <= one.end
    )
