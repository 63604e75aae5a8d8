"""What OTLP asks of a receiver, point by point, over both transports."""

from __future__ import annotations

import gzip
import json
import zlib

import grpc
import pytest
from backports import zstd
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from otel_bridge import catalog, errors
from otel_bridge.contracts import Outcome
from otel_bridge.model import Signal
from otel_bridge.receivers.otlp import status
from otel_bridge.testing import ConsumerSink, trace_request
from tests.support.otlp_clients import JSON, PROTOBUF, grpc_status, request_of_size, retry_delay

REQUEST = trace_request([{"attributes": {"a": "b" * 200}}] * 5)
KIB = 1024


class TestPoint1Compression:
    """A receiver takes uncompressed and gzip; deflate and zstd on top."""

    @pytest.mark.parametrize("compression", [None, grpc.Compression.Gzip, grpc.Compression.Deflate], ids=str)
    async def test_grpc(self, start, compression):
        running = await start()
        assert await running.export(REQUEST, compression=compression) == b""
        assert running.sink.requests == [(Signal.TRACES, REQUEST)]

    @pytest.mark.parametrize(
        ("coding", "compress"),
        [
            ("", bytes),
            ("identity", bytes),
            ("gzip", gzip.compress),
            ("deflate", zlib.compress),
            ("zstd", zstd.compress),
        ],
    )
    async def test_http(self, start, coding, compress):
        running = await start()
        reply = await running.post(compress(REQUEST), headers={"Content-Encoding": coding})
        assert reply.status == 200
        assert running.sink.requests == [(Signal.TRACES, REQUEST)]

    async def test_http_says_what_it_takes_instead(self, start):
        running = await start()
        reply = await running.post(REQUEST, headers={"Content-Encoding": "br"})
        assert reply.status == 415
        assert "br" in reply.error.message
        assert reply.headers["Accept-Encoding"] == "gzip, deflate, zstd"


class TestPoint2And3Size:
    """The limit counts bytes after decompression; beyond it a request is refused for good."""

    LIMIT = 64 * KIB

    @pytest.mark.parametrize("compression", [None, grpc.Compression.Gzip, grpc.Compression.Deflate], ids=str)
    async def test_grpc(self, start, compression):
        running = await start(grpc={"max_request_size": "64KiB"})
        at_limit = request_of_size(self.LIMIT)
        await running.export(at_limit, compression=compression)
        error = await running.refused(request_of_size(self.LIMIT + 1), compression=compression)
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert retry_delay(grpc_status(error)) is None
        assert [data for _, data in running.sink.requests] == [at_limit]

    @pytest.mark.parametrize(
        ("coding", "compress"),
        [("", bytes), ("gzip", gzip.compress), ("deflate", zlib.compress), ("zstd", zstd.compress)],
    )
    async def test_http(self, start, coding, compress):
        running = await start(http={"max_request_size": "64KiB"})
        at_limit = request_of_size(self.LIMIT)
        headers = {"Content-Encoding": coding}
        assert (await running.post(compress(at_limit), headers=headers)).status == 200
        reply = await running.post(compress(request_of_size(self.LIMIT + 1)), headers=headers)
        assert reply.status == 413
        assert "Retry-After" not in reply.headers
        assert reply.error.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
        assert [data for _, data in running.sink.requests] == [at_limit]

    async def test_the_recommended_64_mib_is_the_default(self, start):
        running = await start()
        big, too_big = request_of_size(64 << 20), request_of_size((64 << 20) + 1)
        await running.export(big)
        assert (await running.export(big, compression=grpc.Compression.Gzip)) == b""
        assert (await running.post(big)).status == 200
        assert (await running.post(too_big)).status == 413
        assert (await running.refused(too_big)).code() is grpc.StatusCode.RESOURCE_EXHAUSTED


