"""Derived metrics pushed by OTLP, through the exporters of opentelemetry-sdk."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from typing import TYPE_CHECKING, cast

import structlog
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpExporter
from opentelemetry.sdk.metrics import Exemplar
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from otel_bridge import __version__, catalog
from otel_bridge.catalog import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from opentelemetry.sdk.metrics.export import MetricExporter

    from otel_bridge.catalog import DerivedMetric
    from otel_bridge.connectors.derive.config import PushConfig
    from otel_bridge.connectors.derive.derive import Metrics
    from otel_bridge.connectors.derive.series import Point
    from otel_bridge.contracts import Clock
    from otel_bridge.telemetry import Telemetry

log = structlog.get_logger(__name__)

SCOPE = InstrumentationScope("otel_bridge.derive", __version__)
POINTS_A_REQUEST = 2000
"""About 1 MB: receivers refuse more than 4 MiB unless told otherwise."""
_CUMULATIVE = AggregationTemporality.CUMULATIVE
_UNKNOWN = cast("float", None)
"""Least and largest value are optional in OTLP; the SDK's type has them as floats."""


class Push:
    """A Component that sends all derived metrics each interval, and once more when it stops.

    Args:
        config: where to.
        source: the metrics of now; None: there are none.
        telemetry: counts pushes.
        clock: for the interval.
    """

    def __init__(
        self, config: PushConfig, source: Callable[[], Metrics | None], telemetry: Telemetry, clock: Clock
    ) -> None:
        self._config = config
        self._source = source
        self._clock = clock
        pushes = telemetry.counter(catalog.DERIVE_PUSHES)
        self._sent, self._failed = pushes.labels("sent"), pushes.labels("failed")
        self._exporter: MetricExporter | None = None
        self._pushing = threading.Lock()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin, if there is an endpoint."""
        if self._config.endpoint is not None:
            self._exporter = exporter_of(self._config, self._config.endpoint)
            self._task = asyncio.create_task(self._push_for_ever())

    async def stop(self, deadline: float) -> None:
        """Send what there is within `deadline` seconds."""
        if self._task is None or self._exporter is None:
            return
        # A push under way goes on in its thread; the last one waits for it.
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None
        # Without a reader: a series that was never shown at zero could not be shown at all any more.
        timeout = min(deadline, self._config.timeout)
        await asyncio.to_thread(self._push, self._exporter, timeout, final=True)
        await asyncio.to_thread(self._exporter.shutdown)

    async def _push_for_ever(self) -> None:
        assert self._exporter is not None
        while True:
            await self._clock.sleep(self._config.interval)
            await asyncio.to_thread(self._push, self._exporter, self._config.timeout, final=False)

    def _push(self, exporter: MetricExporter, timeout: float, *, final: bool) -> None:
        metrics = self._source()
        if metrics is None:
            return
        now = self._clock.monotonic()
        reader = None if final else metrics.pushed
        data = metrics_data(metrics, list(metrics.points(reader, now)), self._clock.time_ns())
        if not data.resource_metrics:
            return
        with self._pushing:
            try:
                result = exporter.export(data, timeout_millis=timeout * 1e3)
            except Exception as error:  # noqa: BLE001 (none is documented; the next push must come all the same)
                log.warning("derived metrics could not be pushed", error=str(error))
                result = MetricExportResult.FAILURE
        (self._sent if result is MetricExportResult.SUCCESS else self._failed).inc()


def exporter_of(config: PushConfig, endpoint: str) -> MetricExporter:
    """The SDK's exporter for a protocol."""
    headers = {name: value.get_secret_value() for name, value in config.headers.items()}
    make = GrpcExporter if config.protocol == "grpc" else HttpExporter
    return make(
        endpoint=endpoint,
        headers=headers,
        timeout=config.timeout,
        max_export_batch_size=POINTS_A_REQUEST,
    )


def metrics_data(
    metrics: Metrics, points: Sequence[tuple[DerivedMetric, list[Point]]], now: int
) -> MetricsData:
    """All series, those of a service under its resource, as the SDK's exporters take them.

    Args:
        metrics: whose series they are.
        points: the series.
        now: unix nanoseconds.
    """
    by_service: dict[str | None, list[Metric]] = defaultdict(list)
    for metric, found in points:
        keys = metrics.labels[metric]
        service = keys.index(catalog.SERVICE_NAME.key)
        groups: dict[str | None, list[Point]] = defaultdict(list)
        for point in found:
            groups[None if point.labels is None else point.labels[service]].append(point)
        for name, group in groups.items():
            by_service[name] += _metrics_of(metric, keys, group, now)
    return MetricsData(
        [
            ResourceMetrics(_resource(service), [ScopeMetrics(SCOPE, found, "")], "")
            for service, found in by_service.items()
        ]
    )


def _metrics_of(
    metric: DerivedMetric, keys: tuple[str, ...], points: list[Point], now: int
) -> Iterator[Metric]:
    attributes = [_attributes(keys, point) for point in points]
    named = list(zip(attributes, points, strict=True))
    if metric is catalog.DERIVED_SPAN_DURATION:
        counts = [NumberDataPoint(labels, point.start, now, point.count) for labels, point in named]
        yield _metric(catalog.DERIVED_SPAN_CALLS, Sum(counts, _CUMULATIVE, is_monotonic=True))
    if metric.kind is Kind.COUNTER:
        sums = [
            NumberDataPoint(labels, point.start, now, point.sum, _exemplars(point)) for labels, point in named
        ]
        yield _metric(metric, Sum(sums, _CUMULATIVE, is_monotonic=True))
    else:
        histograms = [
            HistogramDataPoint(
                labels,
                point.start,
                now,
                point.count,
                point.sum,
                point.counts,
                metric.buckets,
                _UNKNOWN,
                _UNKNOWN,
                _exemplars(point),
            )
            for labels, point in named
        ]
        yield _metric(metric, Histogram(histograms, _CUMULATIVE))


def _metric(metric: DerivedMetric, data: Sum | Histogram) -> Metric:
    return Metric(metric.name, metric.description, metric.unit, data)


def _resource(service: str | None) -> Resource:
    return Resource({} if service is None else {catalog.SERVICE_NAME.key: service})


def _attributes(keys: tuple[str, ...], point: Point) -> dict[str, str | bool]:
    if point.labels is None:
        return {catalog.METRIC_OVERFLOW.key: True}
    return {
        key: value
        for key, value in zip(keys, point.labels, strict=True)
        if value and key != catalog.SERVICE_NAME.key
    }


def _exemplars(point: Point) -> list[Exemplar]:
    return [
        Exemplar(
            {}, one.value, one.time, int.from_bytes(one.span_id, "big"), int.from_bytes(one.trace_id, "big")
        )
        for one in point.exemplars
        if one is not None
    ]
