"""What slowed spans: the kernel's share of their time, by service and cause."""

from __future__ import annotations

from dashboards.queries.golden import BY_SERVICE, FAILED, SERVER, SERVICE, SERVICE_LEGEND
from dashboards.queries.promql import Query, or_zero, quantile, rate
from otel_bridge import catalog

CAUSE = (catalog.CAUSE.key,)
POD = {**SERVICE, "k8s_pod_name": '=~"$pod"'}
_SPENT = rate(catalog.DERIVED_SPAN_DURATION, "sum", BY_SERVICE, **SERVER)
_LOST = rate(catalog.DERIVED_CAUSE_TIME, "sum", (*BY_SERVICE, *CAUSE), **SERVICE)
_SHARE = f"{_LOST} / on (service_name) group_left () {_SPENT}"

SHARE = Query(_SHARE, SERVICE_LEGEND + " {{cause}}")
TOP_SHARES = Query(f"topk(10, {_SHARE})", "", instant=True)
TOP = Query(f"topk(10, {_LOST})", "", instant=True)
LOST = Query(rate(catalog.DERIVED_CAUSE_TIME, "sum", CAUSE, **SERVICE), "{{cause}}")
HIT = Query(rate(catalog.DERIVED_CAUSE_TIME, "count", CAUSE, **SERVICE), "{{cause}}")
LONGEST = Query(quantile(0.99, catalog.DERIVED_CAUSE_TIME, CAUSE, **SERVICE), "{{cause}}", exemplars=True)
EVENTS = Query(
    rate(catalog.DERIVED_CAUSE_EVENTS, by=(*BY_SERVICE, *CAUSE), **SERVICE), SERVICE_LEGEND + " {{cause}}"
)
SLOWEST_OPERATIONS = Query(
    "topk(10, " + quantile(0.99, catalog.DERIVED_SPAN_DURATION, (*BY_SERVICE, "span.name"), **SERVICE) + ")",
    "",
    instant=True,
)
FAILED_OPERATIONS = Query(
    f"topk(10, {rate(catalog.DERIVED_SPAN_CALLS, by=(*BY_SERVICE, 'span.name'), **SERVICE, **FAILED)})",
    "",
    instant=True,
)
POD_LATENCY = Query(
    quantile(0.99, catalog.DERIVED_SPAN_DURATION, BY_SERVICE, **SERVER, k8s_pod_name='=~"$pod"'),
    SERVICE_LEGEND,
    exemplars=True,
)
POD_FAILED = Query(or_zero(rate(catalog.DERIVED_SPAN_CALLS, by=BY_SERVICE, **POD, **FAILED)), SERVICE_LEGEND)
POD_LOST = Query(
    rate(catalog.DERIVED_CAUSE_TIME, "sum", (*BY_SERVICE, *CAUSE), **POD), SERVICE_LEGEND + " {{cause}}"
)
JOINED = Query(rate(catalog.JOIN_EVENTS, by=("probe", "outcome")), "{{probe}} {{outcome}}")