class TestPoint4AnswersAreLimited:
    """Answers stay small: the text in them is cut first."""

    async def test_partial_success(self, start):
        running = await start(ConsumerSink(outcome=Outcome(1, 1, "ж" * (5 << 20))))
        body = await running.export(REQUEST)
        assert len(body) < 2 * KIB
        message = ExportTraceServiceResponse.FromString(body).partial_success.error_message
        assert message == "ж" * (len(message) - 1) + "…"

    async def test_errors(self, start):
        running = await start(ConsumerSink(error=errors.MalformedRequestError("ж" * (5 << 20))))
        assert len((await running.post(REQUEST)).body) < 2 * KIB
        # Over gRPC it must fit the 8 KiB of headers that clients take.
        assert (await running.refused(REQUEST)).code() is grpc.StatusCode.INVALID_ARGUMENT


class TestPoint5FullSuccess:
    """Full success leaves partial_success unset; an empty request succeeds."""

    @pytest.mark.parametrize("body", [REQUEST, b""], ids=["spans", "empty"])
    async def test_protobuf(self, start, body):
        running = await start()
        assert not ExportTraceServiceResponse.FromString(await running.export(body)).HasField(
            "partial_success"
        )
        reply = await running.post(body)
        assert (reply.status, reply.body) == (200, b"")

    async def test_json(self, start):
        running = await start()
        reply = await running.post(b"{}", JSON)
        assert (reply.status, reply.body) == (200, b"{}")
        assert running.sink.requests == [(Signal.TRACES, b"")]


class TestPoint6PartialSuccess:
    """Some spans refused: still OK, with their number and the reason; a warning has the number 0."""

    @pytest.mark.parametrize(("rejected", "message"), [(2, "2 spans without an id"), (0, "old field")])
    async def test_partial(self, start, rejected, message):
        running = await start(ConsumerSink(outcome=Outcome(5 - rejected, rejected, message)))
        for body in (await running.export(REQUEST), (await running.post(REQUEST)).body):
            partial = ExportTraceServiceResponse.FromString(body).partial_success
            assert (partial.rejected_spans, partial.error_message) == (rejected, message)
        reply = await running.post(b"{}", JSON)
        partial = json.loads(reply.body)["partialSuccess"]
        assert partial.get("rejectedSpans", "0") == str(rejected)
        assert partial["errorMessage"] == message

    async def test_rejected_spans_are_counted(self, start):
        running = await start(ConsumerSink(outcome=Outcome(3, 2, "why")))
        await running.export(REQUEST)
        labels = {"transport": "grpc", "signal": "traces"}
        assert running.value(catalog.RECEIVER_ACCEPTED, **labels) == 3
        assert running.value(catalog.RECEIVER_REFUSED, **labels, reason="invalid") == 2


RETRYABLE = {
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DATA_LOSS,
}
PERMANENT_ERRORS = [
    errors.MalformedRequestError("m"),
    errors.UnsupportedMediaTypeError("m"),
    errors.RequestTooLargeError("m"),
    errors.UnauthenticatedError("m"),
    errors.PermanentError("m"),
]
RETRYABLE_ERRORS = [
    errors.RetryableError("m"),
    errors.QueueFullError("m", retry_after=2),
    errors.ShuttingDownError("m", retry_after=2),
    RuntimeError("a bug"),
]


