"""What both transports do with a request: a place among those in flight, the consumer, the counters."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import structlog

from otel_bridge import catalog
from otel_bridge.errors import BridgeError, QueueFullError, ShuttingDownError
from otel_bridge.model import Signal
from otel_bridge.receivers.otlp import status

if TYPE_CHECKING:
    from collections.abc import Iterable

    from otel_bridge.contracts import Consumer, Outcome
    from otel_bridge.telemetry import Telemetry

log = structlog.get_logger(__name__)

RETRY_AFTER = 1.0
"""Seconds before a sender should come again when the receiver itself turned it away."""

TRACEBACK_INTERVAL = 10.0
"""Seconds between tracebacks in the log, so that a bug that hits every request does not fill the disk."""

UNKNOWN_SIGNAL = "unknown"
"""The `signal` of a request to no known path."""

PARTIAL_REASON = "invalid"
"""The `reason` of spans refused for good while the rest of their request was taken."""


class Intake:
    """The common part of one transport; items are counted by what the consumer says."""

    def __init__(
        self, transport: str, consumer: Consumer, telemetry: Telemetry, *, limit: int, codes: Iterable[str]
    ) -> None:
        self.draining = False
        self._transport = transport
        self._consumer = consumer
        self._limit = limit
        self._in_flight = 0
        self._next_traceback = 0.0
        self._accepted = {
            signal: telemetry.deferred(catalog.RECEIVER_ACCEPTED, transport, signal.value)
            for signal in Signal
        }
        self._refused = telemetry.counter(catalog.RECEIVER_REFUSED).labels(
            transport, Signal.TRACES.value, PARTIAL_REASON
        )
        self._failed = telemetry.counter(catalog.RECEIVER_FAILED).labels(transport)
        self._requests = telemetry.counter(catalog.RECEIVER_REQUESTS)
        self._answers = {
            (signal, code): telemetry.deferred(catalog.RECEIVER_REQUESTS, transport, signal, code)
            for signal in (*(signal.value for signal in Signal), UNKNOWN_SIGNAL)
            for code in codes
        }
        self._duration = {
            signal: telemetry.deferred(catalog.RECEIVER_DURATION, transport, signal.value)
            for signal in Signal
        }

    def admit(self) -> None:
        """Take a place among the requests in flight; give it back with `release`.

        Raises:
            RetryableError: there is none.
        """
        if self.draining:
            raise ShuttingDownError("the bridge is shutting down", retry_after=RETRY_AFTER)
        if self._in_flight >= self._limit:
            message = f"{self._limit} requests are being worked on; no more at once"
            raise QueueFullError(message, retry_after=RETRY_AFTER)
        self._in_flight += 1

    def release(self) -> None:
        """Give the place back."""
        self._in_flight -= 1

    async def take(self, signal: Signal, data: bytes) -> Outcome:
        """Hand a request to the consumer; it raises what the consumer raises."""
        started = time.perf_counter()
        try:
            if signal is Signal.TRACES:
                outcome = await self._consumer.consume_traces(data)
            else:
                outcome = await self._consumer.consume(signal, data)
        finally:
            self._duration[signal](time.perf_counter() - started)
        self._accepted[signal](outcome.accepted)
        if outcome.rejected:
            self._refused.inc(outcome.rejected)
        return outcome

    def refuse(self, error: Exception) -> status.Refusal:
        """How an error is answered; one that nobody foresaw is counted, and logged now and then."""
        if not isinstance(error, BridgeError):
            self._failed.inc()
            now = time.monotonic()
            if now >= self._next_traceback:
                self._next_traceback = now + TRACEBACK_INTERVAL
                log.error("request failed", transport=self._transport, exc_info=error)
        return status.refusal(error)

    def answered(self, signal: str, code: str) -> None:
        """Count an answer."""
        count = self._answers.get((signal, code))
        if count is not None:
            count()
        else:
            self._requests.labels(self._transport, signal, code).inc()
