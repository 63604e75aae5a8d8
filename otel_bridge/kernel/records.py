"""What kernel and user space hand each other, byte for byte: the dtypes of the structures in bpf/*.h.

The headers assert their sizes and offsets when they are compiled; tests/unit/kernel/test_records.py compares
every field here with the type information (BTF) that the compiler gives of them.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from otel_bridge.events import COMMON

if TYPE_CHECKING:
    from numpy.typing import NDArray

Dtype = np.dtype[Any]


def _event(*fields: tuple[Any, ...]) -> Dtype:
    return np.dtype([*COMMON.descr, *fields])


U4: Dtype = np.dtype("<u4")
U8: Dtype = np.dtype("<u8")

THREAD_LAYOUT: Dtype = np.dtype(
    [
        ("offset", "<i8"),
        ("module", "<u4"),
        ("dtv_pointer", "<i4"),
        ("dtv_stride", "<u4"),
        ("counts_changes", "<u4"),
    ]
)
"""struct thread_layout (bpf/common/context.h)."""

PROCESSES = 1 << 22
"""No process has a higher number (PID_MAX_LIMIT)."""

CONTEXT_SOURCES: Dtype = np.dtype([("shared_table", "<u4"), ("_pad", "<u4")])
"""struct context_sources (bpf/common/context.h)."""

SHARED_CONTEXT: Dtype = np.dtype([("trace_id", "V16"), ("span_id", "V8")])
"""struct shared_context (bpf/common/context.h): what OBI says that a thread (pid_tgid) is at."""

RATE_LIMIT: Dtype = np.dtype([("events_per_second", "<u8")])
"""struct rate_limit (bpf/common/event.h): per CPU, 0 for none."""

TCP_EVENT = _event(
    ("local_address", "V16"),  # IPv6; IPv4 mapped
    ("remote_address", "V16"),
    ("local_port", "<u2"),
    ("remote_port", "<u2"),
    ("state", "u1"),
    ("protocol", "u1"),
    ("_pad", "u1", (2,)),
    ("bytes", "<u4"),
    ("smoothed_rtt_us", "<u4"),
    ("retransmits", "<u4"),
    ("segments", "<u4"),
)
"""struct tcp_event (bpf/tcp.h)."""

TCP_CONFIG: Dtype = np.dtype([("connect_threshold_ns", "<u8"), ("window_threshold_ns", "<u8")])
"""struct tcp_config (bpf/tcp.h)."""

STACK_DEPTH = 16

SCHED_WAIT = _event(
    ("run_queue_ns", "<u8"),
    ("off_cpu_ns", "<u8"),
    ("user_stack", "<u8", (STACK_DEPTH,)),
    ("kernel_stack", "<u8", (STACK_DEPTH,)),
)
"""struct sched_wait (bpf/sched.h): one long wait; unused frames are 0."""

SCHED_CONFIG: Dtype = np.dtype(
    [
        ("run_queue_threshold_ns", "<u8"),
        ("off_cpu_threshold_ns", "<u8"),
        ("stacks", "<u4"),
        ("_pad", "<u4"),
    ]
)
"""struct sched_config (bpf/sched.h)."""

BLOCK_IO = _event(
    ("major", "<u4"),
    ("minor", "<u4"),
    ("bytes", "<u4"),
    ("queue_depth", "<u4"),
    ("operation", "u1"),  # BlockOperation
    ("_pad", "u1", (7,)),
)
"""struct block_io (bpf/block.h): one slow or failed request; `error` is a blk_status_t."""

BLOCK_CONFIG: Dtype = np.dtype([("latency_threshold_ns", "<u8")])
"""struct block_config (bpf/block.h)."""

BLOCK_DEVICE: Dtype = np.dtype([("major", "<u4"), ("minor", "<u4")])
"""struct device_key (bpf/block.h)."""

BLOCK_TOTALS: Dtype = np.dtype(
    [
        ("in_flight", "<i8"),
        ("in_flight_max", "<u8"),
        ("requests", "<u8"),
        ("errors", "<u8"),
        ("latency_ns", "<u8"),
        ("bytes", "<u8"),
    ]
)
"""struct block_device_totals (bpf/block.h): what a device went through, spans or not."""

MEMORY_EVENT = _event(
    ("reclaimed_pages", "<u8"),
    ("memcg", "u1"),
    ("comm", "S16"),
    ("_pad", "u1", (7,)),
)
"""struct memory_event (bpf/memory.h)."""

MEMORY_CONFIG: Dtype = np.dtype([("reclaim_threshold_ns", "<u8")])
"""struct memory_config (bpf/memory.h)."""

TLS_EVENT = _event(
    ("fd", "<i4"),  # -1: none
    ("calls", "<u4"),
    ("version", "<u2"),  # as on the wire; 0: unknown
    ("role", "u1"),  # TlsRole
    ("_pad", "u1", (5,)),
)
"""struct tls_event (bpf/tls.h); `error` is SSL_get_error()'s code or TLS_ABANDONED."""

