"""Questions that arrive whole are answered where they are read, and all others as well, in order."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from otel_bridge import catalog
from otel_bridge.control.direct import Answer
from otel_bridge.control.http_decisions import HttpDecisions
from tests.unit.control.test_gateways import served

ANSWERED = b"HTTP/1.1 204 No Content\r\nX-Otel-Bridge-State: closed\r\n"


def question(number: int = 0, headers: str = "", version: str = "1.1") -> bytes:
    """One as nginx asks it; its number is the model's, so that answers can be told apart."""
    return (
        f"GET /v1/nginx?service=llama HTTP/{version}\r\nHost: bridge\r\n"
        f"X-Otel-Bridge-Model: m{number}\r\n{headers}\r\n"
    ).encode()


@asynccontextmanager
async def connected(**config):
    """A raw connection to the decision API."""
    async with served(**config) as ask:
        reader, writer = await asyncio.open_connection("127.0.0.1", ask.server.port)
        try:
            yield ask.world, reader, writer
        finally:
            writer.close()


async def heads(reader: asyncio.StreamReader, count: int) -> list[bytes]:
    """The heads of so many answers without a body."""
    return [await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10) for _ in range(count)]


def requests_of_aiohttp(monkeypatch) -> list[int]:
    """Grows by one for each request that aiohttp itself handles."""
    seen: list[int] = []
    handle = HttpDecisions._handle

    async def counted(self, request):
        seen.append(1)
        return await handle(self, request)

    monkeypatch.setattr(HttpDecisions, "_handle", counted)
    return seen


async def test_a_plain_question_takes_no_request_of_aiohttp(monkeypatch):
    """One answer each, on one connection, counted like any other."""
    seen = requests_of_aiohttp(monkeypatch)
    async with connected() as (world, reader, writer):
        for number in range(3):
            writer.write(question(number))
            [head] = await heads(reader, 1)
            assert head.startswith(ANSWERED)
            assert b"\r\nDate: " in head
            assert b"Content-Length" not in head
        assert world.telemetry.value(catalog.CONTROL_DECISIONS, interface="nginx", result="allowed") == 3
    assert not seen


@pytest.mark.parametrize(
    "asked",
    [
        question(headers="Content-Length: 0\r\n"),
        question(headers="Transfer-Encoding: chunked\r\n") + b"0\r\n\r\n",
        question(headers="Connection: close\r\n"),
        question(version="1.0"),
        question(headers="X-Folded: a\r\n b\r\n"),
        question().replace(b"GET", b"POST"),
    ],
    ids=["length", "chunks", "close", "http10", "folded", "post"],
)
async def test_every_other_form_is_aiohttp_s(monkeypatch, asked):
    """And answered the same, or refused by it."""
    seen = requests_of_aiohttp(monkeypatch)
    async with connected() as (_, reader, writer):
        writer.write(asked)
        [head] = await heads(reader, 1)
        assert b" 400 " in head.split(b"\r\n")[0] or (b" 204 " in head and seen)


async def test_a_question_in_pieces(monkeypatch):
    """Is put together by aiohttp; the connection goes on."""
    seen = requests_of_aiohttp(monkeypatch)
    async with served() as ask:
        reader, writer = await asyncio.open_connection("127.0.0.1", ask.server.port)
        [connection] = await eventually_connections(ask.server)
        data = question()
        writer.write(data[:40])
        while connection._header_timer is None:  # noqa: ASYNC110 (nothing tells of it)
            await asyncio.sleep(0)
        writer.write(data[40:] + data)
        assert all(head.startswith(ANSWERED) for head in await heads(reader, 2))
        writer.close()
    assert len(seen) == 2


@pytest.mark.parametrize("count", [2, 70, 997])
async def test_many_at_once_are_answered_in_order(count):
    """More than aiohttp keeps waiting, with some that it must answer itself, and a piece at the end."""
    async with connected() as (world, reader, writer):
        for number in range(0, count, 3):
            world.calls(f"llama/m{number}", *[3.0] * 5)
        asked = [
            question(number, "Content-Length: 0\r\n" if number == count // 2 else "")
            for number in range(count)
        ]
        data = b"".join(asked)
        writer.write(data[:-5])
        await writer.drain()
        writer.write(data[-5:])
        statuses = [int(head.split()[1]) for head in await heads(reader, count)]
        assert statuses == [403 if number % 3 == 0 else 204 for number in range(count)]


async def test_a_connection_in_use_outlives_the_idle_timeout():
    """Counted from the last question, whoever answered it."""
    async with served() as ask:
        reader, writer = await asyncio.open_connection("127.0.0.1", ask.server.port)
        closes = []
        for _ in range(3):
            writer.write(question())
            await heads(reader, 1)
            [connection] = connections(ask.server)
            closes.append(connection._next_keepalive_close_time)
        assert closes == sorted(set(closes))
        writer.close()


async def test_a_client_that_does_not_read_stops_being_served():
    """Its answers wait in bounded room: it is no longer read from, not answered into memory."""
    async with served() as ask:
        reader, writer = await asyncio.open_connection("127.0.0.1", ask.server.port)
        reader._transport.pause_reading()
        writer.transport.set_write_buffer_limits(0)
        [connection] = await eventually_connections(ask.server)
        for _ in range(2000):  # more than the kernel has room for on either side
            writer.write(question() * 1000)
            try:
                await asyncio.wait_for(writer.drain(), 1)
            except TimeoutError:
                break
        else:
            pytest.fail("2,000,000 questions were taken from a client that reads no answer")
        assert connection.transport.get_write_buffer_size() < 1 << 20
        writer.transport.abort()


def connections(server) -> list:
    """The server's ends."""
    return server._listener._connections.connections


async def eventually_connections(server) -> list:
    """The same, once there is one."""
    while not connections(server):  # noqa: ASYNC110 (nothing tells of it)
        await asyncio.sleep(0)
    return connections(server)


def test_an_answer_as_it_is_written():
    """Length and date are its own."""
    written = Answer(429, {"Retry-After": "3"}, b"{}").written()
    assert written.startswith(
        b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 3\r\nContent-Length: 2\r\nDate: "
    )
    assert written.endswith(b"GMT\r\n\r\n{}")
    assert Answer(599, {}).written().startswith(b"HTTP/1.1 599 \r\nContent-Length: 0\r\n")
