"""Programs that publish nothing: their events are on the span that called them, by the requests they read.

Every server here is a process without our publisher or anybody else's (silent.py). What it is asked to do is
seen as refused connections, whose address tells which request they were for.
"""

from __future__ import annotations

import socket
import struct
import sys
import time
from pathlib import Path
from threading import Thread

import pytest

from otel_bridge import catalog
from otel_bridge.model import KernelEventKind, Match
from tests.support.http_requests import (
    Silent,
    answered,
    connected,
    numbers,
    refused,
    request,
    traceparent,
)
from tests.support.kernel import config, covers, eventually, in_threads, monitoring, span_id

PRIME = 23
SILENT = Path(__file__).parent / "silent.py"
TCP_CONNECT = KernelEventKind.TCP_CONNECT


@pytest.fixture
def serve():
    """Starts servers, and ends them with the test."""
    servers: list[Silent] = []

    def start(kind: str, *certificate: str) -> Silent:
        servers.append(Silent(sys.executable, str(SILENT), kind, *certificate))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


def received(monitor, times: int) -> None:
    """Wait until so many resets of this test came: a busy CPU takes packets in later."""

    def resets() -> int:
        return monitor.events.per_span(KernelEventKind.TCP_RESET_RECEIVED, match=Match.HEADER).total()

    eventually(f"{times} resets", lambda: resets() >= times)


