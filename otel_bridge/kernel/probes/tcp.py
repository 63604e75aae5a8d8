"""TCP: retransmits, resets, connection attempts with their latency."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_bridge.kernel.probes.base import Probe, Program, constants, nanoseconds
from otel_bridge.kernel.records import TCP_CONFIG, TCP_EVENT
from otel_bridge.model import KernelEventKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_bridge.kernel.config import ProbesConfig


def _constants(config: ProbesConfig) -> NDArray[Any]:
    return constants(
        TCP_CONFIG,
        {
            "connect_threshold_ns": nanoseconds(config.tcp.connect_threshold),
            "window_threshold_ns": nanoseconds(config.tcp.window_threshold),
        },
    )


PROBE = Probe(
    name="tcp",
    gives="TCP retransmits, resets, connection attempts and stalls on the span whose socket it is",
    programs=(
        Program("tcp_retransmit_skb", "tcp_retransmit_skb", "4.16", "retransmits"),
        Program("tcp_send_reset", "tcp_send_reset", "4.16", "resets sent"),
        Program("tcp_receive_reset", "tcp_receive_reset", "4.16", "resets received"),
        Program("inet_sock_set_state", "inet_sock_set_state", "4.16", "connection attempts, and their span"),
        Program("tcp_probe", "tcp_probe", "4.16", "sends that wait for a peer's zero window"),
        Program(
            "tcp_rcv_space_adjust", "tcp_rcv_space_adjust", "4.18", "TCP's receive queues that were full"
        ),
        Program(
            "udp_fail_queue_rcv_skb",
            "udp_fail_queue_rcv_skb",
            "3.1",
            "datagrams lost to a full receive queue",
        ),
        Program(
            "sock_rcvqueue_full", "sock_rcvqueue_full", "3.1", "packets lost to a raw socket's full queue"
        ),
    ),
    record=TCP_EVENT,
    kinds=frozenset(
        {
            KernelEventKind.TCP_RETRANSMIT,
            KernelEventKind.TCP_RESET_SENT,
            KernelEventKind.TCP_RESET_RECEIVED,
            KernelEventKind.TCP_CONNECT,
            KernelEventKind.TCP_ZERO_WINDOW,
            KernelEventKind.RECEIVE_QUEUE_FULL,
        }
    ),
    config_of=lambda config: config.tcp,
    constants=_constants,
)