TLS_ABANDONED = -1

PROCESS_EVENT = _event(
    ("parent", "<u4"),
    ("namespace_pid", "<u4"),
    ("pid_namespace", "<u4"),
    ("followed", "u1"),
    ("_pad", "u1", (3,)),
)
"""struct process_event (bpf/process.h); handed over as `events.PROCESS` instead."""

CUDA_EVENT = _event(
    ("size", "<u8"),
    ("operation", "u1"),  # CudaOperation
    ("_pad", "u1", (7,)),
)
"""struct cuda_event (bpf/cuda.h); `error` is a CUresult or cudaError_t."""

CUDA_CONFIG: Dtype = np.dtype(
    [("alloc_threshold_ns", "<u8"), ("copy_threshold_ns", "<u8"), ("launch_gap_ns", "<u8")]
)
"""struct cuda_config (bpf/cuda.h)."""

USER_FIELDS = 8
USER_STEPS = 3
USER_RESULT = 0xFF
USER_STACK_DEPTH = 0xFE

USER_EVENT = _event(("probe", "<u4"), ("_pad", "<u4"), ("fields", "<u8", (USER_FIELDS,)))
"""struct user_event (bpf/user.h); handed over with named fields instead (`probes.user.Functions`)."""

USER_FIELD: Dtype = np.dtype(
    [
        ("argument", "u1"),  # 1 to 6; USER_RESULT; USER_STACK_DEPTH; 0: none
        ("size", "u1"),
        ("is_signed", "u1"),
        ("steps", "u1"),
        ("offsets", "<i4", (USER_STEPS,)),
        ("stride", "<u4"),
        ("index", "u1"),
        ("falls", "u1"),
        ("_pad", "u1", (2,)),
    ]
)
"""struct user_field (bpf/user.h)."""

USER_PROBE: Dtype = np.dtype(
    [
        ("threshold_ns", "<u8"),
        ("fields", USER_FIELD, (USER_FIELDS,)),
        ("silent", "u1"),
        ("gives", "u1"),
        ("takes", "u1"),
        ("gives_group", "u1"),
        ("takes_group", "u1"),
        ("_pad", "u1", (3,)),
    ]
)
"""struct user_probe (bpf/user.h)."""

# Sums: key and value as they lie in the kernel's table, and what is handed over of them.

SPAN_KEY: Dtype = np.dtype(
    [
        ("trace_id", "V16"),
        ("span_id", "V8"),
        ("tgid", "<u4"),
        ("match", "u1"),
        ("trace_flags", "u1"),
        ("_pad", "<u2"),
    ]
)
"""struct span_key (bpf/common/sums.h)."""

SCHED_SUM_VALUE: Dtype = np.dtype(
    [
        ("first", "<u8"),
        ("last", "<u8"),
        ("run_queue_ns", "<u8"),
        ("off_cpu_ns", "<u8"),
        ("run_queue_max_ns", "<u8"),
        ("off_cpu_max_ns", "<u8"),
        ("run_queue_count", "<u4"),
        ("off_cpu_count", "<u4"),
    ]
)
"""struct sched_sum (bpf/sched.h)."""

SCHED_ROW: Dtype = np.dtype([("key", SPAN_KEY), ("sum", SCHED_SUM_VALUE)])
"""struct sched_row (bpf/sched.h)."""

ROWS_HEAD: Dtype = np.dtype([("turn", "<u8"), ("taken", "<u8")])
"""struct rows_head (bpf/common/rows.h)."""

