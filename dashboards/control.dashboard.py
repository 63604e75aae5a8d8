"""Breaker and rules: states, trips, reaction, what fires."""

from dashboards import panels
from dashboards.layout import TARGET, assemble
from dashboards.panels import Section
from dashboards.queries import control

BREAKER = {0: ("closed", "green"), 1: ("half-open", "orange"), 2: ("open", "red")}

breakers = Section(
    "Breakers",
    [
        panels.states("State by target", "What each breaker does to traffic.", control.STATE, BREAKER),
        panels.number(
            "Open", "Breakers that are open now.", "short", control.OPEN_NOW, steps=[(1, "red")], width=6
        ),
        panels.number("Targets", "Targets that have a breaker.", "short", control.TARGETS, width=6),
        panels.number(
            "Alerts firing",
            "Of the streaming engine, now.",
            "short",
            control.FIRING_NOW,
            steps=[(1, "orange")],
            width=6,
        ),
        panels.number(
            "Decision time, P99", "One answer to a gateway.", "s", control.DECISION_TIME[1], width=6
        ),
        panels.lines(
            "Trips and other changes",
            "A second, by the state come to and by cause.",
            "cps",
            control.TRANSITIONS,
        ),
        panels.lines(
            "Reaction, P99", "From the deciding event to decision, gate and action.", "s", control.REACTION
        ),
        panels.lines(
            "Decisions",
            "Answers to gateways a second, by interface and result.",
            "reqps",
            control.DECISIONS,
            width=8,
        ),
        panels.lines(
            "Decision time",
            "One answer to a gateway, from its request read to the answer made.",
            "s",
            control.DECISION_TIME,
            width=8,
        ),
        panels.lines(
            "Probes",
            "Requests let through a half-open breaker, a second, by how they ended.",
            "cps",
            control.PROBES,
            width=8,
        ),
        panels.lines("Alerts taken in", "A second, by what became of them.", "cps", control.ALERTS, width=6),
        panels.lines("Actions", "Changes handed on, a second, by result.", "cps", control.ACTIONS, width=6),
        panels.lines(
            "Leases and room",
            "Leases that ended or were renewed late, and targets that got no breaker, a second.",
            "cps",
            control.LEASES,
            width=6,
        ),
        panels.states(
            "Stores",
            "Whether breakers are kept and shared.",
            control.STORES,
            {0: ("cut off", "red"), 1: ("up", "green")},
            width=6,
        ),
    ],
)
limits = Section(
    "Rate limits",
    [
        panels.lines(
            "Limits: requests",
            "Requests that a limit concerned, a second, by result; would_refuse is of dry runs.",
            "reqps",
            control.LIMITED,
        ),
        panels.lines(
            "Limits: tokens",
            "LLM tokens reserved, returned when their span told of fewer, and used beyond, a second.",
            "short",
            control.LIMIT_TOKENS,
        ),
        panels.lines(
            "Ends of reservations",
            "A second; unreserved spans are of requests that passed no limit, expired ones had no span.",
            "cps",
            control.SETTLEMENTS,
        ),
        panels.lines(
            "Buckets",
            "In this process, and requests of newcomers that had to share one.",
            "short",
            control.BUCKETS,
        ),
    ],
)
rules = Section(
    "Rules",
    [
        panels.lines("Firing", "Alerts that fire now, by rule.", "short", control.FIRING),
        panels.lines("Began to fire", "Alerts a second, by rule.", "cps", control.FIRINGS),
        panels.lines(
            "Decision of rules",
            "From taking in the deciding item to the firing.",
            "s",
            control.DECIDED,
            width=8,
        ),
        panels.lines("Rules by engine", "Loaded now.", "short", control.LOADED, width=8),
        panels.lines(
            "Fired on incomplete evidence",
            "While kernel events of the window were lost, a second.",
            "cps",
            control.INCOMPLETE,
            width=8,
        ),
        panels.lines("Items not looked at", "A second, by why.", "cps", control.IGNORED),
        panels.lines(
            "Groups forgotten", "A second: `by` had more values than `max_groups`.", "cps", control.EVICTED
        ),
    ],
)

dashboard = assemble(
    "otel-bridge-control",
    "OTel Bridge / Breaker and rules",
    "Which breakers are open and why, how fast the bridge reacted, which rules fire.",
    [breakers, limits, rules],
    [TARGET],
)
