"""What `otel-bridge doctor` says about GPUs: whether the driver's library answers, and what it knows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_bridge.findings import Finding, Verdict
from otel_bridge.gpu.nvml import Nvml, NvmlError

if TYPE_CHECKING:
    from otel_bridge.gpu.config import GpuConfig

_SUBJECT = "NVML"
_NEEDED = "readings of GPUs: memory, utilisation, Xid errors, and what rules and breakers go by"


def look(config: GpuConfig) -> Finding:
    """Ask the driver, as the service would."""
    if config.mode == "off":
        return Finding(_SUBJECT, Verdict.OFF, "gpu.mode: off", _NEEDED, "gpu.mode: auto")
    if config.source == "dcgm":
        return Finding(_SUBJECT, Verdict.OFF, f"gpu.source: dcgm, {config.dcgm.endpoint}", _NEEDED)
    missing = Verdict.MISSING if config.mode == "required" else Verdict.OPTIONAL
    nvml = Nvml(config.library)
    try:
        nvml.open()
    except NvmlError as error:
        return Finding(_SUBJECT, missing, str(error), _NEEDED, _mend(error))
    try:
        version = nvml.call(nvml.api.nvmlSystemGetDriverVersion)
        count = nvml.call(nvml.api.nvmlDeviceGetCount)
    except NvmlError as error:
        return Finding(_SUBJECT, missing, str(error), _NEEDED, _mend(error))
    finally:
        nvml.close()
    return Finding(_SUBJECT, Verdict.OK, f"driver {version}, {count} GPUs", _NEEDED)


def _mend(error: NvmlError) -> str:
    return {
        "library_not_found": "apt-get install nvidia-driver, where there is an NVIDIA GPU; or gpu.library",
        "driver_not_loaded": "modprobe nvidia",
        "lib_rm_version_mismatch": "the driver was upgraded while loaded: reboot, or reload its modules",
        "no_permission": "let the bridge read /dev/nvidiactl and /dev/nvidia*",
    }.get(error.reason, "nvidia-smi says more")
