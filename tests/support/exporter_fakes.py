"""Stand-ins for the exporter's tests: a transport that answers as told, and a small codec on upb."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_bridge.batch import ATTRIBUTE, SCOPE, SPAN, Batch, Plan
from otel_bridge.errors import MalformedRequestError
from otel_bridge.exporters.otlp.answer import Answer, Delivered, Failed
from otel_bridge.exporters.otlp.config import GrpcExporterConfig
from otel_bridge.exporters.otlp.destination import Destination
from otel_bridge.exporters.otlp.disk import DiskQueue
from otel_bridge.exporters.otlp.exporter import OtlpExporter
from otel_bridge.model import Signal
from otel_bridge.telemetry import Telemetry

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from otel_bridge.exporters.otlp.config import StorageConfig
    from otel_bridge.testing import FakeClock

UNAVAILABLE = Failed("UNAVAILABLE", "connection refused", retryable=True)
INVALID = Failed("INVALID_ARGUMENT", "bad data", retryable=False)
TOO_LARGE = Failed("RESOURCE_EXHAUSTED", "too large", retryable=False, oversize=True)


@dataclass
class FakeSender:
    """Answers with `answer`: one for all, or a function of signal and payload; waits for `gate` if set."""

    answer: Answer | Callable[[Signal, bytes], Answer] = field(default_factory=Delivered)
    tried: list[tuple[Signal, bytes]] = field(default_factory=list)
    delivered: list[bytes] = field(default_factory=list)
    gate: asyncio.Event | None = None
    codes: tuple[str, ...] = ("UNAVAILABLE", "INVALID_ARGUMENT")
    closed: bool = False

    async def start(self) -> None:
        """Nothing to prepare."""

    async def send(self, signal: Signal, payload: bytes) -> Answer:
        self.tried.append((signal, payload))
        if self.gate is not None:
            await self.gate.wait()
        answer = self.answer if isinstance(self.answer, Delivered | Failed) else self.answer(signal, payload)
        if isinstance(answer, Delivered):
            self.delivered.append(payload)
        return answer

    async def close(self) -> None:
        self.closed = True


class FakeCodec:
    """As much of a codec as splitting needs."""

    name = "fake"

    def scan(self, data: bytes, plan: Plan) -> Batch:
        try:
            request = ExportTraceServiceRequest.FromString(data)
        except DecodeError as error:
            raise MalformedRequestError(str(error)) from error
        sizes = [
            _field_size(span.ByteSize())
            for rs in request.resource_spans
            for ss in rs.scope_spans
            for span in ss.spans
        ]
        spans = np.zeros(len(sizes), SPAN)
        spans["len"] = sizes
        return Batch(
            data, plan, self, spans, np.zeros(0, SCOPE), np.zeros(0, ATTRIBUTE), [0, 0], frozenset(), 0
        )

    def splice(self, batch: Batch) -> bytes:
        request = ExportTraceServiceRequest.FromString(batch.data)
        dropped = batch.dropped if batch.dropped is not None else np.zeros(len(batch), np.bool_)
        rows = iter(dropped)
        out = ExportTraceServiceRequest()
        for rs in request.resource_spans:
            kept_rs = type(rs)()
            kept_rs.resource.CopyFrom(rs.resource)
            for ss in rs.scope_spans:
                kept = [span for span in ss.spans if not next(rows)]
                if kept:
                    scope = kept_rs.scope_spans.add()
                    scope.scope.CopyFrom(ss.scope)
                    scope.spans.extend(kept)
            if kept_rs.scope_spans:
                out.resource_spans.append(kept_rs)
        return out.SerializeToString()


def _field_size(size: int) -> int:
    return 1 + max((size.bit_length() + 6) // 7, 1) + size


def make_exporter(
    *senders: FakeSender,
    clock: FakeClock,
    telemetry: Telemetry | None = None,
    directory: Path | None = None,
    storage: StorageConfig | None = None,
    **config: Any,
) -> OtlpExporter:
    """An exporter over fake transports, named "otlp", "otlp/1", …; with a directory, queues on disk too."""
    telemetry = telemetry or Telemetry()
    destinations = []
    for number, sender in enumerate(senders):
        name = f"otlp/{number}" if number else "otlp"
        disk = None
        if directory is not None and storage is not None:
            disk = DiskQueue(directory / name.replace("/", "_"), storage, clock)
        destinations.append(
            Destination(
                name,
                GrpcExporterConfig.model_validate(config),
                sender,
                codec=FakeCodec(),
                clock=clock,
                telemetry=telemetry,
                disk=disk,
                draw=lambda: 0.999,
            )
        )
    return OtlpExporter(destinations, clock)


async def send(
    exporter: OtlpExporter, payload: bytes, items: int = 1, signal: Signal = Signal.TRACES
) -> None:
    """Reserve and send, as a receiver does."""
    await exporter.reserve(len(payload)).send(signal, payload, items)


async def turns(count: int = 20) -> None:
    """Let the event loop run what is ready."""
    for _ in range(count):
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that a disk queue's thread brings about; the test's own timeout ends it."""
    while not condition():  # noqa: ASYNC110 (a thread has no event to wait for)
        await asyncio.sleep(0.001)
