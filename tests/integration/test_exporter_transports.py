"""Both transports against real servers: success, partial success, throttling, refusals, nonsense, TLS."""

from __future__ import annotations

import asyncio
import gzip
import os
import socket
import subprocess
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import grpc
import pytest
import zstandard
from aiohttp import web
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from otel_bridge import catalog
from otel_bridge.errors import QueueFullError, RetryableError, StartError
from otel_bridge.model import Signal
from otel_bridge.telemetry import Telemetry
from otel_bridge.testing import trace_request
from tests.support.exporter_stubs import GrpcStub, HttpStub, exporting, send, until

QUICK = {"retry_on_failure": {"initial_interval": 0.05, "max_interval": 0.2}}
TRACES = {"signal": "traces"}


def grpc_to(stub: GrpcStub, **config) -> dict[str, dict]:
    return {"otlp": {"endpoint": f"127.0.0.1:{stub.port}", **QUICK, **config}}


def http_to(stub: HttpStub, **config) -> dict[str, dict]:
    return {"otlphttp": {"endpoint": f"http://127.0.0.1:{stub.port}", **QUICK, **config}}


def request(*names: str) -> bytes:
    return trace_request([{"name": name} for name in names])


def partial(rejected: int, message: str) -> bytes:
    answer = ExportTraceServiceResponse()
    answer.partial_success.rejected_spans = rejected
    answer.partial_success.error_message = message
    return answer.SerializeToString()


async def test_grpc_bytes_arrive_as_they_were_for_each_signal():
    async with GrpcStub().serving() as stub, exporting(grpc_to(stub, headers={"X-Tenant": "a"})) as exporter:
        for signal in Signal:
            await send(exporter, b"\x0a\x02\x99\x01 any bytes", 1, signal)
        assert stub.requests == [(signal, b"\x0a\x02\x99\x01 any bytes") for signal in Signal]
        assert stub.metadata[0]["x-tenant"] == "a"


@pytest.mark.parametrize(
    ("compression", "unpack"),
    [
        ("none", bytes),
        ("gzip", gzip.decompress),
        ("zstd", lambda b: zstandard.ZstdDecompressor().decompress(b)),
    ],
)
@pytest.mark.parametrize("size", [10, 200_000])
async def test_http_paths_headers_and_compression(compression, unpack, size):
    raw: list[bytes] = []
    async with HttpStub().serving() as stub:
        stub.answer = lambda body: raw.append(body) or web.Response()
        # aiohttp's server takes gzip apart by itself; zstd only where its version can.
        config = http_to(stub, compression=compression, headers={"X-Tenant": "a"})
        async with exporting(config) as exporter:
            for signal in Signal:
                await send(exporter, b"x" * size, 1, signal)
    assert [path for path, _ in stub.requests] == ["/v1/traces", "/v1/metrics", "/v1/logs"]
    headers = stub.headers[0]
    assert headers["content-type"] == "application/x-protobuf"
    assert headers.get("content-encoding") == (None if compression == "none" else compression)
    assert headers["x-tenant"] == "a"
    assert all(body == b"x" * size or unpack(body) == b"x" * size for body in raw)


@pytest.mark.parametrize(
    ("rejected", "message", "sent"), [(3, "quota", 7), (0, "old field", 10)], ids=["partial", "warning"]
)
async def test_grpc_partial_success(rejected, message, sent, capsys):
    """cases.md otlp-partial (a) and (b)."""
    telemetry = Telemetry()

    async def answer(payload, context):
        return partial(rejected, message)

    async with GrpcStub().serving() as stub:
        stub.answer = answer
        async with exporting(grpc_to(stub), telemetry=telemetry) as exporter:
            await send(exporter, request(*map(str, range(10))), 10)
            await asyncio.sleep(0.5)
            assert len(stub.requests) == 1
    assert telemetry.value(catalog.EXPORTER_SENT, exporter="otlp", **TRACES) == sent
    assert telemetry.value(catalog.EXPORTER_REJECTED, exporter="otlp", **TRACES) == rejected
    assert capsys.readouterr().out.count(message) == 1


