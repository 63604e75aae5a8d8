"""What the parts of the data path expect of each other; parts meet here and never import one another."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from otel_bridge.batch import Batch, Plan
    from otel_bridge.model import Signal


class Now(Protocol):
    """What time it is."""

    def time_ns(self) -> int:
        """Wall-clock time, unix nanoseconds."""

    def monotonic(self) -> float:
        """Seconds that never go back."""


class Clock(Now, Protocol):
    """Time, injected, so that nothing sleeps in a unit test."""

    async def sleep(self, seconds: float) -> None:
        """Wait."""


class SystemClock:
    """The real time."""

    def time_ns(self) -> int:
        """Wall-clock time, unix nanoseconds."""
        return time.time_ns()

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)


class Codec(Protocol):
    """Reads OTLP trace bytes into columns and works edits back in."""

    name: str

    def scan(self, data: bytes, plan: Plan) -> Batch:
        """Read a request.

        Raises:
            MalformedRequestError: the bytes are not an ExportTraceServiceRequest.
        """

    def splice(self, batch: Batch) -> bytes:
        """The batch's bytes with its edits worked in."""

    def count_items(self, signal: Signal, data: bytes) -> int:
        """Spans, data points or log records of a request; what cannot be read counts nothing."""


class Component(Protocol):
    """Something the service starts and stops."""

    async def start(self) -> None:
        """Begin; raises StartError when it cannot."""

    async def stop(self, deadline: float) -> None:
        """End within `deadline` seconds, losing nothing that was acknowledged."""


class TraceProcessor(Protocol):
    """A step over whole batches: reads columns, notes edits."""

    def process(self, batch: Batch) -> None:
        """Work on one batch; never raises for what a span contains."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a receiver tells the sender of an accepted request.

    Attributes:
        accepted: items (spans, data points, log records) taken.
        rejected: items refused for good.
        message: why, or a warning; empty when there is nothing to say.
    """

    accepted: int
    rejected: int = 0
    message: str = ""


class Consumer(Protocol):
    """Where a receiver hands over what it took in."""

    async def consume_traces(self, data: bytes) -> Outcome:
        """Take a trace request; returning means that its spans were delivered or are on disk.

        Raises:
            MalformedRequestError: nothing of it was taken.
            RetryableError: nothing of it was taken; the sender should come again.
        """

    async def consume(self, signal: Signal, data: bytes) -> Outcome:
        """Take a request of a signal that the bridge forwards unchanged; same promise, same errors."""


class Reservation(Protocol):
    """Room in every destination's queue, held for one request before work is spent on it."""

    async def send(self, signal: Signal, payload: bytes, items: int) -> None:
        """Hand the request over; returns when each destination has delivered it or put it on disk.

        Raises:
            RetryableError: a destination could do neither and has let go of it.
        """

    def release(self) -> None:
        """Give the room back unused; harmless after `send`."""


class Exporter(Protocol):
    """All destinations, seen as one."""

    def reserve(self, size: int) -> Reservation:
        """Hold room for a request of `size` bytes.

        Raises:
            QueueFullError: a destination has no room, with the seconds to wait.
        """
