"""Where spans end up in tests: an OTLP server that keeps everything, and misbehaves when told."""

from __future__ import annotations

import threading
import time
from concurrent import futures
from typing import TYPE_CHECKING, Self

import grpc

from otel_bridge.testing import spans_of
from tests.support.ports import free_port

if TYPE_CHECKING:
    from opentelemetry.proto.trace.v1.trace_pb2 import Span

SERVICES = {
    "traces": "opentelemetry.proto.collector.trace.v1.TraceService",
    "metrics": "opentelemetry.proto.collector.metrics.v1.MetricsService",
    "logs": "opentelemetry.proto.collector.logs.v1.LogsService",
}


class GrpcSink:
    """An OTLP/gRPC server in this process.

    Attributes:
        port: where it listens, also while it is down.
        requests: (signal, bytes) in order of arrival.
        black_hole: while set, requests are held and never answered before it is cleared.
    """

    def __init__(self, port: int = 0) -> None:
        self.port = port or free_port()
        self.requests: list[tuple[str, bytes]] = []
        self.black_hole = threading.Event()
        self._server: grpc.Server | None = None

    def start(self) -> Self:
        """Listen."""
        server = grpc.server(
            futures.ThreadPoolExecutor(8),
            options=[("grpc.max_receive_message_length", -1), ("grpc.so_reuseport", 0)],
        )
        for signal, service in SERVICES.items():
            handler = grpc.unary_unary_rpc_method_handler(self._keeper(signal))
            server.add_generic_rpc_handlers(
                (grpc.method_handlers_generic_handler(service, {"Export": handler}),)
            )
        if server.add_insecure_port(f"127.0.0.1:{self.port}") == 0:
            raise OSError(f"port {self.port} is taken")
        server.start()
        self._server = server
        return self

    def stop(self) -> None:
        """Go down at once."""
        self.black_hole.clear()
        if self._server is not None:
            self._server.stop(0).wait()
            self._server = None

    def spans(self) -> list[Span]:
        """All spans received so far."""
        return [span for signal, data in list(self.requests) if signal == "traces" for span in spans_of(data)]

    def span_ids(self) -> list[bytes]:
        """The ids of all spans received so far, repeated ones repeated."""
        return [span.span_id for span in self.spans()]

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_exc: object) -> None:
        self.stop()

    def _keeper(self, signal: str):
        def export(data: bytes, context: grpc.ServicerContext) -> bytes:
            while self.black_hole.is_set():
                if not context.is_active():
                    return b""
                time.sleep(0.02)
            self.requests.append((signal, data))
            return b""

        return export
