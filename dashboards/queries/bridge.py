"""The bridge's own health: what comes in, what goes out, what is lost, what it costs."""

from __future__ import annotations

from dashboards.queries.promql import Query, highest, or_zero, quantile, rate, summed
from otel_bridge import catalog

ACCEPTED = Query(rate(catalog.RECEIVER_ACCEPTED, by=("transport", "signal")), "{{transport}} {{signal}}")
ANSWERS = Query(rate(catalog.RECEIVER_REQUESTS, by=("transport", "code")), "{{transport}} {{code}}")
ANSWER_TIME = Query(quantile(0.99, catalog.RECEIVER_DURATION, ("transport",)), "{{transport}}")
REFUSED = Query(or_zero(rate(catalog.RECEIVER_REFUSED, by=("reason",))), "{{reason}}")
MENDED = Query(or_zero(rate(catalog.RECEIVER_MENDED_STRINGS)), "strings")
STEP_TIME = Query(quantile(0.99, catalog.PROCESSOR_DURATION, ("step",)), "{{step}}")
THROUGHPUT = [
    Query(rate(catalog.PROCESSOR_INCOMING), "in"),
    Query(rate(catalog.PROCESSOR_OUTGOING), "out"),
]
SENT = Query(rate(catalog.EXPORTER_SENT, by=("exporter", "signal")), "{{exporter}} {{signal}}")
SEND_TIME = Query(quantile(0.99, catalog.EXPORTER_DURATION, ("exporter",)), "{{exporter}}")
SEND_FAILURES = Query(
    or_zero(rate(catalog.EXPORTER_SEND_FAILED, by=("exporter", "code"))), "{{exporter}} {{code}}"
)
LOST = [
    Query(or_zero(rate(catalog.EXPORTER_DROPPED, by=("exporter", "reason"))), "{{exporter}} {{reason}}"),
    Query(or_zero(rate(catalog.EXPORTER_REJECTED, by=("exporter",))), "{{exporter}} rejected"),
]
TURNED_AWAY = Query(or_zero(rate(catalog.EXPORTER_REFUSED, by=("exporter",))), "{{exporter}}")
QUEUE = Query(
    f"{summed(catalog.EXPORTER_QUEUE_BYTES, ('exporter', 'place'))}"
    f" / {summed(catalog.EXPORTER_QUEUE_CAPACITY, ('exporter', 'place'))}",
    "{{exporter}} {{place}}",
)
QUEUE_REQUESTS = Query(
    summed(catalog.EXPORTER_QUEUE_REQUESTS, ("exporter", "place")), "{{exporter}} {{place}}"
)
SAMPLED = Query(or_zero(rate(catalog.SAMPLE_SPANS, by=("verdict", "reason"))), "{{verdict}} {{reason}}")
FINDINGS = Query(or_zero(rate(catalog.CONSISTENCY_FINDINGS, by=("kind", "role"))), "{{kind}} {{role}}")
WAITING = [
    Query(summed(catalog.JOIN_WAITING_BYTES), "kernel events"),
    Query(or_zero(summed(catalog.SAMPLE_WAITING_BYTES)), "spans for a verdict"),
    Query(or_zero(summed(catalog.CONSISTENCY_WAITING_BYTES)), "traces to judge"),
]
RESOLVED = Query(rate(catalog.ENRICH_RESOLVED, by=("target", "source")), "{{target}} {{source}}")
BAD_VALUES = [
    Query(or_zero(rate(catalog.ENRICH_BAD_VALUES, by=("target", "reason"))), "{{target}} {{reason}}"),
    Query(or_zero(rate(catalog.DERIVE_BAD_VALUES, by=("metric", "reason"))), "{{metric}} {{reason}}"),
]
SERIES = Query(summed(catalog.DERIVE_SERIES, ("metric",)), "{{metric}}")
OVERFLOW = Query(or_zero(rate(catalog.DERIVE_OVERFLOW, by=("metric",))), "{{metric}}")
REDACTED = Query(or_zero(rate(catalog.REDACT_ATTRIBUTES, by=("action",))), "{{action}}")
PROBES = Query(highest(catalog.KERNEL_PROBE_LOADED, ("instance", "probe")), "{{instance}} {{probe}}")
