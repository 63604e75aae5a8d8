"""Connections on which nobody reads: who waits to send, and whose queue is full."""

from __future__ import annotations

import errno
import fcntl
import socket
import subprocess
import sys
import termios
import time
from contextlib import contextmanager
from threading import Event, Thread

import numpy as np
import pytest

from otel_bridge.model import KernelEventKind, Match
from tests.support.kernel import eventually, followed, monitoring

pytestmark = pytest.mark.usefixtures("each_backend")

PRIME = 23
HOLD = 0.3
MUCH = 8 << 20


@contextmanager
def serving(handle):
    """A server that does this with each connection, in a thread of its own; answers the port."""
    server = socket.create_server(("127.0.0.1", 0), backlog=64)
    threads: list[Thread] = []

    def accept() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threads.append(Thread(target=handle, args=(connection,), daemon=True))
            threads[-1].start()

    thread = Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield server.getsockname()[1]
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        for running in (thread, *threads):
            running.join()


def unread(connection: socket.socket) -> int:
    """Bytes that came and wait."""
    return int.from_bytes(fcntl.ioctl(connection, termios.FIONREAD, bytes(4)), sys.byteorder)


def wait_until_full(connection: socket.socket, hold: float) -> None:
    """Until the queue has had something in it, and no more came, for so many seconds."""
    # A busy sender takes its time to fill it, and the window is closed from then on only.
    since, before = time.monotonic(), 0
    while before == 0 or time.monotonic() < since + hold:
        if (now := unread(connection)) != before:
            since, before = time.monotonic(), now
        time.sleep(HOLD / 10)


def read_all(connection: socket.socket) -> None:
    """To its end."""
    while connection.recv(1 << 20):
        pass


class LateReader:
    """Reads nothing until the queue has been full for a while, then everything.

    Attributes:
        took: seconds that reading took, by the sender's port.
    """

    def __init__(self, hold: float = HOLD) -> None:
        self.took: dict[int, float] = {}
        self._hold = hold

    def __call__(self, connection: socket.socket) -> None:
        with connection:
            wait_until_full(connection, self._hold)
            began = time.monotonic()
            read_all(connection)
            self.took[connection.getpeername()[1]] = time.monotonic() - began


def send_much(connection: socket.socket) -> None:
    """More than queues hold."""
    with connection:
        connection.sendall(bytes(MUCH))


def test_a_peer_that_does_not_read_is_on_the_span_that_waits(worker):
    """From the segment that closed the window to the one that opened it."""
    reader = LateReader()
    with serving(reader) as port, monitoring("tcp") as monitor:
        followed(monitor, worker.pid)
        for number in range(1, PRIME + 1):
            # One after the other: short of memory, the kernel makes windows small instead of zero.
            worker.do({"do": "upload", "span": number, "port": port, "size": MUCH, "times": 1})
    stalls = monitor.events.per_span(KernelEventKind.TCP_ZERO_WINDOW, match=Match.SOCKET)
    assert set(stalls) == set(range(1, PRIME + 1))
    for number in stalls:
        records = monitor.events.on_span(KernelEventKind.TCP_ZERO_WINDOW, number)
        # Once for as long as nobody reads; perhaps again while the reader is outrun.
        first, *later = records[np.argsort(records["time"])]["duration"].tolist()
        assert first >= HOLD / 2 * 1e9
        assert sum(later) <= reader.took[int(records["local_port"][0])] * 1e9
        assert (records["bytes"] > 0).all()
        assert set(records["remote_port"]) == {port}


