"""What the receiver costs over a bare server that does nothing: CPU a request, as a ratio in the same run.

    python -m tests.bench.micro_receiver

Both run in their own process on the same requests; the bare ones are grpc.aio with a handler that answers
at once, and aiohttp with a handler that reads the body. Behind the receiver stands a consumer that takes
everything, so that scanning and forwarding are not in the figures; its metrics are on. All of them keep freed
memory and freeze what lives at the start, as the service does.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import grpc.aio
from aiohttp import web

from otel_bridge.contracts import Outcome
from otel_bridge.memory import keep_freed_memory
from otel_bridge.receivers.otlp.config import OtlpReceiverConfig
from otel_bridge.receivers.otlp.receiver import OtlpReceiver
from otel_bridge.telemetry import Telemetry, configure_logging
from otel_bridge.testing import trace_request

if TYPE_CHECKING:
    from otel_bridge.model import Signal

METHOD = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
SPANS = 1000
BODY = "x" * 430
CLIENTS = 4
ROUNDS = 5

Send = Callable[[], Awaitable[None]]


class TakeAll:
    """A consumer that costs nothing."""

    async def consume_traces(self, data: bytes) -> Outcome:
        return Outcome(SPANS)

    async def consume(self, signal: Signal, data: bytes) -> Outcome:
        return Outcome(SPANS)


async def serve(kind: str) -> None:
    """Run one server until killed; its port goes to standard output."""
    configure_logging(level="error")
    keep_freed_memory()
    port = await {"receiver": serve_receiver, "bare_grpc": serve_bare_grpc, "bare_http": serve_bare_http}[
        kind
    ]()
    gc.collect()
    gc.freeze()  # as the service does after its start
    print(port, flush=True)
    await asyncio.Event().wait()


async def serve_receiver() -> str:
    listener = {"endpoint": "127.0.0.1:0"}
    config = OtlpReceiverConfig.model_validate({"protocols": {"grpc": listener, "http": listener}})
    receiver = OtlpReceiver(config, TakeAll(), Telemetry())
    await receiver.start()
    KEPT.append(receiver)
    return f"{receiver.grpc_port} {receiver.http_port}"


async def serve_bare_grpc() -> str:
    async def export(data: bytes, context: object) -> bytes:
        return b""

    server = grpc.aio.server(options=[("grpc.max_receive_message_length", 64 << 20)])
    handler = grpc.unary_unary_rpc_method_handler(export)
    service = METHOD.split("/")[1]
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {"Export": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    KEPT.append(server)
    return str(port)


async def serve_bare_http() -> str:
    async def export(request: web.BaseRequest) -> web.Response:
        await request.read()
        return web.Response(body=b"")

    server = await asyncio.get_running_loop().create_server(
        web.Server(export, access_log=None), "127.0.0.1", 0
    )
    KEPT.append(server)
    return str(server.sockets[0].getsockname()[1])


KEPT: list[object] = []
"""Servers end when nobody refers to them."""


@dataclass
class Process:
    """A server of ours and the CPU it has used."""

    kind: str

    def __post_init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.micro_receiver", "--serve", self.kind],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stdout is not None
        self.ports = [int(port) for port in self.process.stdout.readline().split()]

    def cpu(self) -> float:
        """Seconds of its threads, from the scheduler: /proc/PID/stat counts in steps of 10 ms."""
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/schedstat")
        return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


async def grpc_sender(port: int, body: bytes) -> tuple[Send, Callable[[], Awaitable[None]]]:
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options)
    call = channel.unary_unary(METHOD)

    async def send() -> None:
        await call(body)

    return send, channel.close


async def http_sender(port: int, body: bytes) -> tuple[Send, Callable[[], Awaitable[None]]]:
    session = aiohttp.ClientSession()
    headers = {"Content-Type": "application/x-protobuf"}

    async def send() -> None:
        async with session.post(f"http://127.0.0.1:{port}/v1/traces", data=body, headers=headers) as response:
            assert response.status == 200
            await response.read()

    return send, session.close


async def measure(server: Process, senders: list[Send], requests: int) -> float:
    """Microseconds of the server's CPU a request."""

    async def loop(send: Send) -> None:
        for _ in range(requests // len(senders)):
            await send()

    before = server.cpu()
    await asyncio.gather(*(loop(send) for send in senders))
    return (server.cpu() - before) / requests * 1e6


async def compare(requests: int) -> None:
    body = trace_request([{"attributes": {"body": BODY}}] * SPANS)
    receiver, bare_grpc, bare_http = Process("receiver"), Process("bare_grpc"), Process("bare_http")
    pairs = {
        "grpc": (grpc_sender, (receiver, receiver.ports[0]), (bare_grpc, bare_grpc.ports[0])),
        "http": (http_sender, (receiver, receiver.ports[1]), (bare_http, bare_http.ports[0])),
    }
    print(
        f"{SPANS} spans of {len(body) // SPANS} bytes a request, {CLIENTS} clients, median of {ROUNDS} rounds"
    )
    try:
        for name, (make, ours, bare) in pairs.items():
            figures: dict[str, list[float]] = {"receiver": [], "bare": []}
            opened = [
                (who, server, [await make(port, body) for _ in range(CLIENTS)])
                for who, (server, port) in (("receiver", ours), ("bare", bare))
            ]
            for turn in range(ROUNDS + 1):
                for who, server, senders in opened:
                    cost = await measure(server, [send for send, _ in senders], requests)
                    if turn:  # the first round warms up
                        figures[who].append(cost)
            for _, _, senders in opened:
                for _, close in senders:
                    await close()
            mine, floor = (statistics.median(figures[who]) for who in ("receiver", "bare"))
            print(
                f"{name}: receiver {mine / SPANS:.2f} µs CPU a span, bare {floor / SPANS:.2f}, "
                f"ratio {mine / floor:.2f}"
            )
    finally:
        for server in (receiver, bare_grpc, bare_http):
            server.end()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--serve", choices=("receiver", "bare_grpc", "bare_http"), help=argparse.SUPPRESS)
    parser.add_argument("--requests", type=int, default=200, help="requests a round")
    arguments = parser.parse_args()
    asyncio.run(serve(arguments.serve) if arguments.serve else compare(arguments.requests))


if __name__ == "__main__":
    main()
