"""A running receiver with a sink behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from otel_bridge.receivers.otlp.config import OtlpReceiverConfig
from otel_bridge.receivers.otlp.receiver import OtlpReceiver
from otel_bridge.telemetry import Telemetry
from otel_bridge.testing import ConsumerSink
from tests.support.otlp_clients import Running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping


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
