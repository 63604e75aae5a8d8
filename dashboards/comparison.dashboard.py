"""A/B: two versions of a model, or one model on two backends."""

from dashboards import panels
from dashboards.layout import assemble, query_variable
from dashboards.panels import Section
from dashboards.queries import comparison, variables

sides = [
    query_variable(f"{name}_{side}", f"{label} {side.upper()}", query)
    for side in ("a", "b")
    for name, label, query in (("service", "Backend", variables.SERVICE), ("model", "Model", variables.MODEL))
]
NEGATIVE = "Below 0, B is the smaller."

latency = Section(
    "Latency",
    [
        panels.lines("P95 of a request, A and B", "At the engine; dots are traces.", "s", comparison.LATENCY),
        panels.lines(
            "P95 of a request, B minus A", NEGATIVE, "s", comparison.LATENCY_DIFFERENCE, signed=True
        ),
        panels.lines(
            "P95 to the first token, A and B", "At the engine; dots are traces.", "s", comparison.FIRST_TOKEN
        ),
        panels.lines(
            "P95 to the first token, B minus A", NEGATIVE, "s", comparison.FIRST_TOKEN_DIFFERENCE, signed=True
        ),
    ],
)
throughput = Section(
    "Throughput and errors",
    [
        panels.lines("Output tokens, A and B", "Tokens a second.", "short", comparison.TOKENS),
        panels.lines(
            "Output tokens, B minus A", NEGATIVE, "short", comparison.TOKENS_DIFFERENCE, signed=True
        ),
        panels.lines(
            "Error ratio, A and B", "Share of spans with status ERROR.", "percentunit", comparison.ERRORS
        ),
        panels.lines(
            "Error ratio, B minus A", NEGATIVE, "percentunit", comparison.ERRORS_DIFFERENCE, signed=True
        ),
    ],
)
hot = Section(
    "Hot spots",
    [
        panels.lines(
            "Time lost by cause, A and B",
            "Seconds of spans lost to a kernel cause, a second; both sides over each other.",
            "s",
            comparison.HOT_SPOTS,
        ),
        panels.lines(
            "Time lost by cause, B minus A", NEGATIVE, "s", comparison.HOT_SPOTS_DIFFERENCE, signed=True
        ),
    ],
)

dashboard = assemble(
    "otel-bridge-ab",
    "OTel Bridge / A and B",
    "Two backends or models over each other and as a difference: latency, throughput, errors, kernel causes.",
    [latency, throughput, hot],
    sides,
)
