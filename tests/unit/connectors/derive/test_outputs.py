"""What Prometheus scrapes and what is pushed by OTLP, read back by others' parsers."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from pydantic import ValidationError

from otel_bridge import catalog
from otel_bridge.connectors.derive.config import DeriveConfig, PushConfig
from otel_bridge.connectors.derive.push import Push
from otel_bridge.telemetry import Telemetry
from otel_bridge.testing import FakeClock, attributes_of
from tests.support.deriving import NOW, deriving
from tests.support.ports import free_port
from tests.support.sinks import GrpcSink
from tests.unit.connectors.derive.test_derive import CALL, START, lasting

TRACE = bytes(range(16))


def example():
    """Some spans of two services, one of them over the limit."""
    bridge = deriving(max_series=2, initial_zero=0, dimensions=["tenant.id"])
    bridge.spans(
        lasting(70, name='say "hi"\n', trace_id=TRACE, attributes={"kernel.tcp.retransmits": 3}),
        lasting(5, attributes={"tenant.id": "acme"}),
        resource={"service.name": "shop"},
    )
    bridge.spans(lasting(300, kind=3, attributes=CALL), resource={"service.name": "app"})
    return bridge


def samples(text):
    """By name and labels, as prometheus-client's own parser reads OpenMetrics."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_openmetrics_with_exemplars():
    """Accepted by a strict parser: buckets add up, names have units, the exemplar is in its bucket."""
    bridge = example()
    zero = samples(bridge.scrape())
    found = samples(bridge.scrape())
    assert {sample.value for sample in zero.values()} == {0}
    assert not [one for one in zero.values() if one.exemplar]
    labels = {
        "service_name": "shop",
        "span_name": 'say "hi"\n',
        "span_kind": "SPAN_KIND_SERVER",
        "status_code": "STATUS_CODE_UNSET",
    }

    def sample(name, **more):
        return found[name, frozenset({**labels, **more}.items())]

    assert sample("traces_span_metrics_duration_seconds_bucket", le="0.05").value == 0
    bucket = sample("traces_span_metrics_duration_seconds_bucket", le="0.1")
    assert bucket.value == 1
    assert sample("traces_span_metrics_duration_seconds_bucket", le="+Inf").value == 1
    assert sample("traces_span_metrics_duration_seconds_count").value == 1
    assert sample("traces_span_metrics_duration_seconds_sum").value == pytest.approx(0.07)
    assert sample("traces_span_metrics_calls_total").value == 1
    assert bucket.exemplar.labels == {"trace_id": TRACE.hex(), "span_id": "0000000000000001"}
    assert bucket.exemplar.value == pytest.approx(0.07)
    assert float(bucket.exemplar.timestamp) == pytest.approx((START + 70_000_000) / 1e9, rel=1e-12)
    overflow = frozenset({("otel_metric_overflow", "true")})
    assert found["traces_span_metrics_duration_seconds_count", overflow].value == 1
    retransmits = frozenset({("service_name", "shop"), ("cause", "tcp_retransmit")})
    assert found["traces_span_cause_events_total", retransmits].value == 3
    assert found["traces_span_cause_events_total", retransmits].exemplar.labels["trace_id"] == TRACE.hex()


def test_looking_at_a_metric_of_the_bridges_own_shows_nobody_a_zero():
    """Only a scrape does."""
    bridge = example()
    registry = CollectorRegistry()
    telemetry = Telemetry(registry)
    telemetry.counter(catalog.DERIVE_REPEATED).inc()
    registry.register(unscraped := Unscraped())
    assert telemetry.value(catalog.DERIVE_REPEATED) == 1
    assert not unscraped.collected
    assert bridge.count(catalog.DERIVE_REPEATED) == 0


class Unscraped:
    """A collector that notices when it is asked."""

    collected = False

    def describe(self):
        return []

    def collect(self):
        self.collected = True
        return []


