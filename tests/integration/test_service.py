"""The bridge as a process: what comes in goes out, whatever happens to it in between."""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import closing

import grpc
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from otel_bridge.testing import attributes_of, trace_request
from tests.support.ports import free_port
from tests.support.processes import Bridge, eventually, running
from tests.support.sinks import SERVICES, GrpcSink

CHAT = {
    "name": "POST /v1/chat/completions",
    "attributes": {
        "http.request.method": "POST",
        "http.request.header.x-model-id": ["llama-3-8b"],
        "url.query": "batch_size=4",
        "http.request.body": json.dumps({"messages": [{"role": "user", "content": "Grüße"}]}),
    },
}


def to(sink: GrpcSink, **config) -> dict:
    """A bridge configuration that sends to `sink`."""
    return {"exporters": {"otlp": {"endpoint": f"127.0.0.1:{sink.port}"}}, **config}


def export(channel: grpc.Channel, data: bytes, signal_name: str = "traces", timeout: float = 60.0) -> bytes:
    """One Export call with bytes."""
    call = channel.unary_unary(f"/{SERVICES[signal_name]}/Export")
    answer: bytes = call(data, timeout=timeout)
    return answer


def channel_to(bridge: Bridge) -> grpc.Channel:
    """A channel that its test closes."""
    return grpc.insecure_channel(f"127.0.0.1:{bridge.grpc_port}")


def numbered(first: int, count: int) -> bytes:
    """A request whose span ids are counted up from `first`."""
    return trace_request([{"span_id": (first + n).to_bytes(8, "big")} for n in range(count)])


def asked(bridge: Bridge, path: str) -> tuple[int, object]:
    """Status and document of what the bridge says of itself."""
    with closing(http.client.HTTPConnection("127.0.0.1", bridge.metrics_port, timeout=10)) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, json.load(answer)


def test_a_chat_request_comes_out_enriched_and_without_its_prompt(tmp_path):
    """The main job on embedded defaults."""
    with (
        GrpcSink() as sink,
        running(Bridge(tmp_path, to(sink))) as bridge,
        closing(channel_to(bridge)) as channel,
    ):
        assert export(channel, trace_request([CHAT])) == b""
        (span,) = sink.spans()
    attributes = attributes_of(span.attributes)
    assert attributes["llm.model.id"] == "llama-3-8b"
    assert attributes["llm.prompt.len"] == len("Grüße".encode())
    assert attributes["llm.inference.batch_size"] == 4
    assert b"Gr" not in span.SerializeToString()


def test_other_signals_pass_unchanged(tmp_path):
    """Metrics and logs leave byte for byte, fields unknown to this version included, and are counted."""
    unknown = b"\xba\x3e\x03abc"  # field 999, length-delimited
    metrics = ExportMetricsServiceRequest()
    points = metrics.resource_metrics.add().scope_metrics.add().metrics.add(name="m").gauge.data_points
    for number in range(3):
        points.add(as_int=number)
    logs = ExportLogsServiceRequest()
    records = logs.resource_logs.add().scope_logs.add().log_records
    for line in ("one", "two"):
        records.add().body.string_value = line
    sent = {"metrics": metrics.SerializeToString() + unknown, "logs": logs.SerializeToString() + unknown}
    with (
        GrpcSink() as sink,
        running(Bridge(tmp_path, to(sink))) as bridge,
        closing(channel_to(bridge)) as channel,
    ):
        for name, data in sent.items():
            export(channel, data, name)
        for name, items in (("metrics", 3), ("logs", 2)):
            for metric_name in ("receiver_accepted", "exporter_sent"):
                assert bridge.total(f"otel_bridge_{metric_name}_items_total", signal=name) == items
    assert dict(sink.requests) == sent


def test_nothing_acknowledged_is_lost_by_kill_9(tmp_path):
    """Downstream is down, the bridge is killed twice in the middle; what it acknowledged arrives."""
    sink = GrpcSink()
    acknowledged: set[int] = set()

    def kill(bridge: Bridge, before: int) -> None:
        """At some moment after it acknowledged something."""
        eventually("something is acknowledged", lambda: len(acknowledged) > before)
        time.sleep(random.uniform(0.0, 1.5))
        bridge.child.kill()

    for run in range(2):
        with running(Bridge(tmp_path, to(sink))) as bridge, closing(channel_to(bridge)) as channel:
            killer = threading.Thread(target=kill, args=(bridge, len(acknowledged)))
            killer.start()
            for number in range(1_000_000 * (run + 1), 1_000_000 * (run + 2), 7):
                try:
                    export(channel, numbered(number, 7), timeout=60)
                except grpc.RpcError:
                    break
                acknowledged |= set(range(number, number + 7))
            killer.join()
    assert acknowledged, "the bridge acknowledged nothing, so the test would show nothing"
    expected = {number.to_bytes(8, "big") for number in acknowledged}
    with sink, running(Bridge(tmp_path, to(sink))):
        eventually("all acknowledged spans arrive", lambda: expected <= set(sink.span_ids()))


