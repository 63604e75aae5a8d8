"""The receiver: its listeners, started and stopped together."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from otel_bridge.receivers.otlp.grpc import GrpcServer
from otel_bridge.receivers.otlp.http import HttpServer

if TYPE_CHECKING:
    from otel_bridge.contracts import Consumer
    from otel_bridge.receivers.otlp.config import OtlpReceiverConfig
    from otel_bridge.telemetry import Telemetry

log = structlog.get_logger(__name__)


class OtlpReceiver:
    """Takes OTLP in over gRPC and HTTP, and hands each request's bytes to a consumer."""

    def __init__(self, config: OtlpReceiverConfig, consumer: Consumer, telemetry: Telemetry) -> None:
        protocols = config.protocols
        self._config = config
        self._grpc = GrpcServer(protocols.grpc, consumer, telemetry) if protocols.grpc.enabled else None
        self._http = HttpServer(protocols.http, consumer, telemetry) if protocols.http.enabled else None

    @property
    def grpc_port(self) -> int | None:
        """The port that gRPC is served on; None when it is not."""
        return self._grpc.port if self._grpc is not None else None

    @property
    def http_port(self) -> int | None:
        """The port that HTTP is served on; None when it is not."""
        return self._http.port if self._http is not None else None

    async def start(self) -> None:
        """Listen on all ports or none.

        Raises:
            StartError: a port is taken, or a file cannot be used.
        """
        for warning in self._config.warnings():
            log.warning(warning)
        try:
            if self._grpc is not None:
                await self._grpc.start()
            if self._http is not None:
                await self._http.start()
        except BaseException:
            await self.stop(0.0)
            raise
        log.info("OTLP receiver listens", grpc_port=self.grpc_port, http_port=self.http_port)

    async def stop(self, deadline: float) -> None:
        """Take nothing new; what is in flight has `deadline` seconds to be answered."""
        servers = [server for server in (self._grpc, self._http) if server is not None]
        await asyncio.gather(*(server.stop(deadline) for server in servers))
