"""dcgm-exporter as the source of readings: its metrics under their own names, told from its blanks."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import aiohttp
import structlog
from prometheus_client.parser import text_string_to_metric_families

from otel_bridge import catalog
from otel_bridge.errors import StartError
from otel_bridge.gpu.absent import BLANK
from otel_bridge.gpu.device import throttling
from otel_bridge.readings import Reading

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric as Family

    from otel_bridge.catalog import Metric
    from otel_bridge.contracts import Clock
    from otel_bridge.gpu.absent import Absences
    from otel_bridge.gpu.config import DcgmConfig
    from otel_bridge.gpu.hub import Hub

log = structlog.get_logger(__name__)

MIB = 1 << 20
_USED, _FREE, _RESERVED = "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_FB_RESERVED"
_MEMORY = (_USED, _FREE, _RESERVED)
_THROTTLING = ("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "DCGM_FI_DEV_CLOCKS_EVENT_REASONS")
"""The driver's bits, under their old name and their new one."""
_XID = "DCGM_FI_DEV_XID_ERRORS"
"""The number of the last error, which is never taken back."""

NAMES: dict[str, tuple[Metric, float, tuple[str, ...]]] = {
    "DCGM_FI_DEV_GPU_UTIL": (catalog.GPU_UTILIZATION_RATIO, 0.01, ()),
    "DCGM_FI_PROF_SM_ACTIVE": (catalog.GPU_SM_ACTIVE_RATIO, 1, ()),
    "DCGM_FI_PROF_SM_OCCUPANCY": (catalog.GPU_SM_OCCUPANCY_RATIO, 1, ()),
    "DCGM_FI_PROF_DRAM_ACTIVE": (catalog.GPU_DRAM_ACTIVE_RATIO, 1, ()),
    "DCGM_FI_DEV_SM_CLOCK": (catalog.GPU_CLOCK, 1e6, ("sm",)),
    "DCGM_FI_DEV_MEM_CLOCK": (catalog.GPU_CLOCK, 1e6, ("memory",)),
    "DCGM_FI_DEV_GPU_TEMP": (catalog.GPU_TEMPERATURE, 1, ("gpu",)),
    "DCGM_FI_DEV_MEMORY_TEMP": (catalog.GPU_TEMPERATURE, 1, ("memory",)),
    "DCGM_FI_DEV_POWER_USAGE": (catalog.GPU_POWER, 1, ()),
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": (catalog.GPU_ECC_ERRORS, 1, ("corrected",)),
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": (catalog.GPU_ECC_ERRORS, 1, ("uncorrected",)),
    "DCGM_FI_PROF_PCIE_TX_BYTES": (catalog.GPU_PCIE_THROUGHPUT, 1, ("transmitted",)),
    "DCGM_FI_PROF_PCIE_RX_BYTES": (catalog.GPU_PCIE_THROUGHPUT, 1, ("received",)),
    "DCGM_FI_PROF_NVLINK_TX_BYTES": (catalog.GPU_NVLINK_THROUGHPUT, 1, ("transmitted",)),
    "DCGM_FI_PROF_NVLINK_RX_BYTES": (catalog.GPU_NVLINK_THROUGHPUT, 1, ("received",)),
}
"""What becomes of a metric of dcgm-exporter: ours, the factor to its unit, its further labels."""

_BLANK_RANGES = (
    (0x7FFFFFF0, 0x7FFFFFF3),  # DCGM_INT32_BLANK and not found, not supported, no permission
    (140737488355328.0, 140737488355331.0),  # the same as doubles
    (float(0x7FFFFFFFFFFFFFF0), float("inf")),  # as 64-bit integers: one double stands for all of them
)


def is_blank(value: float) -> bool:
    """Whether DCGM means that it has no value."""
    value = float(value)  # the parser keeps integers as they are
    return value != value or any(low <= value <= high for low, high in _BLANK_RANGES)  # noqa: PLR0124 (NaN)


@dataclass(slots=True)
class Scrape:
    """What an exporter said.

    Attributes:
        readings: by GPU or MIG instance.
        xids: by GPU the number of the last Xid error; 0: there was none.
    """

    readings: dict[str, list[Reading]] = field(default_factory=lambda: defaultdict(list))
    xids: dict[str, int] = field(default_factory=dict)


def read_scrape(text: str, moment: int, absences: Absences) -> Scrape:
    """What is in a scrape.

    An instance has no UUID here: it is called by its card's and its number, "GPU-…/3".

    Args:
        text: in Prometheus's format.
        moment: of the scrape, unix nanoseconds.
        absences: told of blanks.

    Raises:
        ValueError: the text is not in that format.
    """
    out = Scrape()
    memory: dict[str, dict[str, float]] = defaultdict(dict)
    for family in _families(text):
        for sample in family.samples:
            uuid = _uuid(sample.labels)
            name = sample.name if sample.name in NAMES else sample.name.removesuffix("_total")
            if not uuid or not (name in NAMES or name in _MEMORY or name in _THROTTLING or name == _XID):
                continue
            if is_blank(sample.value):
                absences.note(uuid, name, BLANK)
            elif name in NAMES:
                metric, factor, more = NAMES[name]
                labels = dict(zip(metric.labels, (uuid, *more), strict=True))
                out.readings[uuid].append(Reading(metric.name, labels, sample.value * factor, moment))
            elif name in _MEMORY:
                memory[uuid][name] = sample.value * MIB
            elif name == _XID:
                out.xids[uuid] = int(sample.value)
            else:
                out.readings[uuid] += _throttled(uuid, int(sample.value), moment)
    for uuid, parts in memory.items():
        out.readings[uuid] += _memory(uuid, parts, moment)
    return out