def under_way(channel, bridge):
    """Requests of 55 spans that the bridge works on, while nobody downstream answers."""
    call = channel.unary_unary(f"/{SERVICES['traces']}/Export")
    waiting = [call.future(numbered(1 + 5 * n, 5), timeout=60) for n in range(11)]
    eventually(
        "the requests are taken in",
        lambda: bridge.total("otel_bridge_processor_incoming_items_total") == 55,
    )
    return waiting


def test_sigterm_delivers_what_is_in_flight(tmp_path):
    """A graceful stop while requests wait for a slow downstream: each is delivered or kept on disk.

    Meanwhile the bridge is alive and says that it is not ready, so that nobody sends it more.
    """
    sink = GrpcSink()
    with sink, running(Bridge(tmp_path, to(sink))) as bridge:
        sink.black_hole.set()
        with closing(channel_to(bridge)) as channel:
            waiting = under_way(channel, bridge)
            bridge.child.send_signal(signal.SIGTERM)
            eventually(
                "it says that it stops",
                lambda: asked(bridge, "/readyz") == (503, {"status": "not ready", "reason": "stopping"}),
            )
            assert asked(bridge, "/healthz") == (200, {"status": "alive"})
            sink.black_hole.clear()
            assert bridge.child.wait(60) == 0
            assert [future.result() for future in waiting] == [b""] * 11
    with sink, running(Bridge(tmp_path, to(sink))):
        expected = {number.to_bytes(8, "big") for number in range(1, 56)}
        eventually("all 55 spans arrive", lambda: expected <= set(sink.span_ids()))


def test_sigterm_leaves_on_disk_what_cannot_be_delivered_in_time(tmp_path):
    """Downstream does not answer: the stop ends by its deadline, and the next start delivers.

    Nobody's hold is over before, so that only the stop itself can have put the requests on disk.
    """
    sink = GrpcSink()
    patient = {
        "exporters": {
            "otlp": {
                "endpoint": f"127.0.0.1:{sink.port}",
                "timeout": "120s",
                "sending_queue": {"hold": "120s"},
            }
        },
        "service": {"drain_timeout": "2s"},
    }
    with sink, running(Bridge(tmp_path, patient)) as bridge:
        sink.black_hole.set()
        with closing(channel_to(bridge)) as channel:
            waiting = under_way(channel, bridge)
            assert not list((tmp_path / "queue" / "otlp").glob("0*.sqlite"))
            bridge.child.send_signal(signal.SIGTERM)
            assert bridge.child.wait(60) == 0
            # Not acknowledged, so they may come again.
            assert {future.code() for future in waiting} == {grpc.StatusCode.UNAVAILABLE}
    assert sink.spans() == []
    with sink, running(Bridge(tmp_path, to(sink))):
        expected = {number.to_bytes(8, "big") for number in range(1, 56)}
        eventually("all 55 spans arrive", lambda: expected <= set(sink.span_ids()))


def test_sighup_reloads_without_dropping_a_connection(tmp_path):
    """The same connections see the old rules, then the new; a broken file changes nothing.

    The HTTP connection may not be opened again, and a gRPC request that is under way is answered.
    """
    vllm = trace_request(
        [{"name": "llm_request", "attributes": {"gen_ai.usage.prompt_tokens": 3}}],
        resource={"service.name": "vllm"},
    )
    with (
        GrpcSink() as sink,
        running(Bridge(tmp_path, to(sink))) as bridge,
        closing(channel_to(bridge)) as channel,
        closing(http.client.HTTPConnection("127.0.0.1", bridge.http_port, timeout=10)) as connection,
    ):
        connection.connect()
        connection.auto_open = 0

        def post() -> None:
            connection.request("POST", "/v1/traces", vllm, {"Content-Type": "application/x-protobuf"})
            answer = connection.getresponse()
            assert (answer.status, answer.read()) == (200, b"")

        def reload(text: str, said: str) -> None:
            bridge.config.write_text(text)
            bridge.child.send_signal(signal.SIGHUP)
            eventually("the reload is logged", lambda: said in bridge.output())

        whole = bridge.config.read_text()
        post()
        sink.black_hole.set()
        under_way = channel.unary_unary(f"/{SERVICES['traces']}/Export").future(vllm, timeout=60)
        eventually(
            "the request is taken in",
            lambda: bridge.total("otel_bridge_processor_incoming_items_total") == 2,
        )
        reload(whole + "processors: {enrich: {models: {vllm: tiny}}}\n", "configuration reloaded")
        sink.black_hole.clear()
        assert under_way.result() == b""
        post()
        reload("receivers: 5\n", "reload refused")
        post()
        export(channel, vllm)
        eventually("all are delivered", lambda: len(sink.spans()) == 5)
        models = [attributes_of(span.attributes).get("llm.model.id") for span in sink.spans()]
    assert models == [None, None, "tiny", "tiny", "tiny"]


