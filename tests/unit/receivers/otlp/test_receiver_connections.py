"""Connections: kept, probed, ended, and inflating without a limit never."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_bridge.errors import MalformedRequestError, RequestTooLargeError
from otel_bridge.receivers.otlp.compression import inflate
from otel_bridge.testing import trace_request
from tests.support.otlp_clients import Http2, framed

REQUEST = trace_request([{}])


async def test_http_connections_are_kept(start):
    """Two requests, an error in between, one connection."""
    running = await start()
    reader, writer = await asyncio.open_connection("127.0.0.1", running.receiver.http_port)
    for content_type, expected in (
        (b"application/json", b"200"),
        (b"text/plain", b"415"),
        (b"application/json", b"200"),
    ):
        writer.write(
            b"POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Type: "
            + content_type
            + b"\r\n\r\n{}"
        )
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.split()[1] == expected
        length = int(head.lower().split(b"content-length: ")[1].split()[0])
        await reader.readexactly(length)
    writer.close()


async def test_http_pipelined_requests_are_answered_in_order(start):
    running = await start()
    reader, writer = await asyncio.open_connection("127.0.0.1", running.receiver.http_port)
    head = b"POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 2\r\n"
    post, last = head + b"\r\n{}", head + b"Connection: close\r\n\r\n{}"
    writer.write(post + post.replace(b"POST", b"GET") + last)
    answers = await reader.read()
    assert re.findall(rb"HTTP/1.1 (\d+)", answers) == [b"200", b"405", b"200"]
    writer.close()


@pytest.mark.parametrize(
    "keepalive",
    [{"max_connection_idle": "200ms"}, {"max_connection_age": "200ms", "max_connection_age_grace": "100ms"}],
    ids=["idle", "old"],
)
async def test_grpc_connections_are_ended_as_configured(start, keepalive):
    running = await start(grpc={"keepalive": keepalive})
    async with Http2(running) as client:
        await client.send(framed(REQUEST))
        assert await client.status() == 0
        async with asyncio.timeout(10):
            await client.closed()


async def test_grpc_peers_that_are_silent_are_probed(start):
    """A peer that answers no ping is let go."""
    running = await start(grpc={"keepalive": {"time": "1s", "timeout": "200ms"}})
    async with Http2(running) as client:
        await client.send(framed(REQUEST))
        assert await client.status() == 0
        async with asyncio.timeout(20):
            await client.closed(answering=False)


@given(st.binary(max_size=300), st.sampled_from(["gzip", "deflate", "zstd"]), st.integers(1, 400))
def test_inflating_ends_in_bytes_or_a_refusal(data, coding, limit):
    with contextlib.suppress(MalformedRequestError, RequestTooLargeError):
        assert len(inflate(data, coding, limit)) <= limit


@given(st.lists(st.binary(max_size=100), min_size=1, max_size=4), st.integers(0, 450))
def test_the_limit_holds_over_all_members(members, limit):
    whole = b"".join(members)
    body = b"".join(gzip.compress(member) for member in members)
    if len(whole) <= limit:
        assert inflate(body, "gzip", limit) == whole
    else:
        with pytest.raises(RequestTooLargeError):
            inflate(body, "gzip", limit)


def test_members_without_end_are_refused():
    """Each costs a copy of all that follow it."""
    with pytest.raises(MalformedRequestError, match="more than 64 members"):
        inflate(gzip.compress(b"") * 65, "gzip", 100)
