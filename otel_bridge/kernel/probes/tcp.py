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
    return constants(TCP_CONFIG, {"connect_threshold_ns": nanoseconds(config.tcp.connect_threshold)})


PROBE = Probe(
    name="tcp",
    gives="TCP retransmits, resets and connection attempts on the span whose socket it is",
    programs=(
        Program("tcp_retransmit_skb", "tcp_retransmit_skb", "4.16", "retransmits"),
        Program("tcp_send_reset", "tcp_send_reset", "4.16", "resets sent"),
        Program("tcp_receive_reset", "tcp_receive_reset", "4.16", "resets received"),
        Program("inet_sock_set_state", "inet_sock_set_state", "4.16", "connection attempts, and their span"),
    ),
    record=TCP_EVENT,
    kinds=frozenset(
        {
            KernelEventKind.TCP_RETRANSMIT,
            KernelEventKind.TCP_RESET_SENT,
            KernelEventKind.TCP_RESET_RECEIVED,
            KernelEventKind.TCP_CONNECT,
        }
    ),
    config_of=lambda config: config.tcp,
    constants=_constants,
)
