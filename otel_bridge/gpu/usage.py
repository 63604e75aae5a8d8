"""Which process used which GPU, and what that GPU went through during a span."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from otel_bridge.gpu.history import at_start, worst_within
from otel_bridge.gpu.processes import Services
from otel_bridge.gpu_usage import SpanUsage

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from otel_bridge.gpu.assess import Assessor
    from otel_bridge.gpu.processes import Process

_SHORT_ID = 12
PATIENCE = 2.0
"""Seconds; a reading so much older than a span says nothing of its start: the driver samples more often."""


@dataclass(slots=True)
class _User:
    process: Process
    seen: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Index:
    by_own_pid: Mapping[int, list[_User]]
    by_ancestor: Mapping[int, list[_User]]
    by_container: Mapping[str, list[_User]]


class Usage:
    """Filled by the sampling thread, asked by the data path (gpu_usage.GpuUsage).

    Args:
        history: seconds that a process is remembered after its last use of a GPU.
        patience: nanoseconds that a reading is good for the start of a span.
    """

    def __init__(self, history: float, patience: int = round(PATIENCE * 1e9)) -> None:
        self._history = history
        self._patience = patience
        self._users: dict[int, _User] = {}
        self._index = _Index({}, {}, {})
        self._assessors: Mapping[str, Assessor] = {}
        self.services = Services()

    def update(
        self, used: Mapping[str, Iterable[Process]], assessors: Mapping[str, Assessor], now: float
    ) -> None:
        """Note who uses what now.

        Args:
            used: by GPU its processes.
            assessors: by GPU what was read of it.
            now: monotonic seconds.
        """
        self._assessors = dict(assessors)
        for uuid, processes in used.items():
            for process in processes:
                user = self._users.get(process.pid)
                if user is None or user.process.began != process.began:
                    user = self._users[process.pid] = _User(process)
                user.process = process
                user.seen[uuid] = now
        for pid, user in list(self._users.items()):
            user.seen = {uuid: seen for uuid, seen in user.seen.items() if now - seen <= self._history}
            if not user.seen:
                del self._users[pid]
        self._index = _index(self._users.values())

    @property
    def is_used(self) -> bool:
        """See `GpuUsage`."""
        return bool(self._index.by_own_pid)

    def learn(self, container: str, own_pid: int, service: str) -> None:
        """See `GpuUsage`."""
        self.services.learn(container, own_pid, service)

    def of(
        self, container: str, own_pid: int, starts: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> SpanUsage | None:
        """See `GpuUsage`."""
        match, users = self._find(container, own_pid)
        uuids = tuple(sorted({uuid for user in users for uuid in user.seen if uuid in self._assessors}))
        if not uuids:
            return None
        memory = [self._of_series(uuid, "memory", starts, ends) for uuid in uuids]
        busy = [self._of_series(uuid, "utilization", starts, ends) for uuid in uuids]
        fullest = np.array([worst for _, worst in memory])
        worst = np.argmax(np.where(np.isnan(fullest), -1.0, fullest), axis=0)
        rows = np.arange(len(starts))
        return SpanUsage(
            match,
            uuids,
            worst,
            memory_at_start=np.array([began for began, _ in memory])[worst, rows],
            memory_max=fullest[worst, rows],
            utilization_at_start=np.array([began for began, _ in busy])[worst, rows],
            utilization_max=np.array([worst for _, worst in busy])[worst, rows],
        )

    def _of_series(
        self, uuid: str, name: str, starts: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        times, values = getattr(self._assessors[uuid], name).since(int(starts.min()) - self._patience)
        return (
            at_start(times, values, starts, self._patience),
            worst_within(times, values, starts, ends, self._patience),
        )

    def _find(self, container: str, own_pid: int) -> tuple[str, list[_User]]:
        """Those that are the process, its children, or else share its container."""
        index = self._index
        short = container[:_SHORT_ID]
        same = [
            user
            for user in index.by_own_pid.get(own_pid, ())
            if not short or not user.process.container or user.process.container.startswith(short)
        ]
        # Each container counts from 1: without saying which, a number may name several.
        if len(same) == 1:
            return "process", same
        if own_pid and not short and (children := index.by_ancestor.get(own_pid)):
            return "child", children
        if short and (others := index.by_container.get(short)):
            return "container", others
        return "", []


def _index(users: Iterable[_User]) -> _Index:
    by_own_pid: dict[int, list[_User]] = defaultdict(list)
    by_ancestor: dict[int, list[_User]] = defaultdict(list)
    by_container: dict[str, list[_User]] = defaultdict(list)
    for user in users:
        by_own_pid[user.process.own_pid].append(user)
        for pid in user.process.ancestors:
            by_ancestor[pid].append(user)
        if user.process.container:
            by_container[user.process.container[:_SHORT_ID]].append(user)
    return _Index(by_own_pid, by_ancestor, by_container)
