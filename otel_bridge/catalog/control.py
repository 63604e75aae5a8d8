"""Metrics of breakers: their states, what moves them, who asks them, what they do."""

from __future__ import annotations

from otel_bridge.catalog.definitions import Kind, Metric

CONTROL_STATE = Metric(
    "otel_bridge_control_breaker_state",
    Kind.GAUGE,
    "{state}",
    "What a breaker does to traffic: 0 closed, 1 half-open, 2 open.",
    ("target",),
)
CONTROL_TARGETS = Metric(
    "otel_bridge_control_targets", Kind.GAUGE, "{target}", "Targets that have a breaker."
)
CONTROL_TARGETS_REFUSED = Metric(
    "otel_bridge_control_targets_refused",
    Kind.COUNTER,
    "{target}",
    "Times that a target got no breaker, by reason (not_allowed; full: all that exist are in use).",
    ("reason",),
)
CONTROL_TRANSITIONS = Metric(
    "otel_bridge_control_transitions",
    Kind.COUNTER,
    "{transition}",
    "Changes of breakers by the state they came to and by cause.",
    ("state", "cause"),
)
CONTROL_LEASES_ENDED = Metric(
    "otel_bridge_control_leases_ended",
    Kind.COUNTER,
    "{lease}",
    "Opens that ended because nobody renewed them.",
)
CONTROL_LATE_RENEWALS = Metric(
    "otel_bridge_control_late_renewals",
    Kind.COUNTER,
    "{alert}",
    "Alerts that came again only after their lease: the route's repeat_interval is longer than the lease.",
)
CONTROL_REACTION = Metric(
    "otel_bridge_control_reaction_seconds",
    Kind.HISTOGRAM,
    "s",
    "From the deciding event taken in to each step of the reaction: decision, gate, action.",
    ("step",),
    (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 1.0, 10.0),
)
CONTROL_DECISIONS = Metric(
    "otel_bridge_control_decisions",
    Kind.COUNTER,
    "{decision}",
    "Answers to gateways by interface and result (allowed, probe, refused, limited).",
    ("interface", "result"),
)
CONTROL_ANSWERING_RESTARTS = Metric(
    "otel_bridge_control_answering_restarts",
    Kind.COUNTER,
    "{restart}",
    "Restarts of the process that answers gateways, where it is one of its own.",
)
CONTROL_DECISION_DURATION = Metric(
    "otel_bridge_control_decision_duration_seconds",
    Kind.HISTOGRAM,
    "s",
    "One answer to a gateway, from its request read to the answer made.",
    (),
    (0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25),
)
CONTROL_PROBES = Metric(
    "otel_bridge_control_probes",
    Kind.COUNTER,
    "{probe}",
    "Probes by how they ended (passed, failed, ignored).",
    ("verdict",),
)
CONTROL_ALERTS = Metric(
    "otel_bridge_control_alerts",
    Kind.COUNTER,
    "{alert}",
    "Alerts by what became of them (opened, renewed, resolved, duplicate, unmatched, unknown_target, "
    "replayed, disabled, malformed, truncated).",
    ("outcome",),
)
CONTROL_WEBHOOKS_IN = Metric(
    "otel_bridge_control_webhook_requests",
    Kind.COUNTER,
    "{request}",
    "Requests to the Alertmanager webhook, by HTTP status.",
    ("code",),
)
CONTROL_ACTIONS = Metric(
    "otel_bridge_control_actions",
    Kind.COUNTER,
    "{change}",
    "Changes handed to an action or gate, by result (done, dry_run, limited, failed, dropped, superseded).",
    ("action", "result"),
)
CONTROL_DELIVERY_TRIES = Metric(
    "otel_bridge_control_webhook_tries",
    Kind.COUNTER,
    "{request}",
    "Webhooks sent, by action and HTTP status or failure.",
    ("action", "code"),
)
CONTROL_STORE_UP = Metric(
    "otel_bridge_control_store_up",
    Kind.GAUGE,
    "{store}",
    "Whether breakers are kept (sqlite) and shared (redis).",
    ("store",),
)
CONTROL_STORE_DAMAGED = Metric(
    "otel_bridge_control_store_failures",
    Kind.COUNTER,
    "{failure}",
    "Times that the file of breakers, or a record in it, could not be used.",
)
CONTROL_GATE_CONNECTIONS = Metric(
    "otel_bridge_control_gate_connections",
    Kind.COUNTER,
    "{connection}",
    "New connections at a shut gate by result (refused, admitted; overruled: refused, but another program "
    "gave it to a socket).",
    ("gate", "result"),
)
CONTROL_GATE_KERNEL_TRIPS = Metric(
    "otel_bridge_control_gate_kernel_trips",
    Kind.COUNTER,
    "{trip}",
    "Times that the kernel shut a gate by itself, after OOM kills.",
    ("gate",),
)
CONTROL_GATE_NAMESPACES = Metric(
    "otel_bridge_control_gate_namespaces",
    Kind.GAUGE,
    "{namespace}",
    "Network namespaces that a gate guards.",
    ("gate",),
)
CONTROL_STRATEGY_CALLS = Metric(
    "otel_bridge_control_strategy_calls",
    Kind.COUNTER,
    "{call}",
    "Calls by the strategy of their trace and result (ok, error, ignored).",
    ("strategy", "result"),
)
CONTROL_STRATEGY_DURATION = Metric(
    "otel_bridge_control_strategy_duration_seconds",
    Kind.HISTOGRAM,
    "s",
    "How long calls took, by the strategy of their trace.",
    ("strategy",),
    (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0),
)
