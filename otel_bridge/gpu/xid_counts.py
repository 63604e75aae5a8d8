"""How often each Xid error was reported: what rules and Prometheus see grow."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import structlog
from prometheus_client.metrics_core import CounterMetricFamily
from prometheus_client.registry import Collector

from otel_bridge import catalog
from otel_bridge.readings import Reading

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_bridge.contracts import Clock

log = structlog.get_logger(__name__)

_ZERO_FOR = 15.0
"""Seconds that a new series is served at 0 after its first scrape, so that others who scrape see it too."""


class XidCounts(Collector):
    """Counts by GPU and number; filled by one thread, read by others.

    A card reports its first error often once and never again. Growth is seen between two values only, so each
    series begins with a 0 of its own: among readings, and in scrapes.

    Args:
        clock: tells how long a series has been served.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, str], int] = {}
        self._read: set[tuple[str, str]] = set()
        self._served: dict[tuple[str, str], float] = {}

    def add(self, uuid: str, number: int) -> None:
        """A GPU reported an error."""
        key = uuid, str(number)
        with self._lock:
            self._counts[key] = self._counts.get(key, 0) + 1
        log.warning("a GPU reports an Xid error", gpu_uuid=uuid, xid=number)

    def readings(self, time: int) -> Iterator[Reading]:
        """All counts now (unix nanoseconds); before them, of those that are new, the 0 that they had."""
        counts = self._now()
        for key in counts.keys() - self._read:
            yield _reading(key, 0, time - 1)
        self._read |= counts.keys()
        for key, count in counts.items():
            yield _reading(key, count, time)

    def describe(self) -> Iterator[CounterMetricFamily]:
        """The metric, so that a scrape can ask for it alone."""
        yield _family()

    def collect(self) -> Iterator[CounterMetricFamily]:
        """What Prometheus sees."""
        family, now = _family(), self._clock.monotonic()
        for key, count in self._now().items():
            first = self._served.setdefault(key, now)
            family.add_metric(list(key), count if now - first > _ZERO_FOR else 0)
        yield family

    def _now(self) -> dict[tuple[str, str], int]:
        with self._lock:
            return dict(self._counts)


def _reading(key: tuple[str, str], count: int, time: int) -> Reading:
    labels = dict(zip(catalog.GPU_XID_ERRORS.labels, key, strict=True))
    return Reading(catalog.GPU_XID_ERRORS.name, labels, float(count), time)


def _family() -> CounterMetricFamily:
    metric = catalog.GPU_XID_ERRORS
    return CounterMetricFamily(metric.name, metric.description, labels=metric.labels)