async def test_http_json_partial_success_with_the_number_as_a_string(capsys):
    """cases.md otlp-partial (c)."""
    telemetry = Telemetry()
    async with HttpStub().serving() as stub:
        stub.answer = lambda _: web.Response(
            body=b'{"partialSuccess":{"rejectedSpans":"3","errorMessage":"quota"}}',
            content_type="application/json",
        )
        async with exporting(http_to(stub), telemetry=telemetry) as exporter:
            await send(exporter, request(*map(str, range(10))), 10)
            await asyncio.sleep(0.5)
            assert len(stub.requests) == 1
    assert telemetry.value(catalog.EXPORTER_SENT, exporter="otlphttp", **TRACES) == 7
    assert telemetry.value(catalog.EXPORTER_REJECTED, exporter="otlphttp", **TRACES) == 3
    assert capsys.readouterr().out.count("quota") == 1


RETRYABLE = {"CANCELLED", "DEADLINE_EXCEEDED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE", "DATA_LOSS"}


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
async def test_grpc_codes_are_retried_exactly_as_specified(code):
    telemetry = Telemetry()
    failures = iter([code])

    async def answer(payload, context):
        failure = next(failures, None)
        if failure is not None:
            await context.abort(failure, "as told")
        return b""

    async with GrpcStub().serving() as stub:
        stub.answer = answer
        async with exporting(grpc_to(stub), telemetry=telemetry) as exporter:
            await send(exporter, request("a"))
    assert len(stub.requests) == (1 if code.name in RETRYABLE else 0)
    dropped = sum(
        telemetry.value(catalog.EXPORTER_DROPPED, exporter="otlp", reason=reason, **TRACES)
        for reason in ("refused", "oversize")
    )
    assert dropped == (0 if code.name in RETRYABLE else 1)
    assert telemetry.value(catalog.EXPORTER_SEND_FAILED, exporter="otlp", code=code.name, **TRACES) == 1


@pytest.mark.parametrize(
    "status", [400, 401, 403, 404, 408, 409, 413, 418, 429, 500, 501, 502, 503, 504, 301]
)
async def test_http_statuses_are_retried_exactly_as_specified(status):
    telemetry = Telemetry()
    answers = iter([web.Response(status=status, headers={"Location": "http://elsewhere"})])
    async with HttpStub().serving() as stub:
        stub.answer = lambda _: next(answers, web.Response())
        async with exporting(http_to(stub), telemetry=telemetry) as exporter:
            await send(exporter, request("a"))
    retried = status in {429, 502, 503, 504}
    assert len(stub.requests) == (2 if retried else 1)
    assert telemetry.value(catalog.EXPORTER_SENT, exporter="otlphttp", **TRACES) == (1 if retried else 0)
    assert telemetry.value(catalog.EXPORTER_SEND_FAILED, exporter="otlphttp", code=str(status), **TRACES) == 1


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED])
async def test_grpc_retry_info_is_a_floor(code):
    at: list[float] = []

    async def answer(payload, context):
        at.append(time.monotonic())
        if len(at) == 1:
            detail = AnyMessage()
            detail.Pack(RetryInfo(retry_delay=Duration(nanos=400_000_000)))
            status = Status(code=code.value[0], message="slow down", details=[detail])
            context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
            await context.abort(code, "slow down")
        return b""

    async with GrpcStub().serving() as stub:
        stub.answer = answer
        async with exporting(grpc_to(stub)) as exporter:
            await send(exporter, request("a"))
    assert at[1] - at[0] >= 0.4


@pytest.mark.parametrize("date", [False, True], ids=["seconds", "date"])
@pytest.mark.parametrize("status", [429, 503])
async def test_http_retry_after_is_a_floor(status, date):
    at: list[float] = []

    def answer(_):
        at.append(time.time())
        if len(at) > 1:
            return web.Response()
        wait = "1" if not date else format_datetime(datetime.now(UTC) + timedelta(seconds=2), usegmt=True)
        return web.Response(status=status, headers={"Retry-After": wait})

    async with HttpStub().serving() as stub:
        stub.answer = answer
        async with exporting(http_to(stub, sending_queue={"hold": 5})) as exporter:
            await send(exporter, request("a"))
    assert at[1] - at[0] >= 0.98


