"""One GPU, or one MIG instance of it, as NVML shows it: what can be read now, and nothing else."""

from __future__ import annotations

import ctypes
import struct
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pynvml

from otel_bridge import catalog
from otel_bridge.errors import BridgeError
from otel_bridge.gpu.absent import BLANK, RESET, STALE
from otel_bridge.gpu.nvml import LOST, SETTLED, NvmlError
from otel_bridge.readings import Reading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from otel_bridge.catalog import Metric
    from otel_bridge.gpu.absent import Absences
    from otel_bridge.gpu.clock import ReadingClock
    from otel_bridge.gpu.nvml import Nvml

_THROTTLE_REASONS = {
    "power_cap": pynvml.nvmlClocksThrottleReasonSwPowerCap,
    "hardware_slowdown": pynvml.nvmlClocksThrottleReasonHwSlowdown,
    "thermal": pynvml.nvmlClocksThrottleReasonSwThermalSlowdown
    | pynvml.nvmlClocksThrottleReasonHwThermalSlowdown,
    "power_brake": pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown,
    "sync_boost": pynvml.nvmlClocksThrottleReasonSyncBoost,
}
_ALL_LINKS = 0xFFFFFFFF
_PCIE_TX, _PCIE_RX = pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES, pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES
_NVLINK_TX = pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX
_NVLINK_RX = pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX
_ECC = {
    pynvml.NVML_FI_DEV_ECC_SBE_VOL_TOTAL: "corrected",
    pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL: "uncorrected",
}
_THROUGHPUTS: dict[int, tuple[Metric, str, int]] = {
    _PCIE_TX: (catalog.GPU_PCIE_THROUGHPUT, "transmitted", 1),
    _PCIE_RX: (catalog.GPU_PCIE_THROUGHPUT, "received", 1),
    _NVLINK_TX: (catalog.GPU_NVLINK_THROUGHPUT, "transmitted", 1024),
    _NVLINK_RX: (catalog.GPU_NVLINK_THROUGHPUT, "received", 1024),
}
"""Counters of the driver: what becomes of them, and the bytes that one counts."""
_FIELDS = (*_ECC, pynvml.NVML_FI_DEV_MEMORY_TEMP, _PCIE_TX, _PCIE_RX)
_FIELD_NAMES = {
    **dict.fromkeys(_ECC, "ecc_errors"),
    pynvml.NVML_FI_DEV_MEMORY_TEMP: "memory_temperature",
    _PCIE_TX: "pcie_throughput",
    _PCIE_RX: "pcie_throughput",
    _NVLINK_TX: "nvlink_throughput",
    _NVLINK_RX: "nvlink_throughput",
}
# The binding's structures answer by attribute, at microseconds each; these are what they hold.
_MEMORY = struct.Struct("@IQQQQ")  # c_nvmlMemory_v2_t: version, total, reserved, free, used
_OLD_MEMORY = struct.Struct("@QQQ")  # c_nvmlMemory_t: total, free, used
_KINDS = "dILQqiH"  # by nvmlValueType_t
_VALUES = tuple(struct.Struct(f"@{kind}") for kind in _KINDS)  # c_nvmlValue_t
_SAMPLES = tuple(struct.Struct(f"@Q{kind}") for kind in _KINDS)  # c_nvmlSample_t
_FIELD = struct.Struct("@IIqqII8s")  # c_nvmlFieldValue_t: field, scope, stamp, latency, kind, error, value
_STALE_US = 1_000_000
"""Utilisation is sampled by the driver some times a second: an older one is of a driver that stopped."""
_SAMPLES_NS = 480_000_000
"""The driver samples utilisation itself, some six times a second, and keeps the samples with their times."""
_STEADY_NS = 1_000_000_000
_WHOLE = 100
_OLD_DRIVER = (pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)


class GpuLostError(BridgeError):
    """A GPU answers no more: whatever was read of it before says nothing about now.

    Attributes:
        reason: NVML's error in a word.
    """

    def __init__(self, uuid: str, error: NvmlError) -> None:
        self.reason = error.reason
        super().__init__(f"{uuid}: {error}")


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """A process that uses a GPU.

    Attributes:
        pid: as the initial pid namespace counts.
        memory: bytes; None where the driver does not tell.
    """

    pid: int
    memory: int | None


