"""Bytes in, steps, bytes out; what is promised to senders when something is in the way."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_bridge import catalog
from otel_bridge.errors import MalformedRequestError, QueueFullError, RetryableError
from otel_bridge.model import Signal
from otel_bridge.pipeline import Pipeline, build_steps
from otel_bridge.receivers.otlp.codec import NativeCodec
from otel_bridge.settings import ProcessorSettings
from otel_bridge.telemetry import Telemetry
from otel_bridge.testing import FakeClock, attributes_of, spans_of, trace_request
from tests.unit.processors.join.test_join import SECOND, START, retransmits

if TYPE_CHECKING:
    from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass
class FakeExporter:
    """Keeps what it is sent; counts room that is held."""

    full: bool = False
    fails: bool = False
    held: int = 0
    sent: list[tuple[Signal, bytes, int]] = field(default_factory=list)

    def reserve(self, size: int) -> FakeReservation:
        if self.full:
            raise QueueFullError("full", retry_after=3.0)
        self.held += 1
        return FakeReservation(self)


@dataclass
class FakeReservation:
    """Room for one request."""

    exporter: FakeExporter
    open: bool = True

    async def send(self, signal: Signal, payload: bytes, items: int) -> None:
        if self.exporter.fails:
            raise RetryableError("down")
        self.exporter.sent.append((signal, payload, items))

    def release(self) -> None:
        self.exporter.held -= self.open
        self.open = False


class Bench:
    """A pipeline with what it needs around it."""

    def __init__(self, **processors) -> None:
        self.telemetry = Telemetry()
        self.clock = FakeClock(START + 10 * SECOND)
        self.exporter = FakeExporter()
        self.pipeline = Pipeline(
            NativeCodec(), self.steps(**processors), self.exporter, self.telemetry, self.clock
        )

    def steps(self, **processors):
        """Compiled processors."""
        return build_steps(ProcessorSettings.model_validate(processors), self.telemetry, self.clock)


async def test_spans_go_through_every_step():
    """Measured, joined, and only then redacted."""
    bench = Bench()
    bench.pipeline.take(retransmits(1))
    chat = {"gen_ai.request.model": "m", "llm.prompts.0.prompt.text": "Grüße"}
    outcome = await bench.pipeline.consume_traces(trace_request([{"attributes": chat}, {}]))
    ((signal, payload, items),) = bench.exporter.sent
    first, second = spans_of(payload)
    attributes = attributes_of(first.attributes)
    assert (signal, items, outcome.accepted, outcome.rejected) == (Signal.TRACES, 2, 2, 0)
    assert attributes["llm.prompt.len"] == 7
    assert attributes["kernel.tcp.retransmits"] == 1
    assert b"Gr" not in payload
    assert not second.attributes
    assert bench.exporter.held == 0


async def test_without_room_nothing_is_worked_on():
    """A refused request was not even scanned: nothing is counted twice when it comes again."""
    bench = Bench()
    bench.exporter.full = True
    with pytest.raises(QueueFullError) as refused:
        await bench.pipeline.consume_traces(trace_request([{}]))
    assert refused.value.retry_after == 3.0
    assert bench.telemetry.value(catalog.PROCESSOR_INCOMING) == 0


@pytest.mark.parametrize("data", [b"\x0a\xff", b"garbage", trace_request([{}])[:-1]])
async def test_a_malformed_request_gives_its_room_back(data):
    """And says that it is the sender's fault."""
    bench = Bench()
    with pytest.raises(MalformedRequestError):
        await bench.pipeline.consume_traces(data)
    assert bench.exporter.held == 0


async def test_a_failed_delivery_is_the_senders_to_repeat():
    """The error passes through; the room is free again."""
    bench = Bench()
    bench.exporter.fails = True
    with pytest.raises(RetryableError):
        await bench.pipeline.consume_traces(trace_request([{}]))
    assert bench.exporter.held == 0


async def test_bad_spans_are_told_by_reason():
    """Case otlp-partial (d): 8 of 10 are forwarded, the message names both reasons."""
    spans = [{} for _ in range(10)]
    spans[2]["trace_id"] = b"\x01" * 15
    spans[5]["span_id"] = bytes(8)
    bench = Bench()
    outcome = await bench.pipeline.consume_traces(trace_request(spans))
    assert (outcome.accepted, outcome.rejected) == (8, 2)
    assert "1 with a trace id that is not 16 bytes" in outcome.message
    assert "1 with an all-zero span id" in outcome.message
    assert len(spans_of(bench.exporter.sent[0][1])) == 8


