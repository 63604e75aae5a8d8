"""Questions that arrive whole are answered where they are read.

A gateway asks in one small piece: a GET without a body. Most of what such a question costs is what a server
does around its handler (a request object, a task, a response object), so here a head of that plain form is
looked at first. Whatever has another form, or cannot be answered at once, is left to aiohttp as it came.
"""

from __future__ import annotations

import re
import time
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple

from otel_bridge.listeners.connection import Connection

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

_HEAD = re.compile(
    rb"GET (/[!-~]*) HTTP/1\.1\r\n((?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t -~\x80-\xff]*\r\n)*)\r\n"
)
_LONGEST = 16 << 10
"""Bytes of one question that are looked at; a longer one is aiohttp's."""
_LEFT_TO_AIOHTTP = frozenset({"content-length", "transfer-encoding", "expect", "upgrade"})
_NO_CONTENT = HTTPStatus.NO_CONTENT.value


class Answer(NamedTuple):
    """What is answered, whoever writes it.

    Attributes:
        status: HTTP's.
        headers: without Content-Length and Date.
        body: empty for none.
    """

    status: int
    headers: dict[str, str]
    body: bytes = b""

    def written(self) -> bytes:
        """As it goes over the wire."""
        lines = [_status_line(self.status)]
        lines += [f"{name}: {value}\r\n" for name, value in self.headers.items()]
        if self.status != _NO_CONTENT:
            lines.append(f"Content-Length: {len(self.body)}\r\n")
        lines.append(_date(int(time.time())))
        return "".join(lines).encode("latin-1") + self.body


class DirectConnection(Connection):
    """A connection whose plain questions are answered without a request of aiohttp's."""

    __slots__ = ("_answer", "_plain")

    def __init__(
        self, *args: Any, answer: Callable[[str, dict[str, str]], Answer | None], **options: Any
    ) -> None:
        """Wrap aiohttp's.

        Args:
            args: Connection's.
            answer: from a raw path and headers (names in lower case); None leaves the question to aiohttp.
            options: Connection's.
        """
        super().__init__(*args, **options)
        self._answer = answer
        self._plain = True

    def data_received(self, data: bytes) -> None:
        """Bytes came; asyncio calls this."""
        at = 0
        while self._plain and at < len(data):
            head = _HEAD.match(data, at, at + _LONGEST)
            headers = _headers(head[2]) if head is not None else None
            if head is None or headers is None:
                # Where the next request begins is known to aiohttp alone from now on.
                self._plain = False
                break
            answer = self._answer(head[1].decode("ascii"), headers) if self._idle else None
            if answer is not None and self.transport is not None:
                self.transport.write(answer.written())
                self._next_keepalive_close_time = self._loop.time() + self._keepalive_timeout
            else:
                super().data_received(data[at : head.end()])
            at = head.end()
        # aiohttp itself calls this with nothing, to look again at what it kept.
        if at < len(data) or not data:
            super().data_received(data[at:])

    @property
    def _idle(self) -> bool:
        """Whether every request before has been answered, and the client has read the answers."""
        waiter: asyncio.Future[None] | None = self._waiter
        transport: Any = self.transport
        return (
            waiter is not None
            and not waiter.done()
            and transport is not None
            and not transport.get_write_buffer_size()
        )


def _headers(lines: bytes) -> dict[str, str] | None:
    """By name in lower case, of several of one name the first; None where they say that more will follow."""
    found: dict[str, str] = {}
    for line in lines.decode("utf-8", "surrogateescape").split("\r\n")[:-1]:
        name, _, value = line.partition(":")
        found.setdefault(name.lower(), value.strip())
    if not _LEFT_TO_AIOHTTP.isdisjoint(found):
        return None
    return found if found.get("connection", "keep-alive").lower() == "keep-alive" else None


@lru_cache
def _status_line(status: int) -> str:
    known = {found.value for found in HTTPStatus}
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase if status in known else ''}\r\n"


@lru_cache(maxsize=1)
def _date(second: int) -> str:
    return f"Date: {formatdate(second, usegmt=True)}\r\n\r\n"
