"""Batches through enrichment and derived metrics, as the pipeline builds them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from otel_bridge import catalog
from otel_bridge.batch import PlanBuilder
from otel_bridge.connectors.derive.config import DeriveConfig
from otel_bridge.connectors.derive.derive import Derive
from otel_bridge.connectors.derive.text import DerivedText
from otel_bridge.processors.enrich.config import EnrichConfig
from otel_bridge.processors.enrich.enrich import Enrich
from otel_bridge.receivers.otlp.codec import choose_codec
from otel_bridge.telemetry import Telemetry
from otel_bridge.testing import FakeClock, trace_request

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_bridge.batch import Batch
    from otel_bridge.catalog import DerivedMetric, Metric
    from otel_bridge.connectors.derive.series import Point

NOW = 1_700_000_010_000_000_000


@dataclass
class Deriving:
    """Derived metrics with what is around them."""

    derive: Derive
    enrich: Enrich
    plan: PlanBuilder
    telemetry: Telemetry
    clock: FakeClock

    def scan(self, data: bytes) -> Batch:
        """A request, enriched."""
        batch = choose_codec("auto")[0].scan(data, self.plan.build())
        self.enrich.process(batch)
        return batch

    def request(self, data: bytes) -> None:
        """Take a request."""
        self.derive.process(self.scan(data))

    def spans(self, *spans: Mapping[str, object], **request: Any) -> None:
        """Take spans as `testing.trace_request` makes them."""
        self.request(trace_request(spans, **request))

    def points(self, metric: DerivedMetric) -> list[Point]:
        """A metric's series with their values."""
        found = dict(self.derive.metrics.points(None, self.clock.monotonic()))
        return found.get(metric, [])

    def point(self, metric: DerivedMetric, **labels: str) -> Point:
        """The one series whose labels are these among others; dots of keys as underscores."""
        keys = [catalog.prometheus_name(key) for key in self.derive.metrics.labels[metric]]
        found = [
            point
            for point in self.points(metric)
            if point.labels is not None
            and labels.items() <= dict(zip(keys, point.labels, strict=True)).items()
        ]
        assert len(found) == 1, found
        return found[0]

    def overflow(self, metric: DerivedMetric) -> Point:
        """The series of what exceeded the limit."""
        (found,) = [point for point in self.points(metric) if point.labels is None]
        return found

    def count(self, metric: Metric, /, **labels: str) -> float:
        """A counter of the bridge's own."""
        return self.telemetry.value(metric, **labels)

    def scrape(self) -> str:
        """What Prometheus gets."""
        text = DerivedText(lambda: self.derive.metrics, self.clock)
        return text.write(openmetrics=True) + "# EOF\n"


def deriving(**config: Any) -> Deriving:
    """Derived metrics of a configuration."""
    plan, telemetry, clock = PlanBuilder(), Telemetry(), FakeClock(NOW)
    enrich = Enrich(EnrichConfig(), plan, telemetry, convert_messages=False)
    derive = Derive(DeriveConfig.model_validate(config), plan, telemetry, clock)
    return Deriving(derive, enrich, plan, telemetry, clock)
