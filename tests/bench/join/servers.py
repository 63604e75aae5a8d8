"""The servers under test: real ones, with opentelemetry-sdk and otel_bridge.context, exporting to a bridge.

python -m tests.bench.join.servers KIND BRIDGE_PORT PEERS DISK_FILE SPARSE_FILE

Prints its port, then serves until its input ends. A line of input has it export the spans that wait, and
answer `true` when that is done. PEERS is `peers.Addresses` in JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import threading
from concurrent import futures
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
from aiohttp import web
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.instrumentation.grpc import GrpcInstrumentorServer
from opentelemetry.propagate import extract
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, format_span_id

import otel_bridge.context
from tests.bench.join.causes import Caused, Job, Kind
from tests.bench.join.peers import LOOPBACK, Addresses
from tests.bench.join.work import Blocking, Concurrent, run_delay

if TYPE_CHECKING:
    from opentelemetry.trace import Span

METHOD = "/otel_bridge.bench.Work/Do"
CONCURRENT = 64
_EXPORT_EVERY = 500  # milliseconds

tracer = trace.get_tracer("otel_bridge.bench")


def instrument(name: str, bridge_port: int) -> TracerProvider:
    """What an application does to be traced; the publisher is one line of it."""
    provider = TracerProvider(resource=Resource.create({"service.name": f"bench-{name}"}))
    exporter = OTLPSpanExporter(f"{LOOPBACK}:{bridge_port}", insecure=True)
    provider.add_span_processor(
        BatchSpanProcessor(exporter, max_queue_size=1 << 16, schedule_delay_millis=_EXPORT_EVERY)
    )
    trace.set_tracer_provider(provider)
    status = otel_bridge.context.install()
    if not status.publishing:
        raise SystemExit(status.problem)
    return provider


def job_of(body: bytes) -> Job:
    """The request's body."""
    document = json.loads(body)
    return Job(**document | {"kind": Kind(document["kind"])})


def waited_so_far(job: Job) -> int:
    """How long this thread has waited for a CPU; not asked for a request that only asks to be answered."""
    return 0 if job.kind is Kind.NOTHING else run_delay()


def answer_of(job: Job, caused: Caused, span: Span, before: int) -> bytes:
    """The answer's body: what was caused, under which span, which has ended."""
    caused.span_id = format_span_id(span.get_span_context().span_id)
    caused.most = waited_so_far(job) - before
    return json.dumps(caused.to_json()).encode()


def blocking_answer(work: Blocking, body: bytes) -> bytes:
    """Do a job in a span of its own."""
    job = job_of(body)
    before = waited_so_far(job)
    with tracer.start_as_current_span("job") as span:
        caused = work.do(job)
    return answer_of(job, caused, span, before)


def serve_threads(work: Blocking) -> int:
    """http.server: a thread a connection, which is kept for many requests."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # One segment an answer: Nagle's algorithm would hold the second back.
        wbufsize = -1

        def do_POST(self) -> None:
            context = extract(self.headers)
            with tracer.start_as_current_span("POST /work", context, SpanKind.SERVER):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                answer = blocking_answer(work, body)
                self.send_response(200)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)
                self.wfile.flush()

        def log_message(self, *_args: object) -> None:
            """Nothing: it would go to standard error."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 4 * CONCURRENT

    server = Server((LOOPBACK, 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_address[1]


def serve_grpc(work: Blocking) -> int:
    """grpc: its own threads read and write, a pool does the work; instrumented by the contrib package."""
    GrpcInstrumentorServer().instrument()  # type: ignore[no-untyped-call]

    def do(body: bytes, _context: grpc.ServicerContext) -> bytes:
        return blocking_answer(work, body)

    server = grpc.server(futures.ThreadPoolExecutor(CONCURRENT), options=[("grpc.so_reuseport", 0)])
    service, _, method = METHOD[1:].partition("/")
    handler = grpc.unary_unary_rpc_method_handler(do)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    port: int = server.add_insecure_port(f"{LOOPBACK}:0")
    server.start()
    KEPT.append(server)
    return port


def serve_asyncio(work: Concurrent) -> int:
    """aiohttp: all requests in one thread, callback by callback."""

    async def do(request: web.Request) -> web.Response:
        context = extract(request.headers)
        with tracer.start_as_current_span("POST /work", context, SpanKind.SERVER):
            job = job_of(await request.read())
            before = waited_so_far(job)
            with tracer.start_as_current_span("job") as span:
                caused = await work.do(job)
            return web.Response(body=answer_of(job, caused, span, before))

    async def start() -> int:
        app = web.Application()
        app.router.add_post("/work", do)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, LOOPBACK, 0, backlog=4 * CONCURRENT)
        await site.start()
        KEPT.append(runner)
        port: int = runner.addresses[0][1]
        return port

    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return asyncio.run_coroutine_threadsafe(start(), loop).result()


KEPT: list[object] = []
"""Servers end when nobody refers to them."""


def main() -> None:
    """Serve until standard input ends, then export what is left."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("threads", "asyncio", "grpc"))
    parser.add_argument("bridge_port", type=int)
    parser.add_argument("peers")
    parser.add_argument("files", nargs=2, type=Path)
    options = parser.parse_args()
    provider = instrument(options.kind, options.bridge_port)
    peers = Addresses(**json.loads(options.peers))
    if options.kind == "asyncio":
        port = serve_asyncio(Concurrent(peers, *options.files))
    else:
        work = Blocking(peers, *options.files)
        port = serve_threads(work) if options.kind == "threads" else serve_grpc(work)
    print(port, flush=True)
    for _ in sys.stdin:
        print(json.dumps(provider.force_flush()), flush=True)
    provider.shutdown()
    status = otel_bridge.context.status()
    print(f"stale {status.stale} failures {status.failures} unfollowed {status.unfollowed}", flush=True)


if __name__ == "__main__":
    main()