async def test_only_bad_spans_means_nothing_to_send():
    """The sender still gets a partial success, not an error."""
    bench = Bench()
    outcome = await bench.pipeline.consume_traces(trace_request([{"span_id": bytes(8)}]))
    assert (outcome.accepted, outcome.rejected, bench.exporter.sent) == (0, 1, [])


async def test_an_empty_request_succeeds():
    """OTLP says so."""
    bench = Bench()
    assert (await bench.pipeline.consume_traces(b"")).rejected == 0
    assert bench.exporter.sent == []


@pytest.mark.parametrize(
    ("signal", "request_", "items"),
    [
        (
            Signal.LOGS,
            ExportLogsServiceRequest(resource_logs=[{"scope_logs": [{"log_records": [{}] * 5}]}]),
            5,
        ),
        (
            Signal.METRICS,
            ExportMetricsServiceRequest(
                resource_metrics=[
                    {"scope_metrics": [{"metrics": [{"gauge": {"data_points": [{}] * 3}}] * 2}]}
                ]
            ),
            6,
        ),
    ],
)
async def test_other_signals_pass_as_they_are_and_are_counted(signal, request_, items):
    """The receiver and the exporter are told how many records; the bytes are the same object."""
    bench = Bench()
    data = request_.SerializeToString()
    outcome = await bench.pipeline.consume(signal, data)
    assert (outcome.accepted, outcome.rejected, outcome.message) == (items, 0, "")
    assert bench.exporter.sent == [(signal, data, items)]
    assert bench.exporter.sent[0][1] is data
    assert bench.exporter.held == 0


async def test_wire_strings_that_are_not_utf8_are_mended():
    """Case otlp-utf8: the span arrives, the bad bytes are U+FFFD, the counter moves by two."""
    whole = trace_request([{"attributes": {"k?": "你?"}}])
    broken = whole.replace(b"k?", b"k\xff").replace("你?".encode(), b"\xe4\xbd\xa0\xe5")
    assert len(broken) == len(whole)
    bench = Bench()
    await bench.pipeline.consume_traces(broken)
    (span,) = spans_of(bench.exporter.sent[0][1])
    assert attributes_of(span.attributes) == {"k\ufffd": "你\ufffd"}
    assert bench.telemetry.value(catalog.RECEIVER_MENDED_STRINGS) == 2


@pytest.mark.parametrize("as_json", [False, True])
async def test_a_capped_prompt_is_measured_whole(as_json):
    """Case otlp-utf8, the second: whole characters, JSON where it was JSON, and the length before the cut."""
    prompt = "你好" * 40_000
    key, value = "llm.prompts.0.prompt.text", prompt
    if as_json:
        key = "gen_ai.input.messages"
        value = json.dumps(
            [{"role": "user", "parts": [{"type": "text", "content": prompt}]}], ensure_ascii=False
        )
    bench = Bench(redact={"content": "keep", "max_attribute_bytes": 65_536})
    await bench.pipeline.consume_traces(
        trace_request([{"attributes": {key: value, "gen_ai.request.model": "m"}}])
    )
    attributes = attributes_of(spans_of(bench.exporter.sent[0][1])[0].attributes)
    assert attributes["llm.prompt.len"] == 240_000
    kept = attributes[key]
    if as_json:
        assert 65_536 - 8 < len(kept.encode()) <= 65_536
        ((part,),) = [message["parts"] for message in json.loads(kept)]
        assert prompt.startswith(part["content"].removesuffix("…"))
    else:
        assert len(kept.encode()) == 65_535
        assert prompt.startswith(kept)


async def test_young_spans_wait_for_the_kernel():
    """Once events have been seen, a request with a fresh span is held for a moment, unacknowledged."""
    bench = Bench(join={"wait": 0.25})
    bench.pipeline.take(retransmits(99))
    now = bench.clock.time_ns()
    fresh = trace_request([{"end_time_unix_nano": now}])
    task = asyncio.create_task(bench.pipeline.consume_traces(fresh))
    await asyncio.sleep(0)
    assert bench.exporter.sent == []
    bench.pipeline.take(retransmits(1, at=now))
    await bench.clock.advance(0.25)
    await task
    assert attributes_of(spans_of(bench.exporter.sent[0][1])[0].attributes)["kernel.tcp.retransmits"] == 1


async def test_events_without_a_span_leave_as_logs_and_survive_a_reload():
    """What waits goes on waiting under the new configuration."""
    bench = Bench(join={"max_age": 60})
    bench.pipeline.take(retransmits(5))
    bench.pipeline.replace(bench.steps(join={"max_age": 5}))
    await bench.pipeline.sweep()
    assert bench.exporter.sent == []
    await bench.clock.advance(6)
    await bench.pipeline.sweep()
    ((signal, payload, _),) = bench.exporter.sent
    assert signal is Signal.LOGS
    other = Bench()
    await other.pipeline.consume(Signal.LOGS, payload)
    assert other.exporter.sent == [(Signal.LOGS, payload, 1)]
    await other.pipeline.consume_traces(trace_request([{"span_id": (5).to_bytes(8, "big")}]))
    assert spans_of(other.exporter.sent[1][1])[0].events


