"""The queue in memory, and what waits in it."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_bridge.contracts import Clock
    from otel_bridge.errors import RetryableError
    from otel_bridge.exporters.otlp.split import Part
    from otel_bridge.model import Signal

MOST_JOINED = 1000
"""Requests that are joined into one at the most."""


class Ticket:
    """What the sender of one request waits for: every destination has settled it."""

    __slots__ = ("_error", "_left", "settled")

    def __init__(self, destinations: int) -> None:
        self.settled: asyncio.Future[RetryableError | None] = asyncio.get_running_loop().create_future()
        self._left = destinations
        self._error: RetryableError | None = None

    def settle(self, error: RetryableError | None) -> None:
        """One destination is through with it; with an error when it has let go of the request."""
        self._error = error or self._error
        self._left -= 1
        if not self._left and not self.settled.done():
            self.settled.set_result(self._error)


@dataclass(slots=True, eq=False)
class Item:
    """One request on its way to one destination.

    Attributes:
        items: spans, data points or log records in it.
        received_ns: when it came, unix nanoseconds.
        order: grows with each request of the destination.
        deadline: monotonic time at which its sender has waited long enough.
        ticket: who waits; None once acknowledged.
        record: its number on disk, if it is there.
        counted: whether its bytes are counted as held in memory.
        held: a worker has it: it is in flight.
        spilling: it is on its way to the disk.
        done: delivered, dropped, or let go.
        parts: what is left to send of a request that was split; None: the payload as a whole.
    """

    signal: Signal
    payload: bytes
    items: int
    received_ns: int
    order: int = 0
    deadline: float = 0.0
    ticket: Ticket | None = None
    record: int | None = None
    counted: bool = False
    held: bool = False
    spilling: bool = False
    done: bool = False
    parts: deque[Part] | None = None

    def settle(self, error: RetryableError | None = None) -> None:
        """Tell the sender, once."""
        if self.ticket is not None:
            ticket, self.ticket = self.ticket, None
            ticket.settle(error)


class MemoryQueue:
    """Requests that wait for a free consumer, oldest first."""

    def __init__(self) -> None:
        self._waiting: deque[Item] = deque()

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    @property
    def bytes(self) -> int:
        """Bytes that wait."""
        return sum(len(item.payload) for item in self._waiting)

    def push(self, item: Item) -> None:
        """Add the newest."""
        self._waiting.append(item)

    def push_back(self, item: Item) -> None:
        """Put one that was taken in its place again, which is at or near the front."""
        older: list[Item] = []
        while self._waiting and self._waiting[0].order < item.order:
            older.append(self._waiting.popleft())
        self._waiting.appendleft(item)
        self._waiting.extendleft(reversed(older))

    def discard(self, item: Item) -> None:
        """Take one out, wherever it stands."""
        self._waiting.remove(item)

    def take(self, limit: int) -> list[Item]:
        """The oldest, and those after it that may be joined with it up to `limit` bytes."""
        if not self._waiting:
            return []
        first = self._waiting.popleft()
        batch = [first]
        if first.parts is not None:
            return batch
        size = len(first.payload)
        while self._waiting and len(batch) < MOST_JOINED:
            candidate = self._waiting[0]
            size += len(candidate.payload)
            if size > limit or candidate.signal is not first.signal or candidate.parts is not None:
                break
            batch.append(self._waiting.popleft())
        return batch

    def take_all(self) -> list[Item]:
        """Empty the queue."""
        items = list(self._waiting)
        self._waiting.clear()
        return items


class Alarm:
    """Calls back at a moment; setting an earlier one moves it forward."""

    def __init__(self, clock: Clock, callback: Callable[[], None]) -> None:
        self._clock = clock
        self._callback = callback
        self._at = 0.0
        self._task: asyncio.Task[None] | None = None

    def set(self, at: float) -> None:
        """Ring at this monotonic time, or earlier if it is already set so."""
        if self._task is not None:
            if self._at <= at:
                return
            self._task.cancel()
        self._at = at
        self._task = asyncio.get_running_loop().create_task(self._ring(at))

    def cancel(self) -> None:
        """Do not ring."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _ring(self, at: float) -> None:
        await self._clock.sleep(at - self._clock.monotonic())
        self._task = None
        self._callback()
