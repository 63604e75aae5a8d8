"""Metrics of rate limits: what they say to requests, and what becomes of reserved tokens."""

from __future__ import annotations

from otel_bridge.catalog.definitions import Kind, Metric

LIMIT_DECISIONS = Metric(
    "otel_bridge_control_limit_decisions",
    Kind.COUNTER,
    "{request}",
    "Requests that a limit concerned, by result (allowed, refused, too_large: more than it ever admits, "
    "would_refuse: it only looks on).",
    ("limit", "result"),
)
LIMIT_TOKENS = Metric(
    "otel_bridge_control_limit_tokens",
    Kind.COUNTER,
    "{token}",
    "LLM tokens by what became of them (reserved on admission, returned when the span told of fewer, "
    "overrun: used beyond the reservation).",
    ("limit", "kind"),
)
LIMIT_SETTLEMENTS = Metric(
    "otel_bridge_control_limit_settlements",
    Kind.COUNTER,
    "{request}",
    "Ends of token reservations (settled, unreserved: a span whose request reserved nothing, expired: no "
    "span came, implausible: its tokens were not believed, dropped: Redis could not be told).",
    ("outcome",),
)
LIMIT_BUCKETS = Metric(
    "otel_bridge_control_limit_buckets",
    Kind.GAUGE,
    "{bucket}",
    "Buckets of a limit in this process.",
    ("limit",),
)
LIMIT_OVERFLOWS = Metric(
    "otel_bridge_control_limit_overflows",
    Kind.COUNTER,
    "{request}",
    "Requests of newcomers that share a bucket, since all others were in use.",
    ("limit",),
)
