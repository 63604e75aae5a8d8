"""HTTP listeners of the control part: aiohttp's server with the bridge's limits on time and size."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from aiohttp import web

from otel_bridge.control.direct import DirectConnection
from otel_bridge.errors import MalformedRequestError, RequestTooLargeError
from otel_bridge.listeners.address import cannot_listen
from otel_bridge.listeners.answers import problem
from otel_bridge.listeners.auth import BearerAuth
from otel_bridge.listeners.connection import Connection
from otel_bridge.listeners.deadlines import Deadlines
from otel_bridge.listeners.tls import Certificates

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from otel_bridge.control.config import ListenerConfig
    from otel_bridge.control.direct import Answer
    from otel_bridge.units import Endpoint

    Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
    Direct = Callable[[str, dict[str, str]], Answer | None]

_LINGER = 2.0


class Listener:
    """One address that is served over HTTP.

    Args:
        endpoint: where.
        config: how.
        setting: its key path, for messages.
        handle: answers a request; what it raises becomes 500.
        direct: answers a question that came whole, at once; None leaves all to `handle`.
        path: a Unix socket to serve at instead of the address.

    Attributes:
        port: the one that is listened on, once started.
        auth: who may ask; None: everybody.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        config: ListenerConfig,
        setting: str,
        handle: Handler,
        direct: Direct | None = None,
        *,
        path: Path | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._config = config
        self._setting = setting
        self._handle = handle
        self._direct = direct
        self._path = path
        self._server: asyncio.Server | None = None
        self._connections: web.Server | None = None
        self._deadlines = Deadlines(config.read_timeout)
        self.auth: BearerAuth | None = None
        self.port = endpoint.port

    async def start(self) -> None:
        """Listen.

        Raises:
            StartError: the port is taken, or a file cannot be used.
        """
        config = self._config
        self.auth = BearerAuth(config.auth, f"{self._setting}.auth") if config.auth else None
        tls = Certificates(config.tls, f"{self._setting}.tls").http_context() if config.tls else None
        loop = asyncio.get_running_loop()
        self._connections = connections = web.Server(self._answer)

        def connection() -> Connection:
            options: dict[str, Any] = {
                "loop": loop,
                "read_timeout": config.read_timeout,
                "bad_http": _bad_http,
                "keepalive_timeout": config.idle_timeout,
                "lingering_time": _LINGER,
                "auto_decompress": False,
                "access_log": None,
            }
            if self._direct is None:
                return Connection(connections, **options)
            return DirectConnection(connections, answer=self._direct, **options)

        if self._path is not None:
            self._server = await loop.create_unix_server(connection, self._path, backlog=1024)
            return
        try:
            self._server = await loop.create_server(
                connection,
                self._endpoint.host,
                self._endpoint.port,
                ssl=tls,
                ssl_handshake_timeout=config.read_timeout if tls is not None else None,
                backlog=1024,
            )
        except OSError as error:
            raise cannot_listen(self._endpoint, f"{self._setting}.endpoint", error) from error
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self, deadline: float) -> None:
        """Take nothing new; what is in flight has `deadline` seconds."""
        if self._server is None or self._connections is None:
            return
        self._server.close()
        self._connections.pre_shutdown()
        await self._connections.shutdown(deadline)
        self._server = None

    async def read(self, request: web.BaseRequest) -> bytes:
        """A request's body.

        Raises:
            RequestTooLargeError: it is more than the limit.
            MalformedRequestError: it is cut off, or came too slowly.
        """
        limit = self._config.max_request_size
        if (request.content_length or 0) > limit:
            raise RequestTooLargeError(f"the request is more than {limit} bytes")
        chunks: list[bytes] = []
        size = 0
        try:
            with self._deadlines.within():
                async for chunk in request.content.iter_any():
                    size += len(chunk)
                    if size > limit:
                        raise RequestTooLargeError(f"the request is more than {limit} bytes")
                    chunks.append(chunk)
        except TimeoutError:
            raise MalformedRequestError(
                f"the request did not arrive within {self._config.read_timeout:g} s"
            ) from None
        except web.RequestPayloadError as error:
            raise MalformedRequestError(f"the body cannot be read: {error}") from error
        return b"".join(chunks)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = request.protocol
        assert isinstance(connection, Connection)
        connection.request_begins(request.content)
        response = await self._handle(request)
        if connection.request_ends():
            response.force_close()
        return response


def _bad_http(reason: str) -> web.Response:
    return problem(400, f"not an HTTP request: {reason}")
