"""Where readings of every source meet: shown, followed, handed on, and held against processes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import psutil

from otel_bridge import catalog
from otel_bridge.firings import Firing
from otel_bridge.gpu.assess import Assessor
from otel_bridge.gpu.board import Board
from otel_bridge.gpu.history import Series
from otel_bridge.gpu.levels import Level
from otel_bridge.gpu.processes import UNKNOWN, Processes
from otel_bridge.gpu.tenants import Pressures, tenants_of
from otel_bridge.gpu.usage import PATIENCE, Usage
from otel_bridge.gpu.xid_counts import XidCounts
from otel_bridge.mounts import PROC
from otel_bridge.readings import Reading

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from otel_bridge.contracts import Clock
    from otel_bridge.firings import FiringSink
    from otel_bridge.gpu.config import GpuConfig
    from otel_bridge.gpu.device import ProcessUse
    from otel_bridge.gpu.processes import Process
    from otel_bridge.gpu.tenants import Tenant
    from otel_bridge.readings import ReadingSink

DETECT_INTERVAL = 10.0
"""Seconds between two looks for what shows only over minutes."""
LEVEL_RULE = "GpuMemoryLevel"
HOOKS = {Level.MEDIUM: ("evict", "info"), Level.CRITICAL: ("pause", "warning")}
"""What a level asks of whoever listens: labels `hook` and `severity` of its firings."""


@dataclass(slots=True)
class _Gpu:
    assessor: Assessor
    tenants: list[Tenant] = field(default_factory=list)
    told: Level = Level.LOW


class Hub:
    """Used by the sampling thread; spans and scrapes are answered from others.

    Args:
        config: of all that is done with readings.
        clock: for ages.
        readings: told of every reading.
        firings: told when a pressure level begins and ends.
        proc: where procfs is mounted; its pid namespace must be the initial one.

    Attributes:
        board: the readings of now, for scrapes.
        xids: errors that drivers reported, for scrapes.
        usage: which process used which GPU, for spans.
    """

    def __init__(
        self,
        config: GpuConfig,
        clock: Clock,
        readings: Sequence[ReadingSink] = (),
        firings: Sequence[FiringSink] = (),
        proc: Path = PROC,
    ) -> None:
        self._config = config
        self._clock = clock
        self._sinks = list(readings)
        self._firings = list(firings)
        self._gpus: dict[str, _Gpu] = {}
        self._used: dict[str, list[Process]] = {}
        self._proc = proc
        self._processes = Processes(proc)
        self._host_memory = Series(round(config.history))
        self._detected = clock.monotonic()
        self._seconds = 0
        self._fast_lifetime = max(1.0, 2 * config.cadence)
        self._slow_lifetime = max(5.0, 5 * config.slow_interval, 3 * config.cadence)
        self._state_lifetime = 2.5 * config.state_interval
        self._outgoing: list[Reading] = []
        self.board = Board(clock)
        self.xids = XidCounts(clock)
        self.usage = Usage(config.history, patience=round(max(PATIENCE, 2 * config.cadence) * 1e9))

    def take_memory(self, uuid: str, readings: Sequence[Reading]) -> None:
        """Readings of memory, the used share first."""
        gpu = self._of(uuid)
        self._show(uuid, "memory", readings, self._fast_lifetime)
        pressure = gpu.assessor.take_memory(readings[0])
        if pressure:
            self._show(uuid, "pressure", pressure, self._slow_lifetime)
            self._tell(uuid, gpu, pressure[0].time)

    def miss_memory(self, uuid: str) -> None:
        """Memory is absent: what was read before says nothing about now."""
        gpu = self._of(uuid)
        if gpu.assessor.pressure.level is not None:
            gpu.assessor.pressure.silence()
            for group in ("memory", "memory_size", "pressure"):
                self.board.hide(uuid, group)

    def take_utilization(self, uuid: str, readings: Sequence[Reading]) -> None:
        """Readings of utilisation, in the order of their time."""
        self._of(uuid).assessor.take_utilization(readings)
        self._show(uuid, "utilization", readings, self._fast_lifetime)

    def take_slow(self, uuid: str, group: str, readings: Sequence[Reading]) -> None:
        """Other readings, all of a group together."""
        self._of(uuid).assessor.take_activity(readings)
        self._show(uuid, group, readings, self._slow_lifetime)

    def take_state(self, uuid: str, readings: Sequence[Reading]) -> None:
        """Readings of what changes slowly."""
        self._show(uuid, "state", readings, self._state_lifetime)

    def lose(self, uuid: str) -> None:
        """A GPU answers no more: nothing of it is shown but that."""
        gpu = self._of(uuid)
        gpu.assessor.lose()
        self.board.clear(uuid)
        self._used.pop(uuid, None)
        lost = Reading(catalog.GPU_UP.name, {"gpu_uuid": uuid}, 0.0, self._clock.time_ns())
        self._show(uuid, "up", [lost], math.inf)

    def greet(self, uuid: str, name: str, parent: str) -> None:
        """A GPU answers; to be said again while it does.

        Args:
            uuid: of the GPU or MIG instance.
            name: of its model.
            parent: UUID of an instance's card.
        """
        now = self._clock.time_ns()
        info = dict(zip(catalog.GPU_INFO.labels, (uuid, name, parent), strict=True))
        readings = [
            Reading(catalog.GPU_UP.name, {"gpu_uuid": uuid}, 1.0, now),
            Reading(catalog.GPU_INFO.name, info, 1.0, now),
        ]
        self._show(uuid, "up", readings, self._slow_lifetime)

    def forget(self, uuid: str) -> None:
        """A MIG instance was taken apart."""
        self._gpus.pop(uuid, None)
        self._used.pop(uuid, None)
        self.board.clear(uuid)

    def flush(self) -> None:
        """Hand on what was taken since the last time."""
        if not self._outgoing:
            return
        readings, self._outgoing = self._outgoing, []
        for sink in self._sinks:
            sink.take_readings(readings)

    def take_processes(self, uuid: str, uses: list[ProcessUse] | None, used_memory: int | None) -> None:
        """Who uses a GPU now.

        Args:
            uuid: of the GPU.
            uses: as the driver tells it; None: it does not.
            used_memory: of the GPU in all, bytes; None: not known.
        """
        if uses is None:
            self._used.pop(uuid, None)
            return
        now, time = self._clock.monotonic(), self._clock.time_ns()
        found = {use.pid: self._processes.find(use.pid, now) for use in uses}
        self._used[uuid] = [process for process in found.values() if process is not None]
        gpu = self._of(uuid)
        gpu.tenants = tenants_of(self._used[uuid], self._tenant_of)
        labels = {"gpu_uuid": uuid}
        known = [(use, use.memory) for use in uses if use.memory is not None]
        known.sort(key=lambda one: -one[1])
        readings = [
            self._process_memory(uuid, use.pid, memory, found[use.pid], time)
            for use, memory in known[: self._config.max_processes]
        ]
        readings.append(Reading(catalog.GPU_PROCESSES.name, labels, float(len(uses)), time))
        if used_memory is not None:
            rest = max(0, used_memory - sum(memory for _, memory in known))
            readings.append(Reading(catalog.GPU_MEMORY_UNATTRIBUTED.name, labels, float(rest), time))
        self._show(uuid, "processes", readings, self._slow_lifetime)

    def second(self) -> None:
        """Look at windows; due about every second."""
        now, time = self._clock.monotonic(), self._clock.time_ns()
        self._host_memory.add(time, psutil.virtual_memory().percent / 100)
        self._processes.keep({process.pid for used in self._used.values() for process in used})
        self.usage.update(self._used, {uuid: gpu.assessor for uuid, gpu in self._gpus.items()}, now)
        self._outgoing += self.xids.readings(time)
        pressures = None
        if now - self._detected >= DETECT_INTERVAL:
            self._detected, pressures = now, Pressures(self._proc)
        self._seconds += 1
        for number, (uuid, gpu) in enumerate(self._gpus.items()):
            if (self._seconds + number) % 2:
                preempted = list(gpu.assessor.preemption(gpu.tenants, time))
                self._show(uuid, "preemption", preempted, self._slow_lifetime)
            if pressures is not None:
                found = [
                    *gpu.assessor.sawtooth(self._host_memory, time),
                    *gpu.assessor.tenancy(gpu.tenants, pressures, time),
                ]
                self._show(uuid, "patterns", found, 2 * DETECT_INTERVAL)

    # Readings

    def _of(self, uuid: str) -> _Gpu:
        gpu = self._gpus.get(uuid)
        if gpu is None:
            gpu = self._gpus[uuid] = _Gpu(Assessor(uuid, self._config))
        return gpu

    def _show(self, uuid: str, group: str, readings: Sequence[Reading], lifetime: float) -> None:
        self.board.show(uuid, group, readings, lifetime)
        self._outgoing += readings

    def _tell(self, uuid: str, gpu: _Gpu, moment: int) -> None:
        """Firings for levels that have begun or ended; silence ends none."""
        level = gpu.assessor.pressure.level
        if level is None or level is gpu.told:
            return
        for hooked, (hook, severity) in HOOKS.items():
            if (level >= hooked) != (gpu.told >= hooked):
                labels = {
                    "gpu_uuid": uuid,
                    "level": hooked.name.lower(),
                    "hook": hook,
                    "severity": severity,
                }
                self._fire(labels, moment, active=level >= hooked)
        gpu.told = level

    def _fire(self, labels: dict[str, str], moment: int, *, active: bool) -> None:
        summary = f"Memory of {labels['gpu_uuid']} is under {labels['level']} pressure: {labels['hook']}"
        for sink in self._firings:
            sink.take_firing(Firing(LEVEL_RULE, labels, active, moment, {"summary": summary}))

    # Processes

    def _process_memory(
        self, uuid: str, pid: int, memory: int, process: Process | None, time: int
    ) -> Reading:
        if process is None:
            who = ("", "", UNKNOWN)
        else:
            who = (process.container, process.pod, self.usage.services.name_of(process))
        labels = dict(zip(catalog.GPU_PROCESS_MEMORY.labels, (uuid, str(pid), *who), strict=True))
        return Reading(catalog.GPU_PROCESS_MEMORY.name, labels, float(memory), time)

    def _tenant_of(self, process: Process) -> str:
        if self._config.tenant == "pod":
            return process.pod
        if self._config.tenant == "container":
            return process.container
        return self.usage.services.name_of(process) or process.pod or process.container
