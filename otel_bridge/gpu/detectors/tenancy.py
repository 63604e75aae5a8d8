"""Which tenant's host memory is short, and whether the GPU's activity bears that out."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from otel_bridge.gpu.config import TenancyConfig

_AVERAGE = re.compile(r"^(some|full) avg10=(\d+(?:\.\d+)?)", re.MULTILINE)


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


@dataclass(frozen=True, slots=True)
class MemoryPressure:
    """A cgroup's memory.pressure.

    Attributes:
        some: share of the last 10 s in which some task waited for memory.
        full: share in which all did.
    """

    some: float
    full: float


def read_pressure(text: str) -> MemoryPressure | None:
    """The content of a memory.pressure file; None where it is not that."""
    found = {kind: float(value) / 100 for kind, value in _AVERAGE.findall(text)}
    if "some" not in found or "full" not in found:
        return None
    return MemoryPressure(found["some"], found["full"])


def stall_of(pressure: MemoryPressure, config: TenancyConfig) -> Stall:
    """Medium when some tasks wait, critical when all do, above their limits."""
    if pressure.full > config.critical:
        return Stall.CRITICAL
    return Stall.MEDIUM if pressure.some > config.medium else Stall.NONE


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
