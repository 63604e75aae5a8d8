"""GPM: what the multiprocessors and the memory did between two samples, on cards from Hopper on."""

from __future__ import annotations

import contextlib
import struct
import time
from typing import TYPE_CHECKING, Any

from otel_bridge import catalog
from otel_bridge.gpu.absent import BLANK
from otel_bridge.gpu.nvml import NvmlError
from otel_bridge.readings import Reading

if TYPE_CHECKING:
    from otel_bridge.gpu.absent import Absences
    from otel_bridge.gpu.device import Device
    from otel_bridge.gpu.nvml import Nvml

_WHOLE = 100.0
# What the binding's structure holds, read at once: it answers by attribute, at microseconds each.
_ANSWER = struct.Struct("@IId24x")  # c_nvmlGpmMetric_t: metric, error, value, names


class Gpm:
    """Takes a sample of one device each time, and tells what went on since the one before.

    Args:
        nvml: the open library.
        device: the card or MIG instance.
        card: handle of the card.
        instance: number of the MIG instance; None for the card itself.
        absences: told of what is absent.
    """

    def __init__(
        self, nvml: Nvml, device: Device, card: Any, instance: int | None, absences: Absences
    ) -> None:
        self._nvml = nvml
        self._device = device
        self._card = card
        self._instance = instance
        self._absences = absences
        api = nvml.api
        self._metrics = {
            api.NVML_GPM_METRIC_SM_UTIL: catalog.GPU_SM_ACTIVE_RATIO,
            api.NVML_GPM_METRIC_SM_OCCUPANCY: catalog.GPU_SM_OCCUPANCY_RATIO,
            api.NVML_GPM_METRIC_DRAM_BW_UTIL: catalog.GPU_DRAM_ACTIVE_RATIO,
        }
        self._labels = {"gpu_uuid": device.uuid}
        self._request = api.c_nvmlGpmMetricsGet_t()
        self._request.version = api.NVML_GPM_METRICS_GET_VERSION
        self._request.numMetrics = len(self._metrics)
        for slot, number in enumerate(self._metrics):
            self._request.metrics[slot].metricId = number
        self._answers = memoryview(self._request).cast("B")[api.c_nvmlGpmMetricsGet_t.metrics.offset :]
        self._samples: list[Any] = []
        self._primed = False
        self._supported: bool | None = None

    def read(self) -> dict[str, Reading]:
        """Means since the last time, by metric; nothing at first, or where the card has no GPM.

        Raises:
            GpuLostError: the card answers no more.
        """
        if not self._is_supported() or not self._take_sample():
            return {}
        if not self._primed:
            self._primed = True
            return {}
        return self._difference()

    def close(self) -> None:
        """Give the samples back; the library must be open."""
        for sample in self._samples:
            with contextlib.suppress(NvmlError):  # a driver that is gone has nothing to give back to
                self._nvml.call(self._nvml.api.nvmlGpmSampleFree, sample)
        self._samples.clear()

    def _is_supported(self) -> bool:
        if self._supported is None:
            found = self._device.ask("gpm", self._nvml.api.nvmlGpmQueryDeviceSupport, self._card)
            self._supported = bool(found is not None and found.isSupportedDevice)
            if found is not None and not self._supported:
                self._absences.note(self._device.uuid, "gpm", "not_supported")
        return self._supported

    def _take_sample(self) -> bool:
        api = self._nvml.api
        while len(self._samples) < 2:  # noqa: PLR2004 (the one before and the one now)
            sample = self._device.ask("gpm", api.nvmlGpmSampleAlloc)
            if sample is None:
                return False
            self._samples.append(sample)
        self._samples.reverse()
        newest = self._samples[1]
        if self._instance is None:
            taken = self._device.ask("gpm", api.nvmlGpmSampleGet, self._card, newest)
        else:
            taken = self._device.ask("gpm", api.nvmlGpmMigSampleGet, self._card, self._instance, newest)
        if taken is None:
            # What the two hold is of no one interval any more.
            self._primed = False
        return taken is not None

    def _difference(self) -> dict[str, Reading]:
        request = self._request
        request.sample1, request.sample2 = self._samples
        if self._device.ask("gpm", self._nvml.api.nvmlGpmMetricsGet, request) is None:
            return {}
        now = time.time_ns()
        found = {}
        for slot, metric in enumerate(self._metrics.values()):
            _, failure, value = _ANSWER.unpack_from(self._answers, slot * _ANSWER.size)
            if failure:
                self._absences.note(self._device.uuid, metric.name, NvmlError(failure).reason)
            elif not 0 <= value <= _WHOLE:
                self._absences.note(self._device.uuid, metric.name, BLANK)
            else:
                found[metric.name] = Reading(metric.name, self._labels, value / _WHOLE, now)
        return found
