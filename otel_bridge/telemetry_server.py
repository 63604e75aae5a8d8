"""What a probe or a scraper asks the bridge over HTTP: /metrics, /healthz, /readyz."""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING

from aiohttp import web
from prometheus_client.exposition import choose_encoder

from otel_bridge.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_bridge.telemetry import Telemetry
    from otel_bridge.units import Endpoint


class TelemetryServer:
    """Serves the registry and the service's state.

    Args:
        endpoint: where to listen.
        telemetry: whose registry is served.
        not_ready: why the service is not ready yet, or None when it is.
    """

    def __init__(self, endpoint: Endpoint, telemetry: Telemetry, not_ready: Callable[[], str | None]) -> None:
        self._endpoint = endpoint
        self._telemetry = telemetry
        self._not_ready = not_ready
        self._runner: web.AppRunner | None = None
        self.port = endpoint.port

    async def start(self) -> None:
        """Listen."""
        app = web.Application()
        app.add_routes(
            [
                web.get("/metrics", self._metrics),
                web.get("/healthz", self._healthz),
                web.get("/readyz", self._readyz),
            ]
        )
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, self._endpoint.host, self._endpoint.port)
        try:
            await site.start()
        except OSError as error:
            await runner.cleanup()
            if error.errno in (errno.EADDRINUSE, errno.EACCES, errno.EADDRNOTAVAIL):
                raise StartError(
                    f"cannot serve metrics on {self._endpoint}: {error.strerror}; set "
                    "service.telemetry.metrics.endpoint to a free address (port 0 lets the system choose)"
                ) from error
            raise
        self._runner = runner
        self.port = runner.addresses[0][1]

    async def stop(self, _deadline: float) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _metrics(self, request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        # In a thread: tens of thousands of series take a second, and spans must not wait for them.
        body = await asyncio.to_thread(encode, self._telemetry.registry)
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _healthz(self, _request: web.Request) -> web.Response:
        return web.json_response({"status": "alive"})

    async def _readyz(self, _request: web.Request) -> web.Response:
        reason = self._not_ready()
        if reason is None:
            return web.json_response({"status": "ready"})
        return web.json_response({"status": "not ready", "reason": reason}, status=503)
