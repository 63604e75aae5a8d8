"""OTLP over gRPC: request bytes in, response bytes out; no message is decoded here."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeAlias

import grpc
import grpc.aio

from otel_bridge.errors import MalformedRequestError, RetryableError
from otel_bridge.listeners.address import cannot_listen
from otel_bridge.listeners.auth import BearerAuth
from otel_bridge.listeners.deadlines import Deadlines
from otel_bridge.listeners.tls import Certificates
from otel_bridge.model import Signal
from otel_bridge.receivers.otlp import answer, status
from otel_bridge.receivers.otlp.intake import Intake

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from otel_bridge.contracts import Consumer
    from otel_bridge.receivers.otlp.config import GrpcConfig, KeepaliveConfig
    from otel_bridge.telemetry import Telemetry

SETTING = "receivers.otlp.protocols.grpc"

METHODS = {
    "/opentelemetry.proto.collector.trace.v1.TraceService/Export": Signal.TRACES,
    "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export": Signal.METRICS,
    "/opentelemetry.proto.collector.logs.v1.LogsService/Export": Signal.LOGS,
}

_OK = grpc.StatusCode.OK.name
_CANCELLED = grpc.StatusCode.CANCELLED.name

_Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"


class GrpcServer:
    """The gRPC listener."""

    def __init__(self, config: GrpcConfig, consumer: Consumer, telemetry: Telemetry) -> None:
        self.port = config.endpoint.port
        self._config = config
        self._deadlines = Deadlines(config.read_timeout)
        self._intake = Intake(
            "grpc",
            consumer,
            telemetry,
            limit=config.max_concurrent_requests,
            codes=(_OK, _CANCELLED, *status.CODES),
        )
        self._auth: BearerAuth | None = None
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        """Listen.

        Raises:
            StartError: the port is taken, or a file cannot be used.
        """
        config = self._config
        self._auth = BearerAuth(config.auth, f"{SETTING}.auth") if config.auth else None
        certificates = Certificates(config.tls, f"{SETTING}.tls") if config.tls else None
        server = grpc.aio.server(handlers=(_Services(self._export),), options=_options(config))
        address = str(config.endpoint)
        try:
            if certificates is None:
                self.port = server.add_insecure_port(address)
            else:
                self.port = server.add_secure_port(address, certificates.grpc_credentials())
        except RuntimeError as error:
            raise cannot_listen(config.endpoint, f"{SETTING}.endpoint", None) from error
        await server.start()
        self._server = server

    async def stop(self, deadline: float) -> None:
        """Take nothing new; what is in flight has `deadline` seconds."""
        if self._server is not None:
            self._intake.draining = True
            await self._server.stop(deadline)
            self._server = None

    async def _export(self, signal: Signal, context: _Context) -> bytes:
        intake = self._intake
        admitted = False
        try:
            if self._auth is not None:
                self._auth.check(_authorization(context))
            intake.admit()
            admitted = True
            outcome = await intake.take(signal, await self._read(context))
        except asyncio.CancelledError:
            intake.answered(signal.value, _CANCELLED)
            raise
        except Exception as error:  # noqa: BLE001 (whatever it is, the sender gets an answer it can act on)
            refusal = intake.refuse(error)
            intake.answered(signal.value, refusal.code.name)
            _refuse(context, refusal)
            return b""
        finally:
            if admitted:
                intake.release()
        intake.answered(signal.value, _OK)
        return answer.protobuf(signal, outcome)

    async def _read(self, context: _Context) -> bytes:
        """The call's one message.

        gRPC itself holds it to max_receive_message_length, before and after decompression; where it is over,
        damaged, or in an unknown compression, gRPC ends the call with its own status and no message comes.
        """
        try:
            with self._deadlines.within():
                message = await context.read()
        except TimeoutError:
            raise RetryableError(
                f"the request did not arrive within {self._config.read_timeout:g} s"
            ) from None
        if not isinstance(message, bytes):
            raise MalformedRequestError("the call ended without a whole message that can be read")
        return message


class _Services(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # not generic at run time
    """The Export method of each signal.

    Taken as client-streaming, which looks the same on the wire: so the handler runs before the message is
    read, a stranger's request is refused unread, and a client that never finishes runs into a time-out.
    """

    def __init__(self, export: Callable[[Signal, _Context], Awaitable[bytes]]) -> None:
        self._handlers = {method: _handler(export, signal) for method, signal in METHODS.items()}

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        return self._handlers.get(details.method)


def _handler(
    export: Callable[[Signal, _Context], Awaitable[bytes]], signal: Signal
) -> grpc.RpcMethodHandler[bytes, bytes]:
    async def run(_requests: Any, context: _Context) -> bytes:
        return await export(signal, context)

    return grpc.stream_unary_rpc_method_handler(run)


def _authorization(context: _Context) -> str | None:
    for key, value in context.invocation_metadata() or ():
        if key == "authorization":
            return value if isinstance(value, str) else None
    return None


def _refuse(context: _Context, refusal: status.Refusal) -> None:
    context.set_code(refusal.code)
    context.set_details(refusal.message)
    if refusal.retry_after is not None:
        context.set_trailing_metadata((("grpc-status-details-bin", refusal.protobuf()),))


def _options(config: GrpcConfig) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", config.max_request_size),
        # Well beyond our own limit, whose refusal says when to come again; this one just resets the call.
        ("grpc.max_concurrent_streams", config.max_concurrent_requests + 1000),
        # A second bridge on the port would otherwise start and take half of the connections.
        ("grpc.so_reuseport", 0),
        *_keepalive_options(config.keepalive),
    ]


def _keepalive_options(config: KeepaliveConfig) -> list[tuple[str, int]]:
    seconds = {
        "grpc.keepalive_time_ms": config.time,
        "grpc.keepalive_timeout_ms": config.timeout,
        # The time-out above ends nothing (tried with grpcio 1.85) unless the one for pings is as short.
        "grpc.http2.ping_timeout_ms": config.timeout,
        "grpc.http2.min_ping_interval_without_data_ms": config.min_client_interval,
        "grpc.max_connection_idle_ms": config.max_connection_idle,
        "grpc.max_connection_age_ms": config.max_connection_age,
        "grpc.max_connection_age_grace_ms": config.max_connection_age_grace,
    }
    options = [(name, round(value * 1000)) for name, value in seconds.items() if value is not None]
    return [("grpc.keepalive_permit_without_calls", 1), *options]
