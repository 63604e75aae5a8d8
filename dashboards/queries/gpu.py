"""GPUs as the driver tells of them, and what the detectors make of that."""

from __future__ import annotations

from dashboards.queries.promql import Query, highest, or_zero, rate, summed
from otel_bridge import catalog

CARD = ("gpu_uuid",)
GPU = {"gpu_uuid": '=~"$gpu"'}


def _gauge(metric: catalog.Metric, *labels: str) -> Query:
    legend = " ".join(f"{{{{{one}}}}}" for one in (*CARD, *labels))
    return Query(highest(metric, (*CARD, *labels), **GPU), legend)


UP = _gauge(catalog.GPU_UP)
UTILIZATION = _gauge(catalog.GPU_UTILIZATION_RATIO)
SM_ACTIVE = _gauge(catalog.GPU_SM_ACTIVE_RATIO)
SM_OCCUPANCY = _gauge(catalog.GPU_SM_OCCUPANCY_RATIO)
DRAM_ACTIVE = _gauge(catalog.GPU_DRAM_ACTIVE_RATIO)
MEMORY_RATIO = _gauge(catalog.GPU_MEMORY_USED_RATIO)
MEMORY_USED = _gauge(catalog.GPU_MEMORY_USED)
UNATTRIBUTED = _gauge(catalog.GPU_MEMORY_UNATTRIBUTED)
PRESSURE = _gauge(catalog.GPU_PRESSURE_LEVEL)
SATURATED = _gauge(catalog.GPU_MEMORY_SATURATED)
PROCESS_MEMORY = Query(summed(catalog.GPU_PROCESS_MEMORY, ("service", "pid"), **GPU), "{{service}} {{pid}}")
TENANT_PRESSURE = _gauge(catalog.GPU_TENANT_PRESSURE, "tenant_id", "evidence")
PREEMPTION_GAP = _gauge(catalog.GPU_PREEMPTION_GAP_RATIO, "tenant_id")
PREEMPTED = _gauge(catalog.GPU_PREEMPTED, "tenant_id")
SWING = _gauge(catalog.GPU_SAWTOOTH_SWING_RATIO)
PERIOD = _gauge(catalog.GPU_SAWTOOTH_PERIOD)
CORRELATION = _gauge(catalog.GPU_SAWTOOTH_HOST_CORRELATION)
POWER = _gauge(catalog.GPU_POWER)
TEMPERATURE = _gauge(catalog.GPU_TEMPERATURE, "sensor")
CLOCK = _gauge(catalog.GPU_CLOCK, "clock")
THROTTLED = _gauge(catalog.GPU_THROTTLED, "reason")
PCIE = _gauge(catalog.GPU_PCIE_THROUGHPUT, "direction")
NVLINK = _gauge(catalog.GPU_NVLINK_THROUGHPUT, "direction")
ECC = _gauge(catalog.GPU_ECC_ERRORS, "type")
XID = Query(or_zero(rate(catalog.GPU_XID_ERRORS, by=(*CARD, "xid"), **GPU)), "{{gpu_uuid}} Xid {{xid}}")
ABSENT = Query(
    or_zero(rate(catalog.GPU_ABSENT_READINGS, by=("reading", "reason"), **GPU)), "{{reading}} {{reason}}"
)
