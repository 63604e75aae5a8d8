"""What `otel-bridge doctor` says about GPUs: whether their source answers, and what it does not tell."""

from __future__ import annotations

import urllib.request
from http.client import HTTPException
from typing import TYPE_CHECKING, Any

from otel_bridge.findings import Finding, Verdict
from otel_bridge.gpu.absent import Absences
from otel_bridge.gpu.dcgm import read_scrape
from otel_bridge.gpu.nvml import Nvml, NvmlError
from otel_bridge.mounts import PROC
from otel_bridge.telemetry import Telemetry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from otel_bridge.gpu.config import GpuConfig

_NEEDED = "readings of GPUs: memory, utilisation, Xid errors, and what rules and breakers go by"


def look(config: GpuConfig, proc: Path = PROC) -> Finding:
    """Ask the source, as the service would.

    Args:
        config: of GPUs.
        proc: where procfs is mounted.
    """
    if config.mode == "off":
        return Finding("NVML", Verdict.OFF, "gpu.mode: off", _NEEDED, "gpu.mode: auto")
    missing = Verdict.MISSING if config.mode == "required" else Verdict.OPTIONAL
    return _dcgm(config, missing) if config.source == "dcgm" else _nvml(config, missing, proc)


# dcgm-exporter


def _dcgm(config: GpuConfig, missing: Verdict) -> Finding:
    endpoint, subject = config.dcgm.endpoint, "dcgm-exporter"
    try:
        with urllib.request.urlopen(endpoint, timeout=config.dcgm.timeout) as answer:  # noqa: S310 (http or https)
            found = read_scrape(answer.read().decode(), 0, Absences(Telemetry()))
    except (OSError, HTTPException, ValueError) as error:
        mend = "start dcgm-exporter, or set gpu.dcgm.endpoint; or gpu.source: nvml"
        return Finding(subject, missing, f"{endpoint}: {error}", _NEEDED, mend)
    if not found.readings:
        mend = "let its counters hold DCGM_FI_DEV_FB_USED, _FB_FREE and DCGM_FI_DEV_GPU_UTIL"
        return Finding(subject, missing, f"{endpoint}: no GPU that it tells of", _NEEDED, mend)
    return Finding(subject, Verdict.OK, f"{endpoint}: {len(found.readings)} GPUs", _NEEDED)


# NVML


def _nvml(config: GpuConfig, missing: Verdict, proc: Path) -> Finding:
    nvml = Nvml(config.library)
    try:
        nvml.open()
    except NvmlError as error:
        return Finding("NVML", missing, str(error), _NEEDED, _mend(error))
    try:
        version = nvml.call(nvml.api.nvmlSystemGetDriverVersion)
        count = nvml.call(nvml.api.nvmlDeviceGetCount)
        lacks = [line for index in range(count) for line in _lacks_of(nvml, index, proc)]
    except NvmlError as error:
        return Finding("NVML", missing, str(error), _NEEDED, _mend(error))
    finally:
        nvml.close()
    found = f"driver {version}, {count} GPUs"
    if not count:
        return Finding("NVML", missing, found, _NEEDED, "nvidia-smi -L says which GPUs the driver sees")
    mends = dict.fromkeys(mend for _, mend in lacks if mend)
    verdict = Verdict.PARTIAL if mends else Verdict.OK
    return Finding(
        "NVML", verdict, "; ".join([found, *(text for text, _ in lacks)]), _NEEDED, "; ".join(mends)
    )


def _lacks_of(nvml: Nvml, index: int, proc: Path) -> Iterator[tuple[str, str]]:
    """What one card does not tell, each with what mends it; empty when nothing does."""
    api = nvml.api
    try:
        handle = nvml.call(api.nvmlDeviceGetHandleByIndex, index)
        nvml.call(api.nvmlDeviceGetUUID, handle)
    except NvmlError as error:
        yield f"GPU {index} does not answer: {error.reason.replace('_', ' ')}", _mend(error)
        return
    if not _has_activity(nvml, handle):
        yield f"GPU {index} has no GPM: no SM occupancy and DRAM activity, so no preemption", ""
    try:
        users = nvml.call(api.nvmlDeviceGetComputeRunningProcesses_v3, handle)
    except NvmlError as error:
        yield f"GPU {index} tells no processes: {error.reason.replace('_', ' ')}", ""
        return
    hidden = sum(not (proc / str(user.pid)).exists() for user in users)
    if hidden:
        yield f"{hidden} processes of GPU {index} are not seen here", "hostPID: true (docker: --pid=host)"


def _has_activity(nvml: Nvml, handle: Any) -> bool:
    try:
        found = nvml.call(nvml.api.nvmlGpmQueryDeviceSupport, handle)
    except NvmlError:  # an older driver, or a card that has it not
        return False
    return bool(found.isSupportedDevice)


def _mend(error: NvmlError) -> str:
    return {
        "library_not_found": "apt-get install nvidia-driver, where there is an NVIDIA GPU; or gpu.library",
        "driver_not_loaded": "modprobe nvidia",
        "lib_rm_version_mismatch": "the driver was upgraded while loaded: reboot, or reload its modules",
        "no_permission": "let the bridge read /dev/nvidiactl and /dev/nvidia*",
    }.get(error.reason, "nvidia-smi says more")
