"""GPUs as a component: a source of readings, what is made of them, and who is told."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from otel_bridge.errors import StartError
from otel_bridge.gpu.absent import Absences
from otel_bridge.gpu.clock import ReadingClock
from otel_bridge.gpu.dcgm import DcgmScraper
from otel_bridge.gpu.hub import Hub
from otel_bridge.gpu.nvml import Nvml, NvmlError
from otel_bridge.gpu.sampler import Sampler

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_bridge.contracts import Clock
    from otel_bridge.firings import FiringSink
    from otel_bridge.gpu.clock import Alignment
    from otel_bridge.gpu.config import GpuConfig
    from otel_bridge.gpu_usage import GpuUsage
    from otel_bridge.readings import ReadingSink
    from otel_bridge.telemetry import Telemetry

log = structlog.get_logger(__name__)


class GpuMonitor:
    """Reads GPUs, by NVML or from a dcgm-exporter.

    Args:
        config: what users wrote.
        telemetry: for metrics; the readings are registered with its registry.
        clock: for intervals and ages.
        alignment: boot time to unix time, as kernel events are moved.
        readings: told of every reading, in the sampling thread.
        firings: told when a pressure level begins and ends.
    """

    def __init__(
        self,
        config: GpuConfig,
        telemetry: Telemetry,
        clock: Clock,
        *,
        alignment: Alignment,
        readings: Sequence[ReadingSink] = (),
        firings: Sequence[FiringSink] = (),
    ) -> None:
        self._config = config
        self._hub = Hub(config, clock, readings, firings)
        self._sampler: Sampler | None = None
        self._scraper: DcgmScraper | None = None
        if config.mode == "off":
            return
        telemetry.registry.register(self._hub.board)
        telemetry.registry.register(self._hub.xids)
        absences = Absences(telemetry)
        if config.source == "dcgm":
            self._scraper = DcgmScraper(config.dcgm, self._hub, absences, clock)
            return
        self._sampler = Sampler(
            config,
            Nvml(config.library),
            self._hub,
            absences=absences,
            reading_clock=ReadingClock(alignment),
            telemetry=telemetry,
            clock=clock,
        )

    @property
    def usage(self) -> GpuUsage:
        """Which process used which GPU, for spans."""
        return self._hub.usage

    async def start(self) -> None:
        """Begin.

        Raises:
            StartError: with `mode: required`, there is no driver, or exporter, that answers.
        """
        if self._scraper is not None:
            await self._scraper.start(required=self._config.mode == "required")
        if self._sampler is None:
            return
        try:
            await asyncio.to_thread(self._sampler.open)
        except NvmlError as error:
            if self._config.mode == "required":
                raise StartError(
                    f"{error}; gpu.mode: required needs the NVIDIA driver's libnvidia-ml.so.1: install the "
                    "driver, set gpu.library to its path, or gpu.mode to auto"
                ) from error
            log.info("no GPU readings", reason=str(error))
        self._sampler.start()

    async def stop(self, _deadline: float) -> None:
        """End; what a driver's call takes is waited for."""
        if self._scraper is not None:
            await self._scraper.stop()
        if self._sampler is not None:
            await asyncio.to_thread(self._sampler.stop)
