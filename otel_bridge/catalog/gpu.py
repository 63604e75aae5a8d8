"""Readings of GPUs, taken from the driver, what detectors make of them, and what spans are told of them."""

from __future__ import annotations

from otel_bridge.catalog.definitions import Attribute, Kind, Metric

_GPU = ("gpu_uuid",)


def _gauge(name: str, unit: str, description: str, *labels: str) -> Metric:
    return Metric(f"otel_bridge_gpu_{name}", Kind.GAUGE, unit, description, (*_GPU, *labels))


GPU_UP = _gauge("up", "1", "Whether the GPU or MIG instance answers (1) or is lost (0).")
GPU_INFO = _gauge("info", "1", "What a GPU is; a MIG instance names its card.", "name", "parent_uuid")
GPU_MEMORY_USED_RATIO = _gauge(
    "memory_used_ratio", "1", "Used device memory as a share of the total, reserved memory aside."
)
GPU_MEMORY_USED = _gauge("memory_used_bytes", "By", "Used device memory, without what the driver reserves.")
GPU_MEMORY_RESERVED = _gauge("memory_reserved_bytes", "By", "Device memory that the driver keeps for itself.")
GPU_MEMORY_TOTAL = _gauge("memory_total_bytes", "By", "Device memory in all.")
GPU_MEMORY_UNATTRIBUTED = _gauge(
    "memory_unattributed_bytes", "By", "Used device memory that no process is known to hold."
)
GPU_PROCESS_MEMORY = _gauge(
    "process_memory_bytes",
    "By",
    "Device memory of a process, as the driver tells it; service is unknown where its process is not seen.",
    "pid",
    "container_id",
    "pod_uid",
    "service",
)
GPU_PROCESSES = _gauge("processes", "{process}", "Processes that use the GPU, as the driver tells them.")
GPU_UTILIZATION_RATIO = _gauge(
    "utilization_ratio", "1", "Share of time in which a kernel ran; absent under MIG."
)
GPU_SM_ACTIVE_RATIO = _gauge(
    "sm_active_ratio",
    "1",
    "Share of time that multiprocessors worked; a MIG card's is the mean of its instances by their slices.",
)
GPU_SM_OCCUPANCY_RATIO = _gauge("sm_occupancy_ratio", "1", "Resident warps as a share of the most possible.")
GPU_DRAM_ACTIVE_RATIO = _gauge("dram_active_ratio", "1", "Used share of the device memory's bandwidth.")
GPU_CLOCK = _gauge("clock_hertz", "Hz", "Present clocks: sm, memory.", "clock")
GPU_TEMPERATURE = _gauge("temperature_celsius", "Cel", "Temperatures: gpu, memory.", "sensor")
GPU_POWER = _gauge("power_watts", "W", "Power drawn by the card.")
GPU_THROTTLED = _gauge("throttled", "1", "Whether the clocks are held down (1), by reason.", "reason")
GPU_ECC_ERRORS = _gauge(
    "ecc_errors", "{error}", "ECC errors since the driver was loaded: corrected, uncorrected.", "type"
)
GPU_PCIE_THROUGHPUT = _gauge(
    "pcie_throughput_bytes_per_second", "By/s", "PCIe traffic: transmitted, received.", "direction"
)
GPU_NVLINK_THROUGHPUT = _gauge(
    "nvlink_throughput_bytes_per_second", "By/s", "NVLink data: transmitted, received.", "direction"
)
GPU_XID_ERRORS = Metric(
    "otel_bridge_gpu_xid_errors",
    Kind.COUNTER,
    "{error}",
    "Xid errors that the driver reported, by number.",
    ("gpu_uuid", "xid"),
)
GPU_PRESSURE_LEVEL = _gauge("memory_pressure_level", "1", "Memory pressure: 0 low, 1 medium, 2 critical.")
GPU_MEMORY_SATURATED = _gauge(
    "memory_saturated", "1", "Whether memory has been nearly full for so long that a breaker trips (1)."
)
GPU_PREEMPTION_GAP_RATIO = _gauge(
    "preemption_gap_ratio",
    "1",
    "Mean SM occupancy of the last 60 s less that of the last 5 s, while the device is busy (utilisation "
    "above 85 %; 0 otherwise): what time slicing took from a tenant.",
    "tenant_id",
)
GPU_PREEMPTED = _gauge(
    "preempted", "1", "Whether a tenant is held to be preempted by time slicing (1).", "tenant_id"
)
GPU_SAWTOOTH_SWING_RATIO = _gauge(
    "sawtooth_swing_ratio", "1", "Swing of the utilisation's regular rise and fall; 0 while it has none."
)
GPU_SAWTOOTH_PERIOD = _gauge(
    "sawtooth_period_seconds", "s", "Period of the utilisation's rise and fall; absent while it has none."
)
GPU_SAWTOOTH_HOST_CORRELATION = _gauge(
    "sawtooth_host_correlation_ratio",
    "1",
    "Correlation of the sawtooth with the host's used memory, -1 to 1: near either, host memory explains it.",
)
GPU_TENANT_PRESSURE = _gauge(
    "tenant_pressure_level",
    "1",
    "Host memory pressure of a tenant that uses the GPU: 0 none, 1 medium, 2 critical; and what the GPU's "
    "activity says of it: confirmed (it starves), contended (its memory is busy), unconfirmed, unknown.",
    "tenant_id",
    "evidence",
)
GPU_ABSENT_READINGS = Metric(
    "otel_bridge_gpu_absent_readings",
    Kind.COUNTER,
    "{reading}",
    "Readings that are absent, by reason: NVML's error, blank, stale. One that a card never has counts once.",
    ("gpu_uuid", "reading", "reason"),
)
GPU_SAMPLES = Metric("otel_bridge_gpu_samples", Kind.COUNTER, "{round}", "Rounds of readings of all GPUs.")
GPU_MISSED_SAMPLES = Metric(
    "otel_bridge_gpu_missed_samples",
    Kind.COUNTER,
    "{round}",
    "Rounds that were left out because the one before took longer than its interval.",
)
GPU_SAMPLING_TIME = Metric(
    "otel_bridge_gpu_sampling_cpu_seconds", Kind.COUNTER, "s", "CPU time of the thread that reads GPUs."
)
GPU_REINITIALIZATIONS = Metric(
    "otel_bridge_gpu_driver_reinitializations",
    Kind.COUNTER,
    "{time}",
    "Times that the driver's library was loaded anew because GPUs were lost.",
)
GPU_CLOCK_ERROR = Metric(
    "otel_bridge_gpu_clock_error_seconds",
    Kind.GAUGE,
    "s",
    "How far the time of a reading may be off the kernel's clock: mean and max of the last minute.",
    ("statistic",),
)

HW_ID = Attribute(
    "hw.id",
    "string",
    "",
    "UUID of the GPU the span's process used; of several, that with the fullest memory.",
)
GPU_COUNT = Attribute("gpu.count", "int", "{gpu}", "GPUs and MIG instances that the span's process used.")
GPU_MATCH = Attribute(
    "gpu.match",
    "string",
    "",
    "How the GPU was found: process (it uses it itself), child (a child does), container (another process of "
    "its container does).",
)
GPU_MEMORY_AT_START = Attribute(
    "gpu.memory.utilization.start", "double", "1", "Used share of the GPU's memory when the span began."
)
GPU_MEMORY_MAX = Attribute(
    "gpu.memory.utilization.max", "double", "1", "The largest used share of the GPU's memory in its time."
)
GPU_UTILIZATION_AT_START = Attribute(
    "gpu.utilization.start", "double", "1", "Utilisation of the GPU when the span began."
)
GPU_UTILIZATION_MAX = Attribute(
    "gpu.utilization.max", "double", "1", "The highest utilisation of the GPU in the span's time."
)
