"""Which tenant's host memory is short, and whether the GPU's activity bears that out."""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from otel_bridge.gpu.config import TenancyConfig
    from otel_bridge.psi import Pressure


class Stall(IntEnum):
    """How short of host memory a tenant is."""

    NONE = 0
    MEDIUM = 1
    CRITICAL = 2


class Evidence(Enum):
    """What the GPU's activity says of a stall."""

    CONFIRMED = "confirmed"
    CONTENDED = "contended"
    UNCONFIRMED = "unconfirmed"
    UNKNOWN = "unknown"


def stall_of(pressure: Pressure, config: TenancyConfig) -> Stall:
    """Medium when some tasks wait, critical when all do, above their limits."""
    if pressure.full.share > config.critical:
        return Stall.CRITICAL
    return Stall.MEDIUM if pressure.some.share > config.medium else Stall.NONE


def evidence_of(
    stall: Stall, sm_active: float | None, dram_active: float | None, config: TenancyConfig
) -> Evidence:
    """Hold a stall against what the tenant's GPU did meanwhile.

    Device memory that is busy explains slowness whatever the host does, so it goes first. A GPU that idles
    while its tenant waits for host memory is starved by it.

    Args:
        stall: of the tenant.
        sm_active: share of time that multiprocessors worked; None: not known.
        dram_active: used share of the device memory's bandwidth; None: not known.
        config: limits.
    """
    if stall is Stall.NONE:
        return Evidence.UNCONFIRMED
    if dram_active is not None and dram_active > config.contended_above:
        return Evidence.CONTENDED
    if sm_active is None:
        return Evidence.UNKNOWN
    return Evidence.CONFIRMED if sm_active < config.starved_below else Evidence.UNCONFIRMED
