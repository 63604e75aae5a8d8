"""CUDA's allocations, copies and launch gaps, of its driver and its runtime, however they are linked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_bridge.kernel.probes.base import Probe, Program, Sums, Uprobe, constants, nanoseconds
from otel_bridge.kernel.records import CUDA_CONFIG, CUDA_EVENT, CUDA_SUM_VALUE, SPAN_KEY
from otel_bridge.model import KernelEventKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_bridge.kernel.config import ProbesConfig

# Names without the version and the suffix for per-thread streams (_ptsz, _ptds).
_FUNCTIONS = {
    "cuda_device": ("cuMemAlloc_v2", "cudaMalloc"),
    "cuda_pitch": ("cuMemAllocPitch_v2", "cudaMallocPitch"),
    "cuda_pool": ("cuMemAllocAsync", "cuMemAllocFromPoolAsync", "cudaMallocAsync", "cudaMallocFromPoolAsync"),
    "cuda_managed": ("cuMemAllocManaged", "cudaMallocManaged"),
    "cuda_host": ("cuMemAllocHost_v2", "cuMemHostAlloc", "cudaMallocHost", "cudaHostAlloc"),
    "cuda_virtual": ("cuMemCreate",),
    "cuda_free": (
        "cuMemFree_v2",
        "cuMemFreeAsync",
        "cuMemFreeHost",
        "cuMemRelease",
        "cudaFree",
        "cudaFreeAsync",
        "cudaFreeHost",
    ),
    "cuda_copy": (
        "cuMemcpy",
        "cuMemcpyAsync",
        "cuMemcpyHtoD_v2",
        "cuMemcpyHtoDAsync_v2",
        "cuMemcpyDtoH_v2",
        "cuMemcpyDtoHAsync_v2",
        "cuMemcpyDtoD_v2",
        "cuMemcpyDtoDAsync_v2",
        "cudaMemcpy",
        "cudaMemcpyAsync",
    ),
    "cuda_copy_peer": ("cuMemcpyPeer", "cuMemcpyPeerAsync", "cudaMemcpyPeer", "cudaMemcpyPeerAsync"),
    "cuda_copy_rectangle": ("cudaMemcpy2D", "cudaMemcpy2DAsync"),
}
_LAUNCHES = (
    "cuLaunchKernel",
    "cuLaunchKernelEx",
    "cuLaunchCooperativeKernel",
    "cuGraphLaunch",
    "cudaLaunchKernel",
    "__cudaLaunchKernel",  # what nvcc of CUDA 13 calls
    "cudaLaunchKernelExC",
    "cudaLaunchCooperativeKernel",
    "cudaGraphLaunch",
)
_PER_THREAD = ("", "_ptsz", "_ptds")
_LAUNCH_PROGRAM = "cuda_launch"


def _uprobes() -> tuple[Uprobe, ...]:
    timed = [
        Uprobe(program, function + suffix, at_return=at_return)
        for shape, functions in _FUNCTIONS.items()
        for function in functions
        for suffix in _PER_THREAD
        for program, at_return in ((shape, False), ("cuda_return", True))
    ]
    launches = [Uprobe(_LAUNCH_PROGRAM, name + suffix) for name in _LAUNCHES for suffix in _PER_THREAD]
    return (*timed, *launches)


def _constants(config: ProbesConfig) -> NDArray[Any]:
    return constants(
        CUDA_CONFIG,
        {
            "alloc_threshold_ns": nanoseconds(config.cuda.alloc_threshold),
            "copy_threshold_ns": nanoseconds(config.cuda.copy_threshold),
            "launch_gap_ns": nanoseconds(config.cuda.launch_gap),
        },
    )


PROBE = Probe(
    name="cuda",
    gives="GPU memory allocations, copies and launch gaps, on the span that waited for them",
    programs=(Program("sched_process_exit", "sched_process_exit", "5.5", "ended threads are forgotten"),),
    uprobes=_uprobes(),
    # libcuda.so.1, libcudart.so.12; with a hash in its name when a wheel brings its own.
    library=r"libcuda(rt)?([-.].*)?\.so.*",
    function="cudaMalloc",
    record=CUDA_EVENT,
    kinds=frozenset({KernelEventKind.CUDA_ALLOC, KernelEventKind.CUDA_COPY, KernelEventKind.CUDA_LAUNCH_GAP}),
    sums=Sums(KernelEventKind.CUDA_SUM, SPAN_KEY, CUDA_SUM_VALUE),
    config_of=lambda config: config.cuda,
    constants=_constants,
    wanted_uprobe=lambda uprobe, config: config.cuda.launches or uprobe.program != _LAUNCH_PROGRAM,
)
