"""Stamps sockets with the span that uses them."""

from otel_bridge.kernel.probes.base import Probe, Program

PROBE = Probe(
    name="socket",
    gives="events outside the request's thread find its span through the socket",
    programs=(
        Program("sock_send_length", "sock_send_length", "6.3", "spans are found by what they sent"),
        Program("sock_recv_length", "sock_recv_length", "6.3", "spans are found by what they received"),
    ),
    serves=frozenset({"tcp"}),
)
