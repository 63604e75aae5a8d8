"""Which strategy a request is served by, told from its trace id alone, and how each of them fares.

Whoever asks about a trace, wherever and whenever, is told the same. A trace id is mixed to one of a hundred
buckets; strategies own ranges of them, so that one that grows takes nothing from the others.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from otel_bridge import catalog
from otel_bridge.control.config import BUCKETS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray
    from prometheus_client import Metric as Family

    from otel_bridge.control.breaker import Calls
    from otel_bridge.control.config import StrategiesConfig

HEADER = "X-Otel-Bridge-Strategy"
_RESULTS = ("ok", "error", "ignored")
_U8 = np.uint64
_FACTORS = (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53)
_SHIFT = 33
_MASK = (1 << 64) - 1


class Strategies(Collector):
    """The strategies of a configuration, and the metrics of their calls."""

    def __init__(self, config: StrategiesConfig) -> None:
        self.names = (*(found.name for found in config.shares), config.rest)
        self._of_bucket = np.full(BUCKETS, len(config.shares), np.intp)
        for number, found in enumerate(config.shares):
            first, last = found.buckets
            self._of_bucket[first : last + 1] = number
        self._limits = np.array(catalog.CONTROL_STRATEGY_DURATION.buckets)
        self._lock = threading.Lock()
        self._durations = np.zeros((len(self.names), len(self._limits) + 1), np.int64)
        self._seconds = np.zeros(len(self.names))
        self._results = np.zeros((len(self.names), len(_RESULTS)), np.int64)

    def of(self, trace: str) -> tuple[str, int]:
        """The strategy of a trace (32 hex digits) and its bucket; without a trace the rest, and -1."""
        if not trace:
            return self.names[-1], -1
        bucket = bucket_of(int(trace, 16))
        return self.names[self._of_bucket[bucket]], bucket

    def take(self, calls: Calls) -> None:
        """Count calls that spans told of."""
        strategies = self._of_bucket[buckets(calls.traces)]
        results = np.where(calls.ignored, 2, np.where(calls.errors, 1, 0))
        timed = ~calls.ignored
        slots = np.searchsorted(self._limits, calls.seconds[timed], side="left")
        with self._lock:
            np.add.at(self._results, (strategies, results), 1)
            np.add.at(self._durations, (strategies[timed], slots), 1)
            np.add.at(self._seconds, strategies[timed], calls.seconds[timed])

    def describe(self) -> Iterable[Family]:
        """Nothing beforehand; all of it is always there."""
        return ()

    def collect(self) -> Iterator[Family]:
        """Calls and durations of each strategy, from zero on."""
        calls, durations = catalog.CONTROL_STRATEGY_CALLS, catalog.CONTROL_STRATEGY_DURATION
        counter = CounterMetricFamily(calls.name, calls.description, labels=calls.labels)
        histogram = HistogramMetricFamily(durations.name, durations.description, labels=durations.labels)
        with self._lock:
            for number, name in enumerate(self.names):
                for result, count in zip(_RESULTS, self._results[number].tolist(), strict=True):
                    counter.add_metric([name, result], count)
                counts = np.cumsum(self._durations[number]).tolist()
                limits = [*(str(float(limit)) for limit in self._limits), "+Inf"]
                histogram.add_metric(
                    [name], list(zip(limits, counts, strict=True)), sum_value=float(self._seconds[number])
                )
        yield counter
        yield histogram


def bucket_of(trace: int) -> int:
    """The bucket of one trace id, 0 to 99; ids that were counted up spread as evenly as random ones.

    The mixing is MurmurHash3's 64-bit finalizer, over the high half and then over both.
    """
    return _mix_one(_mix_one(trace >> 64) ^ (trace & _MASK)) % BUCKETS


def _mix_one(number: int) -> int:
    for factor in _FACTORS:
        number = ((number ^ (number >> _SHIFT)) * factor) & _MASK
    return number ^ (number >> _SHIFT)


def buckets(traces: NDArray[np.void]) -> NDArray[np.intp]:
    """`bucket_of` each trace id (V16)."""
    numbers = np.ascontiguousarray(traces).view(">u8").reshape(-1, 2).astype("<u8")
    mixed = _mix(_mix(numbers[:, 0]) ^ numbers[:, 1])
    return (mixed % _U8(BUCKETS)).astype(np.intp)


def _mix(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    for factor in _FACTORS:
        numbers = (numbers ^ (numbers >> _U8(_SHIFT))) * _U8(factor)
    return numbers ^ (numbers >> _U8(_SHIFT))
