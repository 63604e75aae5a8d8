"""Buckets of this process."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from otel_bridge.control.limits.bucket import Bucket

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_bridge.contracts import Clock
    from otel_bridge.control.limits.config import LimitConfig

OTHERS = "(others)"
"""The bucket that newcomers share when there is no room for one of their own; no key is spelled so."""
MOST_OF_A_TRACE = 100
"""Reservations of one trace that wait; more are costs that nobody settles."""
_MOST_RESERVATIONS = 100_000
_SWEPT_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit as it is reckoned with.

    Attributes:
        number: its place in the configuration.
        name: for metrics and people.
        config: what a user said.
        capacity: what a full bucket holds.
        rate: what comes back in a second.
    """

    number: int
    name: str
    config: LimitConfig
    capacity: float
    rate: float

    @property
    def settles(self) -> bool:
        """Whether what is taken may come back in part."""
        return self.config.unit == "tokens"


class Draw(NamedTuple):
    """What a request wants of one bucket."""

    limit: Limit
    key: str
    amount: float


class Drawn(NamedTuple):
    """What came of it.

    Attributes:
        wait: seconds until the bucket could give so much; 0: it could.
        level: what is in the bucket now.
    """

    wait: float
    level: float


class Settled(NamedTuple):
    """What a settlement did to one limit's bucket.

    Attributes:
        limit: its name.
        change: what came back; negative: what was used beyond the reservation.
    """

    limit: str
    change: float


class _Reservation(NamedTuple):
    number: int
    time: int
    until: float
    parts: tuple[Draw, ...]


