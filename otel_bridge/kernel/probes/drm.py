"""Buffers that AMD's and Intel's drivers move out of device memory."""

from __future__ import annotations

from otel_bridge.kernel.probes.base import Probe, Program, Sums
from otel_bridge.kernel.records import DRM_SUM_VALUE, SPAN_KEY
from otel_bridge.model import KernelEventKind

PROBE = Probe(
    name="drm",
    gives="buffers evicted from the memory of AMD and Intel GPUs, on the span that asked for the room",
    programs=(
        Program("amdgpu_bo_move", "amdgpu_bo_move", "4.9", "evictions of AMD's driver", module="amdgpu"),
        Program("xe_bo_move", "xe_bo_move", "6.8", "evictions of Intel's driver", module="xe"),
    ),
    sums=Sums(KernelEventKind.DRM_SUM, SPAN_KEY, DRM_SUM_VALUE),
    config_of=lambda config: config.drm,
    optional="neither driver is there; NVIDIA's has no such tracepoints, its allocations are told by cuda",
    needs_libbpf="it reads the types of the drivers, which are modules",
)
