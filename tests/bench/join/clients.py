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
    return asyncio.run(_flood(_Grpc if server == "grpc" else _Http, port, seconds))


async def _flood(connect, port: int, seconds: float) -> int:
    body = json.dumps(asdict(Job(Kind.NOTHING))).encode()
    end = time.perf_counter() + seconds
    answers = 0

    async def client(ask: Ask) -> None:
        nonlocal answers
        while time.perf_counter() < end:
            await ask(body, traceparent())
            answers += 1

    async with connect(port) as ask, asyncio.TaskGroup() as group:
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