class TestPoint7And9Codes:
    """A sender may retry exactly what could succeed later; over HTTP that is 429, 502, 503, 504 alone."""

    @pytest.mark.parametrize("error", PERMANENT_ERRORS, ids=lambda error: type(error).__name__)
    async def test_permanent(self, start, error):
        running = await start(ConsumerSink(error=error))
        refused = await running.refused(REQUEST)
        assert refused.code() not in RETRYABLE
        assert retry_delay(grpc_status(refused)) is None
        reply = await running.post(REQUEST)
        assert 400 <= reply.status < 500
        assert reply.status != 429
        assert "Retry-After" not in reply.headers

    @pytest.mark.parametrize("error", RETRYABLE_ERRORS, ids=lambda error: type(error).__name__)
    async def test_retryable(self, start, error):
        running = await start(ConsumerSink(error=error))
        assert (await running.refused(REQUEST)).code() in RETRYABLE
        assert (await running.post(REQUEST)).status in {429, 502, 503, 504}

    async def test_bad_data(self, start):
        running = await start(ConsumerSink(error=errors.MalformedRequestError("cut off at byte 7")))
        error = await running.refused(REQUEST)
        assert (error.code(), error.details()) == (grpc.StatusCode.INVALID_ARGUMENT, "cut off at byte 7")
        reply = await running.post(REQUEST)
        assert (reply.status, reply.error.code, reply.error.message) == (400, 3, "cut off at byte 7")

    @pytest.mark.parametrize("content_type", [PROTOBUF, JSON])
    @pytest.mark.parametrize(
        "error", [*PERMANENT_ERRORS, *RETRYABLE_ERRORS], ids=lambda error: type(error).__name__
    )
    async def test_every_error_body_is_a_status_in_the_requests_encoding(self, start, content_type, error):
        running = await start(ConsumerSink(error=error))
        reply = await running.post(b"{}" if content_type == JSON else REQUEST, content_type)
        assert reply.headers["Content-Type"] == content_type
        assert reply.error.code
        assert reply.error.message

    @pytest.mark.parametrize("content_type", [PROTOBUF, JSON])
    async def test_also_where_nothing_is_served(self, start, content_type):
        running = await start()
        for path in ("/", "/v1/traces/", "/v1/spans", "/v1development/profiles"):
            reply = await running.post(REQUEST, content_type, path=path)
            assert (reply.status, reply.headers["Content-Type"]) == (404, content_type)
            assert "/v1/traces" in reply.error.message
        for method in ("GET", "PUT", "DELETE", "OPTIONS"):
            reply = await running.post(REQUEST, content_type, method=method)
            assert (reply.status, reply.headers["Content-Type"], reply.headers["Allow"]) == (
                405,
                content_type,
                "POST",
            )
            assert "POST" in reply.error.message

    async def test_a_bug_is_no_500_and_tells_nothing_of_itself(self, start):
        running = await start(ConsumerSink(error=RuntimeError("password=hunter2")))
        reply = await running.post(REQUEST)
        assert reply.status == 503
        assert b"hunter2" not in reply.body
        error = await running.refused(REQUEST)
        assert "hunter2" not in (error.details() or "")
        for transport in ("grpc", "http"):
            assert running.value(catalog.RECEIVER_FAILED, transport=transport) == 1


class TestPoint8Throttling:
    """When full: UNAVAILABLE with RetryInfo, 503 with Retry-After."""

    async def test_grpc(self, start):
        running = await start(ConsumerSink(error=errors.QueueFullError("full", retry_after=2)))
        error = await running.refused(REQUEST)
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        told = grpc_status(error)
        assert (told.code, told.message) == (14, "full")
        assert 2 <= retry_delay(told) <= 2 * status.SPREAD

    async def test_http(self, start):
        running = await start(ConsumerSink(error=errors.QueueFullError("full", retry_after=2)))
        for content_type, body in ((PROTOBUF, REQUEST), (JSON, b"{}")):
            reply = await running.post(body, content_type)
            assert reply.status == 503
            assert 2 <= int(reply.headers["Retry-After"]) <= 2 * status.SPREAD
            assert 2 <= retry_delay(reply.error) <= 2 * status.SPREAD

    async def test_without_a_time_to_wait_none_is_told(self, start):
        running = await start(ConsumerSink(error=errors.RetryableError("later")))
        assert retry_delay(grpc_status(await running.refused(REQUEST))) is None
        assert "Retry-After" not in (await running.post(REQUEST)).headers

    @given(st.floats(0.001, 3600), st.lists(st.floats(0, 1, exclude_max=True), min_size=2, max_size=2))
    def test_waits_are_spread(self, wait, draws):
        told = status.refusal(errors.QueueFullError("full", retry_after=wait), draw=lambda: draws[0])
        assert wait <= told.retry_after <= wait * status.SPREAD
        header = int(told.retry_after_header(lambda: draws[1]))
        assert header >= 1
        assert abs(header - told.retry_after) < 1 or header == 1

    def test_resumed_senders_come_back_in_different_seconds(self):
        headers = [
            status.refusal(errors.QueueFullError("full", retry_after=1)).retry_after_header()
            for _ in range(1000)
        ]
        for second in ("1", "2", "3"):
            assert 100 < headers.count(second) < 600


