"""A running bridge: spans in, OpenMetrics on /metrics, OTLP metrics pushed."""

from __future__ import annotations

import urllib.request

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from otel_bridge.testing import trace_request
from tests.support.processes import Bridge, eventually, running
from tests.support.prometheus import Prometheus
from tests.support.sinks import GrpcSink

OPENMETRICS = {"Accept": "application/openmetrics-text;version=1.0.0"}


def scrape(bridge):
    """All samples by name, as a Prometheus would read them."""
    request = urllib.request.Request(f"http://127.0.0.1:{bridge.metrics_port}/metrics", headers=OPENMETRICS)
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
        families = text_string_to_metric_families(answer.read().decode())
    return [sample for family in families for sample in family.samples]


def send(bridge, data):
    """By OTLP/HTTP."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{bridge.http_port}/v1/traces",
        data=data,
        headers={"Content-Type": "application/x-protobuf"},
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.status == 200


def test_from_spans_to_metrics(tmp_path):
    """Zero on the first scrape, then the values with an exemplar; the last push has them, too."""
    spans = [{"name": "chat", "kind": 3, "attributes": {"gen_ai.operation.name": "chat"}}] * 3
    with GrpcSink() as sink:
        config = {
            "exporters": {"otlp": {"endpoint": f"127.0.0.1:{sink.port}", "tls": {"insecure": True}}},
            "connectors": {
                "derive": {
                    "initial_zero": 0,
                    "push": {"endpoint": f"http://127.0.0.1:{sink.port}", "interval": "1s"},
                }
            },
        }
        with running(Bridge(tmp_path, config)) as bridge:
            send(bridge, trace_request(spans))
            name = "traces_span_metrics_calls_total"
            assert [one.value for one in scrape(bridge) if one.name == name] == [0]
            (calls,) = [one for one in scrape(bridge) if one.name == name]
            assert (calls.value, calls.labels["span_name"]) == (3, "chat")
            buckets = [
                one for one in scrape(bridge) if one.name == "gen_ai_client_operation_duration_seconds_bucket"
            ]
            assert [one.exemplar.labels["trace_id"] for one in buckets if one.exemplar] == [f"{1:032x}"]
            eventually("the second push", lambda: pushed(sink) == [0, 3])
            send(bridge, trace_request(spans))
            assert bridge.stop() == 0
        assert pushed(sink)[-1] == 6


def test_prometheus_sees_the_first_step_and_spans_that_sampling_leaves_out(tmp_path):
    """`increase()` of a new series, by a real Prometheus; its exemplar; none of these spans is sent on."""
    spans = [{"name": "first", "trace_id": number.to_bytes(16, "big")} for number in range(1, 24)]
    never = {"enabled": True, "keep": None, "rate": {"curve": "fixed", "baseline": 1e-9}}
    with GrpcSink() as sink:
        config = {
            "exporters": {"otlp": {"endpoint": f"127.0.0.1:{sink.port}", "tls": {"insecure": True}}},
            "connectors": {"derive": {"initial_zero": 0}},
            "processors": {"sample": never},
        }
        with (
            running(Bridge(tmp_path, config)) as bridge,
            running(Prometheus(tmp_path / "prometheus", {"bridge": bridge.metrics_port})) as prometheus,
        ):
            eventually("Prometheus scrapes the bridge", lambda: prometheus.values("up == 1"))
            send(bridge, trace_request(spans))
            series = 'traces_span_metrics_calls_total{span_name="first"}'
            eventually("the step is there", lambda: prometheus.values(f"{series} == 23"))
            assert prometheus.values(f"increase({series}[5m])")[0] >= 23
            name = "traces_span_metrics_duration_seconds_bucket"
            found = eventually(
                "the exemplar", lambda: prometheus.ask("query_exemplars", query=name, start=0, end=2e9)
            )
            traces = {one["labels"]["trace_id"] for part in found for one in part["exemplars"]}
            assert traces <= {span["trace_id"].hex() for span in spans}
            assert bridge.stop() == 0
        assert sink.spans() == []


def test_a_broken_context_is_counted_with_an_example(tmp_path):
    """A backend's span whose parent in the same process never comes, in the running bridge."""
    trace = bytes.fromhex("0af7651916cd43dd8448eb211c80319c")
    orphan = {"trace_id": trace, "parent_span_id": b"\x09" * 8, "kind": 1}
    name = "otel_bridge_consistency_findings_total"
    with GrpcSink() as sink:
        config = {
            "exporters": {"otlp": {"endpoint": f"127.0.0.1:{sink.port}", "tls": {"insecure": True}}},
            "processors": {"consistency": {"share": 1.0, "window": "1s"}},
        }
        with running(Bridge(tmp_path, config)) as bridge:
            send(bridge, trace_request([orphan], resource={"service.name": "vllm"}))

            def found():
                return [one for one in scrape(bridge) if one.name == name and one.value]

            (sample,) = eventually("the finding", found)
            assert sample.labels == {"kind": "missing_parent", "role": "backend"}
            assert sample.exemplar.labels == {"trace_id": trace.hex()}
            assert trace.hex() in bridge.output()


def pushed(sink):
    """The number of calls in each push, equal ones in a row as one."""
    values = []
    for signal, data in list(sink.requests):
        if signal == "metrics":
            for resource in ExportMetricsServiceRequest.FromString(data).resource_metrics:
                for metric in resource.scope_metrics[0].metrics:
                    if metric.name == "traces.span.metrics.calls":
                        values += [point.as_int for point in metric.sum.data_points]
    return [value for at, value in enumerate(values) if at == 0 or values[at - 1] != value]
