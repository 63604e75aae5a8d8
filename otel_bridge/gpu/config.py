"""What a user can set about GPUs."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from otel_bridge.units import Duration

_SHORTEST_PERIOD = 4.0
"""Seconds; utilisation is looked at once a second."""

Share = Annotated[float, Field(ge=0, le=1)]


PROCESSES_EVERY, STATE_EVERY = 2, 5
"""Of so many slow readings one is of processes, and one of clocks and the like."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class LevelsConfig(_Model):
    """Levels of memory pressure, as shares of used device memory."""

    medium: Share = Field(0.70, description="From here on pressure is medium: a cache may evict.")
    critical: Share = Field(0.85, description="Above it pressure is critical: intake may pause.")
    hysteresis: Share = Field(0.02, description="A level is left only so far below where it begins.")
    saturated: Share = Field(0.95, description="Above it memory is nearly full.")
    saturated_for: Duration = Field(30.0, description="Nearly full for so long is an event of its own.")

    @model_validator(mode="after")
    def _rises(self) -> Self:
        if not self.medium < self.critical <= self.saturated:
            raise ValueError("medium < critical <= saturated")
        if self.hysteresis >= self.medium or self.hysteresis >= self.critical - self.medium:
            raise ValueError("hysteresis is less than medium, and than critical less medium")
        return self


class PreemptionConfig(_Model):
    """Time-slice preemption: occupancy falls though the GPU stays busy."""

    gap: Share = Field(0.35, description="Mean occupancy of `long` less that of `short` is above this,")
    utilization: Share = Field(0.85, description="with utilisation above this,")
    duration: Duration = Field(15.0, description="both for so long.")
    long: Duration = 60.0
    short: Duration = 5.0

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not 0 < self.short < self.long:
            raise ValueError("0 < short < long")
        return self


class SawtoothConfig(_Model):
    """A regular rise and fall of utilisation."""

    swing: Share = Field(0.3, description="Smaller swings are none.")
    min_period: Duration = 10.0
    max_period: Duration = Field(100.0, description="Longer periods are not looked for; three must fit.")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not _SHORTEST_PERIOD <= self.min_period < self.max_period:
            raise ValueError("4s <= min_period < max_period: utilisation is looked at once a second")
        return self


class TenancyConfig(_Model):
    """Host memory pressure of tenants, by their cgroups' memory.pressure (PSI, avg10)."""

    medium: Share = Field(0.10, description='Above it, "some" tasks stalled: medium.')
    critical: Share = Field(0.05, description='Above it, "full", all tasks stalled: critical.')
    starved_below: Share = Field(0.5, description="SM activity below it: the GPU waits for its host.")
    contended_above: Share = Field(0.6, description="DRAM activity above it: device memory is contended.")


class DcgmConfig(_Model):
    """dcgm-exporter, read in NVML's place where it runs already."""

    endpoint: str = Field("http://127.0.0.1:9400/metrics", pattern=r"^https?://", description="Its metrics.")
    interval: Duration = Field(1.0, gt=0, description="Between two scrapes; its own default is 30 s.")
    timeout: Duration = Field(2.0, gt=0)


def _mode(value: object) -> object:
    """YAML reads a bare `off` as false."""
    return "off" if value is False else value


class GpuConfig(_Model):
    """GPUs: readings of the driver, pressure, detectors."""

    mode: Annotated[Literal["auto", "required", "off"], BeforeValidator(_mode)] = Field(
        "auto",
        description="auto: where there is a driver; and look again now and then. required: or do not start.",
    )
    source: Literal["nvml", "dcgm"] = Field(
        "nvml", description="nvml: ask the driver. dcgm: scrape a dcgm-exporter, so that nothing polls twice."
    )
    library: str = Field("", description="Path of libnvidia-ml.so.1; empty: as the loader finds it.")
    interval: Duration = Field(0.1, ge=0.01, description="Between two readings of memory and utilisation.")
    slow_interval: Duration = Field(
        1.0,
        ge=0.1,
        description="Between two readings of what multiprocessors do. Processes come at every second of "
        "them, clocks, temperatures, power, throttling, ECC and links at every fifth.",
    )
    retry_interval: Duration = Field(
        5.0, gt=0, description="Between two attempts to find the driver, or a GPU that was lost."
    )
    call_timeout: Duration = Field(
        5.0,
        gt=0,
        description="A GPU that keeps the driver's call longer counts as lost until the call returns; the "
        "others are read on.",
    )
    history: Duration = Field(
        600.0, ge=60, description="How far back spans can be told of their GPU: longer than requests take."
    )
    max_processes: int = Field(
        256, ge=1, description="Processes of one GPU with series of their own, those with most memory first."
    )
    tenant: Literal["service", "pod", "container"] = Field("service", description="What a tenant is.")
    levels: LevelsConfig = LevelsConfig()
    preemption: PreemptionConfig = PreemptionConfig()
    sawtooth: SawtoothConfig = SawtoothConfig()
    tenancy: TenancyConfig = TenancyConfig()
    dcgm: DcgmConfig = DcgmConfig()

    @property
    def cadence(self) -> float:
        """Seconds that two readings of memory are apart at the most, while all is well."""
        return self.interval if self.source == "nvml" else self.dcgm.interval + self.dcgm.timeout

    @property
    def state_interval(self) -> float:
        """Seconds between two readings of what changes slowly."""
        return STATE_EVERY * self.slow_interval

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.slow_interval < self.interval:
            raise ValueError("slow_interval is not shorter than interval")
        return self
