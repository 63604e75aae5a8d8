"""Start and stop: ports, who holds them, and what happens to requests in flight."""

from __future__ import annotations

import asyncio
import os
import socket

import grpc
import psutil
import pytest

from otel_bridge.errors import StartError
from otel_bridge.model import Signal
from otel_bridge.receivers.otlp.config import OtlpReceiverConfig
from otel_bridge.receivers.otlp.receiver import OtlpReceiver
from otel_bridge.telemetry import Telemetry
from otel_bridge.testing import ConsumerSink, trace_request
from tests.support.exporter_stubs import until
from tests.support.otlp_clients import METHOD_OF, PROTOBUF

REQUEST = trace_request([{}])
EXPORT = METHOD_OF[Signal.TRACES]


def receiver_of(**protocols) -> OtlpReceiver:
    return OtlpReceiver(
        OtlpReceiverConfig.model_validate({"protocols": protocols}), ConsumerSink(), Telemetry()
    )


@pytest.fixture
def taken_port():
    """A port of this process that listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def listening_ports() -> set[int]:
    connections = psutil.Process().net_connections("tcp")
    return {found.laddr.port for found in connections if found.status == psutil.CONN_LISTEN}


class TestStart:
    async def test_ports_of_the_systems_choice_are_told(self, start):
        running = await start()
        assert {running.receiver.grpc_port, running.receiver.http_port} <= listening_ports()

    async def test_a_protocol_that_is_not_enabled_has_no_port(self, start):
        running = await start(http={"enabled": False})
        assert running.receiver.http_port is None
        assert await running.export(REQUEST) == b""

    @pytest.mark.parametrize("protocol", ["grpc", "http"])
    async def test_a_port_in_use(self, taken_port, protocol):
        free = {"endpoint": "127.0.0.1:0"}
        receiver = receiver_of(
            **{"grpc": free, "http": free, protocol: {"endpoint": f"127.0.0.1:{taken_port}"}}
        )
        before = listening_ports()
        with pytest.raises(StartError) as caught:
            await receiver.start()
        message = str(caught.value)
        assert f"port {taken_port} is in use by" in message
        assert f"pid {os.getpid()}" in message
        assert f"receivers.otlp.protocols.{protocol}.endpoint" in message
        await until(lambda: listening_ports() == before)  # all ports or none

    @pytest.mark.parametrize("protocol", ["grpc", "http"])
    async def test_two_receivers_never_share_a_port(self, start, protocol):
        running = await start()
        port = getattr(running.receiver, f"{protocol}_port")
        with pytest.raises(StartError, match="in use"):
            await start(**{protocol: {"endpoint": f"127.0.0.1:{port}"}})

    @pytest.mark.parametrize("protocol", ["grpc", "http"])
    @pytest.mark.parametrize("endpoint", ["192.0.2.1:4317", "nowhere.invalid:4317"])
    async def test_an_address_that_is_not_ours(self, start, protocol, endpoint):
        with pytest.raises(StartError) as caught:
            await start(**{protocol: {"endpoint": endpoint}})
        assert f"cannot listen on {endpoint}" in str(caught.value)

    @pytest.mark.parametrize("host", ["[::1]", "localhost"])
    async def test_other_ways_to_name_this_machine(self, start, host):
        if host == "[::1]" and not has_ipv6():
            pytest.skip("this machine has no IPv6 loopback")
        running = await start(grpc={"endpoint": f"{host}:0"}, http={"endpoint": f"{host}:0"})
        async with grpc.aio.insecure_channel(f"{host}:{running.receiver.grpc_port}") as channel:
            assert await channel.unary_unary(EXPORT)(REQUEST, timeout=10) == b""
        url = f"http://{host}:{running.receiver.http_port}/v1/traces"
        async with running.session.post(url, data=REQUEST, headers={"Content-Type": PROTOBUF}) as response:
            assert response.status == 200


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


class TestStop:
    async def test_requests_in_flight_are_answered(self, start):
        running = await start(ConsumerSink(held=(held := asyncio.Event())))
        pending = asyncio.gather(running.export(REQUEST), running.post(REQUEST))
        await until(lambda: running.sink.at_work == 2)
        stopping = asyncio.create_task(running.receiver.stop(60))
        await until(lambda: running.receiver.http_port not in listening_ports())
        held.set()
        await stopping
        body, reply = await pending
        assert body == b""
        assert reply.status == 200
        assert len(running.sink.requests) == 2

    async def test_nothing_new_is_taken(self, start):
        running = await start(ConsumerSink(held=(held := asyncio.Event())))
        held.set()
        await running.post(REQUEST)
        held.clear()
        pending = asyncio.create_task(running.post(REQUEST))
        await until(lambda: running.sink.at_work == 1)
        stopping = asyncio.create_task(running.receiver.stop(60))
        ports = {running.receiver.http_port, running.receiver.grpc_port}
        await until(lambda: not ports & listening_ports())
        with pytest.raises(OSError, match="Connect call failed"):
            await running.post(REQUEST)
        assert (await running.refused(REQUEST)).code() is grpc.StatusCode.UNAVAILABLE
        held.set()
        await stopping
        assert (await pending).status == 200

    async def test_the_deadline_holds(self, start):
        running = await start(ConsumerSink(held=asyncio.Event()))
        pending = asyncio.gather(running.export(REQUEST), running.post(REQUEST), return_exceptions=True)
        await until(lambda: running.sink.at_work == 2)
        async with asyncio.timeout(60):
            await running.receiver.stop(0.3)
            results = await pending
        assert all(isinstance(result, Exception) for result in results)
        assert running.sink.requests == []

    async def test_idle_connections_do_not_delay_it(self, start):
        running = await start()
        await running.export(REQUEST)
        await running.post(REQUEST)
        async with asyncio.timeout(60):
            await running.receiver.stop(600)

    async def test_twice_and_before_the_start(self):
        receiver = receiver_of(grpc={"endpoint": "127.0.0.1:0"}, http={"endpoint": "127.0.0.1:0"})
        await receiver.stop(1)
        await receiver.start()
        await receiver.stop(1)
        await receiver.stop(1)

    async def test_ports_are_free_afterwards(self, start):
        running = await start()
        ports = {running.receiver.grpc_port, running.receiver.http_port}
        await running.receiver.stop(1)
        assert not ports & listening_ports()
