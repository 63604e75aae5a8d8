"""TLS handshakes: one event each, however many calls it took (cases ebpf-handshake, ebpf-tls-functions)."""

from __future__ import annotations

import os
import socket
import ssl
import threading
import time
from contextlib import contextmanager, suppress

import numpy as np
import pytest
import trustme

from otel_bridge.kernel.records import TLS_ABANDONED, TlsRole
from otel_bridge.model import KernelEventKind, Match
from tests.support.kernel import covers, eventually, followed, monitoring

pytestmark = pytest.mark.usefixtures("each_backend")

PRIME = 23
HOLD = 0.6
TLS_1_2, TLS_1_3 = 0x0303, 0x0304
SSL_ERROR_SSL = 1


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    """A certificate authority, and its certificate in a file."""
    authority = trustme.CA()
    path = tmp_path_factory.mktemp("tls") / "ca.pem"
    authority.cert_pem.write_to_path(path)
    return authority, str(path)


@contextmanager
def tls_server(authority: trustme.CA, *, hold: float = 0.0):
    """A TLS server that waits before its first flight, no longer than the block; answers the port."""
    ending = threading.Event()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    server = socket.create_server(("127.0.0.1", 0), backlog=64)

    def answer(connection: socket.socket) -> None:
        # From the first byte on: a busy client may connect long before its handshake begins.
        connection.recv(1, socket.MSG_PEEK)
        # The client has begun when its first flight is here.
        with suppress(OSError):
            connection.recv(1, socket.MSG_PEEK)
        ending.wait(hold)
        with suppress(OSError), connection, context.wrap_socket(connection, server_side=True) as secure:
            while data := secure.recv(1024):
                secure.sendall(data)

    def serve() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(server.accept()[0],), daemon=True).start()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield server.getsockname()[1]
    finally:
        ending.set()
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join()


@pytest.fixture
def observed(worker):
    """The TLS probe at work, with the worker followed and its libssl covered."""
    with monitoring("tls") as monitor:
        followed(monitor, worker.pid)
        eventually("libssl is covered", lambda: covers(monitor, "tls", worker.pid, "libssl"))
        yield monitor


def handshakes(monitor, pid, count):
    """All handshakes of a process, once there are `count`; a moment later there must not be more."""
    kind = KernelEventKind.TLS_HANDSHAKE
    eventually(f"{count} handshakes", lambda: len(monitor.events.of(kind, tgid=pid)) >= count)
    time.sleep(0.1)
    found = monitor.events.of(kind, tgid=pid)
    assert len(found) == count
    return found


def test_blocking_handshakes(worker, observed, authority):
    """With the socket's descriptor and the version; the server's side of each is an event too."""
    issuer, cafile = authority
    with tls_server(issuer) as port:
        [versions] = worker.do({"do": "tls", "span": 1, "port": port, "cafile": cafile, "times": PRIME})
        assert versions == ["TLSv1.3"] * PRIME
        of_client = handshakes(observed, worker.pid, PRIME)
        of_server = handshakes(observed, os.getpid(), PRIME)
    assert set(of_client["version"]) == {TLS_1_3}
    assert set(of_client["error"]) == {0}
    assert set(of_client["match"]) == {Match.THREAD}
    assert set(of_client["role"]) == {TlsRole.CLIENT}
    assert (of_client["fd"] > 2).all()
    assert (of_client["duration"] > 0).all()
    assert set(of_server["role"]) == {TlsRole.SERVER}
    assert set(of_server["error"]) == {0}


def test_asyncio_handshakes_with_a_slow_peer_are_one_event_each(worker, observed, authority):
    """From the first call to the one that says done; want-read is no error, and there is no descriptor."""
    issuer, cafile = authority
    with tls_server(issuer, hold=HOLD) as port:
        job = {"do": "tls_asyncio", "span": 1, "port": port, "cafile": cafile, "times": 3}
        [elapsed] = worker.do(job)
        found = handshakes(observed, worker.pid, 3)
    assert (found["duration"] >= HOLD * 1e9).all()
    # Not more than what the client itself waited, the TCP connection included.
    assert (found["duration"] <= np.array(elapsed)).all()
    assert set(found["error"]) == {0}
    assert set(found["fd"]) == {-1}
    assert (found["calls"] > 1).all()
    assert set(found["version"]) == {TLS_1_3}


def test_a_refused_certificate_is_an_error_once(worker, observed, authority):
    """The client trusts nobody who signed it."""
    issuer, _ = authority
    with tls_server(issuer) as port:
        [outcomes] = worker.do({"do": "tls", "span": 1, "port": port, "times": PRIME})
        assert outcomes == ["SSLCertVerificationError"] * PRIME
        found = handshakes(observed, worker.pid, PRIME)
    assert set(found["error"]) == {SSL_ERROR_SSL}


def test_a_handshake_that_is_given_up_is_told(worker, observed, authority):
    """The slowest handshakes are those that nobody waited for."""
    issuer, cafile = authority
    # Much longer than the client waits: a busy one may look late whether there is an answer.
    with tls_server(issuer, hold=60.0) as port:
        job = {"do": "tls", "span": 1, "port": port, "cafile": cafile, "times": 3, "timeout": 0.2}
        [outcomes] = worker.do(job)
        assert outcomes == ["TimeoutError"] * 3
        found = handshakes(observed, worker.pid, 3)
    assert set(found["error"]) == {TLS_ABANDONED}
    assert (found["duration"] >= 0.2e9).all()


def test_nested_calls_count_once_and_finished_ones_not_again(worker, observed, authority):
    """SSL_connect() calls SSL_do_handshake(); called on a finished connection that answers at once."""
    issuer, _ = authority
    with tls_server(issuer) as port:
        [results] = worker.do({"do": "tls_connect", "span": 1, "port": port, "times": PRIME})
        assert results == [1] * (2 * PRIME)
        found = handshakes(observed, worker.pid, PRIME)
    assert set(found["calls"]) == {1}
    assert set(found["role"]) == {TlsRole.CLIENT}


def test_the_version_is_the_one_agreed_on(worker, observed, authority):
    """TLS 1.2 where no more is allowed."""
    issuer, cafile = authority
    with tls_server(issuer) as port:
        job = {"do": "tls", "span": 1, "port": port, "cafile": cafile, "times": 7, "maximum": "TLSv1_2"}
        worker.do(job)
        found = handshakes(observed, worker.pid, 7)
    assert set(found["version"]) == {TLS_1_2}


def test_a_process_that_dies_in_a_handshake_leaves_the_next_ones_right(start_worker, observed, authority):
    """Its half-done handshake is nobody's."""
    issuer, cafile = authority
    with tls_server(issuer, hold=HOLD) as port:
        for _ in range(3):
            doomed = start_worker()
            doomed.send({"do": "tls", "port": port, "cafile": cafile, "times": 1})
            time.sleep(0.2)
            doomed.process.kill()
            doomed.process.wait()
        survivor = start_worker()
        survivor.do({"do": "tls", "port": port, "cafile": cafile, "times": 3})
        found = handshakes(observed, survivor.pid, 3)
    assert set(found["error"]) == {0}
