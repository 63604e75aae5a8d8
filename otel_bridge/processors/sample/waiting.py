"""Spans that wait for their trace's verdict, request by request; bounded by bytes and by time."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

TRACE_BYTES = 320
"""What an open trace costs beside its spans."""

_HIGH_WATER = 0.8


@dataclass(slots=True, eq=False)
class Piece:
    """The waiting spans of one request.

    Attributes:
        number: ascending; its row in the journal.
        payload: an ExportTraceServiceRequest: first of all that wait, after the verdict of those that leave.
        spans: how many it holds.
        traces: ids of the traces it has spans of.
        born: monotonic seconds.
        settled: done when all of it was delivered or dropped.
        journaled: whether it is on disk, or on its way there.
    """

    number: int
    payload: bytes
    spans: int
    traces: Sequence[bytes]
    born: float
    settled: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    journaled: bool = False

    @property
    def cost(self) -> int:
        """Bytes it stands for."""
        return len(self.payload) + TRACE_BYTES * len(self.traces)


class Waiting:
    """In the order they came.

    Attributes:
        cost: bytes held.
        spans: spans held.
    """

    def __init__(self, max_bytes: int, wait: float) -> None:
        self.cost = 0
        self.spans = 0
        self._max_bytes = max_bytes
        self._wait = wait
        self._pieces: deque[Piece] = deque()
        self._next = 1

    @property
    def last(self) -> int:
        """The number of the piece that came last; 0 before the first."""
        return self._next - 1

    def is_full(self, besides: int) -> bool:
        """Whether nothing more may come, while so many bytes are held besides."""
        return self.cost + besides >= self._max_bytes

    @property
    def crowded(self) -> bool:
        """Whether the oldest should leave before their time."""
        return self.cost > self._max_bytes * _HIGH_WATER

    def limit(self, max_bytes: int, wait: float) -> None:
        """Hold as much and as long as this from now on."""
        self._max_bytes, self._wait = max_bytes, wait

    def add(self, payload: bytes, spans: int, traces: Sequence[bytes], now: float, number: int = 0) -> Piece:
        """Take a piece in; `number` is that of one from the journal."""
        piece = Piece(number or self._next, payload, spans, traces, now)
        self._next = max(self._next, piece.number + 1)
        self._pieces.append(piece)
        self._count(piece, 1)
        return piece

    def due(self, now: float) -> Iterator[tuple[Piece, str]]:
        """Take the pieces out whose time is over, and the oldest ones while there are too many.

        Yields:
            A piece, and why it leaves before its time; empty when it does not.
        """
        while self._pieces:
            piece = self._pieces[0]
            if piece.born + self._wait <= now:
                early = ""
            elif self.crowded:
                early = "memory"
            else:
                return
            self.remove(piece)
            yield piece, early

    def remove(self, piece: Piece) -> bool:
        """Take a piece out; False when it has left."""
        try:
            self._pieces.remove(piece)
        except ValueError:
            return False
        self._count(piece, -1)
        return True

    def _count(self, piece: Piece, sign: int) -> None:
        self.cost += sign * piece.cost
        self.spans += sign * piece.spans
