"""Case ebpf-context-leak in the kernel: no event of a request is on the one before it on its connection."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter

import pytest

from otel_bridge.model import KernelEventKind, Match
from tests.support.application import application
from tests.support.kernel import followed, monitoring

pytest.importorskip("otel_bridge.context._record", reason="the C extension was not built")
pytest.importorskip("uvicorn", reason="not installed: pip install uvicorn")
pytest.importorskip(
    "opentelemetry.instrumentation.asgi",
    reason="not installed: pip install opentelemetry-instrumentation-asgi",
)

BODY = b"x" * 70_000  # from 65,536 bytes on asyncio resumes reading within the request's task
CONNECTIONS = 64

SERVER = """
import asyncio, contextlib, socket
from collections import Counter
import uvicorn
from opentelemetry import trace
from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware

told, inherited = Counter(), 0
closed = json.loads(sys.stdin.readline())

async def handle(scope, receive, send):
    while (await receive())["more_body"]:
        pass
    await refused()
    sum(range(100_000))
    told[trace.get_current_span().get_span_context().span_id] += 1
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})

instrumented = OpenTelemetryMiddleware(
    handle, tracer_provider=TracerProvider(), exclude_spans=["receive", "send"]
)

async def before_and_after(scope, receive, send):
    global inherited
    inherited += trace.get_current_span().get_span_context().is_valid
    await refused()
    await instrumented(scope, receive, send)
    await refused()

async def refused():
    with socket.socket() as sock, contextlib.suppress(ConnectionRefusedError):
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", closed))

class Server(uvicorn.Server):
    def install_signal_handlers(self):
        pass

async def main():
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    config = uvicorn.Config(before_and_after, http="h11", log_level="error", lifespan="off")
    server = Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:
        await asyncio.sleep(0.005)
    say(listener.getsockname()[1])
    await asyncio.to_thread(sys.stdin.readline)
    server.should_exit = True
    await serving

with asyncio.Runner(loop_factory=new_event_loop) as runner:
    runner.run(main())
say([told, inherited])
sys.stdin.readline()
"""
LOOPS = {
    "asyncio": "import asyncio; new_event_loop = asyncio.new_event_loop",
    "uvloop": "import uvloop; new_event_loop = uvloop.new_event_loop",
}


async def post(port: int, *trace_ids: int | None) -> None:
    """Requests on one connection, one after the other."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for trace_id in trace_ids:
        parent = f"traceparent: 00-{trace_id:032x}-{7:016x}-01\r\n" if trace_id else ""
        head = f"POST / HTTP/1.1\r\nHost: x\r\n{parent}Content-Length: {len(BODY)}\r\n\r\n"
        writer.write(head.encode() + BODY)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 204")
    writer.close()
    await writer.wait_closed()


async def requests(port: int) -> None:
    """One connection alone, then many at once; the last request of each comes without a traceparent."""
    await post(port, 0xA, 0xB, None)
    await asyncio.gather(*(post(port, 0x1000 + n, 0x2000 + n, None) for n in range(CONNECTIONS)))


@pytest.mark.parametrize("loop", LOOPS)
def test_a_request_s_events_are_on_its_own_span(loop, closed_port):
    """One connection is refused before each span, one within it and one after it."""
    if loop == "uvloop":
        pytest.importorskip("uvloop", reason="not installed: pip install uvloop")
    count = 3 * (CONNECTIONS + 1)
    with (
        monitoring("tcp", tcp={"connect_threshold": "10s"}) as monitor,
        application(LOOPS[loop] + SERVER) as app,
    ):
        followed(monitor, app.pid)
        app.tell(closed_port)
        asyncio.run(requests(app.hear()))
        app.tell()
        told, inherited = app.hear()
    if loop == "asyncio" and sys.version_info < (3, 15):
        assert inherited > 0, "no request began in the context of another: the case was not met"
    events = monitor.events.of(KernelEventKind.TCP_CONNECT, tgid=app.pid)
    spans = Counter(int.from_bytes(bytes(event["span_id"])) for event in events)
    assert len(told) == count
    assert spans == {int(span): 1 for span in told} | {0: 2 * count}
    assert Counter(events["match"].tolist()) == {Match.SOCKET: count, Match.NONE: 2 * count}
