"""The bridge watched like any other service: its metrics, its logs, its own spans."""

from __future__ import annotations

import logging
import sys
from collections import deque
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import structlog
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from otel_bridge import __version__
from otel_bridge.catalog import Kind, Metric

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager

    from prometheus_client import Metric as Family
    from prometheus_client.metrics import MetricWrapperBase

_NO_SPAN = nullcontext(trace.INVALID_SPAN)
LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True)
class Tracing:
    """How the bridge records spans about itself.

    Attributes:
        endpoint: an OTLP/gRPC URL; https unless it says http.
        sampling_ratio: share of requests that are traced, 0 to 1.
    """

    endpoint: str
    sampling_ratio: float


def tracer_provider(tracing: Tracing) -> TracerProvider:
    """The SDK with a batching OTLP exporter; not made the process's global provider."""
    provider = TracerProvider(
        resource=Resource.create({"service.name": "otel_bridge", "service.version": __version__}),
        sampler=ParentBased(TraceIdRatioBased(tracing.sampling_ratio)),
    )
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=tracing.endpoint)))
    return provider


class Deferred:
    """Updates of one series, made together: when its metric is read, at the latest, so no reader lacks one.

    prometheus-client takes a lock and five calls for each. On the path of a request, whose megabyte has
    driven that code out of the CPU's cache, they were a tenth of all that Python did. Any thread may call
    and flush.
    """

    MOST = 256
    """Updates that wait at the most."""

    def __init__(self, update: Callable[[list[float]], None]) -> None:
        """`update` takes the values of many updates."""
        self._update = update
        self._waiting: deque[float] = deque()

    def __call__(self, value: float = 1) -> None:
        """Note an update."""
        self._waiting.append(value)
        if len(self._waiting) >= self.MOST:
            self.flush()

    def flush(self) -> None:
        """Make the updates that wait."""
        values: list[float] = []
        with suppress(IndexError):  # another thread may flush too
            while self._waiting:
                values.append(self._waiting.popleft())
        if values:
            self._update(values)


def _each(call: Callable[[float], None], values: Iterable[float]) -> None:
    for value in values:
        call(value)


class _Deferring:
    """What a metric does before it is read, in the whole registry or a part of it."""

    deferred: list[Deferred]

    def collect(self) -> Iterable[Family]:
        for updates in self.deferred:
            updates.flush()
        families: Iterable[Family] = super().collect()  # type: ignore[misc]  # mixed into metrics
        return families


class _Counter(_Deferring, Counter):
    """A counter whose updates may be deferred."""


class _Histogram(_Deferring, Histogram):
    """A histogram whose updates may be deferred."""


class Telemetry:
    """Metrics by their catalog entry, one registry a service (tests make their own).

    Asking twice for one metric gives the same object. Metrics without labels exist at 0 from the start;
    callers create the label sets that they know in advance, so that `increase()` sees the first step.
    """

    def __init__(self, registry: CollectorRegistry | None = None, tracing: Tracing | None = None) -> None:
        self.registry = registry if registry is not None else CollectorRegistry()
        self._provider = tracer_provider(tracing) if tracing is not None else None
        self._tracer = self._provider.get_tracer("otel_bridge", __version__) if self._provider else None
        self._metrics: dict[str, MetricWrapperBase] = {}

    def counter(self, metric: Metric) -> Counter:
        """The counter of a catalog entry."""
        return cast("Counter", self._get(metric, Kind.COUNTER))

    def gauge(self, metric: Metric) -> Gauge:
        """The gauge of a catalog entry."""
        return cast("Gauge", self._get(metric, Kind.GAUGE))

    def histogram(self, metric: Metric) -> Histogram:
        """The histogram of a catalog entry."""
        return cast("Histogram", self._get(metric, Kind.HISTOGRAM))

    def deferred(self, metric: Metric, *labels: str) -> Deferred:
        """A series of a counter or histogram, to be called on the path of a request.

        It takes what `inc` or `observe` would.
        """
        parent = self._get(metric, metric.kind)
        if not isinstance(parent, _Deferring):
            raise TypeError(f"{metric.name} is a {metric.kind.value}: only counters and histograms can wait")
        series = parent.labels(*labels) if labels else parent
        if isinstance(series, Counter):
            updates = Deferred(lambda values: series.inc(sum(values)))
        else:
            observe = cast("Histogram", series).observe
            updates = Deferred(lambda values: _each(observe, values))
        parent.deferred.append(updates)
        return updates

    def span(self, name: str) -> AbstractContextManager[trace.Span]:
        """A span of the bridge itself, current within the block; without tracing it records nothing."""
        return self._tracer.start_as_current_span(name) if self._tracer is not None else _NO_SPAN

    def close(self) -> None:
        """Send the own spans that still wait; blocks for at most some seconds."""
        if self._provider is not None:
            self._provider.shutdown()

    def _get(self, metric: Metric, kind: Kind) -> MetricWrapperBase:
        if metric.kind is not kind:
            raise TypeError(f"{metric.name} is a {metric.kind.value} in `catalog`, not a {kind.value}")
        found = self._metrics.get(metric.name)
        if found is None:
            if kind is Kind.COUNTER:
                found = _Counter(metric.name, metric.description, metric.labels, registry=self.registry)
                found.deferred = []
            elif kind is Kind.GAUGE:
                found = Gauge(metric.name, metric.description, metric.labels, registry=self.registry)
            else:
                found = _Histogram(
                    metric.name,
                    metric.description,
                    metric.labels,
                    registry=self.registry,
                    buckets=metric.buckets or Histogram.DEFAULT_BUCKETS,
                )
                found.deferred = []
            self._metrics[metric.name] = found
        return found

    def value(self, metric: Metric, /, **labels: str) -> float:
        """The present value of a counter or gauge; 0 when its label set was never touched."""
        return next((value for found, value in self.values(metric) if found == labels), 0.0)

    def values(self, metric: Metric) -> Iterator[tuple[dict[str, str], float]]:
        """The label sets of a counter or gauge, each with its present value."""
        name = metric.name + ("_total" if metric.kind is Kind.COUNTER else "")
        found = self._metrics.get(metric.name)
        for family in found.collect() if found else ():
            yield from ((sample.labels, sample.value) for sample in family.samples if sample.name == name)


def configure_logging(*, level: str = "info", json: bool | None = None) -> None:
    """Structured logs on standard error: JSON lines, or for a terminal readable ones (json=None chooses)."""
    if json is None:
        json = not sys.stderr.isatty()
    render: structlog.typing.Processor = (
        structlog.processors.JSONRenderer() if json else structlog.dev.ConsoleRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            render,
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    set_log_level(level)


def set_log_level(level: str) -> None:
    """Log from a level on, from the next line on; all else stays as it was configured."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()])
    )
