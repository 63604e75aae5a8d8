"""The smallest OTLP clients, for what a receiver is asked and what it answers."""

from __future__ import annotations

import asyncio
import contextlib
import io
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc.aio
import h2.config
import h2.connection
import h2.events
import h2.exceptions
import pytest
from google.protobuf import json_format
from google.rpc import error_details_pb2, status_pb2

from otel_bridge.model import Signal
from otel_bridge.receivers.otlp.grpc import METHODS

if TYPE_CHECKING:
    from collections.abc import Mapping

    import aiohttp

    from otel_bridge.catalog import Metric
    from otel_bridge.receivers.otlp.receiver import OtlpReceiver
    from otel_bridge.telemetry import Telemetry
    from otel_bridge.testing import ConsumerSink

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
        return await self.channels[0].unary_unary(METHOD_OF[signal])(body, timeout=60, **options)

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


class Http2:
    """A gRPC client made by hand, for what no library would send."""

    def __init__(self, running) -> None:
        self._port = running.receiver.grpc_port
        self._state = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        self._over = False
        self.headers: dict[bytes, bytes] = {}

    async def __aenter__(self):
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._state.initiate_connection()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()

    async def send(self, data: bytes, *, end: bool = True, **headers: str) -> None:
        """Begin a call with further headers, and send data on it, as fast as the receiver takes it."""
        fields = {":method": "POST", ":scheme": "http", ":path": METHOD_OF[Signal.TRACES], ":authority": "x"}
        fields |= {"te": "trailers", "content-type": "application/grpc"}
        fields |= {name.replace("_", "-"): value for name, value in headers.items()}
        self._state.send_headers(1, list(fields.items()))
        while not self._over:
            size = min(self._state.local_flow_control_window(1), self._state.max_outbound_frame_size)
            if data and not size:
                await self._receive()
                continue
            piece, data = data[:size], data[size:]
            self._state.send_data(1, piece, end_stream=end and not data)
            self._writer.write(self._state.data_to_send())
            await self._writer.drain()
            if not data:
                break

    async def status(self) -> int | None:
        """The grpc-status of the answer; None when there was none."""
        async with asyncio.timeout(30):
            while not self._over:
                await self._receive()
        status = self.headers.get(b"grpc-status")
        return None if status is None else int(status)

    async def closed(self, *, answering: bool = True) -> None:
        """Wait until the receiver closes the connection, answering its pings or not."""
        while data := await self._reader.read(65536):
            if answering:
                with contextlib.suppress(h2.exceptions.ProtocolError):  # what follows a farewell
                    self._state.receive_data(data)
                self._writer.write(self._state.data_to_send())

    async def _receive(self) -> None:
        data = await self._reader.read(65536)
        for event in self._state.receive_data(data):
            if isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived):
                self.headers |= dict(event.headers)
            self._over |= isinstance(
                event, h2.events.StreamEnded | h2.events.StreamReset | h2.events.ConnectionTerminated
            )
        self._over |= not data
        self._writer.write(self._state.data_to_send())


def framed(message: bytes, *, compressed: bool = False) -> bytes:
    """A gRPC message as it travels."""
    return bytes([compressed]) + len(message).to_bytes(4, "big") + message
