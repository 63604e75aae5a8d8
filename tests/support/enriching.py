"""Batches through enrichment alone, by whichever codec."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from otel_bridge.batch import PlanBuilder
from otel_bridge.processors.enrich.config import EnrichConfig
from otel_bridge.processors.enrich.enrich import Enrich
from otel_bridge.receivers.otlp.codec import choose_codec
from otel_bridge.telemetry import Telemetry
from otel_bridge.testing import attributes_of, spans_of, trace_request

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_bridge.catalog import Metric
    from otel_bridge.contracts import Codec


@dataclass
class Enriching:
    """Enrichment with a configuration, its plan and its counters."""

    enrich: Enrich
    plan: PlanBuilder
    telemetry: Telemetry
    codec: Codec

    def request(self, data: bytes) -> bytes:
        """A request's bytes, enriched."""
        batch = self.codec.scan(data, self.plan.build())
        self.enrich.process(batch)
        return batch.splice()

    def spans(self, spans: Sequence[Mapping[str, object]], **request: Any) -> list[dict[str, Any]]:
        """The attributes of each span that leaves."""
        out = self.request(trace_request(spans, **request))
        return [attributes_of(span.attributes) for span in spans_of(out)]

    def span(self, attributes: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
        """The attributes of the one span that leaves."""
        resource = fields.pop("resource", None)
        (found,) = self.spans([{"attributes": attributes, **fields}], resource=resource)
        return found

    def count(self, metric: Metric, **labels: str) -> float:
        """A counter's value."""
        return self.telemetry.value(metric, **labels)


def enriching(*, convert_messages: bool = True, codec: Codec | None = None, **config: Any) -> Enriching:
    """Enrichment, built as the pipeline builds it."""
    plan, telemetry = PlanBuilder(), Telemetry()
    enrich = Enrich(EnrichConfig.model_validate(config), plan, telemetry, convert_messages=convert_messages)
    return Enriching(enrich, plan, telemetry, codec or choose_codec("auto")[0])
