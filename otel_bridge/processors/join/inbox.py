"""Where the reader leaves kernel events until the pipeline fetches them; bounded by bytes."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from otel_bridge.events import KernelEvents


class Arrived(NamedTuple):
    """Some events, and whether another bridge sent them."""

    events: KernelEvents
    foreign: bool


class Inbox:
    """Filled by one thread, emptied by another.

    Attributes:
        local: whether anything of this machine's own kernel ever arrived.
        foreign: whether another bridge ever sent something.
    """

    def __init__(self) -> None:
        self.local = False
        self.foreign = False
        self._lock = threading.Lock()
        self._arrived: list[Arrived] = []
        self._bytes = 0
        self._turned_away: dict[str, int] = {}

    def put(self, events: KernelEvents, max_bytes: int, *, foreign: bool) -> None:
        """Leave some events; those that do not fit are counted."""
        if not len(events):
            return
        with self._lock:
            self.local |= not foreign
            self.foreign |= foreign
            if self._bytes + events.records.nbytes > max_bytes:
                self._turned_away[events.probe] = self._turned_away.get(events.probe, 0) + len(events)
                return
            self._bytes += events.records.nbytes
            self._arrived.append(Arrived(events, foreign))

    def fetch(self) -> tuple[list[Arrived], dict[str, int]]:
        """Take everything out: the events, and by probe how many were turned away."""
        if not self._arrived and not self._turned_away:
            return [], {}
        with self._lock:
            arrived, self._arrived, self._bytes = self._arrived, [], 0
            turned_away, self._turned_away = self._turned_away, {}
        return arrived, turned_away
