"""A request may inherit the context of the one before it on its connection; its span must not.

Before Python 3.15, asyncio resumes reading inside the task that consumed the body, so what the connection
does next runs in that request's context: certain once a body passes 65,536 bytes (python/cpython 140947).
"""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import TYPE_CHECKING

import pytest
from opentelemetry import trace

from otel_bridge import context
from tests.support.spans import publishes

asgi = pytest.importorskip(
    "opentelemetry.instrumentation.asgi",
    reason="not installed: pip install opentelemetry-instrumentation-asgi",
)
uvicorn = pytest.importorskip("uvicorn", reason="not installed: pip install uvicorn")
uvloop = pytest.importorskip("uvloop", reason="not installed: pip install uvloop")

from uvicorn.protocols.http.h11_impl import H11Protocol  # noqa: E402 - after the check that there is a uvicorn

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext

BODY = b"x" * 70_000
CONNECTIONS = 64


class Observed:
    """What was published at each stage of each request."""

    def __init__(self) -> None:
        self.outside: list[bool] = []
        self.inside: list[bool] = []
        self.inherited = 0
        self.spans: list[SpanContext] = []


def application(observed: Observed, provider):
    """An ASGI app that works for a while, as opentelemetry instruments it."""

    async def handle(scope, receive, send):
        span = trace.get_current_span()
        observed.spans.append(span.get_span_context())
        observed.inside.append(span.is_recording() and publishes(span))
        body = b""
        while True:
            message = await receive()
            body += message["body"]
            if not message["more_body"]:
                break
        assert len(body) == len(BODY)
        observed.inside.append(publishes(span))
        _, writer = await asyncio.open_connection(*scope["server"])
        observed.inside.append(publishes(span))
        writer.close()
        await writer.wait_closed()
        sum(range(100_000))
        observed.inside.append(publishes(span))
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})
        observed.inside.append(publishes(span))

    instrumented = asgi.OpenTelemetryMiddleware(
        handle, tracer_provider=provider, exclude_spans=["receive", "send"]
    )

    async def before_and_after(scope, receive, send):
        if trace.get_current_span().get_span_context().is_valid:
            observed.inherited += 1
        observed.outside.append(publishes(None))
        await instrumented(scope, receive, send)
        observed.outside.append(publishes(None))

    return before_and_after


class Server(uvicorn.Server):
    """Runs inside the test's loop."""

    def install_signal_handlers(self):
        pass


@pytest.fixture
def observed(monkeypatch):
    """Also watches the connection itself: the bytes of a request arrive before its span starts."""
    observed = Observed()
    received = H11Protocol.data_received

    def data_received(self, data):
        span = trace.get_current_span()
        observed.outside.append(publishes(span if span.is_recording() else None))
        received(self, data)

    monkeypatch.setattr(H11Protocol, "data_received", data_received)
    return observed


async def serve(observed, provider):
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    config = uvicorn.Config(application(observed, provider), http="h11", log_level="error", lifespan="off")
    server = Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.005)
    return server, serving, listener.getsockname()


async def post(reader, writer, trace_id: int | None) -> None:
    parent = f"traceparent: 00-{trace_id:032x}-{7:016x}-01\r\n" if trace_id else ""
    writer.write(f"POST / HTTP/1.1\r\nHost: x\r\n{parent}Content-Length: {len(BODY)}\r\n\r\n".encode() + BODY)
    answer = await reader.readuntil(b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 204")


async def one_connection(address, *trace_ids) -> None:
    reader, writer = await asyncio.open_connection(*address)
    for trace_id in trace_ids:
        await post(reader, writer, trace_id)
        await asyncio.sleep(0.02)
    writer.close()
    await writer.wait_closed()


async def scenario(observed, provider, *, late: bool) -> None:
    if late:
        context.uninstall()
    server, serving, address = await serve(observed, provider)
    if late:
        context.install()
    await one_connection(address, 0xA, 0xB, None)
    await asyncio.gather(
        *(one_connection(address, 0x1000 + number, 0x2000 + number, None) for number in range(CONNECTIONS))
    )
    server.should_exit = True
    await serving
    assert observed.spans[0].trace_id == 0xA
    assert len({span.span_id for span in observed.spans}) == 3 * (CONNECTIONS + 1)


LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.mark.parametrize("late", [False, True], ids=["on from the start", "turned on while serving"])
@pytest.mark.parametrize("loop", LOOPS)
def test_requests_on_one_connection(loop, late, observed, provider):
    """Inside a request's span always that span, outside never one that has ended."""
    stale = context.status().stale
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(scenario(observed, provider, late=late))
    assert observed.inside == [True] * 5 * 3 * (CONNECTIONS + 1)
    assert observed.outside == [True] * len(observed.outside)
    assert context.status().stale - stale >= observed.inherited
    if loop == "asyncio" and sys.version_info < (3, 15):
        # The trouble is there: B began in A's context, and opentelemetry made it a part of A's trace.
        assert observed.inherited > 0
        assert observed.spans[1].trace_id == 0xA
