"""Breakers and rules: states, trips, how fast, what fires."""

from __future__ import annotations

from dashboards.queries.promql import Query, highest, or_zero, quantile, rate, summed
from otel_bridge import catalog

TARGET = {"target": '=~"$target"'}
_STATE = highest(catalog.CONTROL_STATE, ("target",), **TARGET)
_OPEN = 2

STATE = Query(_STATE, "{{target}}")
OPEN_NOW = Query(or_zero(f"count({_STATE} == {_OPEN})"), "open")
TARGETS = Query(summed(catalog.CONTROL_TARGETS), "targets")
# All that could happen are served at zero; those that do are drawn.
TRANSITIONS = Query(
    or_zero(f"{rate(catalog.CONTROL_TRANSITIONS, by=('state', 'cause'))} > 0"), "{{state}} {{cause}}"
)
REACTION = Query(quantile(0.99, catalog.CONTROL_REACTION, ("step",)), "{{step}}")
DECISIONS = Query(rate(catalog.CONTROL_DECISIONS, by=("interface", "result")), "{{interface}} {{result}}")
DECISION_TIME = [
    Query(quantile(q, catalog.CONTROL_DECISION_DURATION), f"P{round(q * 100)}") for q in (0.5, 0.99)
]
PROBES = Query(or_zero(rate(catalog.CONTROL_PROBES, by=("verdict",))), "{{verdict}}")
ALERTS = Query(or_zero(rate(catalog.CONTROL_ALERTS, by=("outcome",))), "{{outcome}}")
ACTIONS = Query(or_zero(rate(catalog.CONTROL_ACTIONS, by=("action", "result"))), "{{action}} {{result}}")
STORES = Query(highest(catalog.CONTROL_STORE_UP, ("instance", "store")), "{{instance}} {{store}}")
LEASES = [
    Query(or_zero(rate(catalog.CONTROL_LEASES_ENDED)), "ended unrenewed"),
    Query(or_zero(rate(catalog.CONTROL_LATE_RENEWALS)), "renewed late"),
    Query(or_zero(rate(catalog.CONTROL_TARGETS_REFUSED)), "targets refused"),
]

LIMITED = Query(rate(catalog.LIMIT_DECISIONS, by=("limit", "result")), "{{limit}} {{result}}")
LIMIT_TOKENS = Query(or_zero(rate(catalog.LIMIT_TOKENS, by=("limit", "kind"))), "{{limit}} {{kind}}")
SETTLEMENTS = Query(rate(catalog.LIMIT_SETTLEMENTS, by=("outcome",)), "{{outcome}}")
BUCKETS = [
    Query(summed(catalog.LIMIT_BUCKETS, ("limit",)), "{{limit}}"),
    Query(or_zero(rate(catalog.LIMIT_OVERFLOWS)), "shared, a second"),
]

FIRING = Query(highest(catalog.RULES_ACTIVE, ("rule",)), "{{rule}}")
FIRING_NOW = Query(or_zero(summed(catalog.RULES_ACTIVE)), "alerts")
FIRINGS = Query(or_zero(rate(catalog.RULES_FIRINGS, by=("rule",))), "{{rule}}")
INCOMPLETE = Query(or_zero(rate(catalog.RULES_INCOMPLETE, by=("rule",))), "{{rule}}")
LOADED = Query(summed(catalog.RULES_LOADED, ("engine",)), "{{engine}}")
DECIDED = [Query(quantile(q, catalog.RULES_DECISION), f"P{round(q * 100)}") for q in (0.5, 0.99)]
IGNORED = Query(or_zero(rate(catalog.RULES_IGNORED, by=("reason",))), "{{reason}}")
EVICTED = Query(or_zero(rate(catalog.RULES_EVICTED, by=("rule",))), "{{rule}}")
