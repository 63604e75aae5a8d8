"""Clients that others wrote: the Python SDK's exporters and curl, each against a running receiver."""

from __future__ import annotations

import asyncio
import json
import shutil
from typing import TYPE_CHECKING, Self

import grpc
import pytest
import trustme
from opentelemetry._logs import SeverityNumber
from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter as GrpcLogExporter
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcMetricExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpanExporter
from opentelemetry.exporter.otlp.proto.http import Compression as HttpCompression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter as HttpLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpSpanExporter
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from otel_bridge.errors import QueueFullError
from otel_bridge.model import Signal
from otel_bridge.receivers.otlp.config import OtlpReceiverConfig
from otel_bridge.receivers.otlp.receiver import OtlpReceiver
from otel_bridge.telemetry import Telemetry
from otel_bridge.testing import ConsumerSink

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from opentelemetry.sdk.trace.export import SpanExporter

SPANS = 1009


class Target:
    """A receiver and what it took in."""

    def __init__(self, **listener: object) -> None:
        settings = {"endpoint": "127.0.0.1:0", **listener}
        config = OtlpReceiverConfig.model_validate({"protocols": {"grpc": settings, "http": settings}})
        self.sink = ConsumerSink()
        self.receiver = OtlpReceiver(config, self.sink, Telemetry())

    async def __aenter__(self) -> Self:
        await self.receiver.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.receiver.stop(1)

    @property
    def grpc(self) -> str:
        return f"localhost:{self.receiver.grpc_port}"

    def http(self, signal: str, scheme: str = "http") -> str:
        return f"{scheme}://localhost:{self.receiver.http_port}/v1/{signal}"


@pytest.fixture
async def target() -> AsyncIterator[Target]:
    async with Target() as target:
        yield target


SPAN_EXPORTERS: dict[str, Callable[[Target], SpanExporter]] = {
    "grpc": lambda to: GrpcSpanExporter(to.grpc, insecure=True),
    "grpc-gzip": lambda to: GrpcSpanExporter(to.grpc, insecure=True, compression=grpc.Compression.Gzip),
    "http": lambda to: HttpSpanExporter(to.http("traces")),
    "http-gzip": lambda to: HttpSpanExporter(to.http("traces"), compression=HttpCompression.Gzip),
    "http-deflate": lambda to: HttpSpanExporter(to.http("traces"), compression=HttpCompression.Deflate),
}


def make_spans(exporter: SpanExporter) -> bool:
    """Export a prime number of spans; whether all were sent."""
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=4096))
    tracer = provider.get_tracer("test")
    for number in range(SPANS):
        with tracer.start_as_current_span("chat", attributes={"number": number, "prompt": "你好" * 50}):
            pass
    sent = provider.force_flush()
    provider.shutdown()
    return sent


def numbers(sink: ConsumerSink) -> list[int]:
    """The `number` of each span that arrived."""
    return sorted(
        item.value.int_value for span in sink.spans for item in span.attributes if item.key == "number"
    )


@pytest.mark.parametrize("make", SPAN_EXPORTERS.values(), ids=SPAN_EXPORTERS.keys())
async def test_sdk_spans(target, make):
    """Each span arrives once."""
    assert await asyncio.to_thread(make_spans, make(target))
    assert numbers(target.sink) == list(range(SPANS))


@pytest.mark.parametrize("transport", ["grpc", "http"])
async def test_sdk_metrics_and_logs(target, transport):
    """The other signals arrive as what they are."""
    if transport == "grpc":
        metrics = GrpcMetricExporter(target.grpc, insecure=True)
        logs = GrpcLogExporter(target.grpc, insecure=True)
    else:
        metrics, logs = HttpMetricExporter(target.http("metrics")), HttpLogExporter(target.http("logs"))

    def run() -> None:
        meters = MeterProvider([PeriodicExportingMetricReader(metrics, 60_000)])
        meters.get_meter("test").create_counter("requests").add(7)
        meters.shutdown()
        loggers = LoggerProvider()
        loggers.add_log_record_processor(SimpleLogRecordProcessor(logs))
        loggers.get_logger("test").emit(body="hello", severity_number=SeverityNumber.INFO)
        loggers.shutdown()

    await asyncio.to_thread(run)
    received = dict(target.sink.requests)
    [resource] = ExportMetricsServiceRequest.FromString(received[Signal.METRICS]).resource_metrics
    assert resource.scope_metrics[0].metrics[0].sum.data_points[0].as_int == 7
    [resource] = ExportLogsServiceRequest.FromString(received[Signal.LOGS]).resource_logs
    assert resource.scope_logs[0].log_records[0].body.string_value == "hello"


