"""Real servers under concurrent requests: within a request's span its ids are published, outside none are."""

from __future__ import annotations

import asyncio
import http.client
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
import pytest
from opentelemetry import trace

from tests.support.spans import publishes

grpc_instrumentation = pytest.importorskip(
    "opentelemetry.instrumentation.grpc",
    reason="not installed: pip install opentelemetry-instrumentation-grpc",
)

CONCURRENT = 64
REQUESTS = 331


class Log:
    """One entry per request: whether what was published was right at each look."""

    def __init__(self) -> None:
        self.requests: list[list[bool]] = []

    def check(self) -> None:
        assert len(self.requests) == REQUESTS
        assert all(all(looks) for looks in self.requests)


def test_threading_http_server(tracer):
    """One thread per connection, several requests on each."""
    log = Log()
    together = threading.Barrier(CONCURRENT)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            looks = [publishes(None)]
            with tracer.start_as_current_span("server") as span:
                if self.path == "/together":
                    together.wait(30)
                looks.append(publishes(span))
                self.send_response(204)
                self.end_headers()
                looks.append(publishes(span))
            looks.append(publishes(None))
            log.requests.append(looks)

        def log_message(self, *_):
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = CONCURRENT

    with Server(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()

        def ask(paths):
            connection = http.client.HTTPConnection(*server.server_address)
            for path in paths:
                connection.request("GET", path)
                connection.getresponse().read()
            connection.close()

        with ThreadPoolExecutor(CONCURRENT) as clients:
            list(clients.map(ask, [["/together"]] * CONCURRENT))
            list(clients.map(ask, [["/"] * ((REQUESTS - CONCURRENT) // 3)] * 3))
        server.shutdown()
        serving.join()
    log.check()


class Echo(grpc.GenericRpcHandler):
    """Answers any unary call through one function."""

    def __init__(self, function) -> None:
        self._function = function

    def service(self, _details):
        return grpc.unary_unary_rpc_method_handler(self._function)


def test_grpc_server(provider):
    """Worker threads of a pool, the span attached by opentelemetry's own interceptor."""
    log = Log()
    together = threading.Barrier(CONCURRENT)

    def answer(request: bytes, _context) -> bytes:
        span = trace.get_current_span()
        looks = [span.is_recording(), publishes(span)]
        if request == b"together":
            together.wait(30)
            looks.append(publishes(span))
        log.requests.append(looks)
        return request

    interceptor = grpc_instrumentation.server_interceptor(provider)
    server = grpc.server(ThreadPoolExecutor(CONCURRENT), interceptors=[interceptor])
    server.add_generic_rpc_handlers([Echo(answer)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary("/test/Echo")
        first = [call.future(b"together") for _ in range(CONCURRENT)]
        rest = [call.future(b"") for _ in range(REQUESTS - CONCURRENT)]
        for future in first + rest:
            future.result(60)
    server.stop(None).wait()
    log.check()


async def test_grpc_aio_server(provider):
    """All calls on one thread, each in its own task."""
    log = Log()

    async def answer(request: bytes, _context) -> bytes:
        span = trace.get_current_span()
        looks = [span.is_recording(), publishes(span)]
        for _ in range(3):
            await asyncio.sleep(0.001)
            looks.append(publishes(span))
        log.requests.append(looks)
        return request

    interceptor = grpc_instrumentation.aio_server_interceptor(provider)
    server = grpc.aio.server(interceptors=[interceptor])
    server.add_generic_rpc_handlers([Echo(answer)])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary("/test/Echo")
        await asyncio.gather(*(call(b"") for _ in range(REQUESTS)))
    await server.stop(None)
    assert publishes(None)
    log.check()
