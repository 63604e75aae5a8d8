"""TCP retransmits: caused for real by dropping packets, counted against the sockets' own figures."""

from __future__ import annotations

import ipaddress
import subprocess

import pytest

from otel_bridge.model import KernelEventKind, Match
from tests.support.kernel import followed, monitoring
from tests.support.processes import needs_command

pytestmark = pytest.mark.usefixtures("each_backend")

SPANS = range(1, 9)
TCP_ESTABLISHED, TCP_SYN_SENT = 1, 2  # net/tcp_states.h


def drop_some(inside, port):
    """Lose three in ten packets to a port; in the input hook, since the output hook tells the sender."""
    rules = f"""
        table inet lossy {{
            chain input {{
                type filter hook input priority 0;
                tcp dport {port} numgen random mod 10 < 3 drop
            }}
        }}
    """
    needs_command("nft", "nftables")
    loaded = subprocess.run(
        [*inside, "nft", "-f", "-"], input=rules, text=True, capture_output=True, check=False
    )
    if loaded.returncode:
        pytest.skip(f"needs nf_tables in the kernel: {loaded.stderr.strip()}")


def assert_as_many(monitor, counted_by_sockets):
    """Each span has the segments that its socket counts."""
    # An event may be two segments that were lost together, or those that the kernel told nobody of.
    records = {
        span: monitor.events.on_span(KernelEventKind.TCP_RETRANSMIT, span) for span in counted_by_sockets
    }
    assert {span: int(records[span]["segments"].sum()) for span in records} == counted_by_sockets


def test_retransmits_are_on_the_span_that_sent(start_worker, namespace):
    """The segments of each span are as many as its socket counts, handshakes included."""
    worker = start_worker(prefix=namespace)
    with monitoring("tcp") as monitor:
        followed(monitor, worker.pid)
        [port] = worker.do({"do": "serve"})
        drop_some(namespace, port)
        jobs = [{"do": "upload", "span": n, "port": port, "size": 40_000, "times": 11} for n in SPANS]
        counted_by_sockets = dict(zip(SPANS, worker.do(*jobs), strict=True))
    assert sum(counted_by_sockets.values()) > len(SPANS), "too few packets were dropped"
    kind = KernelEventKind.TCP_RETRANSMIT
    assert_as_many(monitor, counted_by_sockets)
    records = monitor.events.of(kind, tgid=worker.pid)
    assert set(records["match"]) == {Match.SOCKET}
    assert set(records["remote_port"]) == {port}
    addresses = {ipaddress.ip_address(bytes(address)).ipv4_mapped for address in records["remote_address"]}
    assert addresses == {ipaddress.ip_address("127.0.0.1")}
    # A lost handshake has no payload; what the program sent has, and at most what one call gave.
    established, connecting = (
        records["bytes"][records["state"] == state] for state in (TCP_ESTABLISHED, TCP_SYN_SENT)
    )
    assert len(established) > 0
    assert ((established > 0) & (established <= 40_000)).all()
    assert (connecting == 0).all()


def test_on_a_kept_connection_each_span_has_those_of_its_own_bytes(start_worker, namespace):
    """Also those lost while the call that sends them goes on; between two spans another sends."""
    worker = start_worker(prefix=namespace)
    with monitoring("tcp") as monitor:
        followed(monitor, worker.pid)
        [port] = worker.do({"do": "serve"})
        drop_some(namespace, port)
        job = {"do": "upload_kept", "port": port, "size": 1_000_000}
        counted_by_socket = {}
        for span in SPANS:
            [counted_by_socket[span]] = worker.do(job | {"span": span})
            worker.do(job | {"size": 10_000})
    records = monitor.events.of(KernelEventKind.TCP_RETRANSMIT, tgid=worker.pid)
    assert sum(counted_by_socket.values()) > len(SPANS), "too few packets were dropped"
    assert_as_many(monitor, counted_by_socket)
    assert set(records["match"]) <= {Match.SOCKET, Match.NONE}
