"""Oversize requests, taken apart: nothing missing, nothing twice, nothing above the limit."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_bridge import catalog
from otel_bridge.exporters.otlp.answer import Delivered, Failed
from otel_bridge.exporters.otlp.config import StorageConfig
from otel_bridge.exporters.otlp.size_limit import LEARNED_FOR
from otel_bridge.exporters.otlp.split import Part, split
from otel_bridge.model import Signal
from otel_bridge.telemetry import Telemetry
from otel_bridge.testing import FakeClock, spans_of, trace_request
from tests.support.exporter_fakes import TOO_LARGE, FakeCodec, FakeSender, make_exporter, send, turns, until

KIB, MIB = 1 << 10, 1 << 20


def request_of(sizes: list[int], *, resources: int = 1) -> bytes:
    """Spans with a payload attribute of the given sizes, spread over resources; named by their place."""
    per = max(len(sizes) // resources, 1)
    return b"".join(
        trace_request(
            [
                {"name": str(start + place), "attributes": {"body": "x" * size}}
                for place, size in enumerate(sizes[start : start + per])
            ],
            resource={"service.name": f"service {start}"},
        )
        for start in range(0, len(sizes), per)
    )


def names(payload: bytes) -> list[str]:
    return [span.name for span in spans_of(payload)]


def test_spans_are_packed_in_order_below_the_limit():
    payload = request_of([100_000] * 23, resources=3)
    parts = split(Signal.TRACES, Part(payload, 23), 500_000, FakeCodec())
    assert all(len(part.payload) <= 500_000 for part in parts)
    assert len(parts) == 6
    assert [name for part in parts for name in names(part.payload)] == [str(n) for n in range(23)]
    assert sum(part.items for part in parts) == 23


def test_each_piece_keeps_resource_and_scope():
    payload = request_of([1000] * 4, resources=2)
    for part in split(Signal.TRACES, Part(payload, 4), 1500, FakeCodec()):
        (resource_spans,) = ExportTraceServiceRequest.FromString(part.payload).resource_spans
        start = int(resource_spans.scope_spans[0].spans[0].name) // 2 * 2
        assert resource_spans.resource.attributes[0].value.string_value == f"service {start}"
        assert resource_spans.scope_spans[0].scope.name == "test"


def test_a_span_above_the_limit_stands_alone():
    payload = request_of([10, 10, 50_000, 10])
    parts = split(Signal.TRACES, Part(payload, 4), 10_000, FakeCodec())
    assert [(names(part.payload), part.divisible) for part in parts] == [
        (["0", "1"], True),
        (["2"], False),
        (["3"], False),
    ]


def test_a_large_resource_does_not_make_every_span_stand_alone():
    payload = trace_request(
        [{"name": str(n)} for n in range(64)], resource={"big": "x" * 9000}
    ) + trace_request([{"name": "64"}], resource={"big": "y" * 9000})
    parts = split(Signal.TRACES, Part(payload, 65), 12_000, FakeCodec())
    assert all(len(part.payload) <= 12_000 for part in parts)
    assert len(parts) < 8
    assert [name for part in parts for name in names(part.payload)] == [str(n) for n in range(65)]


@given(st.lists(st.integers(0, 3000), min_size=1, max_size=40), st.integers(1, 5), st.integers(100, 6000))
def test_nothing_is_missing_and_nothing_twice(sizes, resources, limit):
    payload = request_of(sizes, resources=resources)
    parts = split(Signal.TRACES, Part(payload, len(sizes)), limit, FakeCodec())
    assert [name for part in parts for name in names(part.payload)] == [str(n) for n in range(len(sizes))]
    for part in parts:
        assert len(part.payload) <= limit or not part.divisible
        assert part.divisible == (part.items > 1)


def test_unreadable_bytes_come_back_as_they_are():
    for signal in Signal:
        assert split(signal, Part(b"\xff" * 50, 3), 10, FakeCodec()) == [
            Part(b"\xff" * 50, 3, divisible=False)
        ]


def logs_request(count: int, size: int) -> bytes:
    request = ExportLogsServiceRequest()
    for resource in range(2):
        resource_logs = request.resource_logs.add(schema_url="schema")
        resource_logs.resource.attributes.add(key="number").value.int_value = resource
        for scope in range(2):
            scope_logs = resource_logs.scope_logs.add()
            scope_logs.scope.name = str(scope)
            for number in range(count // 4):
                record = scope_logs.log_records.add()
                record.body.string_value = f"{resource} {scope} {number} " + "x" * size
    return request.SerializeToString()


def test_logs_are_split_by_record():
    payload = logs_request(40, 1000)
    parts = split(Signal.LOGS, Part(payload, 40), 5000, FakeCodec())
    assert all(len(part.payload) <= 5000 for part in parts)
    assert sum(part.items for part in parts) == 40
    found = []
    for part in parts:
        for resource_logs in ExportLogsServiceRequest.FromString(part.payload).resource_logs:
            assert resource_logs.schema_url == "schema"
            for scope_logs in resource_logs.scope_logs:
                where = f"{resource_logs.resource.attributes[0].value.int_value} {scope_logs.scope.name} "
                for record in scope_logs.log_records:
                    assert record.body.string_value.startswith(where)
                    found.append(record.body.string_value[:5].split()[-1])
    assert found == [str(number) for _ in range(4) for number in range(10)]


def test_metrics_are_split_by_metric_and_counted_by_data_point():
    request = ExportMetricsServiceRequest()
    scope_metrics = request.resource_metrics.add().scope_metrics.add()
    for number in range(20):
        metric = scope_metrics.metrics.add(name=f"{number}")
        for point in range(5):
            metric.gauge.data_points.add(as_int=point)
    payload = request.SerializeToString()
    parts = split(Signal.METRICS, Part(payload, 100), len(payload) // 3, FakeCodec())
    assert len(parts) >= 3
    assert sum(part.items for part in parts) == 100
    merged = ExportMetricsServiceRequest.FromString(b"".join(part.payload for part in parts))
    got = [m.name for rm in merged.resource_metrics for sm in rm.scope_metrics for m in sm.metrics]
    assert got == [str(number) for number in range(20)]


# cases.md otlp-oversize: 500 spans of 100 KB, 20 of 1 KB in between, one of 20 MiB.


def otlp_oversize() -> bytes:
    sizes = [100_000] * 500
    for place in range(20):
        sizes.insert(place * 25, 1000)
    sizes.insert(260, 20 * MIB)
    return request_of(sizes)


OVERSIZE = otlp_oversize()


@pytest.mark.parametrize("told", [True, False], ids=["told", "not told"])
@pytest.mark.parametrize("limit", [16_777_216, 4_194_304])
@pytest.mark.parametrize("configured", [4 * MIB, 64 * MIB])
async def test_every_ordinary_span_arrives_whatever_the_limit(limit, told, configured):
    def answer(_, payload):
        if len(payload) <= limit:
            return Delivered()
        return Failed(
            "RESOURCE_EXHAUSTED", "too large", retryable=False, oversize=True, limit=limit if told else None
        )

    sender, telemetry, clock = FakeSender(answer), Telemetry(), FakeClock()
    exporter = make_exporter(sender, clock=clock, telemetry=telemetry, max_request_size=configured)
    await exporter.start()
    await send(exporter, OVERSIZE, 521)
    arrived = [name for payload in sender.delivered for name in names(payload)]
    assert arrived == [str(number) for number in range(521) if number != 260]
    assert all(len(payload) <= limit for payload in sender.delivered)
    assert telemetry.value(catalog.EXPORTER_SENT, exporter="otlp", signal="traces") == 520
    dropped = telemetry.value(catalog.EXPORTER_DROPPED, exporter="otlp", signal="traces", reason="oversize")
    assert dropped == 1
    if configured <= limit:
        assert all(len(payload) <= configured for _, payload in sender.tried), (
            "never sends an oversize request"
        )


async def test_a_learned_limit_is_remembered_for_a_while():
    sender, clock = FakeSender(lambda _, p: Delivered() if len(p) <= 200 * KIB else TOO_LARGE), FakeClock()
    exporter = make_exporter(sender, clock=clock)
    await exporter.start()
    payload = request_of([50_000] * 8)
    await send(exporter, payload, 8)
    first = len(sender.tried)
    assert len(sender.delivered) < first
    sender.tried.clear()
    sender.delivered.clear()
    await send(exporter, payload, 8)
    assert len(sender.tried) == len(sender.delivered), "no try was wasted"
    await clock.advance(LEARNED_FOR + 1)
    sender.tried.clear()
    await send(exporter, payload, 8)
    assert len(sender.tried[0][1]) == len(payload), "forgotten: the destination may have been mended"


async def test_a_destination_that_is_exhausted_for_another_reason_does_not_shrink_later_requests():
    sender, clock = FakeSender(), FakeClock()
    exporter = make_exporter(sender, clock=clock)
    await exporter.start()
    payload = request_of([50_000] * 8)
    await send(exporter, payload, 8)
    sender.answer = TOO_LARGE
    await send(exporter, payload, 8)
    sender.answer = Delivered()
    sender.tried.clear()
    await send(exporter, payload, 8)
    assert len(sender.tried) == 1


async def test_joined_requests_that_are_too_large_together_go_one_by_one():
    sender = FakeSender(lambda _, p: Delivered() if len(p) <= 1000 else TOO_LARGE, gate=asyncio.Event())
    exporter = make_exporter(sender, clock=FakeClock(), sending_queue={"num_consumers": 1})
    await exporter.start()
    payloads = [request_of([500]) for _ in range(4)]
    sending = [asyncio.create_task(send(exporter, payload)) for payload in payloads]
    await turns()
    sender.gate.set()
    await asyncio.gather(*sending)
    assert sender.delivered == payloads


async def test_pieces_that_were_delivered_are_not_sent_again_from_disk(tmp_path):
    answers = iter([Delivered(), Failed("UNAVAILABLE", "", retryable=True)])
    sender, clock = FakeSender(lambda *_: next(answers, Delivered()), gate=asyncio.Event()), FakeClock()
    storage = StorageConfig(directory=tmp_path, fsync=False)
    exporter = make_exporter(
        sender, clock=clock, directory=tmp_path, storage=storage, max_request_size=60_000
    )
    await exporter.start()
    sending = asyncio.create_task(send(exporter, request_of([50_000] * 4), 4))
    await turns()
    await clock.advance(1.1)
    await sending
    sender.gate.set()
    await turns()
    assert len(sender.tried) == 2
    await clock.advance(6)
    await until(lambda: len(sender.delivered) >= 4)
    await exporter.stop(1.0)
    assert [name for payload in sender.delivered for name in names(payload)] == ["0", "1", "2", "3"]


async def test_pieces_that_were_delivered_are_not_sent_again_after_a_failure():
    answers = iter([Delivered(), Failed("UNAVAILABLE", "", retryable=True)])
    sender, clock = FakeSender(lambda *_: next(answers, Delivered())), FakeClock()
    exporter = make_exporter(
        sender, clock=clock, max_request_size=60_000, sending_queue={"hold": 100}, retry_on_failure={}
    )
    await exporter.start()
    sending = asyncio.create_task(send(exporter, request_of([50_000] * 4), 4))
    await turns()
    await clock.advance(6)
    await sending
    assert [name for payload in sender.delivered for name in names(payload)] == ["0", "1", "2", "3"]
