"""64 requests at once, each with a trace of its own."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

import aiohttp
import grpc

from tests.bench.join.causes import Caused, Job, Kind
from tests.bench.join.peers import LOOPBACK
from tests.bench.join.servers import CONCURRENT, METHOD

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    Ask = Callable[[bytes, str], Awaitable[bytes]]

_PATIENCE = 120.0


def run(server: str, port: int, jobs: Sequence[Job]) -> list[Caused]:
    """Have jobs done; answers what they caused."""
    return asyncio.run(_run(_Grpc if server == "grpc" else _Http, port, jobs))


def flood(server: str, port: int, seconds: float) -> int:
    """Ask for nothing in particular as fast as it answers; how often that was."""
    body = json.dumps(asdict(Job(Kind.NOTHING))).encode()
    return asyncio.run((_flood_grpc if server == "grpc" else _flood_http)(port, body, seconds))


class _Asking(asyncio.Protocol):
    """A kept connection that asks again with each answer.

    A whole HTTP client takes as long for a request as the server does: then the client is the busy one.

    Args:
        body: of the requests.
        end: when to ask no more, of `time.perf_counter`.
    """

    _REQUEST = b"POST /work HTTP/1.1\r\nHost: %s\r\ntraceparent: %s\r\nContent-Length: %d\r\n\r\n%s"
    _LENGTH = b"content-length:"

    def __init__(self, body: bytes, end: float) -> None:
        self._body = body
        self._end = end
        self._answer = b""
        self.answers = 0
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._ask()

    def _ask(self) -> None:
        fields = (LOOPBACK.encode(), traceparent().encode(), len(self._body), self._body)
        self._transport.write(self._REQUEST % fields)

    def data_received(self, data: bytes) -> None:
        self._answer += data
        head, ended, body = self._answer.partition(b"\r\n\r\n")
        if not ended:
            return
        if not head.startswith(b"HTTP/1.1 200 "):
            self.done.set_exception(RuntimeError(f"expected 200, found {head!r}"))
            return
        _, _, length = head.lower().partition(self._LENGTH)
        if len(body) < int(length.split(b"\r\n", 1)[0]):
            return
        self._answer = b""
        self.answers += 1
        if time.perf_counter() < self._end:
            self._ask()
        else:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(exc) if exc else self.done.set_result(None)


async def _flood_http(port: int, body: bytes, seconds: float) -> int:
    loop = asyncio.get_running_loop()
    end = time.perf_counter() + seconds
    asking = [
        (await loop.create_connection(lambda: _Asking(body, end), LOOPBACK, port))[1]
        for _ in range(CONCURRENT)
    ]
    await asyncio.gather(*(one.done for one in asking))
    return sum(one.answers for one in asking)


async def _flood_grpc(port: int, body: bytes, seconds: float) -> int:
    end = time.perf_counter() + seconds
    answers = 0

    async def client(ask: Ask) -> None:
        nonlocal answers
        while time.perf_counter() < end:
            await ask(body, traceparent())
            answers += 1

    async with _Grpc(port) as ask, asyncio.TaskGroup() as group:
        for _ in range(CONCURRENT):
            group.create_task(client(ask))
    return answers


async def _run(connect, port: int, jobs: Sequence[Job]) -> list[Caused]:
    waiting = list(jobs)
    done: list[Caused] = []

    async def client(ask: Ask) -> None:
        while waiting:
            body = json.dumps(asdict(waiting.pop())).encode()
            done.append(Caused.from_json(json.loads(await ask(body, traceparent()))))

    async with connect(port) as ask, asyncio.TaskGroup() as group:
        for _ in range(CONCURRENT):
            group.create_task(client(ask))
    return done


def traceparent() -> str:
    """A trace of its own, sampled."""
    return f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01"


class _Http:
    """A kept connection a client."""

    def __init__(self, port: int) -> None:
        self._url = f"http://{LOOPBACK}:{port}/work"

    async def __aenter__(self) -> Ask:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=CONCURRENT), timeout=aiohttp.ClientTimeout(_PATIENCE)
        )
        return self._ask

    async def __aexit__(self, *_exc: object) -> None:
        await self._session.close()

    async def _ask(self, body: bytes, parent: str) -> bytes:
        async with self._session.post(self._url, data=body, headers={"traceparent": parent}) as answer:
            answer.raise_for_status()
            return await answer.read()


class _Grpc:
    """All calls over one connection, as a channel does."""

    def __init__(self, port: int) -> None:
        self._channel = grpc.aio.insecure_channel(f"{LOOPBACK}:{port}")

    async def __aenter__(self) -> Ask:
        self._call = self._channel.unary_unary(METHOD)
        return self._ask

    async def __aexit__(self, *_exc: object) -> None:
        await self._channel.close()

    async def _ask(self, body: bytes, parent: str) -> bytes:
        return await self._call(body, metadata=(("traceparent", parent),), timeout=_PATIENCE)
