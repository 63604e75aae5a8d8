"""Spans, data points and log records are counted without being read."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric

from otel_bridge.batch import Plan
from otel_bridge.model import Signal
from otel_bridge.receivers.otlp.codec import NativeCodec
from otel_bridge.receivers.otlp.reference import ReferenceCodec
from tests.support.wire_maker import WireMaker, mutated

NATIVE, REFERENCE = NativeCodec(), ReferenceCodec()
CODECS = pytest.mark.parametrize("codec", [NATIVE, REFERENCE], ids=lambda codec: codec.name)
KINDS = ("gauge", "sum", "histogram", "exponential_histogram", "summary")
randoms = st.integers(0, 2**64 - 1).map(Random)
thorough = settings(deadline=None, suppress_health_check=list(HealthCheck))


def counted(data: bytes) -> dict[str, int]:
    """The same bytes counted as logs and as metrics, by both codecs, which must agree."""
    both = {
        signal.value: (NATIVE.count_items(signal, data), REFERENCE.count_items(signal, data))
        for signal in (Signal.LOGS, Signal.METRICS)
    }
    assert all(native == reference for native, reference in both.values()), both
    return {signal: native for signal, (native, _) in both.items()}


def logs(shape: list[list[int]]) -> ExportLogsServiceRequest:
    """By resource and scope, so many records."""
    request = ExportLogsServiceRequest()
    for scopes in shape:
        resource = request.resource_logs.add()
        for records in scopes:
            scope = resource.scope_logs.add()
            for _ in range(records):
                scope.log_records.add().body.string_value = "line"
    return request


def metrics(kinds: list[str | None], points: int) -> ExportMetricsServiceRequest:
    """A metric of each kind (None: one without data) with so many points."""
    request = ExportMetricsServiceRequest()
    scope = request.resource_metrics.add().scope_metrics.add()
    for kind in kinds:
        metric = scope.metrics.add(name="m", description="d", unit="u")
        if kind is not None:
            getattr(metric, kind).SetInParent()
            for number in range(points):
                getattr(metric, kind).data_points.add(time_unix_nano=number)
    return request


def test_every_kind_of_metric_is_known():
    assert {field.name for field in Metric.DESCRIPTOR.oneofs_by_name["data"].fields} == set(KINDS)


@CODECS
@pytest.mark.parametrize("kind", KINDS)
def test_data_points_of_each_kind(codec, kind):
    assert codec.count_items(Signal.METRICS, metrics([kind, None], 7).SerializeToString()) == 7


@CODECS
def test_metrics_of_several_kinds(codec):
    assert codec.count_items(Signal.METRICS, metrics([*KINDS, None, *KINDS], 3).SerializeToString()) == 30


@given(st.lists(st.lists(st.integers(0, 5), max_size=3), max_size=3))
def test_log_records(shape):
    data = logs(shape).SerializeToString()
    assert counted(data)["logs"] == sum(map(sum, shape))


@given(st.lists(st.sampled_from([*KINDS, None]), max_size=4), st.integers(0, 4))
def test_data_points(kinds, points):
    data = metrics(kinds, points).SerializeToString()
    assert counted(data)["metrics"] == points * sum(kind is not None for kind in kinds)


@thorough
@given(randoms)
def test_spans_of_requests_that_no_stock_encoder_writes(random):
    """Odd requests have groups, unknown fields and padded numbers; upb's decoder knows how many spans."""
    data = WireMaker(random, odd=True, bad_text=False).request()
    spans = sum(
        len(scope.spans)
        for resource in ExportTraceServiceRequest.FromString(data).resource_spans
        for scope in resource.scope_spans
    )
    for codec in (NATIVE, REFERENCE):
        assert codec.count_items(Signal.TRACES, data) == spans == len(codec.scan(data, Plan(())))


@thorough
@given(randoms)
def test_broken_bytes_count_no_more_than_they_hold(random):
    """Decoders differ in what they forgive; nobody fails, and no message is shorter than two bytes."""
    base = metrics(random.choices(KINDS, k=2), 3) if random.random() < 0.5 else logs([[2, 1], [3]])
    data = mutated(random, base.SerializeToString(), WireMaker(random, odd=True).request())
    for codec in (NATIVE, REFERENCE):
        for signal in Signal:
            assert 0 <= codec.count_items(signal, data) <= len(data) // 2


@given(st.binary(max_size=60))
def test_any_bytes_are_counted(data):
    for codec in (NATIVE, REFERENCE):
        for signal in Signal:
            assert 0 <= codec.count_items(signal, data) <= len(data) // 2


@CODECS
def test_a_request_cut_off_counts_nothing_where_it_is_cut(codec):
    whole, more = logs([[2]]).SerializeToString(), logs([[3]]).SerializeToString()
    assert codec.count_items(Signal.LOGS, whole + more) == 5
    assert codec.count_items(Signal.LOGS, whole + more[:-1]) == 0


def test_a_million_records_are_counted():
    """Beyond the size from which on other threads run meanwhile."""
    assert (
        NATIVE.count_items(
            Signal.LOGS,
            ExportLogsServiceRequest(
                resource_logs=[{"scope_logs": [{"log_records": [{}] * 1_000_000}]}]
            ).SerializeToString(),
        )
        == 1_000_000
    )
