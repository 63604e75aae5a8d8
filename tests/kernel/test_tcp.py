"""TCP events: counted against what was caused, each on the span that it hit."""

from __future__ import annotations

import errno
import ipaddress
import subprocess

import pytest

from otel_bridge.model import KernelEventKind, Match
from tests.support.kernel import followed, monitoring

pytestmark = pytest.mark.usefixtures("each_backend")

PRIME = 23
SPANS = range(1, 14)


@pytest.mark.parametrize("model", ["global-dynamic", "initial-exec"])
def test_refused_connections_are_on_the_span_that_was_refused(start_worker, build, closed_port, model):
    """Thirteen threads at once, whichever way their TLS variable is reached."""
    worker = start_worker(build(f"-ftls-model={model}"))
    with monitoring("tcp") as monitor:
        followed(monitor, worker.pid)
        worker.do(*({"do": "refuse", "span": n, "port": closed_port, "times": PRIME} for n in SPANS))
    expected = dict.fromkeys(SPANS, PRIME)
    for kind in (KernelEventKind.TCP_CONNECT, KernelEventKind.TCP_RESET_RECEIVED):
        assert monitor.events.per_span(kind, match=Match.SOCKET) == expected
        # Nothing of this process is left without its span.
        assert len(monitor.events.of(kind, tgid=worker.pid)) == PRIME * len(SPANS)
    refused = monitor.events.of(KernelEventKind.TCP_CONNECT, tgid=worker.pid)
    assert set(refused["error"]) == {-111}
    assert set(refused["remote_port"]) == {closed_port}
    assert (refused["duration"] > 0).all()


def test_connections_that_are_made_carry_their_latency_and_addresses(worker, listening_port):
    """One event an attempt, with the ports that the program saw."""
    with monitoring("tcp") as monitor:
        followed(monitor, worker.pid)
        [ports] = worker.do({"do": "connect", "span": 1, "port": listening_port, "times": PRIME})
    made = monitor.events.on_span(KernelEventKind.TCP_CONNECT, 1)
    assert sorted(made["local_port"].tolist()) == sorted(ports)
    assert set(made["error"]) == {0}
    assert (made["duration"] > 0).all()
    addresses = {ipaddress.ip_address(bytes(address)).ipv4_mapped for address in made["remote_address"]}
    assert addresses == {ipaddress.ip_address("127.0.0.1")}


def test_connections_for_which_no_port_was_left_say_so(start_worker, namespace):
    """All eleven are held by connections in TIME_WAIT."""
    set_range = "net.ipv4.ip_local_port_range=40000 40010"
    subprocess.run([*namespace, "sysctl", "-qw", set_range, "net.ipv4.tcp_tw_reuse=0"], check=True)
    worker = start_worker(prefix=namespace)
    with monitoring("tcp") as monitor:
        followed(monitor, worker.pid)
        [port] = worker.do({"do": "serve"})
        [errors] = worker.do({"do": "exhaust", "span": 1, "port": port, "times": 11 + PRIME})
    assert errors[-PRIME:] == [errno.EADDRNOTAVAIL] * PRIME
    attempts = monitor.events.on_span(KernelEventKind.TCP_CONNECT, 1)
    assert sorted(attempts["error"].tolist()) == sorted(-error for error in errors)


def test_fast_connections_are_no_events_where_a_threshold_says_so(worker, listening_port, closed_port):
    """Failures are events all the same."""
    with monitoring("tcp", tcp={"connect_threshold": "10s"}) as monitor:
        followed(monitor, worker.pid)
        worker.do(
            {"do": "connect", "span": 1, "port": listening_port, "times": PRIME},
            {"do": "refuse", "span": 2, "port": closed_port, "times": PRIME},
        )
    assert monitor.events.per_span(KernelEventKind.TCP_CONNECT, match=Match.SOCKET) == {2: PRIME}


def test_resets_are_on_the_span_that_sent_them(worker, listening_port):
    """A connection that is closed with unsent data thrown away."""
    with monitoring("tcp") as monitor:
        followed(monitor, worker.pid)
        worker.do(*({"do": "abort", "span": n, "port": listening_port, "times": PRIME} for n in SPANS))
    sent = monitor.events.per_span(KernelEventKind.TCP_RESET_SENT, match=Match.SOCKET)
    assert sent == dict.fromkeys(SPANS, PRIME)


def test_a_connection_used_without_a_span_forgets_the_last_one(worker, listening_port):
    """Case ebpf-context-leak: what follows a request on its connection is not the request's."""
    with monitoring("tcp") as monitor:
        followed(monitor, worker.pid)
        job = {"do": "abort", "span": 1, "port": listening_port, "times": PRIME, "clear_first": True}
        worker.do(job)
    resets = monitor.events.of(KernelEventKind.TCP_RESET_SENT, tgid=worker.pid)
    assert len(resets) == PRIME
    assert set(resets["match"]) == {Match.NONE}
    assert set(resets["span_id"].tolist()) == {b"\0" * 8}


def test_without_a_published_span_events_have_none(worker, closed_port):
    """They still tell the process."""
    with monitoring("tcp") as monitor:
        followed(monitor, worker.pid)
        worker.do({"do": "refuse", "port": closed_port, "times": PRIME})
    refused = monitor.events.of(KernelEventKind.TCP_CONNECT, tgid=worker.pid)
    assert len(refused) == PRIME
    assert set(refused["match"]) == {Match.NONE}