ROWS_A_LOT = 32
"""How many rows of such a table belong together (bpf/common/rows.h)."""

BLOCK_KEY: Dtype = np.dtype([*SPAN_KEY.descr, ("major", "<u4"), ("minor", "<u4")])
"""struct block_key (bpf/block.h)."""

BLOCK_SUM_VALUE: Dtype = np.dtype(
    [
        ("first", "<u8"),
        ("last", "<u8"),
        ("latency_ns", "<u8"),
        ("latency_max_ns", "<u8"),
        ("bytes", "<u8"),
        ("queue_depth_max", "<u8"),
        ("count", "<u4"),
        ("errors", "<u4"),
    ]
)
"""struct block_sum (bpf/block.h)."""

MEMORY_SUM_VALUE: Dtype = np.dtype(
    [
        ("first", "<u8"),
        ("last", "<u8"),
        ("reclaim_ns", "<u8"),
        ("reclaim_max_ns", "<u8"),
        ("reclaimed_pages", "<u8"),
        ("reclaim_count", "<u4"),
        ("_pad", "<u4"),
    ]
)
"""struct memory_sum (bpf/memory.h)."""

CUDA_SUM_VALUE: Dtype = np.dtype(
    [
        ("first", "<u8"),
        ("last", "<u8"),
        ("alloc_bytes", "<u8"),
        ("alloc_ns", "<u8"),
        ("alloc_max_ns", "<u8"),
        ("copy_bytes", "<u8"),
        ("copy_ns", "<u8"),
        ("allocs", "<u4"),
        ("frees", "<u4"),
        ("copies", "<u4"),
        ("failures", "<u4"),
    ]
)
"""struct cuda_sum (bpf/cuda.h)."""

DRM_SUM_VALUE: Dtype = np.dtype(
    [("first", "<u8"), ("last", "<u8"), ("evicted_bytes", "<u8"), ("evictions", "<u4"), ("_pad", "<u4")]
)
"""struct drm_sum (bpf/drm.h)."""

_KEPT_APART = {"trace_id", "span_id", "last", "tgid", "match", "trace_flags", "_pad"}


def sum_record(key: Dtype, value: Dtype) -> Dtype:
    """The record a sum is handed over as: COMMON, when the first began, then the key's and value's numbers.

    `time` is when the last ended; `duration` is 0, the nanoseconds are in the sum's own fields.
    """
    fields = [field for dtype in (key, value) for field in dtype.descr if field[0] not in _KEPT_APART]
    return np.dtype([*COMMON.descr, *fields])


def sum_records(kind: int, keys: NDArray[np.void], values: NDArray[np.void]) -> NDArray[np.void]:
    """Rows of a sum table as records of `sum_record`."""
    out = np.zeros(len(keys), sum_record(keys.dtype, values.dtype))
    out["kind"] = kind
    out["time"] = values["last"]
    for rows in (keys, values):
        for name in rows.dtype.names or ():
            if name in (out.dtype.names or ()):
                out[name] = rows[name]
    return out


class BlockOperation(IntEnum):
    """`enum block_operation` (bpf/block.h)."""

    READ = 0
    WRITE = 1
    OTHER = 2


class CudaOperation(IntEnum):
    """`enum cuda_operation` (bpf/cuda.h)."""

    DEVICE = 0
    POOL = 1
    MANAGED = 2
    HOST = 3
    VIRTUAL = 4
    FREE = 5
    COPY = 6
    LAUNCH = 7


class TlsRole(IntEnum):
    """`enum tls_role` (bpf/tls.h)."""

    UNKNOWN = 0
    CLIENT = 1
    SERVER = 2


class Known(IntEnum):
    """What is known of a process: `enum known` (bpf/common/context.h)."""

    SILENT_REQUESTS = 1
    SILENT_TLS = 2
    FIRST_LAYOUT = 4
    LAYOUTS = 256


class Counter(IntEnum):
    """What each probe counts about itself, per CPU: `enum counter` (bpf/common/counters.h)."""

    PRODUCED = 0
    DROPPED = 1
    LIMITED = 2
    ZERO_IDS = 3
    TORN = 4
    UNREADABLE = 5
    LOST_STATE = 6
    BAD_HEADER = 7
