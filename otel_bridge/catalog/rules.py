"""What the streaming engine of rules counts."""

from __future__ import annotations

from otel_bridge.catalog.definitions import Kind, Metric

RULES_LOADED = Metric(
    "otel_bridge_rules_loaded", Kind.GAUGE, "{rule}", "Rules by the engine that evaluates them.", ("engine",)
)
RULES_FIRINGS = Metric(
    "otel_bridge_rules_firings", Kind.COUNTER, "{alert}", "Alerts that began to fire, by rule.", ("rule",)
)
RULES_ACTIVE = Metric(
    "otel_bridge_rules_active_alerts", Kind.GAUGE, "{alert}", "Alerts that fire now, by rule.", ("rule",)
)
RULES_INCOMPLETE = Metric(
    "otel_bridge_rules_incomplete_firings",
    Kind.COUNTER,
    "{alert}",
    "Alerts that say that kernel events of their window were lost.",
    ("rule",),
)
RULES_EVICTED = Metric(
    "otel_bridge_rules_evicted_groups",
    Kind.COUNTER,
    "{group}",
    "Groups that a rule forgot because `by` had more values than `max_groups`.",
    ("rule",),
)
RULES_IGNORED = Metric(
    "otel_bridge_rules_ignored_items",
    Kind.COUNTER,
    "{item}",
    "Spans, events and readings not looked at (late: older than rules.lateness; future: ahead of the clock; "
    "series: over the limit of a group).",
    ("reason",),
)
RULES_CLOCK_STEPS = Metric(
    "otel_bridge_rules_clock_steps",
    Kind.COUNTER,
    "{step}",
    "Times the wall clock was set: windows begin anew.",
)
RULES_DECISION = Metric(
    "otel_bridge_rules_decision_seconds",
    Kind.HISTOGRAM,
    "s",
    "From taking in the items of a batch to the firing that one of them decided.",
    (),
    (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.1),
)
