"""The error budget of services: how fast it burns, what is left, which alerts fire.

The windows are those of the burn-rate alerts (alerts/rules/slo.yaml), so they do not follow the dashboard's
time range. `$objective` is the share of requests that must not fail.
"""

from __future__ import annotations

from dashboards.queries.golden import BY_SERVICE, FAILED, SERVER, SERVICE_LEGEND
from dashboards.queries.promql import Query, highest, or_zero, rate, select
from otel_bridge import catalog

WINDOWS = ("5m", "30m", "1h", "2h", "6h", "1d", "3d")
MONTH = "30d"


def _error_ratio(window: str) -> str:
    every = rate(catalog.DERIVED_SPAN_CALLS, by=BY_SERVICE, window=window, **SERVER)
    failed = rate(catalog.DERIVED_SPAN_CALLS, by=BY_SERVICE, window=window, **SERVER, **FAILED)
    return f"({failed} or 0 * {every}) / {every}"


def _burn(window: str) -> str:
    return f"{_error_ratio(window)} / (1 - $objective)"


BUDGET_LEFT = Query(f"1 - ({_burn(MONTH)})", SERVICE_LEGEND)
BURN_FAST = [Query(_burn(window), f"{SERVICE_LEGEND} {window}") for window in ("5m", "1h")]
BURN_SLOW = [Query(_burn(window), f"{SERVICE_LEGEND} {window}") for window in ("30m", "6h")]
BURN_DAYS = [Query(_burn(window), f"{SERVICE_LEGEND} {window}") for window in ("2h", "1d")]
BURN_MONTH = [Query(_burn(window), f"{SERVICE_LEGEND} {window}") for window in ("6h", "3d")]
AVAILABILITY = Query(f"1 - ({_error_ratio(MONTH)})", SERVICE_LEGEND)
LATENCY_WITHIN = Query(
    rate(catalog.DERIVED_SPAN_DURATION, "bucket", BY_SERVICE, window="1h", **SERVER, le='=~"2|2.0"')
    + " / "
    + rate(catalog.DERIVED_SPAN_DURATION, "count", BY_SERVICE, window="1h", **SERVER),
    SERVICE_LEGEND,
)
_ALERTS = "|".join(
    [
        *("ErrorBudgetBurn.*", "LatencyP99Surge", "LatencyWithThroughputDrop"),
        *("RequestRateAtSaturatedGpu", "TokenThroughputDrop"),
    ]
)
_PROMETHEUS = select(
    catalog.PROMETHEUS_ALERTS,
    scope=(),
    alertname=f'=~"{_ALERTS}"',
    alertstate='="firing"',
)
FIRING = [
    Query(or_zero(f"count by (alertname) ({_PROMETHEUS})"), "{{alertname}} (Prometheus)"),
    Query(or_zero(highest(catalog.RULES_ACTIVE, ("rule",))), "{{rule}} (bridge)"),
]
