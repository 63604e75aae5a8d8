"""Which process of this machine a span's `process.pid` names, across pid namespaces.

A number alone may name several processes: each container counts from 1. It names one where no other process
of the machine calls itself so, or where the span says its container as well.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from otel_bridge.model import KernelEventKind

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAX_ENDED = 8192
"""Processes remembered after their end, for spans that are exported late."""

SHORT_ID = 12
"""Characters of a container's id as `docker ps` and some SDKs write it."""


@dataclass(slots=True)
class _Process:
    own_pid: int
    container: str
    ended: bool = False


class Processes:
    """Filled by PROCESS events; put from any thread, asked from one."""

    def __init__(self) -> None:
        self._news: deque[NDArray[np.void]] = deque()
        self._by_tgid: dict[int, _Process] = {}
        self._by_own_pid: dict[int, set[int]] = {}
        self._ended: deque[tuple[float, int, _Process]] = deque()

    def put(self, records: NDArray[np.void]) -> None:
        """Leave news (dtype `events.PROCESS`)."""
        self._news.append(records)

    def absorb(self, now: float, max_age: float) -> None:
        """Take in what was put, and forget what ended longer than `max_age` seconds ago."""
        while self._news:
            records = self._news.popleft()
            for kind, tgid, own_pid, container in zip(
                *(records[name].tolist() for name in ("kind", "tgid", "namespace_pid", "container")),
                strict=True,
            ):
                if kind == KernelEventKind.PROCESS_EXIT:
                    self._end(tgid, now)
                else:
                    self._begin(tgid, _Process(own_pid, container.decode("ascii", "replace")))
        while self._ended and (now - self._ended[0][0] > max_age or len(self._ended) > MAX_ENDED):
            _, tgid, process = self._ended.popleft()
            if self._by_tgid.get(tgid) is process:
                self._forget(tgid)

    def _begin(self, tgid: int, process: _Process) -> None:
        self._forget(tgid)
        self._by_tgid[tgid] = process
        self._by_own_pid.setdefault(process.own_pid, set()).add(tgid)

    def _end(self, tgid: int, now: float) -> None:
        process = self._by_tgid.get(tgid)
        if process is not None and not process.ended:
            process.ended = True
            self._ended.append((now, tgid, process))

    def _forget(self, tgid: int) -> None:
        process = self._by_tgid.pop(tgid, None)
        if process is not None:
            same = self._by_own_pid[process.own_pid]
            same.discard(tgid)
            if not same:
                del self._by_own_pid[process.own_pid]

    def named(self, own_pid: int, container: str) -> int | None:
        """The process (tgid) that calls itself so; None when none does, or when it could be several.

        Args:
            own_pid: `process.pid` of a span.
            container: its `container.id`; empty when it says none.
        """
        candidates = self._by_own_pid.get(own_pid, set())
        if container:
            exact = [tgid for tgid in candidates if _is_same(self._by_tgid[tgid].container, container)]
            # A container that shares the machine's pid namespace is not known by its namespace.
            candidates = set(exact) or {tgid for tgid in candidates if not self._by_tgid[tgid].container}
        return next(iter(candidates)) if len(candidates) == 1 else None


def _is_same(known: str, said: str) -> bool:
    return known == said or (len(said) >= SHORT_ID and known.startswith(said))