@pytest.mark.parametrize("size", [0, 70_000])
def test_each_request_of_a_connection_has_its_own_span_or_none(serve, closed_port, size):
    """Case ebpf-context-leak: kept alive, every second request without a traceparent."""
    server = serve("threads")
    with monitoring("tcp", "requests") as monitor, connected(server.port) as connection:
        for number in range(1, PRIME + 1):
            named = [traceparent(number)] if number % 2 else []
            connection.sendall(request(*named, refused(number, closed_port), body=b"POST " * (size // 5)))
            answered(connection)
    found = numbers(monitor.events.of(TCP_CONNECT, tgid=server.pid))
    assert found == {(number, number * (number % 2)): 3 for number in range(1, PRIME + 1)}


def test_requests_are_found_beside_the_probe_that_calls_their_programs_and_without_it(serve):
    """Each way, and after each change of ways: read twice, a header would be two requests, and nobody's."""
    server = serve("threads")
    waits = {"off_cpu_threshold": "10ms", "run_queue_threshold": "10s"}
    with monitoring("tcp", "sched", "requests", sched=waits) as monitor, connected(server.port) as connection:
        for number, others in enumerate((("tcp",), (), ("tcp",)), start=1):
            monitor.reload(config("sched", "requests", *others, sched=waits))
            for _ in range(PRIME):
                connection.sendall(request(traceparent(number), "x-sleep: 0.02\r\n"))
                answered(connection)
    found = monitor.events.per_span(KernelEventKind.SCHED_WAIT, match=Match.HEADER)
    assert found == dict.fromkeys(range(1, 4), PRIME)


def test_a_thread_is_at_nothing_once_its_answer_began(serve, closed_port):
    """What it does then may be for anybody; the socket goes on as the request's."""
    server = serve("threads")
    with monitoring("tcp", "requests") as monitor:
        for number in range(1, PRIME + 1):
            with connected(server.port) as connection:
                connection.sendall(
                    request(traceparent(number), refused(number, closed_port), "x-late: 1\r\n")
                )
                answered(connection)
        eventually(
            "everything is refused", lambda: len(monitor.events.of(TCP_CONNECT, tgid=server.pid)) >= 3 * PRIME
        )
    found = numbers(monitor.events.of(TCP_CONNECT, tgid=server.pid))
    assert found == {(number, 0): 3 for number in range(1, PRIME + 1)}


def test_connections_that_the_client_resets_are_on_its_span(serve):
    """In softirq, where there is no thread to ask: by the socket."""
    server = serve("threads")
    with monitoring("tcp", "requests") as monitor:
        for number in range(1, PRIME + 1):
            with connected(server.port) as connection:
                connection.sendall(request(traceparent(number), "x-wait: 1\r\n"))
                assert server.process.stdout.readline() == "at it\n"
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        received(monitor, PRIME)
    resets = monitor.events.per_span(KernelEventKind.TCP_RESET_RECEIVED, match=Match.HEADER)
    assert resets == dict.fromkeys(range(1, PRIME + 1), 1)


def test_a_header_that_comes_in_pieces(serve, closed_port):
    """Cut at as many places, within the name and the value as well; each piece is read on its own."""
    server = serve("threads")
    with monitoring("tcp", "requests") as monitor, connected(server.port) as connection:
        for number in range(1, PRIME + 1):
            whole = request("Accept: */*\r\n", traceparent(number), refused(number, closed_port))
            cut = 4 + number * (len(whole) - 8) // PRIME
            for piece in (whole[:cut], whole[cut : cut + 3], whole[cut + 3 :]):
                connection.sendall(piece)
                time.sleep(0.01)
            answered(connection)
    found = numbers(monitor.events.of(TCP_CONNECT, tgid=server.pid))
    assert found == {(number, number): 3 for number in range(1, PRIME + 1)}


def test_no_request_of_an_event_loop_is_taken_for_another(serve, closed_port):
    """One thread with 64 connections: it is not believed, its sockets are."""
    server = serve("asyncio")
    with monitoring("tcp", "requests") as monitor:

        def ask(number: int) -> None:
            with connected(server.port) as connection:
                order = refused(number, closed_port)
                connection.sendall(request(traceparent(number), order, "x-sleep: 0.2\r\n"))
                answered(connection)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

        in_threads(*(lambda number=number: ask(number) for number in range(1, 65)))
        received(monitor, 64)
    found = numbers(monitor.events.of(TCP_CONNECT, tgid=server.pid))
    assert sum(found.values()) == 3 * 64
    assert all(span in (0, number) for number, span in found)
    resets = monitor.events.per_span(KernelEventKind.TCP_RESET_RECEIVED, match=Match.HEADER)
    assert resets == dict.fromkeys(range(1, 65), 1)


def test_waits_within_a_request_are_its_span_s_and_idling_between_requests_is_not(serve):
    """The thread sleeps for 70 ms in each, and 200 ms on the connection after each."""
    server = serve("threads")
    sched = {"off_cpu_threshold": "60ms", "run_queue_threshold": "10s"}
    with monitoring("sched", "requests", sched=sched) as monitor, connected(server.port) as connection:
        for number in range(1, 12):
            connection.sendall(request(traceparent(number), "x-sleep: 0.07\r\n"))
            answered(connection)
            time.sleep(0.2)
    waits = monitor.events.per_span(KernelEventKind.SCHED_WAIT, match=Match.HEADER)
    assert waits == dict.fromkeys(range(1, 12), 1)
    off_cpu = monitor.events.of(KernelEventKind.SCHED_WAIT, tgid=server.pid)["off_cpu_ns"]
    assert (off_cpu < 150_000_000).all()


def test_what_two_programs_do_for_one_caller_is_summed_apart(serve):
    """Both sums carry the caller's ids; which span they belong to only their process tells."""
    servers = serve("threads"), serve("threads")
    with monitoring("sched", "requests", sum_interval="30s") as monitor:
        for server, seconds in zip(servers, (0.1, 0.3), strict=True):
            with connected(server.port) as connection:
                connection.sendall(request(traceparent(1), f"x-sleep: {seconds}\r\n"))
                answered(connection)
    for server, least, most in zip(servers, (0.1, 0.3), (0.25, 0.6), strict=True):
        (row,) = monitor.events.of(KernelEventKind.SCHED_SUM, tgid=server.pid)
        assert bytes(row["span_id"]) == span_id(1)
        assert row["match"] == Match.HEADER
        # A sleep's timer runs before its thread has left the CPU.
        assert least * 1e9 - 1e6 <= row["off_cpu_ns"] <= most * 1e9


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("ff-" + "1" * 32 + "-" + "1" * 16 + "-01", "header"),
        ("00-" + "A" * 32 + "-" + "1" * 16 + "-01", "header"),
        ("00-" + "1" * 31 + "-" + "1" * 16 + "-01", "header"),
        ("00-" + "0" * 32 + "-" + "1" * 16 + "-01", "zero"),
        ("00-" + "1" * 32 + "-" + "0" * 16 + "-01", "zero"),
    ],
)
def test_what_is_no_traceparent_is_no_span_and_counted(serve, closed_port, value, reason):
    """By the rules of W3C Trace Context."""
    server = serve("threads")
    with monitoring("tcp", "requests") as monitor, connected(server.port) as connection:
        for number in range(1, PRIME + 1):
            connection.sendall(request(f"traceparent: {value}\r\n", refused(number, closed_port)))
            answered(connection)
    found = numbers(monitor.events.of(TCP_CONNECT, tgid=server.pid))
    assert found == {(number, 0): 3 for number in range(1, PRIME + 1)}
    counted = monitor.telemetry.value(catalog.KERNEL_BAD_CONTEXTS, probe="requests", reason=reason)
    assert counted == PRIME


def test_where_requests_are_not_looked_for_there_are_no_spans(serve, closed_port):
    """Switched off."""
    server = serve("threads")
    with monitoring("tcp") as monitor, connected(server.port) as connection:
        connection.sendall(request(traceparent(1), refused(1, closed_port, PRIME)))
        answered(connection)
    assert numbers(monitor.events.of(TCP_CONNECT, tgid=server.pid)) == {(1, 0): PRIME}


def covered(monitor, server) -> None:
    """Wait until the server's libssl is; others may be as well."""
    eventually("libssl is covered", lambda: covers(monitor, "tls_requests", server.pid, "libssl"))


def test_encrypted_requests_have_their_own_span_or_none(serve, closed_port, identity):
    """Python reads them by SSL_read_ex(): the length is in its out-argument."""
    certificate, trusting = identity
    server = serve("threads", certificate)
    with monitoring("tcp", "requests", "tls_requests") as monitor:
        covered(monitor, server)
        with connected(server.port, trusting) as connection:
            for number in range(1, PRIME + 1):
                named = [traceparent(number)] if number % 2 else []
                connection.sendall(request(*named, refused(number, closed_port)))
                answered(connection)
    found = numbers(monitor.events.of(TCP_CONNECT, tgid=server.pid))
    assert found == {(number, number * (number % 2)): 3 for number in range(1, PRIME + 1)}


def test_encrypted_requests_that_are_read_by_ssl_read(serve, closed_port, identity):
    """The length is what it returns."""
    certificate, trusting = identity
    server = serve("ssl_read", certificate)
    with monitoring("tcp", "requests", "tls_requests") as monitor:
        covered(monitor, server)
        for number in range(1, PRIME + 1):
            with connected(server.port, trusting) as connection:
                connection.sendall(request(traceparent(number), refused(number, closed_port)))
                answered(connection)
    found = numbers(monitor.events.of(TCP_CONNECT, tgid=server.pid))
    assert found == {(number, number): 3 for number in range(1, PRIME + 1)}


def test_no_encrypted_request_of_an_event_loop_is_taken_for_another(serve, closed_port, identity):
    """Decrypted in memory, so that libssl knows no socket: the one it received from last is it."""
    certificate, trusting = identity
    server = serve("asyncio", certificate)
    with monitoring("tcp", "requests", "tls_requests") as monitor:
        covered(monitor, server)

        def ask(number: int) -> None:
            with connected(server.port, trusting) as connection:
                order = refused(number, closed_port)
                connection.sendall(request(traceparent(number), order, "x-sleep: 0.3\r\n"))
                answered(connection)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                socket.socket(fileno=connection.detach()).close()

        in_threads(*(lambda number=number: ask(number) for number in range(1, PRIME + 1)))
        received(monitor, PRIME)
    found = numbers(monitor.events.of(TCP_CONNECT, tgid=server.pid))
    assert sum(found.values()) == 3 * PRIME
    assert all(span in (0, number) for number, span in found)
    resets = monitor.events.per_span(KernelEventKind.TCP_RESET_RECEIVED, match=Match.HEADER)
    assert resets == dict.fromkeys(range(1, PRIME + 1), 1)


def test_a_server_under_load_is_never_wrong(serve, closed_port):
    """Sixteen connections at once, eleven requests on each."""
    server = serve("threads")
    with monitoring("tcp", "requests") as monitor:

        def converse(first: int) -> None:
            with connected(server.port) as connection:
                for number in range(first, first + 11):
                    connection.sendall(request(traceparent(number), refused(number, closed_port)))
                    answered(connection)

        threads = [Thread(target=converse, args=(first,)) for first in range(1, 177, 11)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = numbers(monitor.events.of(TCP_CONNECT, tgid=server.pid))
    assert found == {(number, number): 3 for number in range(1, 177)}