@dataclass(slots=True)
class Fast:
    """What is read often.

    Attributes:
        time: of the memory reading, unix nanoseconds.
        used: bytes of memory without reserved; None: absent.
        memory: its readings.
        steady: what is nearly always the same of it.
        utilization: its readings since the last time, in their order.
    """

    time: int = 0
    used: int | None = None
    memory: list[Reading] = field(default_factory=list)
    steady: list[Reading] = field(default_factory=list)
    utilization: list[Reading] = field(default_factory=list)


class Device:
    """Reads one GPU or MIG instance.

    Args:
        nvml: the open library.
        handle: NVML's.
        uuid: of the GPU or MIG instance.
        parent: UUID of the card; empty when it is the card itself.
        absences: told of what is absent.
        clock: times the readings.
    """

    def __init__(
        self,
        nvml: Nvml,
        handle: Any,
        uuid: str,
        *,
        name: str,
        parent: str,
        absences: Absences,
        clock: ReadingClock,
    ) -> None:
        self._nvml = nvml
        self.handle = handle
        self.uuid = uuid
        self.name = name
        self.parent = parent
        self._absences = absences
        self._clock = clock
        self._settled: set[str] = set()
        self._own_labels = {"gpu_uuid": uuid}
        self._labels: dict[tuple[str, tuple[str, ...]], dict[str, str]] = {}
        self._last_sample_us = self._samples_due = 0
        self._steady: tuple[int, int | None] = 0, None
        self._steady_time = 0
        self._counts: dict[int, tuple[int, float]] = {}
        api = nvml.api
        self._failure: type[Exception] = api.NVMLError
        # Without the version there is no telling used from reserved memory.
        self._memory = api.c_nvmlMemory_v2_t(version=api.nvmlMemory_v2)
        self._memory_call: Callable[[], None] | None = None
        self._old_memory_call = partial(api.nvmlDeviceGetMemoryInfo, handle)
        self._rates_call = partial(api.nvmlDeviceGetUtilizationRates, handle)
        self._samples_call = partial(api.nvmlDeviceGetSamples, handle, api.NVML_GPU_UTILIZATION_SAMPLES)

    @property
    def is_instance(self) -> bool:
        """Whether it is a MIG instance."""
        return bool(self.parent)

    def check(self) -> None:
        """Find out whether it answers.

        Raises:
            GpuLostError: it does not.
        """
        self._read_memory(Fast())
        self._steady_time = 0

    def read_fast(self) -> Fast:
        """Memory, and utilisation where there is news of it.

        Raises:
            GpuLostError: it answers no more.
        """
        out = Fast()
        self._read_memory(out)
        if not self.is_instance:
            self._read_utilization(out)
        return out

    def read_slow(self) -> list[Reading]:
        """Clocks, temperatures, power, throttling, ECC, links: of a card, not of its MIG instances.

        Raises:
            GpuLostError: it answers no more.
        """
        if self.is_instance:
            return []
        return [*self._read_state(), *self._read_fields()]

    def read_processes(self) -> list[ProcessUse] | None:
        """The processes that use it; None where that cannot be told.

        Raises:
            GpuLostError: it answers no more.
        """
        api = self._nvml.api
        found: dict[int, ProcessUse] = {}
        known = False
        for call in (
            api.nvmlDeviceGetComputeRunningProcesses_v3,
            api.nvmlDeviceGetGraphicsRunningProcesses_v3,
        ):
            listed = self.ask("processes", call, self.handle, settle=call.__name__)
            known |= listed is not None
            for one in listed or ():
                found[one.pid] = ProcessUse(one.pid, one.usedGpuMemory)
        return list(found.values()) if known else None

    # Asking

    def ask(self, reading: str, function: Callable[..., Any], *args: Any, settle: str = "") -> Any:
        """A reading, or None with its reason counted.

        Args:
            reading: what it is for, in metrics.
            function: of the binding.
            args: of the function.
            settle: what is not asked again where the card does not have it; empty: the reading.

        Raises:
            GpuLostError: the card answers nothing any more.
        """
        settle = settle or reading
        if settle in self._settled:
            return None
        try:
            return self._nvml.call(function, *args)
        except NvmlError as error:
            self._note(reading, error, settle)
            return None

    def _note(self, reading: str, error: NvmlError, settle: str) -> None:
        if error.code in LOST:
            raise GpuLostError(self.uuid, error) from error
        if error.code in SETTLED:
            self._settled.add(settle)
        self._absences.note(self.uuid, reading, error.reason)

    def _reading(self, metric: Metric, value: float, moment: int, *more: str) -> Reading:
        if not more:
            return Reading(metric.name, self._own_labels, value, moment)
        key = metric.name, more
        labels = self._labels.get(key)
        if labels is None:
            labels = self._labels[key] = dict(zip(metric.labels, (self.uuid, *more), strict=True))
        return Reading(metric.name, labels, value, moment)

    # Memory and utilisation: ten times a second and more, so with few steps in between

    def _read_memory(self, out: Fast) -> None:
        if "memory" in self._settled:
            return
        try:
            (total, used, reserved), out.time = self._clock.timed(self._ask_memory)
        except self._failure as failure:
            error = NvmlError(_code_of(failure), "memory")
            # What fails here for a reason that may pass fails for everything.
            if error.code not in SETTLED:
                raise GpuLostError(self.uuid, error) from error
            self._note("memory", error, "memory")
            return
        if not 0 <= used <= total or not total:
            self._absences.note(self.uuid, "memory", BLANK)
            return
        out.used = used
        out.memory = [
            self._reading(catalog.GPU_MEMORY_USED_RATIO, used / total, out.time),
            self._reading(catalog.GPU_MEMORY_USED, used, out.time),
        ]
        if (total, reserved) != self._steady or out.time - self._steady_time > _STEADY_NS:
            self._steady, self._steady_time = (total, reserved), out.time
            out.steady.append(self._reading(catalog.GPU_MEMORY_TOTAL, total, out.time))
            if reserved is not None:
                out.steady.append(self._reading(catalog.GPU_MEMORY_RESERVED, reserved, out.time))

    def _ask_memory(self) -> tuple[int, int, int | None]:
        """Total, used without reserved where the driver tells them apart, and reserved."""
        if "reserved_memory" not in self._settled:
            try:
                if self._memory_call is None:
                    self._memory_call = self._nvml.prepared(
                        "nvmlDeviceGetMemoryInfo_v2", self.handle, ctypes.byref(self._memory)
                    )
                self._memory_call()
                _, total, reserved, _, used = _MEMORY.unpack(self._memory)
            except self._failure as failure:
                error = NvmlError(_code_of(failure), "memory")
                if error.code not in _OLD_DRIVER:
                    raise
                self._note("reserved_memory", error, "reserved_memory")
            else:
                return total, used, reserved
        total, _, used = _OLD_MEMORY.unpack(self._old_memory_call())
        return total, used, None

    def _read_utilization(self, out: Fast) -> None:
        if "utilization_samples" not in self._settled:
            if out.time >= self._samples_due:
                self._samples_due = out.time + _SAMPLES_NS
                self._read_samples(out)
        elif "utilization" not in self._settled:
            try:
                rates, moment = self._clock.timed(self._rates_call)
            except self._failure as failure:
                self._note("utilization", NvmlError(_code_of(failure)), "utilization")
            else:
                self._take_utilization(out, moment, rates.gpu)

    def _read_samples(self, out: Fast) -> None:
        """The driver's own samples, which carry its time; of the last second at first."""
        now_us = time.time_ns() // 1000
        since = self._last_sample_us or now_us - _STALE_US
        try:
            kind, samples = self._samples_call(since)
        except self._failure as failure:
            error = NvmlError(_code_of(failure), "samples")
            if error.code not in (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_NO_DATA):
                self._note("utilization_samples", error, "utilization_samples")
            elif now_us - since > _STALE_US:
                self._absences.note(self.uuid, "utilization", STALE)
                self._last_sample_us = now_us
            return
        for sample in samples:
            stamp, value = _SAMPLES[kind].unpack_from(sample)
            if stamp > self._last_sample_us:
                self._last_sample_us = stamp
                self._take_utilization(out, stamp * 1000, value)

    def _take_utilization(self, out: Fast, moment: int, percent: float) -> None:
        if 0 <= percent <= _WHOLE:
            out.utilization.append(self._reading(catalog.GPU_UTILIZATION_RATIO, percent / _WHOLE, moment))
        else:
            self._absences.note(self.uuid, "utilization", BLANK)

    # Everything else

    def _read_state(self) -> Iterator[Reading]:
        api, handle = self._nvml.api, self.handle
        _, now = self._clock.timed(lambda: None, tries=1)
        for name, kind in (("sm", api.NVML_CLOCK_SM), ("memory", api.NVML_CLOCK_MEM)):
            megahertz = self.ask("clock", api.nvmlDeviceGetClockInfo, handle, kind, settle=f"clock_{name}")
            if megahertz is not None:
                yield self._reading(catalog.GPU_CLOCK, megahertz * 1e6, now, name)
        celsius = self.ask("temperature", api.nvmlDeviceGetTemperature, handle, api.NVML_TEMPERATURE_GPU)
        if celsius is not None:
            yield self._reading(catalog.GPU_TEMPERATURE, celsius, now, "gpu")
        milliwatts = self.ask("power", api.nvmlDeviceGetPowerUsage, handle)
        if milliwatts is not None:
            yield self._reading(catalog.GPU_POWER, milliwatts / 1000, now)
        # Its newer name is not in drivers before 535.
        reasons = self.ask("throttle_reasons", api.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
        if reasons is not None:
            for name, held in throttling(reasons):
                yield self._reading(catalog.GPU_THROTTLED, float(held), now, name)

    def _read_fields(self) -> Iterator[Reading]:
        """Values that come in one call, each with the driver's time and its own error."""
        api = self._nvml.api
        wanted = [number for number in _FIELDS if f"field_{number}" not in self._settled]
        links = [
            (number, _ALL_LINKS)
            for number in (_NVLINK_TX, _NVLINK_RX)
            if f"field_{number}" not in self._settled
        ]
        if not wanted and not links:
            return
        before = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        values = self.ask("fields", api.nvmlDeviceGetFieldValues, self.handle, [*wanted, *links])
        after = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        if values is None:
            return
        newest = 0
        for number, _, stamp, _, kind, failure, content in _FIELD.iter_unpack(values):
            if failure:
                self._note(_FIELD_NAMES[number], NvmlError(failure), f"field_{number}")
                continue
            newest = max(newest, stamp)
            (value,) = _VALUES[kind].unpack_from(content)
            found = self._of_field(number, stamp, value)
            if found is not None:
                yield found
        if newest:
            self._clock.check_stamp(newest * 1000, before, after)

    def _of_field(self, number: int, stamp: int, content: float) -> Reading | None:
        if number in _ECC:
            return self._reading(catalog.GPU_ECC_ERRORS, content, stamp * 1000, _ECC[number])
        if number == pynvml.NVML_FI_DEV_MEMORY_TEMP:
            return self._reading(catalog.GPU_TEMPERATURE, content, stamp * 1000, "memory")
        metric, direction, unit = _THROUGHPUTS[number]
        last, self._counts[number] = self._counts.get(number), (stamp, content)
        if last is None or stamp <= last[0]:
            return None
        if content < last[1]:
            self._absences.note(self.uuid, _FIELD_NAMES[number], RESET)
            return None
        rate = (content - last[1]) * unit / (stamp - last[0]) * 1e6
        return self._reading(metric, rate, stamp * 1000, direction)


def throttling(reasons: int) -> Iterator[tuple[str, bool]]:
    """What holds the clocks down, of a driver's bits: each reason, and whether it does."""
    for name, bits in _THROTTLE_REASONS.items():
        yield name, bool(reasons & bits)


def _code_of(failure: Exception) -> int:
    code: int = failure.value  # type: ignore[attr-defined]
    return code
