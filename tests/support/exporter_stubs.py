"""Downstreams for the exporter's tests: real gRPC and HTTP servers that answer as told."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import grpc
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_bridge.contracts import SystemClock
from otel_bridge.exporters.otlp.config import Exporters, StorageConfig
from otel_bridge.exporters.otlp.exporter import OtlpExporter, build
from otel_bridge.model import Signal
from otel_bridge.receivers.otlp.codec import choose_codec
from otel_bridge.telemetry import Telemetry

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

from pydantic import TypeAdapter

METHODS = {
    f"/opentelemetry.proto.collector.{package}.v1.{service}Service/Export": signal
    for package, service, signal in (
        ("trace", "Trace", Signal.TRACES),
        ("metrics", "Metrics", Signal.METRICS),
        ("logs", "Logs", Signal.LOGS),
    )
}


class GrpcStub(grpc.GenericRpcHandler):
    """Keeps every request; `answer` may abort through the context or return other bytes."""

    def __init__(self) -> None:
        self.requests: list[tuple[Signal, bytes]] = []
        self.metadata: list[dict[str, str | bytes]] = []
        self.answer: Callable[[bytes, grpc.aio.ServicerContext], Awaitable[bytes]] = _nothing
        self.port = 0

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        signal = METHODS.get(details.method)
        if signal is None:
            return None

        async def handle(payload: bytes, context: grpc.aio.ServicerContext) -> bytes:
            answer = await self.answer(payload, context)
            self.requests.append((signal, payload))
            self.metadata.append(dict(context.invocation_metadata()))
            return answer

        return grpc.unary_unary_rpc_method_handler(handle)

    @property
    def spans(self) -> list[str]:
        """The names of all spans that arrived."""
        return span_names([payload for _, payload in self.requests])

    @contextlib.asynccontextmanager
    async def serving(self, port: int = 0, *, limit: int = -1, credentials=None) -> AsyncIterator[GrpcStub]:
        server = grpc.aio.server(
            options=[("grpc.max_receive_message_length", limit), ("grpc.so_reuseport", 0)]
        )
        server.add_generic_rpc_handlers((self,))
        address = f"127.0.0.1:{port}"
        self.port = (
            server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
        )
        await server.start()
        try:
            yield self
        finally:
            await server.stop(None)


async def _nothing(payload: bytes, context: grpc.aio.ServicerContext) -> bytes:
    del payload, context
    return b""


class HttpStub:
    """Keeps every body; `answer` makes the response."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, bytes]] = []
        self.headers: list[dict[str, str]] = []
        self.answer: Callable[[bytes], web.Response] = lambda _: web.Response()
        self.port = 0

    @property
    def spans(self) -> list[str]:
        """The names of all spans that arrived."""
        return span_names([payload for _, payload in self.requests])

    @contextlib.asynccontextmanager
    async def serving(self, port: int = 0) -> AsyncIterator[HttpStub]:
        async def handle(request: web.Request) -> web.Response:
            body = await request.read()
            response = self.answer(body)
            self.requests.append((request.path, body))
            self.headers.append({key.lower(): value for key, value in request.headers.items()})
            return response

        app = web.Application(client_max_size=1 << 30)
        app.router.add_post("/{path:.*}", handle)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", port)
        await site.start()
        self.port = runner.addresses[0][1]
        try:
            yield self
        finally:
            await runner.cleanup()


def span_names(payloads: list[bytes]) -> list[str]:
    return [
        span.name
        for payload in payloads
        for rs in ExportTraceServiceRequest.FromString(payload).resource_spans
        for ss in rs.scope_spans
        for span in ss.spans
    ]


@contextlib.asynccontextmanager
async def exporting(
    configs: dict[str, dict], directory: Path | None = None, telemetry: Telemetry | None = None, **storage
) -> AsyncIterator[OtlpExporter]:
    """A started exporter on the real clock."""
    exporter = build(
        TypeAdapter(Exporters).validate_python(configs),
        StorageConfig(directory=directory, **storage) if directory else None,
        codec=choose_codec("auto")[0],
        clock=SystemClock(),
        telemetry=telemetry or Telemetry(),
    )
    await exporter.start()
    try:
        yield exporter
    finally:
        await exporter.stop(5.0)


async def send(
    exporter: OtlpExporter, payload: bytes, items: int = 1, signal: Signal = Signal.TRACES
) -> None:
    await exporter.reserve(len(payload)).send(signal, payload, items)


async def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for what real servers and files bring about."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 (the other side is a server or a file, not an event)
            await asyncio.sleep(0.01)
