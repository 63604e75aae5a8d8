"""Derived metrics as prometheus-client would collect and write them: what `text.py` is held to."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar as PrometheusExemplar
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

from otel_bridge import catalog
from otel_bridge.catalog import Kind, prometheus_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from otel_bridge.catalog import DerivedMetric
    from otel_bridge.connectors.derive.derive import Metrics
    from otel_bridge.connectors.derive.series import Exemplar, Point
    from otel_bridge.contracts import Clock

_OVERFLOW = {prometheus_name(catalog.METRIC_OVERFLOW.key): "true"}


class DerivedCollector(Collector):
    """What a scrape finds.

    Args:
        source: the metrics of now; a reload may put others in their place. None: there are none.
        clock: tells how long a series has been shown.
    """

    def __init__(self, source: Callable[[], Metrics | None], clock: Clock) -> None:
        self._source = source
        self._clock = clock

    def describe(self) -> Iterable[Family]:
        """Nothing beforehand: to collect is to show a new series its zero."""
        return ()

    def collect(self) -> Iterator[Family]:
        """Every metric that has series."""
        metrics = self._source()
        if metrics is None:
            return
        for metric, points in metrics.points(metrics.scraped, self._clock.monotonic()):
            labels = tuple(prometheus_name(key) for key in metrics.labels[metric])
            named = [(_named(labels, one), one) for one in points]
            if metric is catalog.DERIVED_SPAN_DURATION:
                calls = catalog.DERIVED_SPAN_CALLS
                yield _family(calls, (_total(calls, shown, one.count) for shown, one in named))
            if metric.kind is Kind.COUNTER:
                yield _family(
                    metric, (_total(metric, shown, one.sum, one.exemplars[0]) for shown, one in named)
                )
            else:
                yield _family(metric, _histograms(metric, named))


def _named(names: tuple[str, ...], point: Point) -> dict[str, str]:
    """Labels as Prometheus has them, where an empty one is none."""
    if point.labels is None:
        return _OVERFLOW
    return {name: value for name, value in zip(names, point.labels, strict=True) if value}


def _family(metric: DerivedMetric, samples: Iterable[Sample]) -> Family:
    family = Family(metric.prometheus, metric.description, metric.kind.value)
    family.samples = list(samples)
    return family


def _total(
    metric: DerivedMetric, labels: dict[str, str], value: float, exemplar: Exemplar | None = None
) -> Sample:
    return Sample(f"{metric.prometheus}_total", labels, value, None, _shown(exemplar))


def _histograms(metric: DerivedMetric, points: Iterable[tuple[dict[str, str], Point]]) -> Iterator[Sample]:
    name = metric.prometheus
    bounds = [*map(floatToGoString, metric.buckets), "+Inf"]
    for labels, point in points:
        for bound, upto, exemplar in zip(bounds, accumulate(point.counts), point.exemplars, strict=True):
            yield Sample(f"{name}_bucket", {**labels, "le": bound}, upto, None, _shown(exemplar))
        yield Sample(f"{name}_count", labels, point.count)
        yield Sample(f"{name}_sum", labels, point.sum)


def _shown(exemplar: Exemplar | None) -> PrometheusExemplar | None:
    if exemplar is None:
        return None
    ids = {"trace_id": exemplar.trace_id.hex(), "span_id": exemplar.span_id.hex()}
    return PrometheusExemplar(ids, exemplar.value, exemplar.time / 1e9)
