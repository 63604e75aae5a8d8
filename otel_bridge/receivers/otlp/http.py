"""OTLP over HTTP/1.1: protobuf and JSON on the same paths."""

from __future__ import annotations

import asyncio
import dataclasses
from http import HTTPStatus
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from aiohttp import HttpVersion11, web

from otel_bridge import catalog
from otel_bridge.errors import (
    MalformedRequestError,
    RequestTooLargeError,
    RetryableError,
    UnsupportedMediaTypeError,
)
from otel_bridge.listeners.address import cannot_listen
from otel_bridge.listeners.auth import BearerAuth
from otel_bridge.listeners.connection import Connection
from otel_bridge.listeners.deadlines import Deadlines
from otel_bridge.listeners.tls import Certificates
from otel_bridge.model import Signal
from otel_bridge.receivers.otlp import answer, otlp_json, status
from otel_bridge.receivers.otlp.compression import ENCODINGS, coding_of, inflate
from otel_bridge.receivers.otlp.intake import UNKNOWN_SIGNAL, Intake

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_bridge.contracts import Consumer, Outcome
    from otel_bridge.receivers.otlp.config import HttpConfig
    from otel_bridge.telemetry import Telemetry

P = ParamSpec("P")
T = TypeVar("T")

SETTING = "receivers.otlp.protocols.http"

PATHS = {f"/v1/{signal.value}": signal for signal in Signal}

PROTOBUF = "application/x-protobuf"
JSON = "application/json"

_OFF_LOOP = 256 << 10
"""Bytes from which on inflating and JSON leave the event loop to other requests."""

_LINGER = 10.0
"""Seconds for which the rest of a refused body is read and thrown away: its sender reads only then."""

_CLIENT_GONE = "499"
"""The `code` of requests whose client left before it had sent them whole; nginx's number for it."""

_CODES = ("200", "404", "405", _CLIENT_GONE, *status.HTTP_STATUSES)


