"""Bridge health: in, out, lost, late."""

from dashboards import panels
from dashboards.layout import assemble
from dashboards.panels import Section
from dashboards.queries import bridge

received = Section(
    "In",
    [
        panels.lines(
            "Items accepted", "Spans, points and records a second, acknowledged.", "cps", bridge.ACCEPTED
        ),
        panels.lines("Answers", "Requests a second, by status.", "reqps", bridge.ANSWERS),
        panels.lines(
            "What senders wait, P99",
            "From the whole request read to its answer.",
            "s",
            bridge.ANSWER_TIME,
            width=8,
        ),
        panels.lines("Items refused", "For good, a second, by reason.", "cps", bridge.REFUSED, width=8),
        panels.lines("Strings mended", "Not UTF-8 on the wire, a second.", "cps", bridge.MENDED, width=8),
    ],
)
within = Section(
    "Within",
    [
        panels.lines(
            "Spans through the processors",
            "A second, in and out; the difference was sampled away.",
            "cps",
            bridge.THROUGHPUT,
            width=8,
        ),
        panels.lines("Time in each step, P99", "Of one request.", "s", bridge.STEP_TIME, width=8),
        panels.lines(
            "Memory of what waits",
            "Kernel events for their span, spans for a verdict, traces to be judged.",
            "bytes",
            bridge.WAITING,
            width=8,
        ),
        panels.lines(
            "Facts found", "Spans a second that got a value, by target and source.", "cps", bridge.RESOLVED
        ),
        panels.lines("Values not believed", "A second, by reason.", "cps", bridge.BAD_VALUES),
        panels.lines("Sampling", "Spans a second, by verdict and reason.", "cps", bridge.SAMPLED, width=8),
        panels.lines("Broken contexts", "A second, by kind and role.", "cps", bridge.FINDINGS, width=8),
        panels.lines("Attributes redacted", "A second, by action.", "cps", bridge.REDACTED, width=8),
        panels.lines("Series made of spans", "By metric; each has a limit.", "short", bridge.SERIES),
        panels.lines(
            "Observations over the limit", "In the overflow series, a second.", "cps", bridge.OVERFLOW
        ),
    ],
)
out = Section(
    "Out",
    [
        panels.lines("Items delivered", "A second, by destination.", "cps", bridge.SENT),
        panels.lines("Lost for good", "Items a second; anything above 0 is a loss.", "cps", bridge.LOST),
        panels.lines("Time of one try, P99", "To the destination's answer.", "s", bridge.SEND_TIME, width=8),
        panels.lines(
            "Failed tries",
            "A second, by status; a failed try is no loss.",
            "cps",
            bridge.SEND_FAILURES,
            width=8,
        ),
        panels.lines(
            "Turned away",
            "Requests a second whose sender was told to come again.",
            "cps",
            bridge.TURNED_AWAY,
            width=8,
        ),
        panels.lines(
            "Queue", "Share of the room that is taken, by where it waits.", "percentunit", bridge.QUEUE, top=1
        ),
        panels.lines(
            "Requests waiting", "For the destination, by where they wait.", "short", bridge.QUEUE_REQUESTS
        ),
        panels.states(
            "Probes",
            "Whether each kernel probe is at work.",
            bridge.PROBES,
            {0: ("off", "text"), 1: ("at work", "green")},
        ),
    ],
)

dashboard = assemble(
    "otel-bridge-health",
    "OTel Bridge / Bridge health",
    "Whether the bridge takes in, keeps and hands on what it should, and what it loses.",
    [received, within, out],
)
