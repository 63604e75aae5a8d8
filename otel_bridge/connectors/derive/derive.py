"""Metrics made of every span that passes: a TraceProcessor over whole batches."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import structlog

from otel_bridge import catalog
from otel_bridge.connectors.derive.calls import CallSpans, Measures
from otel_bridge.connectors.derive.causes import EVENTS, TIMES
from otel_bridge.connectors.derive.labels import Labels, Trait
from otel_bridge.connectors.derive.series import Observed, Reader, Series
from otel_bridge.connectors.derive.triton import Triton
from otel_bridge.groups import FIRST_OF_CALL, NO_ROLE, TELLS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from otel_bridge.batch import Batch, PlanBuilder
    from otel_bridge.catalog import DerivedMetric
    from otel_bridge.connectors.derive.config import DeriveConfig
    from otel_bridge.connectors.derive.labels import Labelled
    from otel_bridge.connectors.derive.series import Point
    from otel_bridge.contracts import Clock
    from otel_bridge.telemetry import Telemetry

    Mask = NDArray[np.bool_]

log = structlog.get_logger(__name__)

CELLS = 32_768
"""Combinations of labels that are kept at most, a cache: about 300 bytes each."""
_SWEEP_INTERVAL = 10.0
_NANOSECONDS = 1e9
_LARGEST_BYTES = 2.0**40
_LARGEST_BATCH = 1e6
_LARGEST_COUNT = 1e12


class Metrics:
    """The series of all derived metrics: what is left when a request has passed, and what outputs read.

    Observed in the event loop, read in other threads; `lock` is held for either.

    Attributes:
        labels: the keys of each metric's labels.
        series: of each metric.
        scraped: who scrapes.
        pushed: where metrics are pushed to.
    """

    def __init__(self, config: DeriveConfig, labels: Labels) -> None:
        self.lock = threading.Lock()
        self.labels = {metric: labels.keys(metric) for metric in catalog.DERIVED}
        self.scraped = Reader(config.initial_zero)
        self.pushed = Reader()
        self.series = {
            metric: Series(
                metric,
                limit=config.max_series,
                exemplar_age=config.exemplars.max_age,
                exemplars=config.exemplars.enabled,
            )
            for metric in config.metrics
        }

    def points(self, reader: Reader | None, now: float) -> Iterator[tuple[DerivedMetric, list[Point]]]:
        """Each metric that has series, for one output; without a reader with the values that nobody saw."""
        for metric, series in [*self.series.items()]:
            with self.lock:
                snapshot = series.final_snapshot() if reader is None else series.snapshot(reader, now)
            if snapshot.labels:
                yield metric, snapshot.points()

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(series.nbytes for series in self.series.values())


class Derive:
    """Observes each delivered request once.

    It belongs behind the exporter's answer: a request that is refused or could not be delivered comes again
    and is observed then. Reads attributes as they leave, so redaction holds for labels too.
    """

    def __init__(self, config: DeriveConfig, plan: PlanBuilder, telemetry: Telemetry, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._labels = Labels(plan, config.dimensions, config.max_label_bytes, CELLS)
        self.metrics = Metrics(config, self._labels)
        self._calls = CallSpans(plan, config.max_calls)
        self._measures = Measures(plan)
        self._triton = Triton(plan)
        self._batch_size = plan.want(catalog.LLM_BATCH_SIZE.key)
        self._prompt_bytes = plan.want(catalog.LLM_PROMPT_LEN.key)
        self._times = tuple((cause, plan.want(cause.attribute.key)) for cause in TIMES)
        self._events = tuple((cause, plan.want(cause.attribute.key)) for cause in EVENTS)
        self._bad = telemetry.counter(catalog.DERIVE_BAD_VALUES)
        self._repeated = telemetry.counter(catalog.DERIVE_REPEATED)
        without_usage = telemetry.counter(catalog.DERIVE_WITHOUT_USAGE)
        self._without_usage = {side: without_usage.labels(side) for side in ("client", "server")}
        self._overflow = telemetry.counter(catalog.DERIVE_OVERFLOW)
        self._expired = telemetry.counter(catalog.DERIVE_EXPIRED)
        self._count = telemetry.gauge(catalog.DERIVE_SERIES)
        for metric in config.metrics:
            self._overflow.labels(metric.name)
            self._expired.labels(metric.name)
            self._count.labels(metric.name)
        self._swept = clock.monotonic()

    def adopt(self, older: Derive) -> None:
        """Go on with the series of another configuration, as far as their labels are the same."""
        if older._config.dimensions != self._config.dimensions or (
            older._config.exemplars.enabled != self._config.exemplars.enabled
        ):
            log.info("derived metrics begin anew: their labels or exemplars have changed")
            return
        fresh, self.metrics = self.metrics, older.metrics
        self._calls.adopt(older._calls)
        self.metrics.scraped.hold = self._config.initial_zero
        with self.metrics.lock:
            known = self.metrics.series
            self.metrics.series = {
                metric: known.get(metric, series) for metric, series in fresh.series.items()
            }
            for series in self.metrics.series.values():
                series.limit = self._config.max_series
                series.exemplar_age = self._config.exemplars.max_age

    def process(self, batch: Batch) -> None:
        """Observe the spans of one request, those aside that were rejected."""
        if not len(batch):
            return
        taken = batch.spans["reject"] == 0
        labelled = self._labels.label(batch)
        wall, now = self._clock.time_ns(), self._clock.monotonic()
        # Copied once: a pass over one field of whole records is as long as several over a column.
        start, end = batch.spans["start"].copy(), batch.spans["end"].copy()
        seconds = self._durations(start, end, taken)
        ended = np.minimum(end, np.uint64(wall)).astype("<i8")
        with self.metrics.lock:
            observer = _Observer(
                self.metrics, self._labels, Observed(batch.spans, labelled.cells.tobytes(), ended, now, wall)
            )
            self._observe_spans(observer, labelled, seconds, taken)
            inferences, within = self._triton.models(batch) or (None, None)
            roles, said = self._calls.tell(batch, labelled, taken, inferences)
            if said is None:
                counted = taken
            else:
                counted = taken & ((roles == NO_ROLE) | ((said & FIRST_OF_CALL) > 0))
                self._repeated.inc(int(np.count_nonzero((roles != NO_ROLE) & ((said & TELLS) == 0))))
                without_usage = self._measures.observe(batch, observer.values, roles, said, seconds)
                for side, calls in without_usage.items():
                    self._without_usage[side].inc(calls)
            if within is not None:
                counted = counted & ~within
            self._observe_sizes(batch, observer, labelled, counted)
            self._observe_causes(batch, observer, taken)
            if self._labels.full:
                self._labels.clear()
                for series in self.metrics.series.values():
                    series.forget_cells(self._labels)
        self._note(observer)

    def sweep(self) -> None:
        """Let go of idle series, now and then."""
        now = self._clock.monotonic()
        if now - self._swept < _SWEEP_INTERVAL:
            return
        self._swept = now
        with self.metrics.lock:
            for metric, series in self.metrics.series.items():
                expired = series.expire(now - self._config.idle_expiry)
                if expired:
                    self._expired.labels(metric.name).inc(expired)
                self._count.labels(metric.name).set(len(series))

    def _durations(
        self, start: NDArray[np.uint64], end: NDArray[np.uint64], taken: Mask
    ) -> NDArray[np.float64]:
        """Seconds of each span; 0 where its times are missing or reversed."""
        sane = (start != 0) & (end >= start)
        out: NDArray[np.float64]
        if sane.all():
            out = (end - start) / _NANOSECONDS
            return out
        missing = taken & ((start == 0) | (end == 0))
        for reason, mask in (("missing_time", missing), ("reversed_time", taken & ~sane & ~missing)):
            count = int(np.count_nonzero(mask))
            if count:
                self._bad.labels(catalog.DERIVED_SPAN_DURATION.name, reason).inc(count)
        out = np.where(sane, end - start, 0) / _NANOSECONDS
        return out

    def _observe_spans(
        self, observer: _Observer, labelled: Labelled, seconds: NDArray[np.float64], taken: Mask
    ) -> None:
        observer.values(catalog.DERIVED_SPAN_DURATION, taken, seconds)
        for protocol, server, client in (
            (Trait.HTTP, catalog.DERIVED_HTTP_SERVER_DURATION, catalog.DERIVED_HTTP_CLIENT_DURATION),
            (Trait.RPC, catalog.DERIVED_RPC_SERVER_DURATION, catalog.DERIVED_RPC_CLIENT_DURATION),
        ):
            if observer.wants(server):
                observer.values(server, taken & labelled.having(protocol | Trait.SERVER_KIND), seconds)
            if observer.wants(client):
                observer.values(client, taken & labelled.having(protocol | Trait.CLIENT_KIND), seconds)

    def _observe_sizes(self, batch: Batch, observer: _Observer, labelled: Labelled, counted: Mask) -> None:
        if observer.wants(catalog.DERIVED_BATCH_SIZE) and batch.resolved_has(self._batch_size):
            sizes = batch.resolved_numbers(self._batch_size)
            entries = counted & labelled.having(Trait.ENTRY)
            observer.values(catalog.DERIVED_BATCH_SIZE, entries, sizes, largest=_LARGEST_BATCH)
        if observer.wants(catalog.DERIVED_PROMPT_BYTES) and batch.resolved_has(self._prompt_bytes):
            lengths = batch.resolved_numbers(self._prompt_bytes)
            observer.values(catalog.DERIVED_PROMPT_BYTES, counted, lengths, largest=_LARGEST_BYTES)

    def _observe_causes(self, batch: Batch, observer: _Observer, taken: Mask) -> None:
        present = batch.resolved_present()
        for metric, causes in (
            (catalog.DERIVED_CAUSE_TIME, self._times),
            (catalog.DERIVED_CAUSE_EVENTS, self._events),
        ):
            for cause, slot in causes:
                if slot in present:
                    values = batch.resolved_numbers(slot) * cause.scale
                    hit = taken & (values != 0)
                    observer.values(metric, hit, values, variant=cause.name, largest=_LARGEST_COUNT)

    def _note(self, observer: _Observer) -> None:
        for (name, reason), count in observer.bad.items():
            self._bad.labels(name, reason).inc(count)
        for metric, series in self.metrics.series.items():
            if series.overflowed:
                self._overflow.labels(metric.name).inc(series.overflowed)
                series.overflowed = 0


class _Observer:
    """Hands values of one request to the series of metrics."""

    def __init__(self, metrics: Metrics, labels: Labels, observed: Observed) -> None:
        self.bad: Counter[tuple[str, str]] = Counter()
        self._series = metrics.series
        self._labels = labels
        self._observed = observed

    def wants(self, metric: DerivedMetric) -> bool:
        """Whether the metric is made: what is not need not be worked out."""
        return metric in self._series

    def values(
        self,
        metric: DerivedMetric,
        mask: Mask,
        values: NDArray[np.float64],
        *,
        variant: str = "",
        largest: float = np.inf,
    ) -> None:
        """Observe the values of spans that a mask picks; NaN is none.

        Negative values, and those above `largest`, are counted as bad instead.
        """
        series = self._series.get(metric)
        if series is None or not mask.any():
            return
        negative, too_large = series.observe(
            self._observed, mask, values, self._labels, variant=variant, largest=largest
        )
        for reason, count in (("negative", negative), ("too_large", too_large)):
            if count:
                self.bad[metric.name, reason] += count
