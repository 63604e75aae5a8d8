"""What the readings of one GPU say together: its pressure, its sawtooth, who is preempted, who is starved."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_bridge import catalog
from otel_bridge.gpu.detectors.preemption import detect_preemption
from otel_bridge.gpu.detectors.sawtooth import detect_sawtooth, window
from otel_bridge.gpu.detectors.tenancy import evidence_of, stall_of
from otel_bridge.gpu.history import Series
from otel_bridge.gpu.levels import SILENCE_NS, Pressure
from otel_bridge.gpu.tenants import Tenant
from otel_bridge.readings import Reading

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from otel_bridge.gpu.config import GpuConfig
    from otel_bridge.gpu.levels import Level
    from otel_bridge.gpu.tenants import Pressures

_LATEST = {
    catalog.GPU_SM_ACTIVE_RATIO.name: "sm_active",
    catalog.GPU_DRAM_ACTIVE_RATIO.name: "dram_active",
}
_FRESH_NS = 10_000_000_000
_SAY_AGAIN_NS = 1_000_000_000
_PATIENCE = 1.0


class Assessor:
    """Follows one GPU.

    Attributes:
        memory: used shares, unix nanoseconds.
        utilization: shares.
    """

    def __init__(self, uuid: str, config: GpuConfig) -> None:
        self.uuid = uuid
        self._config = config
        self.pressure = Pressure(config.levels, max(SILENCE_NS, _ns(2 * config.cadence)))
        capacity = round(config.history / config.interval)
        self.memory, self.utilization = Series(capacity), Series(capacity)
        self._occupancy = Series(round((config.preemption.long + config.preemption.duration) * 10))
        self._latest: dict[str, tuple[int, float]] = {}
        self._labels = {"gpu_uuid": uuid}
        self._said: tuple[Level | None, bool] = None, False
        self._said_at = 0

    def take_memory(self, reading: Reading) -> list[Reading]:
        """Take the used share of memory; answers the pressure where that is worth saying again."""
        self.memory.add(reading.time, reading.value)
        pressure = self.pressure
        pressure.read(reading.value, reading.time)
        said = pressure.level, pressure.saturated
        if pressure.level is None or (said == self._said and reading.time - self._said_at < _SAY_AGAIN_NS):
            return []
        self._said, self._said_at = said, reading.time
        return [
            Reading(catalog.GPU_PRESSURE_LEVEL.name, self._labels, float(pressure.level), reading.time),
            Reading(catalog.GPU_MEMORY_SATURATED.name, self._labels, float(pressure.saturated), reading.time),
        ]

    def take_utilization(self, readings: Sequence[Reading]) -> None:
        """Take utilisation, in the order of its time."""
        for reading in readings:
            self.utilization.add(reading.time, reading.value)

    def take_activity(self, readings: Sequence[Reading]) -> None:
        """Take what multiprocessors and memory did, among other readings."""
        for reading in readings:
            if reading.metric == catalog.GPU_SM_OCCUPANCY_RATIO.name:
                self._occupancy.add(reading.time, reading.value)
            elif (name := _LATEST.get(reading.metric)) is not None:
                self._latest[name] = reading.time, reading.value

    def lose(self) -> None:
        """It answers no more."""
        self.pressure.silence()
        self._latest.clear()

    def preemption(self, tenants: Sequence[Tenant], now: int) -> Iterator[Reading]:
        """Time-slice preemption, said of each tenant; nothing where occupancy is not read.

        Args:
            tenants: who use the GPU.
            now: unix nanoseconds.
        """
        config = self._config.preemption
        times, occupancy = self._occupancy.since(now - _ns(config.long + config.duration + 5 * _PATIENCE))
        busy_times, busy = self.utilization.since(now - _ns(config.duration + 5 * _PATIENCE))
        if not len(times) or now - times[-1] > _FRESH_NS:
            return
        found = detect_preemption(_seconds(times, now), occupancy, _seconds(busy_times, now), busy, config)
        if found is None:
            return
        gap = found.gap if found.busy else 0.0
        for tenant in tenants or (Tenant(""),):
            labels = {**self._labels, "tenant_id": tenant.name}
            yield Reading(catalog.GPU_PREEMPTION_GAP_RATIO.name, labels, gap, now)
            yield Reading(catalog.GPU_PREEMPTED.name, labels, float(found.holds), now)

    def sawtooth(self, host_memory: Series, now: int) -> Iterator[Reading]:
        """A regular rise and fall of utilisation; nothing where it is not read.

        Args:
            host_memory: used shares of the host's memory.
            now: unix nanoseconds.
        """
        since = now - _ns(window(self._config.sawtooth) + _PATIENCE)
        times, values = self.utilization.since(since)
        if not len(times) or now - times[-1] > _FRESH_NS:
            return
        host_times, host = host_memory.since(since)
        found = detect_sawtooth(
            _seconds(times, now),
            values,
            self._config.sawtooth,
            host_times=_seconds(host_times, now),
            host_memory=host,
        )
        swing = found.swing if found is not None else 0.0
        yield Reading(catalog.GPU_SAWTOOTH_SWING_RATIO.name, self._labels, swing, now)
        if found is None:
            return
        yield Reading(catalog.GPU_SAWTOOTH_PERIOD.name, self._labels, found.period, now)
        if found.host_correlation is not None:
            yield Reading(
                catalog.GPU_SAWTOOTH_HOST_CORRELATION.name, self._labels, found.host_correlation, now
            )

    def tenancy(self, tenants: Sequence[Tenant], pressures: Pressures, now: int) -> Iterator[Reading]:
        """Which tenants are short of host memory; of several cgroups of one the worst counts.

        Args:
            tenants: who use the GPU.
            pressures: of their cgroups.
            now: unix nanoseconds.
        """
        latest: Mapping[str, float] = {
            name: value for name, (moment, value) in self._latest.items() if now - moment < _FRESH_NS
        }
        config = self._config.tenancy
        for tenant in tenants:
            stalls = [stall_of(pressure, config) for pressure in pressures.of(tenant)]
            if not stalls:
                continue
            stall = max(stalls)
            evidence = evidence_of(stall, latest.get("sm_active"), latest.get("dram_active"), config)
            labels = {**self._labels, "tenant_id": tenant.name, "evidence": evidence.value}
            yield Reading(catalog.GPU_TENANT_PRESSURE.name, labels, float(stall), now)


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _seconds(times: NDArray[np.int64], now: int) -> NDArray[np.float64]:
    """Small numbers, so that a double keeps them exactly enough."""
    return (times - now) / 1e9
