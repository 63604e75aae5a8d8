"""A pipeline that samples, with a destination that can be switched off, and traces by their randomness."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from otel_bridge.errors import QueueFullError, RetryableError
from otel_bridge.exporters.otlp.config import StorageConfig
from otel_bridge.model import Signal
from otel_bridge.pipeline import Pipeline, build_steps
from otel_bridge.processors.sample.threshold import FULL
from otel_bridge.receivers.otlp.codec import NativeCodec
from otel_bridge.settings import ProcessorSettings
from otel_bridge.telemetry import Telemetry
from otel_bridge.testing import FakeClock, spans_of, trace_request

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from opentelemetry.proto.trace.v1.trace_pb2 import Span

    from otel_bridge.contracts import Outcome
    from otel_bridge.verbosity import Verbosity

WALL = 1_700_000_000_000_000_000
FAST = {"start_time_unix_nano": WALL, "end_time_unix_nano": WALL + 10_000_000}
"""Times of a span that is not slow."""


def trace_id(share: float, number: int = 0) -> bytes:
    """An id whose randomness lies so far between nothing (0) and everything (1); numbers make it another."""
    low = min(FULL - 1, int(share * FULL))
    return (number + 1).to_bytes(8, "big") + b"\x01" + low.to_bytes(7, "big")


def span(share: float, number: int = 0, **fields: Any) -> dict[str, object]:
    """A span of such a trace."""
    return {"trace_id": trace_id(share, number), **FAST, **fields}


@dataclass
class Destination:
    """An exporter that keeps what it is sent."""

    full: bool = False
    fails: bool = False
    sent: list[bytes] = field(default_factory=list)
    gate: asyncio.Event | None = None

    def reserve(self, size: int) -> Destination:
        if self.full:
            raise QueueFullError("full", retry_after=1.0)
        return self

    async def send(self, signal: Signal, payload: bytes, items: int) -> None:
        if self.fails:
            raise RetryableError("down")
        if self.gate is not None:
            await self.gate.wait()
        assert signal is Signal.TRACES
        assert len(spans_of(payload)) == items
        self.sent.append(payload)

    def release(self) -> None:
        """Nothing is held."""

    @property
    def spans(self) -> list[Span]:
        return [one for payload in self.sent for one in spans_of(payload)]


class Sampling:
    """A pipeline of which only the sampling is of interest."""

    def __init__(
        self, directory: Path | None = None, verbosity: Verbosity | None = None, **sample: Any
    ) -> None:
        self.verbosity = verbosity
        self.telemetry = Telemetry()
        self.clock = FakeClock(WALL + 10_000_000_000)
        self.destination = Destination()
        storage = StorageConfig(directory=directory, fsync=False) if directory is not None else None
        self.pipeline = Pipeline(
            NativeCodec(),
            self.steps(**sample),
            self.destination,
            self.telemetry,
            self.clock,
            storage=storage,
        )

    def steps(self, **sample: Any) -> Any:
        """Compiled processors."""
        off = {"enabled": False}
        settings = {"sample": {"enabled": True, **sample}, "enrich": off, "redact": off}
        return build_steps(
            ProcessorSettings.model_validate(settings),
            self.telemetry,
            self.clock,
            verbosity=self.verbosity,
        )

    async def send(self, *spans: Mapping[str, object], **request: Any) -> Outcome:
        """One request, to its acknowledgement."""
        return await self.pipeline.consume_traces(trace_request(spans, **request))

    def sending(self, *spans: Mapping[str, object], **request: Any) -> asyncio.Task[Outcome]:
        """One request, on its way."""
        return asyncio.create_task(self.send(*spans, **request))

    @property
    def left(self) -> dict[tuple[bytes, bytes], str]:
        """Tracestates of what left, by trace id and span id."""
        return {(one.trace_id, one.span_id): one.trace_state for one in self.destination.spans}

    @property
    def traces(self) -> set[bytes]:
        """The traces that left."""
        return {one.trace_id for one in self.destination.spans}


async def until_idle() -> None:
    """Let everything run that can, threads included."""
    for _ in range(20):
        await asyncio.sleep(0)
    await asyncio.sleep(0.01)
