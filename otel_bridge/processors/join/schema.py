"""What a kernel event is called on a span: event names, attribute keys, and how occurrences add up."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from otel_bridge import catalog
from otel_bridge.events import COMMON
from otel_bridge.model import KernelEventKind as Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from otel_bridge.catalog import Attribute

Scalar = int | str


class Fold(Enum):
    """How the values of several events become one."""

    COUNT = "count"
    SUM = "sum"
    MAX = "max"


@dataclass(frozen=True, slots=True)
class Summary:
    """One attribute of a span.

    Attributes:
        attribute: its catalog entry.
        fold: how it adds up.
        field: of the record; unused for COUNT.
    """

    attribute: Attribute
    fold: Fold
    field: str = ""


@dataclass(frozen=True, slots=True)
class Shape:
    """How one kind of event is shown.

    Attributes:
        name: of the span event; empty for sums, which have no moment of their own.
        fields: record field → attribute key of the span event.
        summaries: what the span itself gets.
        plain: fields are the numbers that they are, whatever they are called.
    """

    name: str
    fields: dict[str, Attribute]
    summaries: tuple[Summary, ...]
    plain: bool = False


_TCP = {
    "local_address": catalog.NETWORK_LOCAL_ADDRESS,
    "local_port": catalog.NETWORK_LOCAL_PORT,
    "remote_address": catalog.NETWORK_PEER_ADDRESS,
    "remote_port": catalog.NETWORK_PEER_PORT,
    "state": catalog.KERNEL_TCP_STATE,
    "bytes": catalog.KERNEL_TCP_BYTES,
    "smoothed_rtt_us": catalog.KERNEL_TCP_SMOOTHED_RTT,
}
_RECLAIM = {"reclaimed_pages": catalog.KERNEL_MEMORY_RECLAIMED_PAGES}
_CUDA = {
    "size": catalog.KERNEL_CUDA_SIZE,
    "operation": catalog.KERNEL_CUDA_OPERATION,
}
_CUDA_EVENTS = Summary(catalog.KERNEL_CUDA_EVENTS, Fold.COUNT)
_CUDA_OUT_OF_MEMORY = 2
"""CUDA_ERROR_OUT_OF_MEMORY, cudaErrorMemoryAllocation."""
_CUDA_OPERATIONS = ("device", "pool", "managed", "host", "virtual", "free", "copy", "launch")

_COUNT, _SUM, _MAX = Fold.COUNT, Fold.SUM, Fold.MAX

SHAPES: dict[int, Shape] = {
    Kind.TCP_RETRANSMIT: Shape(
        "kernel.tcp.retransmit",
        _TCP | {"segments": catalog.KERNEL_TCP_SEGMENTS},
        (Summary(catalog.KERNEL_TCP_RETRANSMITS, _SUM, "segments"),),
    ),
    Kind.TCP_RESET_SENT: Shape("kernel.tcp.reset_sent", _TCP, (Summary(catalog.KERNEL_TCP_RESETS, _COUNT),)),
    Kind.TCP_RESET_RECEIVED: Shape(
        "kernel.tcp.reset_received", _TCP, (Summary(catalog.KERNEL_TCP_RESETS, _COUNT),)
    ),
    Kind.TCP_CONNECT: Shape(
        "kernel.tcp.connect", _TCP, (Summary(catalog.KERNEL_TCP_CONNECT_TIME, _SUM, "duration"),)
    ),
    Kind.TCP_ZERO_WINDOW: Shape(
        "kernel.tcp.zero_window",
        _TCP,
        (
            Summary(catalog.KERNEL_TCP_ZERO_WINDOWS, _COUNT),
            Summary(catalog.KERNEL_TCP_ZERO_WINDOW_TIME, _SUM, "duration"),
        ),
    ),
    Kind.RECEIVE_QUEUE_FULL: Shape(
        "kernel.receive_queue_full",
        {**_TCP, "protocol": catalog.NETWORK_TRANSPORT},
        (Summary(catalog.KERNEL_RECEIVE_QUEUE_FULL, _COUNT),),
    ),
    Kind.SCHED_WAIT: Shape(
        "kernel.sched.wait",
        {
            "run_queue_ns": catalog.KERNEL_SCHED_RUN_QUEUE_TIME,
            "off_cpu_ns": catalog.KERNEL_SCHED_OFF_CPU_TIME,
            "stack": catalog.CODE_STACKTRACE,
        },
        (Summary(catalog.KERNEL_SCHED_LONG_WAITS, _COUNT),),
    ),
    Kind.SCHED_SUM: Shape(
        "",
        {},
        (
            Summary(catalog.KERNEL_SCHED_RUN_QUEUE_TIME, _SUM, "run_queue_ns"),
            Summary(catalog.KERNEL_SCHED_RUN_QUEUE_MAX, _MAX, "run_queue_max_ns"),
            Summary(catalog.KERNEL_SCHED_OFF_CPU_TIME, _SUM, "off_cpu_ns"),
            Summary(catalog.KERNEL_SCHED_OFF_CPU_MAX, _MAX, "off_cpu_max_ns"),
        ),
    ),
    Kind.BLOCK_IO: Shape(
        "kernel.block.slow_io",
        {
            "bytes": catalog.KERNEL_BLOCK_BYTES,
            "major": catalog.KERNEL_BLOCK_DEVICE_MAJOR,
            "minor": catalog.KERNEL_BLOCK_DEVICE_MINOR,
            "queue_depth": catalog.KERNEL_BLOCK_QUEUE_DEPTH_MAX,
        },
        (Summary(catalog.KERNEL_BLOCK_SLOW, _COUNT),),
    ),
    Kind.BLOCK_SUM: Shape(
        "",
        {},
        (
            Summary(catalog.KERNEL_BLOCK_COUNT, _SUM, "count"),
            Summary(catalog.KERNEL_BLOCK_TIME, _SUM, "latency_ns"),
            Summary(catalog.KERNEL_BLOCK_MAX, _MAX, "latency_max_ns"),
            Summary(catalog.KERNEL_BLOCK_BYTES, _SUM, "bytes"),
            Summary(catalog.KERNEL_BLOCK_ERRORS, _SUM, "errors"),
            Summary(catalog.KERNEL_BLOCK_QUEUE_DEPTH_MAX, _MAX, "queue_depth_max"),
        ),
    ),
    Kind.OOM_KILL: Shape("kernel.memory.oom_kill", {}, (Summary(catalog.KERNEL_MEMORY_OOM_KILLS, _COUNT),)),
    Kind.RECLAIM: Shape(
        "kernel.memory.reclaim", _RECLAIM, (Summary(catalog.KERNEL_MEMORY_LONG_RECLAIMS, _COUNT),)
    ),
    Kind.MEMORY_SUM: Shape(
        "",
        {},
        (
            Summary(catalog.KERNEL_MEMORY_RECLAIM_TIME, _SUM, "reclaim_ns"),
            Summary(catalog.KERNEL_MEMORY_RECLAIM_MAX, _MAX, "reclaim_max_ns"),
            Summary(catalog.KERNEL_MEMORY_RECLAIMED_PAGES, _SUM, "reclaimed_pages"),
        ),
    ),
    Kind.TLS_HANDSHAKE: Shape(
        "kernel.tls.handshake",
        {
            "version": catalog.KERNEL_TLS_VERSION,
            "fd": catalog.KERNEL_TLS_FD,
            "calls": catalog.KERNEL_TLS_CALLS,
        },
        (Summary(catalog.KERNEL_TLS_HANDSHAKE_TIME, _SUM, "duration"),),
    ),
    Kind.CUDA_ALLOC: Shape("kernel.cuda.alloc", _CUDA, (_CUDA_EVENTS,)),
    Kind.CUDA_COPY: Shape("kernel.cuda.copy", _CUDA, (_CUDA_EVENTS,)),
    Kind.CUDA_LAUNCH_GAP: Shape(
        "kernel.cuda.launch_gap",
        {},
        (
            Summary(catalog.KERNEL_CUDA_LAUNCH_GAPS, _COUNT),
            Summary(catalog.KERNEL_CUDA_LAUNCH_GAP_MAX, _MAX, "duration"),
        ),
    ),
    Kind.CUDA_SUM: Shape(
        "",
        {},
        (
            Summary(catalog.KERNEL_CUDA_ALLOCS, _SUM, "allocs"),
            Summary(catalog.KERNEL_CUDA_ALLOC_BYTES, _SUM, "alloc_bytes"),
            Summary(catalog.KERNEL_CUDA_ALLOC_TIME, _SUM, "alloc_ns"),
            Summary(catalog.KERNEL_CUDA_ALLOC_MAX, _MAX, "alloc_max_ns"),
            Summary(catalog.KERNEL_CUDA_FREES, _SUM, "frees"),
            Summary(catalog.KERNEL_CUDA_COPIES, _SUM, "copies"),
            Summary(catalog.KERNEL_CUDA_COPY_BYTES, _SUM, "copy_bytes"),
            Summary(catalog.KERNEL_CUDA_COPY_TIME, _SUM, "copy_ns"),
            Summary(catalog.KERNEL_CUDA_FAILURES, _SUM, "failures"),
        ),
    ),
    Kind.DRM_SUM: Shape(
        "",
        {},
        (
            Summary(catalog.KERNEL_DRM_EVICTIONS, _SUM, "evictions"),
            Summary(catalog.KERNEL_DRM_EVICTED_BYTES, _SUM, "evicted_bytes"),
        ),
    ),
}
"""Kinds that are not here (process starts and ends) concern no span."""

OUT_OF_MEMORY = Shape(
    "kernel.cuda.out_of_memory",
    _CUDA,
    (_CUDA_EVENTS, Summary(catalog.KERNEL_CUDA_OUT_OF_MEMORY, _COUNT)),
)
"""An allocation that failed for want of GPU memory: what somebody looks for by name."""


def shapes_of(records: NDArray[np.void], probe: str) -> Iterator[tuple[Shape | None, NDArray[np.bool_]]]:
    """How events are shown, with the records that are shown so; a user probe's as its configuration says.

    Args:
        records: of one dtype.
        probe: where they came from.
    """
    kinds = records["kind"]
    for kind in np.unique(kinds).tolist():
        chosen = kinds == kind
        if kind == Kind.USER:
            yield _shape_of_user_probe(records.dtype, probe), chosen
        elif kind == Kind.CUDA_ALLOC:
            wanting = records["error"] == _CUDA_OUT_OF_MEMORY
            yield OUT_OF_MEMORY, chosen & wanting
            yield SHAPES[kind], chosen & ~wanting
        else:
            yield SHAPES.get(kind), chosen


def shape_of(record: np.void, probe: str) -> Shape | None:
    """`shapes_of`, of one."""
    return next(shape for shape, chosen in shapes_of(record.reshape(1), probe) if chosen[0])


@lru_cache(1024)
def _shape_of_user_probe(dtype: np.dtype[Any], probe: str) -> Shape:
    own = [name for name in (dtype.names or ()) if name not in (COMMON.names or ()) and name[0] != "_"]
    fields = {
        name: catalog.Attribute(catalog.KERNEL_USER_PREFIX + name, "int", "", "A field of a user probe.")
        for name in own
        if np.issubdtype(dtype[name], np.integer)
    }
    return Shape(
        catalog.KERNEL_USER_PREFIX + probe,
        fields,
        (Summary(catalog.KERNEL_USER_EVENTS, Fold.COUNT),),
        plain=True,
    )


def shown(shape: Shape, field: str, records: NDArray[np.void]) -> list[Scalar | None]:
    """A field of records as attribute values; None where it says nothing, or is not in these records."""
    if field not in (records.dtype.names or ()):
        return [None] * len(records)
    values: list[Any] = records[field].tolist()
    convert = None if shape.plain else _CONVERSIONS.get(field)
    return values if convert is None else [convert(value) for value in values]


@lru_cache(4096)
def _address(packed: bytes) -> str | None:
    if not any(packed):
        return None
    address = ipaddress.IPv6Address(packed)
    return str(address.ipv4_mapped or address)


def _descriptor(number: int) -> int | None:
    return number if number >= 0 else None


def _text(content: bytes) -> str | None:
    return content.decode(errors="replace") or None


_CONVERSIONS: dict[str, Callable[[Any], Scalar | None]] = {
    "local_address": _address,
    "remote_address": _address,
    "operation": dict(enumerate(_CUDA_OPERATIONS)).get,
    "protocol": {6: "tcp", 17: "udp"}.get,
    "version": {0x0301: "1.0", 0x0302: "1.1", 0x0303: "1.2", 0x0304: "1.3"}.get,
    "stack": _text,
    "fd": _descriptor,
}
"""How fields of the bridge's own probes are said that are no plain numbers."""
