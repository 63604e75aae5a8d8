"""The HTTP transport: protobuf over HTTP/1.1."""

from __future__ import annotations

import asyncio
import gzip
import ssl
from typing import TYPE_CHECKING

import aiohttp
import zstandard
from google.protobuf.message import DecodeError
from google.rpc.status_pb2 import Status

from otel_bridge.errors import StartError
from otel_bridge.exporters.otlp.answer import (
    Answer,
    Delivered,
    Failed,
    read_json,
    read_protobuf,
    retry_after,
    shorten,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_bridge.contracts import Clock
    from otel_bridge.exporters.otlp.config import HttpExporterConfig, TlsConfig
    from otel_bridge.model import Signal

RETRYABLE = frozenset({429, 502, 503, 504})
"""Of the OTLP specification; every other status is final."""

_LARGEST_RESPONSE = 4 << 20
_BESIDE_THE_LOOP = 1 << 16
"""From this size on a body is compressed on a thread, bytes."""
_GZIP_LEVEL = 1
"""Fast: spans shrink by nearly as much as at level 6, for a third of the time."""


class HttpSender:
    """Sends to one base URL, connections kept alive."""

    codes: Sequence[str] = (
        *(str(code) for code in (400, 401, 403, 404, 413, 429, 500, 502, 503, 504)),
        "timeout",
        "connection",
    )

    def __init__(self, config: HttpExporterConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._session: aiohttp.ClientSession | None = None
        encoding = config.compression
        if encoding == "auto":
            encoding = "none" if config.loopback else "gzip"
        self._encoding = encoding
        self._headers = {
            **{name: value.get_secret_value() for name, value in config.headers.items()},
            "Content-Type": "application/x-protobuf",
            "Accept": "application/x-protobuf, application/json",
        }
        if encoding != "none":
            self._headers["Content-Encoding"] = encoding

    async def start(self) -> None:
        """Open the session.

        Raises:
            StartError: a TLS file cannot be read.
        """
        context: ssl.SSLContext | bool = _context(self._config.tls) if self._config.secure else True
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context, limit=0),
            timeout=aiohttp.ClientTimeout(total=self._config.timeout),
            headers=self._headers,
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def send(self, signal: Signal, payload: bytes) -> Answer:
        """Try once."""
        assert self._session is not None
        body = payload
        if self._encoding != "none":
            body = (
                await asyncio.to_thread(self._compress, payload)
                if len(payload) >= _BESIDE_THE_LOOP
                else self._compress(payload)
            )
        try:
            async with self._session.post(
                f"{self._config.endpoint}/v1/{signal.value}",
                data=body,
                allow_redirects=False,
                server_hostname=self._config.tls.server_name_override if self._config.secure else None,
            ) as response:
                return self._read(signal, response, await _read_up_to(response, _LARGEST_RESPONSE))
        except TimeoutError:
            text = f"no answer within {self._config.timeout:g} s"
            return Failed("timeout", text, retryable=True, doubtful=True)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            # ValueError: bytes that are no HTTP can surface as one from the parser.
            return Failed("connection", shorten(f"{type(error).__name__}: {error}"), retryable=True)

    async def close(self) -> None:
        """Close the session."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _compress(self, payload: bytes) -> bytes:
        if self._encoding == "zstd":
            return zstandard.ZstdCompressor(level=1).compress(payload)
        return gzip.compress(payload, compresslevel=_GZIP_LEVEL, mtime=0)

    def _read(self, signal: Signal, response: aiohttp.ClientResponse, body: bytes | None) -> Answer:
        status = response.status
        if status // 100 == 2:  # noqa: PLR2004 (the class of HTTP's success codes)
            if body is None:
                return Delivered(garbled=True, message=f"an answer of more than {_LARGEST_RESPONSE} bytes")
            if response.content_type == "application/json":
                return read_json(signal, body)
            return read_protobuf(signal, body)
        return Failed(
            code=str(status),
            message=shorten(_error_text(response, body or b"")),
            retryable=status in RETRYABLE,
            retry_after=retry_after(response.headers.get("Retry-After"), self._clock.time_ns()),
            oversize=status == 413,  # noqa: PLR2004 (Content Too Large)
            doubtful=status in {502, 504},
        )


def _error_text(response: aiohttp.ClientResponse, body: bytes) -> str:
    if response.content_type == "application/x-protobuf":
        try:
            return Status.FromString(body).message or response.reason or ""
        except DecodeError:
            return f"{response.reason}, with a body that is no google.rpc.Status"
    location = response.headers.get("Location")
    if location:
        return f"{response.reason}: moved to {location}; set the exporter's endpoint to it"
    return body[:1000].decode(errors="replace").strip() or response.reason or ""


async def _read_up_to(response: aiohttp.ClientResponse, limit: int) -> bytes | None:
    """The body, or None when it is longer than `limit`."""
    pieces: list[bytes] = []
    size = 0
    async for piece in response.content.iter_any():
        size += len(piece)
        if size > limit:
            return None
        pieces.append(piece)
    return b"".join(pieces)


def _context(tls: TlsConfig) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=str(tls.ca_file) if tls.ca_file else None)
        if tls.cert_file and tls.key_file:
            context.load_cert_chain(tls.cert_file, tls.key_file)
    except OSError as error:
        named = ", ".join(str(path) for path in (tls.ca_file, tls.cert_file, tls.key_file) if path)
        raise StartError(
            f"cannot use the TLS files {named}: {error}; check the paths, and that they are PEM and readable"
        ) from error
    return context