@pytest.mark.parametrize("limit", [16_777_216, 4_194_304])
async def test_oversize_against_a_real_grpc_limit(limit):
    """cases.md otlp-oversize: gRPC's own refusal names its limit, which is then kept to."""
    telemetry = Telemetry()
    spans = [{"name": str(number), "attributes": {"body": "x" * 100_000}} for number in range(500)]
    for place in range(20):
        spans.insert(place * 25, {"name": f"small {place}", "attributes": {"body": "x" * 1000}})
    spans.insert(260, {"name": "giant", "attributes": {"body": "x" * (20 << 20)}})
    async with GrpcStub().serving(limit=limit) as stub:
        config = grpc_to(stub, max_request_size="64MiB", compression="gzip", timeout=20)
        async with exporting(config, telemetry=telemetry) as exporter:
            await send(exporter, trace_request(spans), 521)
    assert sorted(stub.spans) == sorted(span["name"] for span in spans if span["name"] != "giant")
    assert all(len(payload) <= limit for _, payload in stub.requests)
    assert telemetry.value(catalog.EXPORTER_DROPPED, exporter="otlp", reason="oversize", **TRACES) == 1


async def test_http_413_halves():
    telemetry = Telemetry()
    payload = trace_request([{"name": str(n), "attributes": {"body": "x" * 9000}} for n in range(30)])
    async with HttpStub().serving() as stub:
        stub.answer = lambda body: web.Response(status=413 if len(body) > 50_000 else 200)
        async with exporting(http_to(stub), telemetry=telemetry) as exporter:
            await send(exporter, payload, 30)
    assert telemetry.value(catalog.EXPORTER_SENT, exporter="otlphttp", **TRACES) == 30


# Nonsense.


@pytest.mark.parametrize(
    "response",
    [
        lambda: web.Response(body=os.urandom(500), content_type="application/x-protobuf"),
        lambda: web.Response(text="<html>welcome</html>", content_type="text/html"),
        lambda: web.Response(body=b"\xff{", content_type="application/json"),
        lambda: web.Response(body=b"\xff" * (5 << 20), content_type="application/x-protobuf"),
    ],
    ids=["noise", "html", "bad json", "huge"],
)
async def test_http_success_with_nonsense_counts_as_sent_with_one_warning(response, capsys):
    telemetry = Telemetry()
    async with HttpStub().serving() as stub:
        stub.answer = lambda _: response()
        async with exporting(http_to(stub), telemetry=telemetry) as exporter:
            for number in range(3):
                await send(exporter, request(str(number)))
    assert stub.spans == ["0", "1", "2"]
    assert telemetry.value(catalog.EXPORTER_SENT, exporter="otlphttp", **TRACES) == 3
    assert capsys.readouterr().out.count("cannot be read") == 1


async def test_grpc_success_with_nonsense_counts_as_sent(capsys):
    async def answer(payload, context):
        return b"\xff\xff<html>"

    async with GrpcStub().serving() as stub:
        stub.answer = answer
        async with exporting(grpc_to(stub)) as exporter:
            await send(exporter, request("a"))
            await send(exporter, request("b"))
    assert stub.spans == ["a", "b"]
    assert capsys.readouterr().out.count("cannot be read") == 1


@pytest.mark.parametrize("transport", ["otlp", "otlphttp"])
async def test_a_peer_that_speaks_something_else_loses_nothing(transport, tmp_path):
    """Random bytes for an answer: the request stays, and arrives once the right server is there."""

    async def talk(reader, writer):
        await reader.read(100)
        writer.write(os.urandom(2000))
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    endpoint = f"127.0.0.1:{port}" if transport == "otlp" else f"http://127.0.0.1:{port}"
    async with exporting({transport: {"endpoint": endpoint, **QUICK}}, tmp_path) as exporter:
        await send(exporter, request("a"))
        await send(exporter, request("b"))
        server.close()
        await server.wait_closed()
        stub = GrpcStub() if transport == "otlp" else HttpStub()
        async with stub.serving(port):
            await until(lambda: len(stub.spans) == 2)
    assert sorted(stub.spans) == ["a", "b"]