class HttpServer:
    """The HTTP listener."""

    def __init__(self, config: HttpConfig, consumer: Consumer, telemetry: Telemetry) -> None:
        self.port = config.endpoint.port
        self._config = config
        self._deadlines = Deadlines(config.read_timeout)
        self._mended = telemetry.counter(catalog.RECEIVER_MENDED_STRINGS)
        self._intake = Intake("http", consumer, telemetry, limit=config.max_concurrent_requests, codes=_CODES)
        self._auth: BearerAuth | None = None
        self._server: asyncio.Server | None = None
        self._connections: web.Server | None = None

    async def start(self) -> None:
        """Listen.

        Raises:
            StartError: the port is taken, or a file cannot be used.
        """
        config = self._config
        self._auth = BearerAuth(config.auth, f"{SETTING}.auth") if config.auth else None
        context = Certificates(config.tls, f"{SETTING}.tls").http_context() if config.tls else None
        loop = asyncio.get_running_loop()
        self._connections = connections = web.Server(self._handle)

        def connection() -> Connection:
            return Connection(
                connections,
                loop=loop,
                read_timeout=config.read_timeout,
                bad_http=self._bad_http,
                keepalive_timeout=config.idle_timeout,
                lingering_time=min(_LINGER, config.read_timeout),
                auto_decompress=False,  # aiohttp inflates without a limit on the whole
                access_log=None,
            )

        try:
            self._server = await loop.create_server(
                connection,
                config.endpoint.host,
                config.endpoint.port,
                ssl=context,
                ssl_handshake_timeout=config.read_timeout if context is not None else None,
                backlog=1024,
            )
        except OSError as error:
            raise cannot_listen(config.endpoint, f"{SETTING}.endpoint", error) from error
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self, deadline: float) -> None:
        """Take nothing new; what is in flight has `deadline` seconds."""
        self._intake.draining = True
        if self._server is None or self._connections is None:
            return
        self._server.close()
        self._connections.pre_shutdown()
        await self._connections.shutdown(deadline)
        self._server = None

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = request.protocol
        assert isinstance(connection, Connection)
        connection.request_begins(request.content)
        response = await self._answer(request)
        if connection.request_ends() or self._intake.draining:
            response.force_close()
        return response

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        media_type = request.content_type
        signal = PATHS.get(request.path)
        if signal is None:
            return self._refuse(media_type, UNKNOWN_SIGNAL, status.not_found(request.path))
        if request.method != "POST":
            response = self._refuse(media_type, signal.value, status.method_not_allowed(request.method))
            response.headers["Allow"] = "POST"
            return response
        try:
            outcome = await self._take(signal, media_type, request)
        except ConnectionError:
            self._intake.answered(signal.value, _CLIENT_GONE)
            raise
        except Exception as error:  # noqa: BLE001 (whatever it is, the sender gets an answer it can act on)
            return self._refuse(media_type, signal.value, self._intake.refuse(error))
        self._intake.answered(signal.value, "200")
        encode = answer.json if media_type == JSON else answer.protobuf
        return web.Response(body=encode(signal, outcome), content_type=media_type)

    async def _take(self, signal: Signal, media_type: str, request: web.BaseRequest) -> Outcome:
        if self._auth is not None:
            self._auth.check(request.headers.get("Authorization"))
        if media_type not in (PROTOBUF, JSON):
            found = request.headers.get("Content-Type")
            raise UnsupportedMediaTypeError(
                f"Content-Type {found!r} is not spoken here; expected {PROTOBUF} or {JSON}"
            )
        coding = coding_of(request.headers.get("Content-Encoding", ""))
        self._intake.admit()
        try:
            body = await self._read(request)
            if coding:
                body = await _off_loop(inflate, body, coding, self._config.max_request_size)
            if media_type == PROTOBUF:
                return await self._intake.take(signal, body)
            converted = await _off_loop(otlp_json.convert, body, signal)
            del body
            if converted.mended:
                self._mended.inc(converted.mended)
            outcome = await self._intake.take(signal, converted.data)
            if converted.warning:
                outcome = dataclasses.replace(
                    outcome, message=f"{outcome.message} {converted.warning}".strip()
                )
            return outcome
        finally:
            self._intake.release()

    async def _read(self, request: web.BaseRequest) -> bytes:
        """The body as it came, still compressed."""
        limit = self._config.max_request_size
        too_large = f"the request is more than {limit} bytes"
        if (request.content_length or 0) > limit:
            raise RequestTooLargeError(too_large)
        if request.headers.get("Expect", "").lower() == "100-continue" and request.version == HttpVersion11:
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request.writer.output_size = 0
        request.content.set_read_chunk_size(1 << 20)
        chunks: list[bytes] = []
        size = 0
        try:
            with self._deadlines.within():
                async for chunk in request.content.iter_any():
                    size += len(chunk)
                    if size > limit:
                        raise RequestTooLargeError(too_large)
                    chunks.append(chunk)
        except TimeoutError:
            raise RetryableError(
                f"the request did not arrive within {self._config.read_timeout:g} s"
            ) from None
        except web.RequestPayloadError as error:
            raise MalformedRequestError(f"the body cannot be read: {error}") from error
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def _refuse(self, media_type: str, signal: str, refusal: status.Refusal) -> web.Response:
        self._intake.answered(signal, str(refusal.http_status))
        return _refused(media_type, refusal)

    def _bad_http(self, reason: str) -> web.Response:
        return self._refuse(JSON, UNKNOWN_SIGNAL, status.bad_http(reason))


def _refused(media_type: str, refusal: status.Refusal) -> web.Response:
    """In the request's encoding; where that is neither of ours, a person reads it: JSON."""
    if media_type == PROTOBUF:
        response = web.Response(status=refusal.http_status, body=refusal.protobuf(), content_type=PROTOBUF)
    else:
        response = web.Response(status=refusal.http_status, body=refusal.json(), content_type=JSON)
    if (retry_after := refusal.retry_after_header()) is not None:
        response.headers["Retry-After"] = retry_after
    if refusal.http_status == HTTPStatus.UNAUTHORIZED:
        response.headers["WWW-Authenticate"] = "Bearer"
    if refusal.http_status == HTTPStatus.UNSUPPORTED_MEDIA_TYPE:
        response.headers["Accept-Encoding"] = ENCODINGS
    return response


async def _off_loop(
    work: Callable[Concatenate[bytes, P], T], body: bytes, *args: P.args, **kwargs: P.kwargs
) -> T:
    """Small bodies at once, large ones in a thread."""
    if len(body) < _OFF_LOOP:
        return work(body, *args, **kwargs)
    return await asyncio.to_thread(work, body, *args, **kwargs)
