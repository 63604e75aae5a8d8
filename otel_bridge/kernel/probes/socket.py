"""Notes on sockets which span uses them, and whose bytes they carry."""

from otel_bridge.kernel.probes.base import Probe, Program

PROBE = Probe(
    name="socket",
    gives="events outside the request's thread find its span through the socket",
    programs=(
        Program("tcp_sendmsg_locked", "tcp_sendmsg_locked", "6.16", "retransmits while a span still sends"),
        Program(
            "tcp_sent",
            "sock_send_length",
            "6.3",
            "retransmits of what a span has sent",
            stands_in_for="tcp_sendmsg_locked",
        ),
        Program("datagram_sent", "sock_send_length", "6.3", "datagrams' spans, by what they sent"),
        Program("sock_recv_length", "sock_recv_length", "6.3", "spans are found by what they received"),
    ),
    serves=frozenset({"tcp"}),
)
