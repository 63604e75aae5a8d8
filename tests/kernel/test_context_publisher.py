"""Our publisher and the kernel together: what a request's code does is stamped with that request's span."""

from __future__ import annotations

from collections import Counter

import pytest

from otel_bridge.model import KernelEventKind, Match
from tests.support.application import application
from tests.support.kernel import followed, monitoring

pytest.importorskip("otel_bridge.context._record", reason="the C extension was not built")

SERVERS = {
    "threads": """
import socket

def request(number):
    for _ in range(number % 3):
        refused(socket.socket())
    with tracer.start_as_current_span("request") as span:
        together.wait()
        for _ in range(5):
            refused(socket.socket())
            told[span.get_span_context().span_id] += 1

def refused(sock):
    with sock:
        assert sock.connect_ex(("127.0.0.1", port)) != 0

together = threading.Barrier(64)
threads = [threading.Thread(target=request, args=(number,)) for number in range(64)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
""",
    "tasks": """
import asyncio, contextlib, socket

async def request(number):
    for _ in range(number % 3):
        await refused()
    with tracer.start_as_current_span("request") as span:
        for _ in range(5):
            await asyncio.sleep(0.001)
            await refused()
            told[span.get_span_context().span_id] += 1

async def refused():
    with socket.socket() as sock, contextlib.suppress(ConnectionRefusedError):
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))

async def main():
    await asyncio.gather(*(request(number) for number in range(64)))

with asyncio.Runner(loop_factory=new_event_loop) as runner:
    runner.run(main())
""",
}
LOOPS = {
    "asyncio": "import asyncio; new_event_loop = asyncio.new_event_loop",
    "uvloop": "import uvloop; new_event_loop = uvloop.new_event_loop",
}
BEFORE = """
from collections import Counter

told = Counter()
port = json.loads(sys.stdin.readline())
"""
AFTER = """
say(told)
sys.stdin.readline()
"""


@pytest.mark.parametrize("server", ["threads", *LOOPS])
def test_every_connect_is_on_the_span_that_made_it(server, closed_port):
    """64 requests at once, 5 connects each within the span; those before the span are on none."""
    if server == "uvloop":
        pytest.importorskip("uvloop", reason="uvloop is not installed: pip install uvloop")
    body = SERVERS[server] if server == "threads" else LOOPS[server] + SERVERS["tasks"]
    with monitoring("tcp") as monitor, application(BEFORE + body + AFTER) as app:
        followed(monitor, app.pid)
        app.tell(closed_port)
        told = {int(span): count for span, count in app.hear().items()}
    assert len(told) == 64
    events = monitor.events.of(KernelEventKind.TCP_CONNECT, tgid=app.pid)
    spans = Counter(int.from_bytes(bytes(event["span_id"])) for event in events)
    outside = sum(number % 3 for number in range(64))
    assert spans == told | {0: outside}
    matches = Counter(events["match"].tolist())
    assert matches == {Match.SOCKET: 64 * 5, Match.NONE: outside}
