"""Pieces for tests of code that is built on the bridge: clocks, sinks, and makers of OTLP requests."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList

from otel_bridge.contracts import Outcome
from otel_bridge.model import Signal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.proto.trace.v1.trace_pb2 import Span

Value: TypeAlias = "str | bool | int | float | bytes | Sequence[Value] | Mapping[str, Value] | None"


class FakeClock:
    """A clock that moves only when told; sleepers wake in order."""

    def __init__(self, start_ns: int = 1_700_000_000_000_000_000) -> None:
        self._wall_ns = start_ns
        self._monotonic = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._count = 0

    def time_ns(self) -> int:
        """Wall-clock time, unix nanoseconds."""
        return self._wall_ns

    def monotonic(self) -> float:
        """Seconds since the clock was made."""
        return self._monotonic

    async def sleep(self, seconds: float) -> None:
        """Wait until `advance` has moved the clock so far."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._count += 1
        heapq.heappush(self._sleepers, (self._monotonic + seconds, self._count, future))
        await future

    async def advance(self, seconds: float) -> None:
        """Move time, waking each sleeper at its moment and letting it run."""
        end = self._monotonic + seconds
        while self._sleepers and self._sleepers[0][0] <= end:
            at, _, future = heapq.heappop(self._sleepers)
            self._move_to(at)
            if not future.done():
                future.set_result(None)
            for _ in range(10):
                await asyncio.sleep(0)
        self._move_to(end)

    def step_wall(self, seconds: float) -> None:
        """Set the wall clock off by so much, as an operator or NTP would; monotonic time does not move."""
        self._wall_ns += round(seconds * 1e9)

    def _move_to(self, monotonic: float) -> None:
        self._wall_ns += round((monotonic - self._monotonic) * 1e9)
        self._monotonic = monotonic


@dataclass
class ConsumerSink:
    """A Consumer that keeps what it is given, or fails as told.

    Attributes:
        held: requests wait until it is set; None: for nothing.
        at_work: requests that wait now.
    """

    requests: list[tuple[Signal, bytes]] = field(default_factory=list)
    error: Exception | None = None
    outcome: Outcome | None = None
    held: asyncio.Event | None = None
    at_work: int = 0

    async def consume_traces(self, data: bytes) -> Outcome:
        """Keep a trace request."""
        await self._keep(Signal.TRACES, data)
        return self.outcome if self.outcome is not None else Outcome(len(spans_of(data)))

    async def consume(self, signal: Signal, data: bytes) -> Outcome:
        """Keep a request of another signal; it counts as one item."""
        await self._keep(signal, data)
        return self.outcome if self.outcome is not None else Outcome(1)

    async def _keep(self, signal: Signal, data: bytes) -> None:
        if self.held is not None:
            self.at_work += 1
            try:
                await self.held.wait()
            finally:
                self.at_work -= 1
        if self.error is not None:
            raise self.error
        self.requests.append((signal, data))

    @property
    def spans(self) -> list[Span]:
        """All spans kept so far."""
        return [span for signal, data in self.requests if signal is Signal.TRACES for span in spans_of(data)]


def any_value(value: Value) -> AnyValue:
    """A Python value as OTLP's AnyValue."""
    if value is None:
        return AnyValue()
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    if isinstance(value, str):
        return AnyValue(string_value=value)
    if isinstance(value, bytes):
        return AnyValue(bytes_value=value)
    if isinstance(value, Mapping):
        return AnyValue(kvlist_value=KeyValueList(values=key_values(value)))
    return AnyValue(array_value=ArrayValue(values=[any_value(item) for item in value]))


def key_values(attributes: Mapping[str, Value]) -> list[KeyValue]:
    """A mapping as OTLP attributes, in its order."""
    return [KeyValue(key=key, value=any_value(value)) for key, value in attributes.items()]


def plain(value: AnyValue) -> Value:
    """OTLP's AnyValue as a Python value."""
    which = value.WhichOneof("value")
    if which is None:
        return None
    if which == "array_value":
        return [plain(item) for item in value.array_value.values]
    if which == "kvlist_value":
        return attributes_of(value.kvlist_value.values)
    result: Value = getattr(value, which)
    return result


def attributes_of(items: Sequence[KeyValue]) -> dict[str, Value]:
    """OTLP attributes as a dict; of a repeated key the first is kept."""
    out: dict[str, Value] = {}
    for item in items:
        out.setdefault(item.key, plain(item.value))
    return out


def spans_of(data: bytes) -> list[Span]:
    """The spans of an ExportTraceServiceRequest, in order."""
    request = ExportTraceServiceRequest.FromString(data)
    return [span for rs in request.resource_spans for ss in rs.scope_spans for span in ss.spans]


def trace_request(
    spans: Sequence[Mapping[str, object]],
    *,
    resource: Mapping[str, Value] | None = None,
    scope: str = "test",
) -> bytes:
    """An ExportTraceServiceRequest with one resource and one scope.

    Each span is a mapping of Span's field names, with `attributes` as a plain mapping; ids, kind, name and
    times that are left out are filled in: trace id 1, span ids 1, 2, …, kind SERVER, one second long.
    """
    request = ExportTraceServiceRequest()
    resource_spans = request.resource_spans.add()
    resource_spans.resource.attributes.extend(key_values(resource or {"service.name": "test"}))
    scope_spans = resource_spans.scope_spans.add()
    scope_spans.scope.name = scope
    for number, given in enumerate(spans, 1):
        fields = dict(given)
        attributes = fields.pop("attributes", {})
        defaults: dict[str, object] = {
            "trace_id": (1).to_bytes(16, "big"),
            "span_id": number.to_bytes(8, "big"),
            "name": "span",
            "kind": 2,
            "start_time_unix_nano": 1_700_000_000_000_000_000,
            "end_time_unix_nano": 1_700_000_001_000_000_000,
        }
        span = scope_spans.spans.add(**{**defaults, **fields})
        span.attributes.extend(key_values(attributes))  # type: ignore[arg-type]
    return request.SerializeToString()
