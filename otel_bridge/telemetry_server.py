"""What probes, scrapers and people ask the bridge over HTTP: /healthz, /readyz, /metrics, /ui."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Protocol

from aiohttp import web
from prometheus_client.exposition import choose_encoder

from otel_bridge.errors import UnauthenticatedError
from otel_bridge.listeners.address import cannot_listen
from otel_bridge.listeners.answers import refused
from otel_bridge.listeners.auth import BearerAuth
from otel_bridge.listeners.tls import Certificates

if TYPE_CHECKING:
    from collections.abc import Callable

    from prometheus_client.registry import Collector

    from otel_bridge.settings import MetricsSettings
    from otel_bridge.telemetry import Telemetry
    from otel_bridge.ui.pages import Ui
    from otel_bridge.units import Endpoint

_OPENMETRICS = "application/openmetrics-text"
_END = b"# EOF\n"

SETTING = "service.telemetry.metrics"


class MetricsText(Protocol):
    """Metrics that are too many for prometheus-client to write."""

    def write(self, *, openmetrics: bool) -> str:
        """All of them, without the mark that ends OpenMetrics."""


class TelemetryServer:
    """Serves the registry, the service's state, and its pages.

    Args:
        endpoint: where to listen.
        config: who may ask, and the certificate.
        telemetry: whose registry is served.
        not_ready: why the service is not ready yet, or None when it is.
        ui: the pages; None: there are none.
        derived: what is served besides the registry.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        config: MetricsSettings,
        telemetry: Telemetry,
        not_ready: Callable[[], str | None],
        ui: Ui | None = None,
        *,
        derived: MetricsText | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._config = config
        self._telemetry = telemetry
        self._not_ready = not_ready
        self._ui = ui
        self._derived = derived
        self._auth: BearerAuth | None = None
        self._runner: web.AppRunner | None = None
        self.port = endpoint.port

    async def start(self) -> None:
        """Listen.

        Raises:
            StartError: the port is taken, or a file cannot be used.
        """
        config = self._config
        self._auth = BearerAuth(config.auth, f"{SETTING}.auth") if config.auth else None
        tls = Certificates(config.tls, f"{SETTING}.tls").http_context() if config.tls else None
        app = web.Application()
        app.add_routes(
            [
                web.get("/metrics", self._metrics),
                web.get("/healthz", self._healthz),
                web.get("/readyz", self._readyz),
            ]
        )
        if self._ui is not None:
            app.add_routes(self._ui.routes(self._auth))
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, self._endpoint.host, self._endpoint.port, ssl_context=tls)
        try:
            await site.start()
        except OSError as error:
            await runner.cleanup()
            raise cannot_listen(self._endpoint, f"{SETTING}.endpoint", error) from error
        self._runner = runner
        self.port = runner.addresses[0][1]

    async def stop(self, _deadline: float) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _metrics(self, request: web.Request) -> web.Response:
        if self._auth is not None:
            try:
                self._auth.check(request.headers.get("Authorization"))
            except UnauthenticatedError as error:
                return refused(error)
        # No name here needs to be written in another way, whichever one the scraper would like.
        accept = re.sub(r";\s*escaping=[^;,]*", "", request.headers.get("Accept", ""))
        encode, content_type = choose_encoder(accept)
        # In a thread: hundreds of thousands of samples take a second, and spans must not wait for them.
        body = await asyncio.to_thread(self._text, encode, openmetrics=content_type.startswith(_OPENMETRICS))
        return web.Response(body=body, headers={"Content-Type": content_type})

    def _text(self, encode: Callable[[Collector], bytes], *, openmetrics: bool) -> bytes:
        own = encode(self._telemetry.registry)
        if self._derived is None:
            return own
        derived = self._derived.write(openmetrics=openmetrics).encode()
        return own.removesuffix(_END) + derived + _END if openmetrics else own + derived

    async def _healthz(self, _request: web.Request) -> web.Response:
        return web.json_response({"status": "alive"})

    async def _readyz(self, _request: web.Request) -> web.Response:
        reason = self._not_ready()
        if reason is None:
            return web.json_response({"status": "ready"})
        return web.json_response({"status": "not ready", "reason": reason}, status=503)
