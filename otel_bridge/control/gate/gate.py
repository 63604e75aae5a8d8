"""One gate: follows the breakers of a service, in every namespace that the service lives in."""

from __future__ import annotations

import errno
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from otel_bridge.breakers import State
from otel_bridge.control.gate.records import WHOLE

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np
    from numpy.typing import NDArray

    from otel_bridge.breakers import Change
    from otel_bridge.contracts import Clock
    from otel_bridge.control.gate.config import GateConfig

COUNTED = ("refused", "admitted", "overruled", "trips")


class Order(NamedTuple):
    """What slots are to say: shut until when (nanoseconds of CLOCK_MONOTONIC), but for which share."""

    until: int
    share: int


OPEN = Order(0, 0)


@dataclass(slots=True)
class _Place:
    slots: list[NDArray[np.void]]
    counted: dict[str, int] = field(default_factory=dict)


class KernelGate:
    """Refuses new connections while a breaker of its targets is open (breakers.Gate).

    It cannot see whom a connection is for, so it is as strict as the strictest of its targets. Methods may be
    called from any thread.

    Args:
        name: in the configuration.
        config: what users wrote.
        clock: whose `monotonic` is CLOCK_MONOTONIC.
    """

    def __init__(self, name: str, config: GateConfig, clock: Clock) -> None:
        self.name = name
        self.config = config
        self.missing = "its service was not looked for yet"
        self._clock = clock
        self._lock = threading.Lock()
        self._places: dict[int, _Place] = {}
        self._changes: dict[str, Change] = {}

    def apply(self, change: Change) -> None:
        """See `breakers.Gate`.

        Raises:
            OSError: it is to be shut, and holds nothing to shut.
        """
        with self._lock:
            if change.state is State.CLOSED:
                self._changes.pop(change.target, None)
            else:
                self._changes[change.target] = change
            self._write(self._places.values())
            if self.missing and change.state is State.OPEN:
                raise OSError(errno.ENXIO, self.missing)

    def renew(self) -> None:
        """Prolong the lease of what is shut: the bridge lives."""
        with self._lock:
            if self._changes:
                self._write(self._places.values())

    def settle(self) -> None:
        """Bring every slot in line with the breakers, also where a bridge before shut it."""
        with self._lock:
            self._write(self._places.values())

    def attach(self, inode: int, slots: list[NDArray[np.void]], *, settle: bool) -> None:
        """Guard one more namespace from now on.

        Args:
            inode: of the namespace.
            slots: its slots, in the kernel's memory.
            settle: bring them in line at once; otherwise what is open is left to `settle`.
        """
        kills = None if self.config.dry_run else self.config.kills
        for slot in slots:
            slot["trip_window_ns"] = round(kills.window * 1e9) if kills else 0
            slot["trip_open_ns"] = round(kills.open_time * 1e9) if kills else 0
            slot["trip_kills"] = kills.kills if kills else 0
        place = _Place(slots)
        place.counted = _totals(place)
        with self._lock:
            self._places[inode] = place
            if settle or self._changes:
                self._write([place])

    def detach(self, inode: int) -> None:
        """Forget a namespace that is gone."""
        with self._lock:
            self._places.pop(inode, None)

    @property
    def inodes(self) -> frozenset[int]:
        """The namespaces that it guards."""
        with self._lock:
            return frozenset(self._places)

    def count(self) -> dict[str, int]:
        """What the kernel did since the last time that it was asked, by COUNTED."""
        found = dict.fromkeys(COUNTED, 0)
        with self._lock:
            for place in self._places.values():
                totals = _totals(place)
                for name, value in totals.items():
                    found[name] += value - place.counted[name]
                place.counted = totals
        return found

    def _write(self, places: Iterable[_Place]) -> None:
        until, share = self._order()
        for place in places:
            for slot in place.slots:
                # In this order nobody slips through: a share means nothing while the lease has ended.
                slot["admitted_share"] = share
                slot["until_ns"] = until

    def _order(self) -> Order:
        strictest = OPEN
        now = self._clock.monotonic()
        lease = round((now + self.config.lease) * 1e9)
        half = min(round(self.config.half_open_share * WHOLE), WHOLE - 1)
        for change in self._changes.values():
            if change.state is State.OPEN and change.until > now:
                shut = Order(min(round(change.until * 1e9), lease), 0)
                strictest = max(strictest, shut) if strictest.share == 0 else shut
            elif change.state is State.HALF_OPEN and strictest is OPEN:
                strictest = Order(lease, half)
        return strictest


def _totals(place: _Place) -> dict[str, int]:
    totals = {name: sum(int(slot[name][0]) for slot in place.slots) for name in COUNTED}
    if len(place.slots) > 1:
        # Each of the slots counts the kills of the whole namespace.
        totals["trips"] = int(place.slots[0]["trips"][0])
    return totals
