"""Senders that are broken, slow, gone or hostile: each is answered or let go, and the receiver stays up."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import socket
import struct
import zlib
from pathlib import Path

import grpc
import psutil
import pytest
from backports import zstd
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from otel_bridge import catalog, errors
from otel_bridge.model import Signal
from otel_bridge.testing import ConsumerSink, trace_request
from tests.support.exporter_stubs import until
from tests.support.otlp_clients import JSON, METHOD_OF, PROTOBUF, Http2, framed, grpc_status, retry_delay

REQUEST = trace_request([{}] * 3)
HEAD = b"POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-protobuf\r\n"


async def talk(running, *pieces: bytes, half_close: bool = False, wait: float = 60) -> bytes:
    """Send bytes as they are to the HTTP port, a packet each; what comes back until the receiver closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", running.receiver.http_port)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.02)
        if half_close:
            writer.write_eof()
        async with asyncio.timeout(wait):
            return await reader.read()
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def zstd_checked(data: bytes) -> bytes:
    """With a checksum, as zstd's command line does it; without, a flipped bit of text goes unseen."""
    return zstd.compress(data, options={zstd.CompressionParameter.checksum_flag: 1})


@contextlib.contextmanager
def memory_bounded(limit: int):
    """This process must not grow by `limit` bytes in between, not even for a moment."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = psutil.Process().memory_info().rss
    yield
    status = Path("/proc/self/status").read_text()
    peak = int(status.split("VmHWM:")[1].split()[0]) << 10
    assert peak - before < limit


async def answered(running, transport: str, code: str) -> None:
    """Wait until a request is counted with this code."""
    async with asyncio.timeout(60):
        labels = {"transport": transport, "signal": "traces", "code": code}
        while not running.value(catalog.RECEIVER_REQUESTS, **labels):  # noqa: ASYNC110 (a metric is no event)
            await asyncio.sleep(0.01)


async def still_serves(running) -> None:
    """Both listeners take a good request."""
    before = len(running.sink.requests)
    await running.export(REQUEST)
    assert (await running.post(REQUEST)).status == 200
    assert len(running.sink.requests) == before + 2


class TestDamage:
    """Bytes that are not what they claim to be are refused for good."""

    @pytest.mark.parametrize("coding", ["gzip", "deflate", "zstd"])
    @pytest.mark.parametrize("damage", ["noise", "cut", "flipped", "trailing", "empty"])
    async def test_http_compression(self, start, coding, damage):
        running = await start()
        good = {"gzip": gzip.compress, "deflate": zlib.compress, "zstd": zstd_checked}[coding](REQUEST)
        body = {
            "noise": b"not compressed at all",
            "cut": good[:-6],
            "flipped": good[:12] + bytes([good[12] ^ 0xFF]) + good[13:],
            "trailing": good + b"noise after the end",
            "empty": b"",
        }[damage]
        reply = await running.post(body, headers={"Content-Encoding": coding})
        assert (reply.status, reply.error.code) == (400, 3)
        assert coding in reply.error.message
        assert running.sink.requests == []

    async def test_members_in_a_row_are_one_body(self, start):
        running = await start()
        for coding, compress in (("gzip", gzip.compress), ("zstd", zstd.compress)):
            body = compress(REQUEST[:10]) + compress(REQUEST[10:])
            assert (await running.post(body, headers={"Content-Encoding": coding})).status == 200
        assert [data for _, data in running.sink.requests] == [REQUEST] * 2

    async def test_grpc_compression(self, start):
        running = await start()
        for message, coding in (
            (b"noise", "gzip"),
            (gzip.compress(REQUEST)[:-6], "gzip"),
            (zlib.compress(REQUEST)[:-6], "deflate"),
        ):
            async with Http2(running) as client:
                await client.send(framed(message, compressed=True), grpc_encoding=coding)
                assert await client.status() == grpc.StatusCode.INTERNAL.value[0]
        assert running.sink.requests == []
        await still_serves(running)

    async def test_grpc_unknown_compression_is_refused_for_good(self, start):
        """UNIMPLEMENTED is specified; grpcio itself answers INTERNAL, which is not retried either."""
        running = await start()
        async with Http2(running) as client:
            await client.send(framed(zstd.compress(REQUEST), compressed=True), grpc_encoding="zstd")
            assert await client.status() == grpc.StatusCode.INTERNAL.value[0]
            assert b"grpc-encoding" in client.headers[b"grpc-message"]
        assert running.sink.requests == []

    @pytest.mark.parametrize(
        "data", [b"", framed(REQUEST)[:3], framed(REQUEST)[:-3]], ids=["none", "head", "cut"]
    )
    async def test_a_grpc_call_without_a_whole_message(self, start, data):
        running = await start()
        async with Http2(running) as client:
            await client.send(data)
            assert await client.status() not in (0, None)
        assert running.sink.requests == []
        await still_serves(running)

    async def test_http_content_codings_in_a_row_are_not_spoken(self, start):
        running = await start()
        reply = await running.post(REQUEST, headers={"Content-Encoding": "gzip, gzip"})
        assert reply.status == 415

    @pytest.mark.parametrize(
        "raw",
        [
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"GARBAGE\r\n\r\n",
            b"POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n",
            b"POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
            HEAD + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            HEAD + b"X: " + b"y" * 100_000 + b"\r\n\r\n",
        ],
        ids=["tls", "http2", "noise", "length", "negative", "smuggling", "header"],
    )
    async def test_not_http(self, start, raw):
        running = await start()
        answer = await talk(running, raw, half_close=True)
        assert answer == b"" or answer.startswith((b"HTTP/1.1 400", b"HTTP/1.0 400"))
        assert running.sink.requests == []
        await still_serves(running)

    @pytest.mark.parametrize("first", [b"", b"3\r\nabc\r\n"], ids=["at once", "later"])
    async def test_damaged_chunks(self, start, first):
        running = await start()
        head = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
        pieces = [head + first, b"zz\r\nnoise\r\n"]
        answer = await talk(running, *pieces, half_close=True)
        assert answer.startswith(b"HTTP/1.")
        assert b" 400 " in answer.split(b"\r\n")[0]
        assert running.sink.requests == []


class TestBombs:
    """A body that inflates beyond the limit is refused without being inflated whole."""

    SIZE = 256 << 20

    @pytest.fixture(scope="class")
    @classmethod
    def bombs(cls):
        block = bytes(1 << 20)
        gzip_bomb, deflate_bomb = zlib.compressobj(1, wbits=31), zlib.compressobj(1)
        zstd_bomb = zstd.ZstdCompressor()
        out = {"gzip": b"", "deflate": b"", "zstd": b""}
        for _ in range(cls.SIZE >> 20):
            out["gzip"] += gzip_bomb.compress(block)
            out["deflate"] += deflate_bomb.compress(block)
            out["zstd"] += zstd_bomb.compress(block)
        out["gzip"] += gzip_bomb.flush()
        out["deflate"] += deflate_bomb.flush()
        out["zstd"] += zstd_bomb.flush()
        return out

    @pytest.mark.parametrize("coding", ["gzip", "deflate", "zstd"])
    async def test_http(self, start, bombs, coding):
        running = await start(http={"max_request_size": "2MiB"})
        with memory_bounded(self.SIZE // 8):
            reply = await running.post(bombs[coding], headers={"Content-Encoding": coding})
        assert reply.status == 413
        assert running.sink.requests == []

    @pytest.mark.parametrize("coding", ["gzip", "deflate"])
    async def test_grpc(self, start, bombs, coding):
        running = await start(grpc={"max_request_size": "2MiB"})
        with memory_bounded(self.SIZE // 8):
            async with Http2(running) as client:
                await client.send(framed(bombs[coding], compressed=True), grpc_encoding=coding)
                assert await client.status() == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
                assert b"Decompressed message larger than max" in client.headers[b"grpc-message"]
                assert b"grpc-status-details-bin" not in client.headers
        assert running.sink.requests == []


class TestSlow:
    """A client that never finishes is let go after read_timeout, whatever it trickles meanwhile."""

    async def test_http_headers(self, start):
        running = await start(http={"read_timeout": "300ms"})
        reader, writer = await asyncio.open_connection("127.0.0.1", running.receiver.http_port)

        async def trickle():
            with contextlib.suppress(OSError):
                while True:
                    writer.write(b"X")
                    await writer.drain()
                    await asyncio.sleep(0.02)

        writer.write(b"POST /v1/traces HTTP/1.1\r\n")
        task = asyncio.create_task(trickle())
        async with asyncio.timeout(10):
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        task.cancel()
        writer.close()
        await still_serves(running)

    async def test_http_headers_of_a_second_request(self, start):
        running = await start(http={"read_timeout": "300ms"})
        reader, writer = await asyncio.open_connection("127.0.0.1", running.receiver.http_port)
        writer.write(HEAD + b"Content-Length: 0\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        writer.write(b"POST /v1/tr")
        async with asyncio.timeout(10):
            assert await reader.read() == b""
        writer.close()

    async def test_http_body(self, start):
        running = await start(http={"read_timeout": "300ms"})
        answer = await talk(running, HEAD + b"Content-Length: 100\r\n\r\nabc", wait=15)
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"did not arrive" in answer
        assert running.value(catalog.RECEIVER_REQUESTS, transport="http", signal="traces", code="503") == 1

    async def test_http_idle_connections_are_closed(self, start):
        running = await start(http={"idle_timeout": "200ms"})
        assert await talk(running) == b""
        assert (await talk(running, HEAD + b"Content-Length: 0\r\n\r\n")).startswith(b"HTTP/1.1 200")

    async def test_grpc_body(self, start):
        running = await start(grpc={"read_timeout": "300ms"})
        async with Http2(running) as client:
            await client.send(framed(REQUEST)[:-1], end=False)
            assert await client.status() == grpc.StatusCode.UNAVAILABLE.value[0]
        await still_serves(running)

    async def test_slow_clients_give_their_place_back(self, start):
        running = await start(http={"read_timeout": "200ms", "max_concurrent_requests": 2})
        slow = HEAD + b"Content-Length: 100\r\n\r\nabc"
        await asyncio.gather(*(talk(running, slow, wait=15) for _ in range(2)))
        await still_serves(running)


class TestGone:
    """A client that leaves costs its request only."""

    async def test_half_closed_after_a_whole_request(self, start):
        running = await start(ConsumerSink(held=(held := asyncio.Event())))
        request = HEAD + b"Content-Length: %d\r\n\r\n" % len(REQUEST) + REQUEST
        talking = asyncio.create_task(talk(running, request, half_close=True))
        await until(lambda: running.sink.at_work == 1)
        await asyncio.sleep(0.1)
        held.set()
        answer = await talking
        assert answer.startswith(b"HTTP/1.1 200")
        assert running.sink.requests == [(Signal.TRACES, REQUEST)]

    async def test_half_closed_mid_body(self, start):
        running = await start()
        answer = await talk(running, HEAD + b"Content-Length: 100\r\n\r\nabc", half_close=True)
        assert answer.startswith(b"HTTP/1.1 400")
        assert b"cut off" in answer
        assert running.sink.requests == []

    async def test_half_closed_mid_headers(self, start):
        running = await start()
        assert await talk(running, HEAD, half_close=True) == b""

    async def test_half_closed_while_idle(self, start):
        running = await start()
        assert await talk(running, half_close=True) == b""

    async def test_http_gone_mid_body(self, start):
        running = await start()
        _, writer = await asyncio.open_connection("127.0.0.1", running.receiver.http_port)
        writer.write(HEAD + b"Content-Length: 100\r\n\r\nabc")
        await writer.drain()
        await asyncio.sleep(0.1)
        reset = struct.pack("ii", 1, 0)  # SO_LINGER of 0 s: what a killed host's peer sees
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        writer.transport.abort()
        await answered(running, "http", "499")
        assert running.sink.requests == []
        await still_serves(running)

    async def test_grpc_gone_mid_message(self, start):
        running = await start()
        async with Http2(running) as client:
            await client.send(framed(REQUEST)[:-1], end=False)
            await asyncio.sleep(0.1)
        await answered(running, "grpc", "INVALID_ARGUMENT")
        await still_serves(running)

    async def test_grpc_gone_while_its_request_is_worked_on(self, start):
        running = await start(ConsumerSink(held=(held := asyncio.Event())))
        call = running.channel().unary_unary(METHOD_OF[Signal.TRACES])(REQUEST, timeout=60)
        await until(lambda: running.sink.at_work == 1)
        call.cancel()
        await answered(running, "grpc", "CANCELLED")
        held.set()
        await still_serves(running)


class TestTooMany:
    """Requests beyond the limit are told when to come again, and cost nothing."""

    @staticmethod
    async def two_of(held, *requests) -> list:
        """The outcomes of requests, two of which are held until all others are answered."""
        tasks = [asyncio.ensure_future(request) for request in requests]
        await until(lambda: sum(task.done() for task in tasks) == len(tasks) - 2)
        held.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    async def test_grpc(self, start):
        running = await start(
            ConsumerSink(held=(held := asyncio.Event())), grpc={"max_concurrent_requests": 2}
        )
        calls = [
            running.channel().unary_unary(METHOD_OF[Signal.TRACES])(REQUEST, timeout=60) for _ in range(5)
        ]
        results = await self.two_of(held, *calls)
        refused = [result for result in results if isinstance(result, grpc.aio.AioRpcError)]
        assert len(refused) == 3
        for error in refused:
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            assert retry_delay(grpc_status(error)) >= 1
        assert len(running.sink.requests) == 2

    async def test_grpc_on_one_connection(self, start):
        running = await start(
            ConsumerSink(held=(held := asyncio.Event())), grpc={"max_concurrent_requests": 2}
        )
        results = await self.two_of(held, *(running.export(REQUEST) for _ in range(50)))
        refused = [result for result in results if isinstance(result, grpc.aio.AioRpcError)]
        assert len(refused) == 48
        assert all(retry_delay(grpc_status(error)) >= 1 for error in refused)

    async def test_http(self, start):
        running = await start(
            ConsumerSink(held=(held := asyncio.Event())), http={"max_concurrent_requests": 2}
        )
        replies = await self.two_of(held, *(running.post(REQUEST) for _ in range(5)))
        assert sorted(reply.status for reply in replies) == [200, 200, 503, 503, 503]
        for reply in replies:
            assert reply.status == 200 or int(reply.headers["Retry-After"]) >= 1
        await still_serves(running)


METHODS = st.sampled_from(["POST", "GET", "PUT", "BREW", "OPTIONS", "HEAD"])
PATHS = st.sampled_from(
    ["/v1/traces", "/v1/logs", "/v1/metrics", "/", "*", "/v1/traces?x=%zz", "/%ff/..//v1/traces"]
)
HEADER_VALUES = st.sampled_from(
    [
        PROTOBUF,
        JSON,
        "gzip",
        "zstd",
        "deflate",
        "identity",
        "chunked",
        "100-continue",
        "close",
        "",
        ";;=",
        "3",
        "99",
    ]
) | st.text(st.characters(min_codepoint=32, max_codepoint=255), max_size=10)
HEADERS = st.dictionaries(
    st.sampled_from(
        [
            "Content-Type",
            "Content-Encoding",
            "Content-Length",
            "Transfer-Encoding",
            "Expect",
            "Connection",
            "Upgrade",
            "A",
        ]
    ),
    HEADER_VALUES,
    max_size=5,
)
BODIES = st.binary(max_size=60) | st.sampled_from(
    [REQUEST, gzip.compress(REQUEST), b"{}", b"0\r\n\r\n", b"[" * 3000]
)


@pytest.mark.parametrize("error", [None, errors.MalformedRequestError("m")], ids=["takes", "refuses"])
async def test_whatever_comes_over_http_is_answered(start, error, caplog):
    """A request line, headers and a body of any kind get an answer, and leave nothing in aiohttp's log."""
    running = await start(ConsumerSink(error=error), http={"read_timeout": "500ms"})
    loop = asyncio.get_running_loop()

    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
    @given(METHODS, PATHS, HEADERS, BODIES, st.booleans())
    def check(method, path, headers, body, say_length):
        if say_length:
            headers = {**headers, "Content-Length": str(len(body))}
        lines = [
            f"{method} {path} HTTP/1.1",
            "Host: x",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        head = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"
        answer = asyncio.run_coroutine_threadsafe(talk(running, head + body, half_close=True), loop).result(
            20
        )
        assert answer.startswith(b"HTTP/1.")
        assert b" 500 " not in answer.split(b"\r\n")[0]

    await asyncio.to_thread(check)
    assert [record for record in caplog.records if record.name.startswith("aiohttp")] == []
    running.sink.error = None
    await still_serves(running)


async def test_whatever_comes_over_grpc_is_answered(start):
    """Messages of any bytes reach the consumer, or are refused; then a good request is taken."""
    running = await start()
    loop = asyncio.get_running_loop()

    async def one(data, flag, coding):
        async with Http2(running) as client:
            await client.send(flag + len(data).to_bytes(4, "big") + data, **coding)
            return await client.status()

    @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        st.binary(max_size=60) | st.sampled_from([REQUEST, gzip.compress(REQUEST)]),
        st.sampled_from([b"\0", b"\1", b"\7"]),
        st.sampled_from(
            [{}, {"grpc_encoding": "gzip"}, {"grpc_encoding": "deflate"}, {"grpc_encoding": "identity"}]
        ),
    )
    def check(data, flag, coding):
        assert asyncio.run_coroutine_threadsafe(one(data, flag, coding), loop).result(20) is not None

    await asyncio.to_thread(check)
    await still_serves(running)
