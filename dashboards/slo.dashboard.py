"""SLO: burn rates and budget."""

from dashboards import panels
from dashboards.layout import SERVICE, assemble, choice_variable
from dashboards.panels import Section
from dashboards.queries import slo

budget = Section(
    "Budget of 30 days",
    [
        panels.lines(
            "Budget left",
            "Share of the errors allowed in 30 days that are not spent; below 0 the objective is missed.",
            "percentunit",
            slo.BUDGET_LEFT,
            signed=True,
            width=8,
        ),
        panels.lines(
            "Availability",
            "Share of server spans of 30 days without status ERROR.",
            "percentunit",
            slo.AVAILABILITY,
            width=8,
        ),
        panels.lines(
            "Answered within 2 s",
            "Share of server spans of the last hour.",
            "percentunit",
            slo.LATENCY_WITHIN,
            width=8,
        ),
    ],
)
burn = Section(
    "Burn rates, by the windows of the alerts",
    [
        panels.lines(
            "1 h and 5 m: page above 14.4",
            "Times too fast; 14.4 spends 2 % of the budget in an hour.",
            "short",
            slo.BURN_FAST,
        ),
        panels.lines(
            "6 h and 30 m: page above 6",
            "Times too fast; 6 spends 5 % of the budget in six hours.",
            "short",
            slo.BURN_SLOW,
        ),
        panels.lines(
            "1 d and 2 h: ticket above 3",
            "Times too fast; 3 spends 10 % of the budget in a day.",
            "short",
            slo.BURN_DAYS,
        ),
        panels.lines(
            "3 d and 6 h: ticket above 1",
            "Times too fast; 1 spends the budget by the month's end.",
            "short",
            slo.BURN_MONTH,
        ),
        panels.lines(
            "Alerts that fire",
            "Of service levels in Prometheus, and all of the bridge's own.",
            "short",
            slo.FIRING,
            width=24,
        ),
    ],
)

dashboard = assemble(
    "otel-bridge-slo",
    "OTel Bridge / SLO",
    "How fast services spend their error budget, and what is left of it.",
    [budget, burn],
    [SERVICE, choice_variable("objective", "Objective", ["0.999", "0.99", "0.995", "0.9995", "0.9999"])],
)
