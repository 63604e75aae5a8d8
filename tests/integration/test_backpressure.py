"""A backend that is down fills the queue; senders come again, every span arrives and is counted once."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest
import yaml
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags

from otel_bridge import catalog
from tests.support.ports import free_port
from tests.support.processes import Bridge, Process, collector_binary, eventually, running
from tests.support.sinks import GrpcSink

if TYPE_CHECKING:
    from pathlib import Path

SPANS_A_SENDER = 2_500
SPANS_A_REQUEST = 125
TEXT = "x" * 400


def sdk_spans(first: int) -> list[ReadableSpan]:
    """Spans of the Python SDK with ids counted up from `first`."""
    resource = Resource.create({"service.name": "sender"})
    return [
        ReadableSpan(
            name="work",
            context=SpanContext(1, first + n, is_remote=False, trace_flags=TraceFlags(1)),
            kind=SpanKind.SERVER,
            resource=resource,
            attributes={"text": TEXT},
            start_time=1,
            end_time=2,
        )
        for n in range(SPANS_A_REQUEST)
    ]


def send_all(exporter: GrpcExporter | HttpExporter, first: int, give_up: float) -> int:
    """Send a sender's spans as an application that may not lose any would; how many were acknowledged."""
    sent = 0
    for start in range(first, first + SPANS_A_SENDER, SPANS_A_REQUEST):
        spans = sdk_spans(start)
        while exporter.export(spans) is not SpanExportResult.SUCCESS:
            if time.monotonic() > give_up:
                return sent
            time.sleep(0.2)
        sent += len(spans)
    return sent


def collector(directory: Path, bridge: Bridge) -> tuple[Process, int, int]:
    """The upstream Collector, two ports in, sending to the bridge by gRPC and by HTTP, retrying for ever."""
    grpc_in, http_in, health = free_port(), free_port(), free_port()
    keep = {
        "retry_on_failure": {"initial_interval": "200ms", "max_interval": "1s", "max_elapsed_time": 0},
        "sending_queue": {"queue_size": 1000, "num_consumers": 4},
        "tls": {"insecure": True},
    }
    config = {
        "extensions": {"health_check": {"endpoint": f"127.0.0.1:{health}"}},
        "receivers": {
            "otlp/a": {"protocols": {"grpc": {"endpoint": f"127.0.0.1:{grpc_in}"}}},
            "otlp/b": {"protocols": {"grpc": {"endpoint": f"127.0.0.1:{http_in}"}}},
        },
        "exporters": {
            "otlp": {"endpoint": f"127.0.0.1:{bridge.grpc_port}", "timeout": "30s", **keep},
            "otlphttp": {"endpoint": f"http://127.0.0.1:{bridge.http_port}", "timeout": "30s", **keep},
        },
        "service": {
            "extensions": ["health_check"],
            "telemetry": {"metrics": {"level": "none"}},
            "pipelines": {
                "traces/a": {"receivers": ["otlp/a"], "exporters": ["otlp"]},
                "traces/b": {"receivers": ["otlp/b"], "exporters": ["otlphttp"]},
            },
        },
    }
    path = directory / "collector.yaml"
    path.write_text(yaml.safe_dump(config))
    process = Process([str(collector_binary()), "--config", str(path)], directory / "collector.log")
    process.wait_for_http(f"http://127.0.0.1:{health}/")
    return process, grpc_in, http_in


def answers(bridge: Bridge, code: str) -> float:
    """How many requests for traces were answered so."""
    return bridge.total("otel_bridge_receiver_requests_total", signal="traces", code=code)


@pytest.mark.collector
@pytest.mark.slow
def test_a_full_queue_pushes_back_and_nothing_is_lost_or_counted_twice(tmp_path):
    """10,000 spans with known ids, by the Collector's two exporters and the SDK's two, through an outage.

    Case otlp-backpressure. The queue holds a tenth of what is sent, so most requests meet a refusal.
    """
    collector_binary()
    sink = GrpcSink()
    tight = {
        "exporters": {
            "otlp": {
                "endpoint": f"127.0.0.1:{sink.port}",
                "timeout": "1s",
                "retry_on_failure": {"initial_interval": "200ms", "max_interval": "1s"},
                "sending_queue": {"queue_size": "256KiB"},
            }
        },
        "storage": {"max_size": "1MiB"},
    }
    with sink, running(Bridge(tmp_path / "bridge", tight)) as bridge:
        upstream, port_a, port_b = collector(tmp_path, bridge)
        with running(upstream):
            sink.black_hole.set()
            give_up = time.monotonic() + 400
            exporters = [
                GrpcExporter(endpoint=f"http://127.0.0.1:{bridge.grpc_port}", timeout=30),
                HttpExporter(endpoint=f"http://127.0.0.1:{bridge.http_port}/v1/traces", timeout=30),
                GrpcExporter(endpoint=f"http://127.0.0.1:{port_a}", timeout=30),
                GrpcExporter(endpoint=f"http://127.0.0.1:{port_b}", timeout=30),
            ]
            acknowledged = [0] * len(exporters)

            def work(n: int) -> None:
                acknowledged[n] = send_all(exporters[n], 1 + n * SPANS_A_SENDER, give_up)

            threads = [threading.Thread(target=work, args=(n,)) for n in range(len(exporters))]
            for thread in threads:
                thread.start()
            eventually("requests are refused by gRPC", lambda: answers(bridge, "UNAVAILABLE") > 5)
            eventually("requests are refused by HTTP", lambda: answers(bridge, "503") > 5)
            sink.black_hole.clear()
            for thread in threads:
                thread.join()
            for exporter in exporters:
                exporter.shutdown()
            total = len(exporters) * SPANS_A_SENDER
            assert acknowledged == [SPANS_A_SENDER] * len(exporters)
            expected = {number.to_bytes(8, "big") for number in range(1, total + 1)}
            eventually("every span arrives", lambda: expected <= set(sink.span_ids()))
            accepted = bridge.total("otel_bridge_receiver_accepted_items_total", signal="traces")
            # Derived behind the delivery: a refused or repeated span is one request.
            requests = f"{catalog.DERIVED_SPAN_DURATION.prometheus}_count"
            eventually("a new series is served at zero first", lambda: bridge.total(requests) > 0)
            derived = bridge.total(requests)
            codes = {
                name.split('code="')[1].split('"')[0]
                for name, value in bridge.metrics().items()
                if name.startswith("otel_bridge_receiver_requests_total{") and value
            }
    assert accepted == total
    assert derived == total
    # CANCELLED and 499: a sender's own time was up before it was answered.
    assert (
        {"OK", "200", "UNAVAILABLE", "503"}
        <= codes
        <= {"OK", "200", "UNAVAILABLE", "503", "CANCELLED", "499"}
    )
