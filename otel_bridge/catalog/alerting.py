"""Where alerts go: shown to Prometheus, pushed to Alertmanager, noted in Grafana."""

from __future__ import annotations

from otel_bridge.catalog.definitions import Kind, Metric

RULES_ALERTS = Metric(
    "otel_bridge_alerts",
    Kind.GAUGE,
    "{alert}",
    "1 for each alert of the streaming engine that fires, like ALERTS; the rule's `by` are further labels.",
    ("alertname", "severity"),
)
ALERTMANAGER_ALERTS = Metric(
    "otel_bridge_alertmanager_alerts",
    Kind.GAUGE,
    "{alert}",
    "Alerts that are sent again and again: those that fire, and those that ended a moment ago.",
)
ALERTMANAGER_SENT = Metric(
    "otel_bridge_alertmanager_sent_alerts",
    Kind.COUNTER,
    "{alert}",
    "Alerts that an Alertmanager took, repetitions included.",
    ("alertmanager",),
)
ALERTMANAGER_ATTEMPTS = Metric(
    "otel_bridge_alertmanager_attempts",
    Kind.COUNTER,
    "{request}",
    "Requests to an Alertmanager by its answer: an HTTP status, timeout or connection.",
    ("alertmanager", "code"),
)
ALERTMANAGER_DROPPED = Metric(
    "otel_bridge_alertmanager_dropped_alerts",
    Kind.COUNTER,
    "{alert}",
    "Alerts not pushed, by reason (full: more fired at once than max_alerts; refused: an Alertmanager "
    "answered 4xx, and is not asked again for this change).",
    ("reason",),
)
ANNOTATIONS_SENT = Metric(
    "otel_bridge_grafana_annotations",
    Kind.COUNTER,
    "{annotation}",
    "Annotations that Grafana took.",
)
ANNOTATIONS_DROPPED = Metric(
    "otel_bridge_grafana_dropped_annotations",
    Kind.COUNTER,
    "{annotation}",
    "Annotations given up, by reason (full: the queue had no room; refused: Grafana answered 4xx; stopped: "
    "the bridge ended before Grafana took them).",
    ("reason",),
)
ANNOTATIONS_ATTEMPTS = Metric(
    "otel_bridge_grafana_attempts",
    Kind.COUNTER,
    "{request}",
    "Requests to Grafana by its answer: an HTTP status, timeout or connection.",
    ("code",),
)