async def test_a_reload_never_splits_a_batch():
    """A request that waits while the steps are replaced is finished with the steps it began with."""
    bench = Bench(join={"wait": 0.25}, redact={"content": "keep"})
    bench.pipeline.take(retransmits(99))
    fresh = trace_request(
        [{"end_time_unix_nano": bench.clock.time_ns(), "attributes": {"gen_ai.prompt": "text"}}]
    )
    task = asyncio.create_task(bench.pipeline.consume_traces(fresh))
    await asyncio.sleep(0)
    bench.pipeline.replace(bench.steps())
    await bench.clock.advance(0.25)
    await task
    await bench.pipeline.consume_traces(trace_request([{"attributes": {"gen_ai.prompt": "text"}}]))
    assert [b"text" in payload for _, payload, _ in bench.exporter.sent] == [True, False]


_values = st.recursive(
    st.text(max_size=12)
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
_known = st.sampled_from(
    [
        "gen_ai.system",
        "gen_ai.usage.prompt_tokens",
        "llm.model_name",
        "http.request.body",
        "url.query",
        "input.value",
    ]
)
_events = st.fixed_dictionaries({"name": st.text(max_size=6), "time_unix_nano": st.integers(0, 2**64 - 1)})
_links = st.fixed_dictionaries({"trace_id": st.just(b"t" * 16), "trace_state": st.text(max_size=6)})
_spans = st.fixed_dictionaries(
    {
        "attributes": st.dictionaries(_known | st.text(max_size=10), _values, max_size=6),
        "name": st.text(max_size=10),
        "kind": st.integers(0, 5),
        "parent_span_id": st.sampled_from([b"", bytes(8), b"\x07" * 8]),
        "start_time_unix_nano": st.integers(0, 2**64 - 1),
        "end_time_unix_nano": st.integers(0, 2**64 - 1),
        "trace_state": st.text(max_size=10),
        "flags": st.integers(0, 2**32 - 1),
        "dropped_attributes_count": st.integers(0, 3),
        "events": st.lists(_events, max_size=2),
        "links": st.lists(_links.map(lambda link: {**link, "span_id": b"s" * 8}), max_size=2),
        "status": st.fixed_dictionaries({"message": st.text(max_size=6), "code": st.integers(0, 2)}),
    }
)
UNKNOWN = b"\xba\x3e\x03abc"
"""Field 999, which no version of OTLP has."""


def with_unknown_fields(data: bytes) -> bytes:
    """The request with a field of a later version in each message of it."""
    request = ExportTraceServiceRequest.FromString(data)
    for resource_spans in request.resource_spans:
        for scope_spans in resource_spans.scope_spans:
            for span in scope_spans.spans:
                for message in (span, span.status, *span.events, *span.links, *span.attributes):
                    message.MergeFromString(UNKNOWN)
            for message in (scope_spans, scope_spans.scope):
                message.MergeFromString(UNKNOWN)
        for message in (resource_spans, resource_spans.resource):
            message.MergeFromString(UNKNOWN)
    return request.SerializeToString() + UNKNOWN


@given(st.lists(_spans, min_size=1, max_size=5))
def test_what_comes_out_is_what_went_in_plus_the_enrichment(spans):
    """Without what enrichment added behind a span's own attributes, the request is the one that was sent."""
    sent = with_unknown_fields(trace_request(spans))
    bench = Bench(redact={"enabled": False})
    asyncio.run(bench.pipeline.consume_traces(sent))
    ((_, payload, items),) = bench.exporter.sent
    assert items == len(spans)
    before, after = (ExportTraceServiceRequest.FromString(data) for data in (sent, payload))
    for own, span in zip(spans_of(sent), every_span(after), strict=True):
        added = span.attributes[len(own.attributes) :]
        assert {one.key for one in added}.isdisjoint(one.key for one in own.attributes)
        assert all(one.key.startswith(("gen_ai.", "llm.")) for one in added)
        del span.attributes[len(own.attributes) :]
    assert after.SerializeToString() == before.SerializeToString()


def every_span(request: ExportTraceServiceRequest) -> list[Span]:
    """The spans as they lie in the request, to be changed there."""
    return [span for rs in request.resource_spans for ss in rs.scope_spans for span in ss.spans]
