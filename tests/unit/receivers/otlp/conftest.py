"""A running receiver with a sink behind it, and the smallest clients that can talk to it."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import aiohttp
import grpc.aio
import pytest
from google.protobuf import json_format
from google.rpc import error_details_pb2, status_pb2

from otel_bridge.model import Signal
from otel_bridge.receivers.otlp.config import OtlpReceiverConfig
from otel_bridge.receivers.otlp.grpc import METHODS
from otel_bridge.receivers.otlp.receiver import OtlpReceiver
from otel_bridge.telemetry import Telemetry
from otel_bridge.testing import ConsumerSink

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from otel_bridge.catalog import Metric

PROTOBUF = "application/x-protobuf"
JSON = "application/json"
METHOD_OF = {signal: method for method, signal in METHODS.items()}


def request_of_size(size: int) -> bytes:
    """A request of exactly so many bytes, 7 at least: one unknown field of zeros."""
    length = size - 7
    return (
        b"\xc2\x3e" + bytes([length >> 7 * place & 0x7F | 0x80 for place in range(4)]) + b"\0" + bytes(length)
    )


@dataclass
class Reply:
    """An HTTP answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def error(self) -> status_pb2.Status:
        """The google.rpc.Status in the body, read as the answer's content type says."""
        if self.headers["Content-Type"] == PROTOBUF:
            return status_pb2.Status.FromString(self.body)
        return json_format.Parse(self.body, status_pb2.Status())


def retry_delay(status: status_pb2.Status) -> float | None:
    """Seconds of the status's RetryInfo; None without one."""
    for detail in status.details:
        info = error_details_pb2.RetryInfo()
        if detail.Unpack(info):
            return info.retry_delay.ToNanoseconds() / 1e9
    return None


def grpc_status(error: grpc.aio.AioRpcError) -> status_pb2.Status:
    """The google.rpc.Status in the trailers; empty without one."""
    data = dict(error.trailing_metadata()).get("grpc-status-details-bin", b"")
    return status_pb2.Status.FromString(data)


@dataclass
class Running:
    """A started receiver."""

    receiver: OtlpReceiver
    sink: ConsumerSink
    telemetry: Telemetry
    session: aiohttp.ClientSession
    channels: list[grpc.aio.Channel] = field(default_factory=list)

    def channel(self, credentials: grpc.ChannelCredentials | None = None) -> grpc.aio.Channel:
        """A gRPC connection of its own."""
        target = f"localhost:{self.receiver.grpc_port}"
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
        if credentials is None:
            channel = grpc.aio.insecure_channel(target.replace("localhost", "127.0.0.1"), options=options)
        else:
            channel = grpc.aio.secure_channel(target, credentials, options=options)
        self.channels.append(channel)
        return channel

    async def export(self, body: bytes, signal: Signal = Signal.TRACES, **options: Any) -> bytes:
        """Send over gRPC; raises AioRpcError."""
        if not self.channels:
            self.channel()
        return await self.channels[0].unary_unary(METHOD_OF[signal])(body, timeout=30, **options)

    async def refused(
        self, body: bytes, signal: Signal = Signal.TRACES, **options: Any
    ) -> grpc.aio.AioRpcError:
        """Send over gRPC what must be refused."""
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.export(body, signal, **options)
        return caught.value

    async def post(
        self,
        body: bytes,
        content_type: str | None = PROTOBUF,
        *,
        path: str = "/v1/traces",
        method: str = "POST",
        headers: Mapping[str, str] | None = None,
        **options: Any,
    ) -> Reply:
        """Send over HTTP."""
        sent = dict(headers or {})
        if content_type is not None:
            sent["Content-Type"] = content_type
        url = f"http://127.0.0.1:{self.receiver.http_port}{path}"
        async with self.session.request(
            method, url, data=io.BytesIO(body), headers=sent, skip_auto_headers=("Content-Type",), **options
        ) as response:
            return Reply(response.status, response.headers, await response.read())

    def value(self, metric: Metric, **labels: str) -> float:
        """A metric's value."""
        return self.telemetry.value(metric, **labels)


Start = "Callable[..., Awaitable[Running]]"


@pytest.fixture
async def start() -> AsyncIterator[Callable[..., Awaitable[Running]]]:
    """Starts receivers on ports of the system's choice; `grpc` and `http` are their further settings."""
    running: list[Running] = []

    async def run(
        sink: ConsumerSink | None = None,
        *,
        grpc: Mapping[str, Any] | None = None,
        http: Mapping[str, Any] | None = None,
    ) -> Running:
        endpoint = {"endpoint": "127.0.0.1:0"}
        protocols = {"grpc": endpoint | dict(grpc or {}), "http": endpoint | dict(http or {})}
        sink = sink if sink is not None else ConsumerSink()
        telemetry = Telemetry()
        receiver = OtlpReceiver(OtlpReceiverConfig.model_validate({"protocols": protocols}), sink, telemetry)
        await receiver.start()
        one = Running(receiver, sink, telemetry, aiohttp.ClientSession(auto_decompress=False))
        running.append(one)
        return one

    yield run
    for one in running:
        for channel in one.channels:
            await channel.close()
        await one.session.close()
        await one.receiver.stop(0.1)