def test_a_port_in_use_is_an_error_that_helps(tmp_path):
    """Exit 1, the port, and the setting to change; nothing else is left running."""
    with GrpcSink() as sink, running(Bridge(tmp_path, to(sink))) as bridge:
        second = subprocess.run(
            [sys.executable, "-m", "otel_bridge", "run", "-c", str(bridge.config)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert second.returncode == 1
    assert "Traceback" not in second.stderr
    assert any(
        str(port) in second.stderr for port in (bridge.grpc_port, bridge.http_port, bridge.metrics_port)
    )
    assert "endpoint" in second.stderr


def test_a_bad_span_costs_itself_and_a_bad_request_its_answer(tmp_path):
    """8 of 10 spans pass, the sender is told why; garbage is INVALID_ARGUMENT, and the bridge goes on."""
    spans = [{"span_id": n.to_bytes(8, "big")} for n in range(1, 11)]
    spans[3]["trace_id"] = b"\x01" * 15
    spans[6]["span_id"] = bytes(8)
    with (
        GrpcSink() as sink,
        running(Bridge(tmp_path, to(sink))) as bridge,
        closing(channel_to(bridge)) as channel,
    ):
        answer = export(channel, trace_request(spans))
        with pytest.raises(grpc.RpcError) as refused:
            export(channel, trace_request(spans)[:-5])
        export(channel, numbered(100, 3))
        assert len(sink.spans()) == 8 + 3
        total = bridge.total("otel_bridge_receiver_refused_items_total", signal="traces")
    partial = ExportTraceServiceResponse.FromString(answer).partial_success
    assert partial.rejected_spans == 2
    assert "1 with a trace id that is not 16 bytes" in partial.error_message
    assert "1 with an all-zero span id" in partial.error_message
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert total == 2


def test_own_spans_are_exported_when_configured(tmp_path):
    """The bridge is observed like any service, by the official exporter."""
    with GrpcSink() as sink, GrpcSink() as own:
        traces = {"endpoint": f"http://127.0.0.1:{own.port}", "sampling_ratio": 1.0}
        config = to(sink, service={"telemetry": {"traces": traces}})
        with running(Bridge(tmp_path, config)) as bridge, closing(channel_to(bridge)) as channel:
            export(channel, numbered(1, 3))
            assert bridge.stop() == 0
        names = {span.name for span in own.spans()}
    assert "otel_bridge.process" in names


def test_health_and_metrics_answer_in_both_formats(tmp_path):
    """OpenMetrics when asked for, the old text otherwise; ready and alive."""
    with GrpcSink() as sink, running(Bridge(tmp_path, to(sink))) as bridge:
        base = f"http://127.0.0.1:{bridge.metrics_port}"
        assert asked(bridge, "/healthz") == (200, {"status": "alive"})
        assert asked(bridge, "/readyz") == (200, {"status": "ready"})
        wanted = urllib.request.Request(base + "/metrics", headers={"Accept": "application/openmetrics-text"})
        with urllib.request.urlopen(wanted) as answer:
            assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
            assert answer.read().endswith(b"# EOF\n")
        assert bridge.total("otel_bridge_receiver_accepted_items_total") == 0


def test_logs_are_structured(tmp_path):
    """One JSON object a line, with what happened, when and how grave, where nobody looks at a terminal."""
    with GrpcSink() as sink, running(Bridge(tmp_path, to(sink))) as bridge:
        assert bridge.stop() == 0
        lines = [json.loads(line) for line in bridge.output().splitlines()]
    assert all({"event", "level", "timestamp"} <= set(line) for line in lines)
    assert {"OTLP receiver listens", "ready", "stopping"} <= {line["event"] for line in lines}
    (listens,) = [line for line in lines if line["event"] == "OTLP receiver listens"]
    assert (listens["grpc_port"], listens["http_port"]) == (bridge.grpc_port, bridge.http_port)


def test_a_secret_never_shows(tmp_path):
    """Neither print-config, nor the log at debug, nor an error prints a token."""
    secret = f"token-{os.getpid()}-{free_port()}"
    config = tmp_path / "bridge.yaml"
    config.write_text(
        json.dumps({"exporters": {"otlp": {"endpoint": "127.0.0.1:1", "headers": {"authorization": secret}}}})
    )
    shown = subprocess.run(
        [sys.executable, "-m", "otel_bridge", "print-config", "-c", str(config)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "authorization" in shown.stdout
    assert secret not in shown.stdout + shown.stderr
    with running(Bridge(tmp_path, json.loads(config.read_text()))) as bridge:
        assert bridge.stop() == 0
        assert secret not in bridge.output()
