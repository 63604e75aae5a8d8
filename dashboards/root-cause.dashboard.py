"""Root cause: from a slow service to what held it up, and to the trace."""

from dashboards import panels
from dashboards.layout import SERVICE, assemble, query_variable
from dashboards.links import VARIABLES, to_traces
from dashboards.panels import Section
from dashboards.queries import causes, golden
from dashboards.queries.variables import POD

HEADINGS = {"service_name": "Service", "cause": "Cause"}
OPERATIONS = {"service_name": "Service", "span_name": "Operation"}

where = Section(
    "Where: the service",
    [
        panels.lines("Latency", "Duration of server spans; dots are traces to look at.", "s", golden.LATENCY),
        panels.lines(
            "Error ratio",
            "Share of server spans with status ERROR.",
            "percentunit",
            golden.ERROR_RATIO,
            links=to_traces(),
        ),
        panels.table(
            "P99 duration",
            "The ten slowest operations now.",
            "s",
            causes.SLOWEST_OPERATIONS,
            OPERATIONS,
            links=to_traces(from_table=True),
        ),
        panels.table(
            "Errors a second",
            "The ten operations that fail most now.",
            "cps",
            causes.FAILED_OPERATIONS,
            OPERATIONS,
            links=to_traces(from_table=True),
        ),
    ],
)
pods = Section(
    "Where: pod $pod",
    [
        panels.lines(
            "P99 in the pod",
            "99 % of server spans in the pod took no longer than this; dots are traces.",
            "s",
            causes.POD_LATENCY,
            width=8,
            links=to_traces(in_pod=True),
        ),
        panels.lines(
            "Failures in the pod",
            "Spans a second that failed.",
            "cps",
            causes.POD_FAILED,
            width=8,
            links=to_traces(in_pod=True),
        ),
        panels.lines(
            "Time lost in the pod",
            "Seconds that its spans lost, a second, by cause.",
            "s",
            causes.POD_LOST,
            width=8,
            stacked=True,
            links=to_traces(in_pod=True),
        ),
    ],
    variable="pod",
)
why = Section(
    "Why: what the kernel did meanwhile",
    [
        panels.lines(
            "Kernel's share of latency",
            "Time that spans lost to a cause as a share of their time; threads that work at once can "
            "add up to more than all of it.",
            "percentunit",
            causes.SHARE,
            links=to_traces(),
        ),
        panels.table(
            "Share of latency",
            "The ten causes that take most of their service's time now.",
            "percentunit",
            causes.TOP_SHARES,
            HEADINGS,
            links=to_traces(from_table=True),
        ),
        panels.table(
            "Seconds lost a second",
            "The ten pairs of service and cause that cost most time now.",
            "s",
            causes.TOP,
            HEADINGS,
            links=to_traces(from_table=True),
        ),
        panels.lines(
            "Time lost by cause", "Seconds of spans lost, a second.", "s", causes.LOST, stacked=True
        ),
        panels.lines("Spans hit by cause", "Spans a second that lost time.", "cps", causes.HIT, width=8),
        panels.lines(
            "Longest losses by cause",
            "99 % of the spans that were hit lost no more than this; dots are traces.",
            "s",
            causes.LONGEST,
            width=8,
        ),
        panels.lines(
            "Events by cause",
            "What happened to spans and has no duration: retransmits, resets, OOM kills.",
            "cps",
            causes.EVENTS,
            width=8,
            links=to_traces(),
        ),
        panels.lines(
            "Kernel events by what became of them",
            "Events that found their span, and those that did not: how far the panels above can be trusted.",
            "cps",
            causes.JOINED,
            width=24,
        ),
    ],
)

dashboard = assemble(
    "otel-bridge-root-cause",
    "OTel Bridge / Root cause",
    "From a slow or failing service to the kernel events that held its spans up, and on to the traces.",
    [where, why, pods],
    [SERVICE, query_variable("pod", "Pod", POD, hidden=True), *VARIABLES],
)