@pytest.mark.parametrize("transport", ["otlp", "otlphttp"])
async def test_a_black_hole_is_acknowledged_from_disk_after_the_hold(transport, tmp_path):
    """A listener that accepts and never answers: nobody waits until the tries run into their timeout."""
    hole = socket.create_server(("127.0.0.1", 0))
    port = hole.getsockname()[1]
    endpoint = f"127.0.0.1:{port}" if transport == "otlp" else f"http://127.0.0.1:{port}"
    config = {"endpoint": endpoint, "timeout": 120, "sending_queue": {"hold": 0.3}, **QUICK}
    async with exporting({transport: config}, tmp_path) as exporter:
        async with asyncio.timeout(60):
            await asyncio.gather(*(send(exporter, request(str(number))) for number in range(20)))
        assert list((tmp_path / transport).glob("0*.sqlite"))
        hole.close()
        stub = GrpcStub() if transport == "otlp" else HttpStub()
        async with stub.serving(port):
            await until(lambda: len(set(stub.spans)) == 20)
    assert len(stub.spans) == 20


@pytest.mark.parametrize("transport", ["otlp", "otlphttp"])
async def test_nobody_listens_and_there_is_no_disk(transport):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    endpoint = f"127.0.0.1:{port}" if transport == "otlp" else f"http://127.0.0.1:{port}"
    config = {"endpoint": endpoint, "sending_queue": {"hold": 0.2}}
    async with exporting({transport: config}) as exporter:
        with pytest.raises((RetryableError, QueueFullError)) as caught:
            await send(exporter, request("a"))
        assert caught.value.retry_after >= 1


async def test_one_of_three_destinations_is_down(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        dead = free.getsockname()[1]
    async with GrpcStub().serving() as first, HttpStub().serving() as second:
        configs = {
            **grpc_to(first),
            "otlp/dead": {"endpoint": f"127.0.0.1:{dead}", **QUICK},
            **http_to(second),
        }
        async with exporting(configs, tmp_path) as exporter:
            for number in range(10):
                await send(exporter, request(str(number)))
            assert len(first.spans) == len(second.spans) == 10
            stub = GrpcStub()
            async with stub.serving(dead):
                await until(lambda: len(stub.spans) == 10)
    assert stub.spans == [str(number) for number in range(10)]


# TLS.


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """A CA, a server's and a client's certificate, made with the openssl command."""
    folder = tmp_path_factory.mktemp("tls")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    openssl(
        *[
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-keyout",
            "ca.key",
            "-out",
            "ca.pem",
            "-subj",
            "/CN=ca",
        ]
    )
    for name in ("server", "client"):
        (folder / f"{name}.ext").write_text("subjectAltName=DNS:collector.test\n")
        openssl(*f"req -newkey rsa:2048 -nodes -keyout {name}.key -out {name}.csr -subj /CN={name}".split())
        signed = f"x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -out {name}.pem -extfile {name}.ext"
        openssl(*signed.split(), "-days", "2")
    return folder


async def test_grpc_mutual_tls(certificates):
    credentials = grpc.ssl_server_credentials(
        [((certificates / "server.key").read_bytes(), (certificates / "server.pem").read_bytes())],
        (certificates / "ca.pem").read_bytes(),
        require_client_auth=True,
    )
    tls = {
        "ca_file": str(certificates / "ca.pem"),
        "cert_file": str(certificates / "client.pem"),
        "key_file": str(certificates / "client.key"),
        "server_name_override": "collector.test",
    }
    async with (
        GrpcStub().serving(credentials=credentials) as stub,
        exporting(grpc_to(stub, tls=tls)) as exporter,
    ):
        await send(exporter, request("a"))
        assert stub.spans == ["a"]
        wrong = {"ca_file": tls["ca_file"], "server_name_override": "other.test"}
        async with exporting(grpc_to(stub, tls=wrong, sending_queue={"hold": 0.3})) as distrusting:
            with pytest.raises(RetryableError):
                await send(distrusting, request("b"))
        assert stub.spans == ["a"]


@pytest.mark.parametrize("transport", ["otlp", "otlphttp"])
async def test_a_missing_tls_file_is_named_at_start(transport, tmp_path):
    endpoint = "127.0.0.1:1" if transport == "otlp" else "https://127.0.0.1:1"
    config = {transport: {"endpoint": endpoint, "tls": {"ca_file": str(tmp_path / "no.pem")}}}
    with pytest.raises(StartError, match=r"no\.pem"):
        async with exporting(config):
            pass