def _families(text: str) -> list[Family]:
    try:
        return list(text_string_to_metric_families(text))
    except (ValueError, IndexError) as error:  # the parser runs off the end of some texts
        raise ValueError(f"not in Prometheus's text format: {error}") from error


def _throttled(uuid: str, reasons: int, moment: int) -> Iterator[Reading]:
    for reason, held in throttling(reasons):
        labels = {"gpu_uuid": uuid, "reason": reason}
        yield Reading(catalog.GPU_THROTTLED.name, labels, float(held), moment)


def _uuid(labels: dict[str, str]) -> str:
    uuid, instance = labels.get("UUID", ""), labels.get("GPU_I_ID", "")
    return f"{uuid}/{instance}" if uuid and instance else uuid


def _memory(uuid: str, parts: dict[str, float], moment: int) -> Iterator[Reading]:
    labels = {"gpu_uuid": uuid}
    if _USED in parts:
        yield Reading(catalog.GPU_MEMORY_USED.name, labels, parts[_USED], moment)
    if _RESERVED in parts:
        yield Reading(catalog.GPU_MEMORY_RESERVED.name, labels, parts[_RESERVED], moment)
    total = sum(parts.values())
    if _USED in parts and _FREE in parts and total > 0:
        yield Reading(catalog.GPU_MEMORY_TOTAL.name, labels, total, moment)
        yield Reading(catalog.GPU_MEMORY_USED_RATIO.name, labels, parts[_USED] / total, moment)


class DcgmScraper:
    """Scrapes in intervals; in the service's event loop.

    Args:
        config: from where.
        hub: takes what is read.
        absences: told of what is absent.
        clock: for intervals.
    """

    def __init__(self, config: DcgmConfig, hub: Hub, absences: Absences, clock: Clock) -> None:
        self._config = config
        self._hub = hub
        self._absences = absences
        self._clock = clock
        self._known: set[str] = set()
        self._xids: dict[str, int] = {}
        self._failure = ""
        self._task: asyncio.Task[None] | None = None

    async def start(self, *, required: bool) -> None:
        """Begin; an exporter that does not answer is asked again and again.

        Args:
            required: the first time it must answer.

        Raises:
            StartError: it does not.
        """
        if required:
            async with self._session() as session:
                await self._scrape(session)
            if self._failure:
                raise StartError(
                    f"{self._config.endpoint}: {self._failure}; gpu.mode: required needs a dcgm-exporter: "
                    "start it, set gpu.dcgm.endpoint, or gpu.mode to auto"
                )
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """End."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def _session(self) -> aiohttp.ClientSession:
        timeout = aiohttp.ClientTimeout(total=self._config.timeout)
        return aiohttp.ClientSession(timeout=timeout, raise_for_status=True)

    async def _run(self) -> None:
        async with self._session() as session:
            while True:
                await self._scrape(session)
                await self._clock.sleep(self._config.interval)

    async def _scrape(self, session: aiohttp.ClientSession) -> None:
        before = time.time_ns()
        try:
            async with session.get(self._config.endpoint) as response:
                text = await response.text()
            found = read_scrape(text, (before + time.time_ns()) // 2, self._absences)
        except Exception as error:  # noqa: BLE001 (said below; what an answer makes a parser raise is its own)
            reason = f"{type(error).__name__}: {error}"
            if reason != self._failure:
                self._failure = reason
                log.warning("no GPU readings", endpoint=self._config.endpoint, reason=reason)
            self._take({})
            self._end_of_round()
        else:
            self._failure = ""
            self._take(found.readings)
            self._take_xids(found.xids)
            self._end_of_round()

    def _take(self, found: dict[str, list[Reading]]) -> None:
        for uuid in self._known - found.keys():
            self._hub.lose(uuid)
        for uuid, readings in found.items():
            self._hub.greet(uuid, "", uuid.partition("/")[0] if "/" in uuid else "")
            memory = [one for one in readings if one.metric == catalog.GPU_MEMORY_USED_RATIO.name]
            busy = [one for one in readings if one.metric == catalog.GPU_UTILIZATION_RATIO.name]
            if memory:
                self._hub.take_memory(uuid, memory)
            else:
                self._hub.miss_memory(uuid)
            if busy:
                self._hub.take_utilization(uuid, busy)
            self._hub.take_slow(uuid, "state", [one for one in readings if one not in (*memory, *busy)])
        self._known = set(found)

    def _take_xids(self, found: dict[str, int]) -> None:
        """One that has changed is new; one that was there at first is of any time since the driver began."""
        for uuid, number in found.items():
            if number and number != self._xids.get(uuid, number):
                self._hub.xids.add(uuid, number)
        self._xids |= found

    def _end_of_round(self) -> None:
        self._hub.second()
        self._hub.flush()
