"""What was answered in one process, counted in the metrics of another."""

from __future__ import annotations

import time
from bisect import bisect_left
from typing import TYPE_CHECKING, Any

from otel_bridge import catalog

if TYPE_CHECKING:
    from otel_bridge.control.decision import Decision
    from otel_bridge.telemetry import Telemetry

_LIMITS = catalog.CONTROL_DECISION_DURATION.buckets


class Tally:
    """Where answers are counted, by interface and result, and how long they took."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._results: dict[tuple[str, str], int] = {}
        self._buckets = [0] * (len(_LIMITS) + 1)
        self._seconds = 0.0

    def count(self, interface: str, result: str, seconds: float) -> None:
        """One answer."""
        self._results[interface, result] = self._results.get((interface, result), 0) + 1
        self._buckets[bisect_left(_LIMITS, seconds)] += 1
        self._seconds += seconds

    def take(self) -> dict[str, Any]:
        """What came since the last time, for JSON."""
        taken = {
            "results": [[*names, count] for names, count in self._results.items()],
            "buckets": self._buckets,
            "seconds": self._seconds,
        }
        self._clear()
        return taken


class TallyOf:
    """One interface's part of a tally (http_decisions.DecisionMetrics)."""

    def __init__(self, tally: Tally, interface: str) -> None:
        self._tally = tally
        self._interface = interface

    def answered(self, decision: Decision, since: float) -> None:
        """Count one; `since` is `time.perf_counter()` when its request was read."""
        self._tally.count(self._interface, decision.result, time.perf_counter() - since)


def add(taken: dict[str, Any], telemetry: Telemetry) -> None:
    """Add what another process has taken to the metrics of this one."""
    counter = telemetry.counter(catalog.CONTROL_DECISIONS)
    for interface, result, count in taken["results"]:
        counter.labels(interface, result).inc(count)
    histogram = telemetry.histogram(catalog.CONTROL_DECISION_DURATION)
    # The client library takes one observation at a time, which thousands of answers a second are not.
    for bucket, count in zip(histogram._buckets, taken["buckets"], strict=True):  # noqa: SLF001
        bucket.inc(count)
    histogram._sum.inc(taken["seconds"])  # noqa: SLF001
