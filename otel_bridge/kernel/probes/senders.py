"""Notes whose bytes a connection carries."""

from otel_bridge.kernel.probes.base import Probe, Program

PROBE = Probe(
    name="senders",
    gives="what is lost on a connection that several spans use is told apart by who sent it",
    programs=(
        Program("tcp_sendmsg_locked", "tcp_sendmsg_locked", "6.16", "retransmits while a span still sends"),
        Program(
            "sock_send_length",
            "sock_send_length",
            "6.3",
            "retransmits of what a span has sent",
            stands_in_for="tcp_sendmsg_locked",
        ),
    ),
    serves=frozenset({"tcp"}),
)
