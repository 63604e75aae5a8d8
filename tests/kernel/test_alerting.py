"""The default composite by real events: a slow TLS peer, a failed allocation, and who hears of it."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import trustme

from tests.support.alertmanager import COMPOSITE, composite_in, rules_settings, surroundings
from tests.support.gpu import SCENARIO, Scenario, build
from tests.support.kernel import trace_id
from tests.support.ports import free_port
from tests.support.processes import Bridge, eventually, needs_command, running

HERE = Path(__file__).parent
DELAY = 0.6
FLAGS = ("-shared", "-fPIC", "-O1", "-fno-inline", "-fno-optimize-sibling-calls", "-pthread")


@pytest.fixture
def program(tmp_path, monkeypatch):
    """A library that publishes spans and allocates by a stand-in for CUDA, which has room for 1 MiB."""
    needs_command("cc", "gcc")
    directory = build(tmp_path)
    scenario = Scenario(tmp_path / "scenario")
    scenario.play(f"cuda {1 << 20}")
    monkeypatch.setenv(SCENARIO, str(scenario.path))
    path = directory / "program.so"
    libraries = [directory / "libcudart.so.12", directory / "libcuda.so.1"]
    sources = (HERE / "cuda_functions.c", HERE / "publisher.c")
    subprocess.run(["cc", *FLAGS, *sources, "-Wl,-rpath,$ORIGIN", "-o", path, *libraries], check=True)
    return path


@contextmanager
def serving(accept):
    """A server on loopback, each connection in a thread; its port."""
    server = socket.create_server(("127.0.0.1", 0), backlog=16)

    def serve() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=accept, args=(server.accept()[0],), daemon=True).start()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield server.getsockname()[1]
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join()


@contextmanager
def slow_peer(authority: trustme.CA):
    """A TLS server behind a line that is slow at first: to both ends the handshake takes long."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)

    def answer(connection: socket.socket) -> None:
        with suppress(OSError), context.wrap_socket(connection, server_side=True) as secure:
            while data := secure.recv(1024):
                secure.sendall(data)

    with serving(answer) as port:

        def relay(near: socket.socket) -> None:
            far = socket.create_connection(("127.0.0.1", port))
            time.sleep(DELAY)
            back = threading.Thread(target=pipe, args=(far, near), daemon=True)
            back.start()
            pipe(near, far)
            back.join()
            near.close()
            far.close()

        with serving(relay) as line:
            yield line


def pipe(source: socket.socket, target: socket.socket) -> None:
    """Pass on until the end."""
    with suppress(OSError):
        while data := source.recv(4096):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


def test_a_slow_peer_and_a_failed_allocation_reach_a_webhook_once(start_worker, program, tmp_path):
    """Three slow handshakes in a row, one allocation without memory; the traces that suffered are named."""
    authority = trustme.CA()
    cafile = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(cafile)
    worker = start_worker(program)
    rules, metrics = composite_in(tmp_path), free_port()
    probes = ("tcp", "sched", "block", "memory", "requests", "tls_requests", "user")
    with surroundings(tmp_path, rules, metrics) as (webhook, alertmanager, prometheus):
        kernel = {
            "mode": "required",
            "drop_privileges": False,
            "probes": {**{name: {"enabled": False} for name in probes}, "cuda": {"enabled": True}},
        }
        config = {"kernel": kernel, "rules": rules_settings(rules, alertmanager.url, metrics)}
        with running(Bridge(tmp_path / "bridge", config, metrics_port=metrics)) as bridge:
            covered(bridge, worker)
            eventually("Prometheus scrapes the bridge", lambda: prometheus.values("up == 1"))
            with slow_peer(authority) as port:
                job = {"do": "tls", "span": 1, "port": port, "cafile": str(cafile), "times": 3}
                assert worker.do(job) == [["TLSv1.3"] * 3]
            allocate(worker, 2 << 20, 2)
            [alert] = eventually("the webhook is told", lambda: webhook.alerts("firing"))
            assert alert["labels"]["alertname"] == COMPOSITE
            told = alert["annotations"]["trace_ids"]
            assert {trace_id(1).hex(), trace_id(2).hex()} <= set(told.split(", "))
            eventually("Prometheus told Alertmanager", lambda: prometheus.notifications() > 0)
            eventually("the webhook is told that it ended", lambda: webhook.alerts("resolved"))
            time.sleep(5)
            assert [len(webhook.alerts(status)) for status in ("firing", "resolved")] == [1, 1]
            assert bridge.total("otel_bridge_rules_firings_total", rule=COMPOSITE) == 1


def covered(bridge: Bridge, worker) -> None:
    """Wait until a failed allocation of the worker is seen."""

    def seen() -> bool:
        allocate(worker, 2 << 20, 3)
        return bridge.total("otel_bridge_kernel_events_total", kind="cuda_alloc") > 0

    eventually("CUDA is covered", seen)
    # What was seen so far must be out of the window of the composite.
    time.sleep(6)


def allocate(worker, size: int, span: int) -> None:
    """One allocation."""
    worker.do(
        {"do": "call_function", "function": "runtime_alloc", "arguments": [size], "times": 1, "span": span}
    )