class TestPoint10ContentType:
    """An answer is in the request's encoding; both encodings share port and paths."""

    @pytest.mark.parametrize("signal", list(Signal))
    async def test_answer(self, start, signal):
        running = await start()
        for content_type, body in (
            (PROTOBUF, b""),
            (JSON, b"{}"),
            ("application/json; charset=utf-8", b"{}"),
            ("Application/JSON;charset=UTF-8", b"{}"),
            ("application/x-protobuf; v=1", b""),
        ):
            reply = await running.post(body, content_type, path=f"/v1/{signal.value}")
            assert reply.status == 200
            assert reply.headers["Content-Type"] == content_type.split(";")[0].lower()
        assert running.sink.requests == [(signal, b"")] * 5

    @pytest.mark.parametrize(
        "content_type", [None, "text/plain", "application/grpc", ";", "application/json, text/json"]
    )
    async def test_another_type_is_refused(self, start, content_type):
        running = await start()
        reply = await running.post(REQUEST, content_type)
        assert reply.status == 415
        assert PROTOBUF in reply.error.message
        assert running.sink.requests == []


class TestPoint14Metrics:
    """Own metrics mirror the Collector's, and exist at 0 from the start."""

    async def test_from_the_start(self, start):
        running = await start()
        names = {
            (labels["transport"], labels["signal"], labels["code"])
            for labels, _ in running.telemetry.values(catalog.RECEIVER_REQUESTS)
        }
        for signal in Signal:
            assert ("grpc", signal.value, "OK") in names
            assert ("grpc", signal.value, "UNAVAILABLE") in names
            assert ("http", signal.value, "200") in names
            assert ("http", signal.value, "503") in names

    async def test_counted(self, start):
        running = await start()
        await running.export(REQUEST)
        await running.post(REQUEST)
        await running.post(REQUEST)
        await running.post(b"x", "text/plain", path="/v1/logs")
        await running.post(b"x", path="/nowhere")
        assert running.value(catalog.RECEIVER_ACCEPTED, transport="grpc", signal="traces") == 5
        assert running.value(catalog.RECEIVER_ACCEPTED, transport="http", signal="traces") == 10
        running.sink.outcome = Outcome(7)
        for signal in (Signal.METRICS, Signal.LOGS):
            await running.export(b"", signal)
            assert running.value(catalog.RECEIVER_ACCEPTED, transport="grpc", signal=signal.value) == 7
            assert running.value(catalog.RECEIVER_ACCEPTED, transport="http", signal=signal.value) == 0
        assert running.value(catalog.RECEIVER_REQUESTS, transport="grpc", signal="traces", code="OK") == 1
        assert running.value(catalog.RECEIVER_REQUESTS, transport="http", signal="traces", code="200") == 2
        assert running.value(catalog.RECEIVER_REQUESTS, transport="http", signal="logs", code="415") == 1
        assert running.value(catalog.RECEIVER_REQUESTS, transport="http", signal="unknown", code="404") == 1


class TestPoint15OtherSignals:
    """Metrics and logs are handed on byte for byte, never refused for what they contain."""

    @pytest.mark.parametrize("signal", [Signal.METRICS, Signal.LOGS])
    async def test_unchanged(self, start, signal):
        unknown_field = b"\xf2\x3f\x03new"
        known = {
            Signal.METRICS: ExportMetricsServiceRequest(resource_metrics=[{"schema_url": "s"}]),
            Signal.LOGS: ExportLogsServiceRequest(resource_logs=[{"schema_url": "s"}]),
        }[signal].SerializeToString()
        running = await start()
        assert await running.export(known + unknown_field, signal) == b""
        assert (await running.post(known + unknown_field, path=f"/v1/{signal.value}")).body == b""
        assert running.sink.requests == [(signal, known + unknown_field)] * 2

    async def test_profiles_are_told_apart_from_failures(self, start):
        running = await start()
        call = running.channel().unary_unary(
            "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export"
        )
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"", timeout=10)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
