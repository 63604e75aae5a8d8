"""Where spans arrive: a process that counts them without decoding, and keeps a sample to be looked at."""

from __future__ import annotations

import asyncio
import multiprocessing
from typing import TYPE_CHECKING, Self

import grpc
from aiohttp import web

from tests.bench.workloads import MAGIC

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

SERVICE = "opentelemetry.proto.collector.trace.v1.TraceService"
_SAMPLE_EVERY = 41
_SAMPLE_MOST = 6
_LARGEST = 64 << 20


class Sink:
    """A sink in a process of its own.

    Attributes:
        port: where it listens on loopback.
    """

    def __init__(self, transport: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_main, args=(transport, other), daemon=True)
        self._process.start()
        self.port: int = self._pipe.recv()

    def count(self) -> int:
        """Spans that arrived since the last `samples`."""
        return self._ask("count")

    def samples(self) -> list[bytes]:
        """Some requests that arrived since the last call; counting begins anew."""
        return self._ask("samples")

    def _ask(self, what: str):
        self._pipe.send(what)
        return self._pipe.recv()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._pipe.send("stop")
        self._process.join(10)


class _Server:
    def __init__(self) -> None:
        self.spans = 0
        self.requests = 0
        self.sample: list[bytes] = []

    def take(self, data: bytes) -> None:
        self.spans += data.count(MAGIC)
        if self.requests % _SAMPLE_EVERY == 0 and len(self.sample) < _SAMPLE_MOST:
            self.sample.append(data)
        self.requests += 1

    def answer(self, command: str) -> int | list[bytes]:
        if command == "count":
            return self.spans
        sample, self.sample, self.spans, self.requests = self.sample, [], 0, 0
        return sample

    async def start_grpc(self) -> int:
        async def export(request: bytes, _context: grpc.aio.ServicerContext) -> bytes:
            self.take(request)
            return b""

        server = grpc.aio.server(
            options=[("grpc.max_receive_message_length", _LARGEST), ("grpc.so_reuseport", 0)]
        )
        handler = grpc.unary_unary_rpc_method_handler(export)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Export": handler}),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        self.stop = lambda: server.stop(0)
        return port

    async def start_http(self) -> int:
        async def traces(request: web.Request) -> web.Response:
            self.take(await request.read())
            return web.Response(content_type="application/x-protobuf")

        app = web.Application(client_max_size=_LARGEST)
        app.router.add_post("/v1/traces", traces)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.stop = runner.cleanup
        return runner.addresses[0][1]


def _main(transport: str, pipe: Connection) -> None:
    asyncio.run(_serve(transport, pipe))


async def _serve(transport: str, pipe: Connection) -> None:
    server = _Server()
    port = await (server.start_grpc() if transport == "grpc" else server.start_http())
    stopped = asyncio.Event()

    def command() -> None:
        received = pipe.recv()
        if received == "stop":
            stopped.set()
        else:
            pipe.send(server.answer(received))

    asyncio.get_running_loop().add_reader(pipe.fileno(), command)
    pipe.send(port)
    await stopped.wait()
    await server.stop()