def check_pushed(requests):
    """What arrived over both protocols: the first push at zero, the last with all values."""
    first, last = (ExportMetricsServiceRequest.FromString(data) for data in requests)
    for metric in metrics_of(first):
        points = metric.sum.data_points or metric.histogram.data_points
        assert all(
            (point.count if metric.HasField("histogram") else point.as_double) == 0 for point in points
        )
    by_service = {
        attributes_of(resource.resource.attributes).get("service.name"): {
            metric.name: metric for scope in resource.scope_metrics for metric in scope.metrics
        }
        for resource in last.resource_metrics
    }
    assert set(by_service) == {"shop", "app", None}
    duration = by_service["shop"]["traces.span.metrics.duration"]
    assert duration.unit == "s"
    assert duration.histogram.aggregation_temporality == 2
    (point,) = [
        p for p in duration.histogram.data_points if attributes_of(p.attributes)["span.name"] != "span"
    ]
    assert (point.count, point.sum) == (1, pytest.approx(0.07))
    assert tuple(point.explicit_bounds) == catalog.DERIVED_SPAN_DURATION.buckets
    assert sum(point.bucket_counts) == 1
    assert (point.start_time_unix_nano, point.time_unix_nano > point.start_time_unix_nano) == (NOW, True)
    assert not point.HasField("min")
    (exemplar,) = point.exemplars
    assert (exemplar.trace_id, exemplar.span_id) == (TRACE, (1).to_bytes(8, "big"))
    assert exemplar.as_double == pytest.approx(0.07)
    assert "service.name" not in attributes_of(point.attributes)
    calls = by_service["shop"]["traces.span.metrics.calls"]
    assert calls.sum.is_monotonic
    tokens = by_service["app"]["gen_ai.client.token.usage"].histogram.data_points
    by_type = {attributes_of(point.attributes)["gen_ai.token.type"]: point.sum for point in tokens}
    assert by_type == {"input": 83, "output": 11}
    (overflow,) = by_service[None]["traces.span.metrics.duration"].histogram.data_points
    assert attributes_of(overflow.attributes) == {"otel.metric.overflow": True}


def metrics_of(request):
    return [m for r in request.resource_metrics for s in r.scope_metrics for m in s.metrics]


async def pushed(bridge, config):
    """Push once in time, and once at the end."""
    push = Push(config, lambda: bridge.derive.metrics, bridge.telemetry, bridge.clock)
    await push.start()
    await asyncio.sleep(0)  # it waits now
    await bridge.clock.advance(config.interval)
    for _ in range(500):
        if bridge.count(catalog.DERIVE_PUSHES, outcome="sent") + bridge.count(
            catalog.DERIVE_PUSHES, outcome="failed"
        ):
            break
        await asyncio.sleep(0.01)
    await push.stop(5)


async def test_pushed_by_grpc():
    """To a server that knows nothing of us."""
    bridge = example()
    with GrpcSink() as sink:
        await pushed(bridge, PushConfig(endpoint=f"http://127.0.0.1:{sink.port}", interval=10))
    assert [signal for signal, _ in sink.requests] == ["metrics", "metrics"]
    check_pushed([data for _, data in sink.requests])
    assert bridge.count(catalog.DERIVE_PUSHES, outcome="sent") == 2


async def test_pushed_by_http():
    """With the headers that were asked for."""
    bridge, arrived = example(), []

    async def take(request):
        arrived.append((request.headers["authorization"], await request.read()))
        return web.Response(content_type="application/x-protobuf")

    app = web.Application()
    app.router.add_post("/v1/metrics", take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port := free_port())
    await site.start()
    config = PushConfig(
        endpoint=f"http://127.0.0.1:{port}/v1/metrics",
        protocol="http",
        interval=10,
        headers={"authorization": "secret"},
    )
    assert "secret" not in repr(config)
    await pushed(bridge, config)
    await runner.cleanup()
    assert {header for header, _ in arrived} == {"secret"}
    check_pushed([data for _, data in arrived])


async def test_a_push_that_fails_is_counted_and_the_next_one_comes():
    """Nobody listens; nothing is raised, and nothing is lost from what Prometheus sees."""
    bridge = example()
    await pushed(bridge, PushConfig(endpoint=f"http://127.0.0.1:{free_port()}", interval=10, timeout=0.3))
    assert bridge.count(catalog.DERIVE_PUSHES, outcome="failed") == 2


async def test_without_an_endpoint_nothing_is_pushed():
    """Nor is there anything to stop."""
    push = Push(PushConfig(), lambda: None, Telemetry(), FakeClock())
    await push.start()
    await push.stop(1)


@pytest.mark.parametrize(
    ("dimensions", "found"),
    [
        (["le"], "'le' is a label with a meaning of its own"),
        (["cause"], "'cause' is a label with a meaning of its own"),
        (["span_name"], "'span_name' and 'span.name' would both be the label span_name"),
        (["a.b", "a_b"], "'a_b' and 'a.b' would both be the label a_b"),
        (["a.b", "a.b"], "'a.b' and 'a.b' would both be the label a_b"),
        ([""], "at least 1 character"),
    ],
)
def test_dimensions_that_cannot_be(dimensions, found):
    """Refused with what is in the way."""
    with pytest.raises(ValidationError, match=found):
        DeriveConfig(dimensions=dimensions)
