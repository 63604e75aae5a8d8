"""One HTTP connection, held to time limits that aiohttp leaves open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiohttp import web

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from aiohttp import StreamReader

_HALF_CLOSED_GRACE = 0.5
"""Seconds after a client has closed its side in which what it sent must turn out to be a whole request."""


class Connection(web.RequestHandler):
    """aiohttp's connection, plus a time limit for headers, and answers for who half-closes or sends noise.

    Headers of a next request that come while one is served are bounded by aiohttp's own time-out for idle
    connections.
    """

    __slots__ = ("_bad_http", "_body", "_broken", "_client_done", "_header_timer", "_read_timeout")

    def __init__(
        self,
        manager: web.Server,
        *,
        loop: asyncio.AbstractEventLoop,
        read_timeout: float,
        bad_http: Callable[[str], web.Response],
        **options: Any,
    ) -> None:
        """Wrap aiohttp's.

        Args:
            manager: whose connection it is.
            loop: the running loop.
            read_timeout: seconds that headers may take from their first byte.
            bad_http: answers what is not HTTP.
            options: aiohttp's own.
        """
        super().__init__(manager, loop=loop, **options)
        self._read_timeout = read_timeout
        self._bad_http = bad_http
        self._header_timer: asyncio.TimerHandle | None = None
        self._body: StreamReader | None = None
        self._broken = False
        self._client_done = False

    def request_begins(self, body: StreamReader) -> None:
        """The headers are read."""
        self._body = body
        self._stop_timer()

    def request_ends(self) -> bool:
        """The answer is known; says whether the connection ends with it."""
        if self._broken and self._body is not None:
            self._body.feed_eof()  # or aiohttp would go on to read it, and log that it cannot
        self._body = None
        return self._client_done or self._broken

    def data_received(self, data: bytes) -> None:
        """Bytes came; asyncio calls this."""
        super().data_received(data)
        # Most requests' headers come in one piece, and need no timer.
        if self._body is None and self._header_timer is None and not self._messages:
            self._header_timer = self._loop.call_later(self._read_timeout, self.force_close)
        if self._body is not None and self._messages and not self._body.is_eof():
            # Before the body's end nothing can follow it but the parser's complaint about it.
            self._break_off(self._body, "its chunks are damaged")

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client closed its side; asyncio calls this, and keeps ours open when it returns True."""
        super().eof_received()
        if self.transport is None or self.transport.get_extra_info("sslcontext") is not None:
            return False
        self._client_done = True
        self._loop.call_later(_HALF_CLOSED_GRACE, self._end_unless_whole)
        return True

    def connection_lost(self, exc: BaseException | None) -> None:
        """The connection is gone; asyncio calls this."""
        self._stop_timer()
        super().connection_lost(exc)

    def handle_error(
        self,
        request: web.BaseRequest,  # noqa: ARG002 (aiohttp passes it)
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what aiohttp could not parse: a stranger's noise, so it is counted and not logged."""
        response = self._bad_http(message or str(exc or "") or str(status))
        response.force_close()
        return response

    def _end_unless_whole(self) -> None:
        if self._body is None:
            self.force_close()
        elif not self._body.is_eof():
            self._break_off(self._body, "it is cut off")

    def _break_off(self, body: StreamReader, reason: str) -> None:
        self._broken = True
        body.set_exception(web.RequestPayloadError(reason))

    def _stop_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None
