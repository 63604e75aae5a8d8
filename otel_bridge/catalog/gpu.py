"""Readings of GPUs, taken from the driver, and what detectors make of them."""

from __future__ import annotations

from otel_bridge.catalog.definitions import Kind, Metric

GPU_MEMORY_USED_RATIO = Metric(
    "otel_bridge_gpu_memory_used_ratio",
    Kind.GAUGE,
    "1",
    "Used device memory as a share of the total, reserved memory aside.",
    ("gpu_uuid",),
)
GPU_UTILIZATION_RATIO = Metric(
    "otel_bridge_gpu_utilization_ratio",
    Kind.GAUGE,
    "1",
    "Share of time in which a kernel ran; absent under MIG.",
    ("gpu_uuid",),
)
GPU_XID_ERRORS = Metric(
    "otel_bridge_gpu_xid_errors",
    Kind.COUNTER,
    "{error}",
    "Xid errors that the driver reported, by number.",
    ("gpu_uuid", "xid"),
)
GPU_PREEMPTION_GAP_RATIO = Metric(
    "otel_bridge_gpu_preemption_gap_ratio",
    Kind.GAUGE,
    "1",
    "Mean SM occupancy of the last 60 s less that of the last 5 s: what time slicing took from a tenant.",
    ("gpu_uuid", "tenant_id"),
)
GPU_SAWTOOTH_SWING_RATIO = Metric(
    "otel_bridge_gpu_sawtooth_swing_ratio",
    Kind.GAUGE,
    "1",
    "Swing of the utilisation's regular rise and fall; 0 while it has none.",
    ("gpu_uuid",),
)
