"""Where spans come from: a process with closed-loop clients that send what was encoded before."""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import aiohttp
import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from tests.bench.sink import SERVICE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from multiprocessing.connection import Connection

    from tests.bench.workloads import Workload

    Send = Callable[[bytes], Awaitable[bool]]

CLIENTS = 4
_PAUSE_WHEN_REFUSED = 0.02
_RETRYABLE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)


@dataclass(frozen=True)
class Sent:
    """What one round of load came to.

    Attributes:
        requests: acknowledged.
        refused: sent again because the receiver was full.
        latencies: seconds of each acknowledged Export, its refused tries included.
    """

    requests: int
    refused: int
    latencies: list[float]


class Load:
    """A load generator in a process of its own; each client waits for its answer before it sends again."""

    def __init__(self, transport: str, workload: Workload) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_main, args=(transport, workload.requests, other), daemon=True)
        self._process.start()

    def run(self, port: int, seconds: float) -> Sent:
        """Send to a port on loopback for so long; whatever was begun is finished.

        Raises:
            RuntimeError: the receiver answered with something that is neither success nor retryable.
        """
        self._pipe.send((port, seconds))
        result = self._pipe.recv()
        if isinstance(result, Sent):
            return result
        raise RuntimeError(result)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._pipe.send(None)
        self._process.join(10)


def _main(transport: str, requests: tuple[bytes, ...], pipe: Connection) -> None:
    while (command := pipe.recv()) is not None:
        port, seconds = command
        try:
            pipe.send(asyncio.run(_run(transport, requests, port, seconds)))
        except Exception as error:  # noqa: BLE001 (raised again on the other side of the pipe)
            pipe.send(f"{type(error).__name__}: {error}")


async def _run(transport: str, requests: tuple[bytes, ...], port: int, seconds: float) -> Sent:
    end = time.perf_counter() + seconds
    latencies: list[float] = []
    refused = 0

    async def client(send: Send, start: int) -> None:
        nonlocal refused
        for request in itertools.islice(itertools.cycle(requests), start, None):
            begin = time.perf_counter()
            if begin >= end:
                return
            while not await send(request):
                refused += 1
                await asyncio.sleep(_PAUSE_WHEN_REFUSED)
            latencies.append(time.perf_counter() - begin)

    connect = _grpc if transport == "grpc" else _http
    clients = [await connect(port) for _ in range(CLIENTS)]
    try:
        await asyncio.gather(*(client(send, number) for number, (send, _) in enumerate(clients)))
    finally:
        for _, close in clients:
            await close()
    return Sent(len(latencies), refused, latencies)


def _check(answer: bytes) -> None:
    response = ExportTraceServiceResponse.FromString(answer)
    if response.partial_success.rejected_spans or response.partial_success.error_message:
        raise RuntimeError(f"partial success: {response}")


async def _grpc(port: int):
    # A channel of its own for each client: channels to one address would share a connection.
    channel = grpc.aio.insecure_channel(
        f"127.0.0.1:{port}",
        options=[("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)],
    )
    export = channel.unary_unary(f"/{SERVICE}/Export")
    await channel.channel_ready()

    async def send(request: bytes) -> bool:
        try:
            answer = await export(request)
        except grpc.aio.AioRpcError as error:
            if error.code() in _RETRYABLE:
                return False
            raise
        _check(answer)
        return True

    return send, channel.close


async def _http(port: int):
    session = aiohttp.ClientSession(headers={"Content-Type": "application/x-protobuf"})
    url = f"http://127.0.0.1:{port}/v1/traces"

    async def send(request: bytes) -> bool:
        async with session.post(url, data=request) as answer:
            body = await answer.read()
            if answer.status in (429, 503):
                return False
            if answer.status != 200:
                raise RuntimeError(f"HTTP {answer.status}: {body[:200]!r}")
            _check(body)
            return True

    return send, session.close