@pytest.mark.parametrize("kind", ["grpc", "http"])
async def test_sdk_retries_when_told_that_the_queue_is_full(target, kind, caplog):
    """Refused, told to wait, and then everything arrives, once."""
    target.sink.error = QueueFullError("full", retry_after=0.5)

    exporting = asyncio.create_task(asyncio.to_thread(make_spans, SPAN_EXPORTERS[kind](target)))
    while "etry" not in caplog.text:  # noqa: ASYNC110 (a log is no event)
        await asyncio.sleep(0.01)
    target.sink.error = None
    assert await exporting
    assert numbers(target.sink) == list(range(SPANS))


@pytest.mark.parametrize("kind", ["grpc", "http"])
async def test_sdk_with_tls_and_token(kind, tmp_path, monkeypatch):
    """A secured receiver takes the SDK's spans with certificate and token, and none with a wrong token."""
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):  # requests prefers them to the exporter's own file
        monkeypatch.delenv(name, raising=False)
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    (tmp_path / "cert.pem").write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    (tmp_path / "key.pem").write_bytes(issued.private_key_pem.bytes())
    (tmp_path / "ca.pem").write_bytes(authority.cert_pem.bytes())
    target = Target(
        tls={"cert_file": str(tmp_path / "cert.pem"), "key_file": str(tmp_path / "key.pem")},
        auth={"bearer_tokens": ["secret"]},
    )

    def exporter(token: str) -> SpanExporter:
        if kind == "grpc":
            credentials = grpc.ssl_channel_credentials((tmp_path / "ca.pem").read_bytes())
            return GrpcSpanExporter(
                target.grpc, credentials=credentials, headers={"authorization": f"Bearer {token}"}
            )
        return HttpSpanExporter(
            target.http("traces", "https"),
            certificate_file=str(tmp_path / "ca.pem"),
            headers={"Authorization": f"Bearer {token}"},
        )

    async with target:
        await asyncio.to_thread(make_spans, exporter("wrong"))
        assert target.sink.requests == []
        assert await asyncio.to_thread(make_spans, exporter("secret"))
        assert numbers(target.sink) == list(range(SPANS))


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
class TestCurl:
    """What a person tries first."""

    @staticmethod
    async def curl(*arguments: str, stdin: bytes = b"") -> tuple[int, dict[str, str], bytes]:
        process = await asyncio.create_subprocess_exec(
            "curl", "-sS", "-i", *arguments, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        out, _ = await process.communicate(stdin)
        while out.startswith(b"HTTP/1.1 100"):
            out = out.partition(b"\r\n\r\n")[2]
        head, _, body = out.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        return (
            int(first.split()[1]),
            {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)},
            body,
        )

    @staticmethod
    def document(spans: int = 1, prompt: str = "hi") -> bytes:
        span = {
            "traceId": "5b8efff798038103d269b633813fc60c",
            "spanId": "eee19b7ec3c1b174",
            "name": "chat",
            "kind": 2,
            "startTimeUnixNano": "1697982593201336000",
            "attributes": [{"key": "prompt", "value": {"stringValue": prompt}}],
        }
        return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span] * spans}]}]}).encode()

    async def test_json(self, target):
        status, headers, body = await self.curl(
            target.http("traces"), "-H", "Content-Type: application/json", "-d", self.document().decode()
        )
        assert (status, headers["content-type"], body) == (200, "application/json", b"{}")
        assert target.sink.spans[0].trace_id.hex() == "5b8efff798038103d269b633813fc60c"

    async def test_prompts_of_100_kb_with_expect_and_chunks(self, target):
        document = self.document(20, "你" * 33_333)
        for extra in ((), ("-H", "Transfer-Encoding: chunked"), ("-H", "Expect: 100-continue")):
            status, _, _ = await self.curl(
                target.http("traces"),
                "-H",
                "Content-Type: application/json",
                *extra,
                "--data-binary",
                "@-",
                stdin=document,
            )
            assert status == 200
        assert len(target.sink.spans) == 60

    async def test_without_a_content_type_of_ours(self, target):
        status, headers, body = await self.curl(target.http("traces"), "-d", "{}")
        assert (status, headers["content-type"]) == (415, "application/json")
        assert "application/json" in json.loads(body)["message"]

    async def test_a_browser_sees_why(self, target):
        status, headers, body = await self.curl(target.http("traces"))
        assert (status, headers["allow"]) == (405, "POST")
        assert "POST" in json.loads(body)["message"]