class LocalBuckets:
    """Token buckets in memory; methods may be called from any thread.

    Args:
        limits: all of them.
        clock: for time.
        settle_within: seconds for which a reservation may be settled.
        max_buckets: of one limit.
        told: hears of what did not go by the rule ("overflow" with a limit's name, "expired").
    """

    def __init__(
        self,
        limits: Sequence[Limit],
        clock: Clock,
        settle_within: float,
        max_buckets: int,
        told: Callable[[str, str], None] = lambda _word, _limit: None,
    ) -> None:
        self._limits = limits
        self._clock = clock
        self._settle_within = settle_within
        self._max_buckets = max_buckets
        self._told = told
        self._lock = threading.Lock()
        self._tables: list[OrderedDict[str, Bucket]] = [OrderedDict() for _ in limits]
        self._numbers = itertools.count(1)
        self._reserved: dict[str, deque[_Reservation]] = {}
        self._expiring: OrderedDict[int, str] = OrderedDict()

    def take(self, draws: Sequence[Draw], trace: str) -> list[Drawn]:
        """Take from all buckets, or from none if one that is enforced holds too little.

        Args:
            draws: what is wanted; no amount is above its limit's capacity.
            trace: under which the reservation is settled; empty: it never is.
        """
        with self._lock:
            now = self._clock.monotonic()
            self._expire(now)
            found = [self._refilled(draw, now) for draw in draws]
            waits = [
                0.0
                if bucket.holds(draw.amount, draw.limit.capacity)
                else (draw.amount - bucket.level) / draw.limit.rate
                for draw, bucket in zip(draws, found, strict=True)
            ]
            if not any(
                wait and not draw.limit.config.dry_run for draw, wait in zip(draws, waits, strict=True)
            ):
                self._charge(
                    [
                        (draw, bucket)
                        for draw, bucket, wait in zip(draws, found, waits, strict=True)
                        if not wait
                    ],
                    trace,
                    now,
                )
            return [Drawn(wait, bucket.level) for wait, bucket in zip(waits, found, strict=True)]

    def settle(self, trace: str, used: float, end: int) -> list[Settled] | None:
        """End the oldest reservation of a trace by what was used; None: it has none.

        Args:
            trace: as it was given to `take`.
            used: tokens.
            end: when the span ended, unix nanoseconds; a reservation made later is of another call.
        """
        with self._lock:
            waiting = self._reserved.get(trace)
            if not waiting or waiting[0].time > end:
                return None
            reservation = waiting.popleft()
            if not waiting:
                del self._reserved[trace]
            self._expiring.pop(reservation.number, None)
            now = self._clock.monotonic()
            return [
                Settled(
                    part.limit.name,
                    self._refilled(part, now).settle(
                        reservation.number, part.amount, used, part.limit.capacity
                    ),
                )
                for part in reservation.parts
            ]

    def follow(self, draw: Draw, level: float) -> None:
        """Bring a bucket to the level that the replicas' has."""
        with self._lock:
            bucket = self._refilled(draw, self._clock.monotonic())
            bucket.level = level
            bucket.claims.clear()
            bucket.claimed = 0.0

    def sweep(self) -> None:
        """Let go of buckets that are full again, and of reservations that nobody settled."""
        with self._lock:
            now = self._clock.monotonic()
            self._expire(now)
            for limit in self._limits:
                self._drop_full(limit, now)

    def count(self, limit: Limit) -> int:
        """Buckets of a limit."""
        return len(self._tables[limit.number])

    def emptiest(self, limit: Limit, most: int) -> list[tuple[str, float, int]]:
        """Key, level and open reservations of a limit's buckets, those that hold least first."""
        with self._lock:
            now = self._clock.monotonic()
            table = self._tables[limit.number]
            for bucket in table.values():
                bucket.refill(limit.capacity, limit.rate, now)
            found = heapq.nsmallest(most, table.items(), key=lambda item: item[1].level)
            return [(key, bucket.level, len(bucket.claims)) for key, bucket in found]

    @property
    def open_reservations(self) -> int:
        """Reservations that may still be settled."""
        return len(self._expiring)

    def _refilled(self, draw: Draw, now: float) -> Bucket:
        limit = draw.limit
        table = self._tables[limit.number]
        bucket = table.get(draw.key)
        if bucket is None:
            bucket = self._newcomer(limit, draw.key, table, now)
        else:
            table.move_to_end(draw.key)
        bucket.refill(limit.capacity, limit.rate, now)
        return bucket

    def _newcomer(self, limit: Limit, key: str, table: OrderedDict[str, Bucket], now: float) -> Bucket:
        if len(table) >= self._max_buckets:
            self._drop_full(limit, now)
        if len(table) >= self._max_buckets:
            self._told("overflow", limit.name)
            key = OTHERS
        return table.setdefault(key, Bucket(limit.capacity, now))

    def _drop_full(self, limit: Limit, now: float) -> None:
        """Forget those that nobody asked for since they filled; the longest unasked come first."""
        table = self._tables[limit.number]
        for _ in range(min(len(table), _SWEPT_AT_ONCE)):
            key, bucket = next(iter(table.items()))
            bucket.refill(limit.capacity, limit.rate, now)
            if not bucket.full(limit.capacity):
                return
            del table[key]

    def _charge(self, taken: Sequence[tuple[Draw, Bucket]], trace: str, now: float) -> None:
        number = next(self._numbers)
        parts = []
        for draw, bucket in taken:
            if draw.limit.settles and trace:
                bucket.reserve(number, draw.amount)
                parts.append(draw)
            else:
                bucket.take(draw.amount)
        if not parts:
            return
        until = now + self._settle_within
        waiting = self._reserved.setdefault(trace, deque())
        waiting.append(_Reservation(number, self._clock.time_ns(), until, tuple(parts)))
        self._expiring[number] = trace
        if len(waiting) > MOST_OF_A_TRACE:
            self._give_up(trace)
        elif len(self._expiring) > _MOST_RESERVATIONS:
            self._give_up(next(iter(self._expiring.values())))

    def _expire(self, now: float) -> None:
        while self._expiring:
            trace = next(iter(self._expiring.values()))
            if self._reserved[trace][0].until > now:
                return
            self._give_up(trace)

    def _give_up(self, trace: str) -> None:
        """Let the oldest reservation of a trace cost what it reserved."""
        waiting = self._reserved[trace]
        reservation = waiting.popleft()
        if not waiting:
            del self._reserved[trace]
        del self._expiring[reservation.number]
        for part in reservation.parts:
            bucket = self._tables[part.limit.number].get(part.key)
            if bucket is not None:
                bucket.forget(reservation.number)
            self._told("expired", part.limit.name)
