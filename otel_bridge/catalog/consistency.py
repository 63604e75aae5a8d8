"""What the consistency check counts."""

from __future__ import annotations

from otel_bridge.catalog.definitions import Kind, Metric

CONSISTENCY_FINDINGS = Metric(
    "otel_bridge_consistency_findings",
    Kind.COUNTER,
    "{finding}",
    "Broken contexts among the checked traces, by kind and by the role of the service that shows it; the "
    "exemplar is a trace id.",
    ("kind", "role"),
)
CONSISTENCY_TRACES = Metric(
    "otel_bridge_consistency_traces",
    Kind.COUNTER,
    "{trace}",
    "Traces by how their check ended: judged, or given up since they were too large or too many.",
    ("outcome",),
)
CONSISTENCY_WAITING_BYTES = Metric(
    "otel_bridge_consistency_waiting_bytes",
    Kind.GAUGE,
    "By",
    "Bytes of what is known of traces that are not judged yet.",
)
