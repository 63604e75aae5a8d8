"""What can have slowed a span: the attributes that the join writes, one table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from otel_bridge import catalog

if TYPE_CHECKING:
    from otel_bridge.catalog import Attribute


@dataclass(frozen=True, slots=True)
class Cause:
    """One attribute of spans, as a cause.

    Attributes:
        name: value of the label.
        attribute: where it stands on a span.
        scale: from its unit to that of the metric.
    """

    name: str
    attribute: Attribute
    scale: float = 1.0


_FROM_NANOSECONDS = 1e-9

TIMES = (
    Cause("run_queue", catalog.KERNEL_SCHED_RUN_QUEUE_TIME, _FROM_NANOSECONDS),
    Cause("off_cpu", catalog.KERNEL_SCHED_OFF_CPU_TIME, _FROM_NANOSECONDS),
    Cause("block_io", catalog.KERNEL_BLOCK_TIME, _FROM_NANOSECONDS),
    Cause("reclaim", catalog.KERNEL_MEMORY_RECLAIM_TIME, _FROM_NANOSECONDS),
    Cause("tls_handshake", catalog.KERNEL_TLS_HANDSHAKE_TIME, _FROM_NANOSECONDS),
    Cause("tcp_connect", catalog.KERNEL_TCP_CONNECT_TIME, _FROM_NANOSECONDS),
    Cause("tcp_zero_window", catalog.KERNEL_TCP_ZERO_WINDOW_TIME, _FROM_NANOSECONDS),
    Cause("cuda_alloc", catalog.KERNEL_CUDA_ALLOC_TIME, _FROM_NANOSECONDS),
    Cause("cuda_copy", catalog.KERNEL_CUDA_COPY_TIME, _FROM_NANOSECONDS),
)
EVENTS = (
    Cause("tcp_retransmit", catalog.KERNEL_TCP_RETRANSMITS),
    Cause("tcp_reset", catalog.KERNEL_TCP_RESETS),
    Cause("receive_queue_full", catalog.KERNEL_RECEIVE_QUEUE_FULL),
    Cause("block_error", catalog.KERNEL_BLOCK_ERRORS),
    Cause("oom_kill", catalog.KERNEL_MEMORY_OOM_KILLS),
    Cause("cuda_out_of_memory", catalog.KERNEL_CUDA_OUT_OF_MEMORY),
    Cause("cuda_failure", catalog.KERNEL_CUDA_FAILURES),
    Cause("cuda_launch_gap", catalog.KERNEL_CUDA_LAUNCH_GAPS),
    Cause("drm_eviction", catalog.KERNEL_DRM_EVICTIONS),
)
