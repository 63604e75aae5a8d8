"""What sampling counts."""

from __future__ import annotations

from otel_bridge.catalog.definitions import Attribute, Kind, Metric

SAMPLE_SPANS = Metric(
    "otel_bridge_sample_spans",
    Kind.COUNTER,
    "{span}",
    "Spans by verdict (kept, dropped) and by what decided: rate, error, slow, kernel, priority.",
    ("verdict", "reason"),
)
SAMPLE_RATE = Metric(
    "otel_bridge_sample_rate",
    Kind.GAUGE,
    "1",
    "Share of traces that is kept now, by environment; those without a rate of their own are 'other'.",
    ("environment",),
)
SAMPLE_WAITING_BYTES = Metric(
    "otel_bridge_sample_waiting_bytes",
    Kind.GAUGE,
    "By",
    "Bytes of spans that wait for their trace's verdict.",
)
SAMPLE_WAITING_SPANS = Metric(
    "otel_bridge_sample_waiting_spans", Kind.GAUGE, "{span}", "Spans that wait for their trace's verdict."
)
SAMPLE_EARLY = Metric(
    "otel_bridge_sample_early_verdicts",
    Kind.COUNTER,
    "{span}",
    "Spans whose verdict fell before keep.wait was over: memory (max_waiting was near) or stop.",
    ("reason",),
)
SAMPLE_LATE = Metric(
    "otel_bridge_sample_late_spans",
    Kind.COUNTER,
    "{span}",
    "Spans that would have kept their trace and came after it was dropped, by what would have kept it.",
    ("reason",),
)
SAMPLE_INCONSISTENT = Metric(
    "otel_bridge_sample_inconsistent_spans",
    Kind.COUNTER,
    "{span}",
    "Spans whose tracestate has a threshold that should have dropped them; it is taken off.",
)
SAMPLE_JOURNAL_FAILURES = Metric(
    "otel_bridge_sample_journal_failures",
    Kind.COUNTER,
    "{request}",
    "Requests that could not be put on disk while they wait; they are acknowledged after the verdict.",
)
SAMPLE_RECOVERED = Metric(
    "otel_bridge_sample_recovered_spans",
    Kind.COUNTER,
    "{span}",
    "Spans found on disk that an earlier process had acknowledged and not decided.",
)
DEPLOYMENT_ENVIRONMENT = Attribute(
    "deployment.environment.name", "string", "", "Environment of the resource; older: deployment.environment."
)