def test_a_stall_that_is_older_than_the_probe_is_told_from_its_beginning():
    """As one whose beginning nobody saw."""
    stalled, released = Event(), Event()

    def read_late(connection: socket.socket) -> None:
        with connection:
            wait_until_full(connection, HOLD)
            stalled.set()
            released.wait()
            read_all(connection)

    began = time.monotonic()
    with serving(read_late) as port:
        sender = socket.create_connection(("127.0.0.1", port))
        own_port = sender.getsockname()[1]
        sending = Thread(target=send_much, args=(sender,))
        sending.start()
        assert stalled.wait(10)
        since = time.monotonic()
        with monitoring("tcp") as monitor:
            time.sleep(HOLD)
            least = time.monotonic() - since
            released.set()
            sending.join()
    most = time.monotonic() - began
    records = monitor.events.of(KernelEventKind.TCP_ZERO_WINDOW)
    first, *_ = records[records["local_port"] == own_port]["duration"].tolist()
    assert least * 1e9 <= first <= most * 1e9


def test_short_stalls_are_no_events_where_a_threshold_says_so(worker):
    """The long one is left, one a connection."""
    late = LateReader(hold=5 * HOLD)
    with serving(late) as port, monitoring("tcp", tcp={"window_threshold": 3 * HOLD}) as monitor:
        followed(monitor, worker.pid)
        worker.do({"do": "upload", "span": 1, "port": port, "size": MUCH, "times": 1})
        worker.do({"do": "upload", "span": 2, "port": port, "size": MUCH, "times": 1})
    stalls = monitor.events.per_span(KernelEventKind.TCP_ZERO_WINDOW, match=Match.SOCKET)
    assert stalls == {1: 1, 2: 1}


def test_a_full_queue_is_on_the_span_that_reads_late(worker):
    """Where the thread is that reads: there is one to ask."""
    with serving(send_much) as port, monitoring("tcp") as monitor:
        followed(monitor, worker.pid)
        job = {"do": "download", "span": 1, "port": port, "seconds": HOLD / 2, "times": PRIME}
        [received] = worker.do(job)
    assert received == PRIME * MUCH
    found = monitor.events.on_span(KernelEventKind.RECEIVE_QUEUE_FULL, 1)
    assert len(set(found["local_port"].tolist())) == PRIME
    assert set(found["match"]) == {Match.THREAD}
    assert set(found["remote_port"]) == {port}
    assert set(found["protocol"]) == {socket.IPPROTO_TCP}


def test_a_connection_that_ends_while_its_peer_reads_nothing_is_told(worker):
    """Nobody opened the window."""
    held: list[socket.socket] = []
    with serving(held.append) as port, monitoring("tcp") as monitor:
        followed(monitor, worker.pid)
        worker.do({"do": "stall", "span": 1, "port": port, "seconds": HOLD, "times": PRIME})
        eventually(
            "all are told",
            lambda: len(monitor.events.on_span(KernelEventKind.TCP_ZERO_WINDOW, 1)) == PRIME,
        )
    records = monitor.events.on_span(KernelEventKind.TCP_ZERO_WINDOW, 1)
    assert (records["duration"] >= HOLD * 0.8e9).all()
    for connection in held:
        connection.close()


@pytest.mark.parametrize("protocol", [socket.IPPROTO_UDP, socket.IPPROTO_ICMP], ids=["udp", "ping"])
def test_packets_that_find_no_room_are_on_the_span_that_reads_the_socket(start_worker, namespace, protocol):
    """As many as the socket itself counts."""
    subprocess.run([*namespace, "sysctl", "-qw", "net.ipv4.ping_group_range=0 0"], check=True)
    worker = start_worker(prefix=namespace)
    with monitoring("tcp") as monitor:
        followed(monitor, worker.pid)
        [lost] = worker.do({"do": "lose", "span": 1, "protocol": protocol, "times": PRIME})
    found = monitor.events.per_span(KernelEventKind.RECEIVE_QUEUE_FULL, match=Match.SOCKET)
    assert found == {1: lost}
    records = monitor.events.on_span(KernelEventKind.RECEIVE_QUEUE_FULL, 1)
    assert set(records["protocol"]) == {protocol}
    assert set(records["error"]) == {-errno.ENOMEM}
