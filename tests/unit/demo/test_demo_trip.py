"""The trip: what is shown of it, and what must be true of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console

from demo.places import ROOT
from demo.stack import Addresses
from demo.trip import control, show
from demo.trip.control import Answer
from demo.trip.run import Story
from otel_bridge.settings import load

SECOND = 1_000_000_000
START = 1_700_000_000 * SECOND


def change(after: str, at: float, cause: str, reason: str) -> dict[str, object]:
    """An entry of the audit log."""
    return {
        "event": "transition",
        "time": START + int(at * SECOND),
        "after": after,
        "cause": cause,
        "reason": reason,
    }


STORY = Story(
    usual=0.02,
    began=START,
    took=[0.9, 1.1, 1.0],
    refused=[START + 3 * SECOND, START + 2 * SECOND],
    answer=Answer(allow=False, state="open", retry_after="7"),
    asked=START + int(1.6 * SECOND),
    ended=START + 4 * SECOND,
    back=START + 7 * SECOND,
    history=[
        change("open", 1.5, "rule", "rule EngineOverloaded: five calls [in] a row"),
        change("half_open", 6.5, "resolved", ""),
        change("closed", 8, "probes_passed", "5 of 5 probes passed"),
    ],
)


def test_the_timeline_tells_cause_rule_breaker_refusals_and_recovery_in_order():
    """Each with its time since the first client; texts of rules are data, not markup."""
    console = Console(width=130)
    with console.capture() as capture:
        show.trip(console, STORY)
    rows = [
        line.split("●")[0].split()[0] + line.split("●")[1]
        for line in capture.get().splitlines()
        if "●" in line
    ]
    found = [" ".join(row.replace("·", " ").split()) for row in rows]
    assert found == [
        "0.000 cause overload: 64 clients at once; answers take 1000 ms instead of 20 ms",
        "1.500 rule fires: EngineOverloaded: five calls [in] a row",
        "1.500 breaker open: new requests for engine are refused, those under way go on",
        "1.600 gateway request refused: 429, Retry-After: 7, says the decision API",
        "2.000 kernel gate first connection refused: by a reset, before the engine sees it; 2 in all",
        "4.000 cause the overload ends",
        "6.500 breaker half-open: resolved",
        "7.000 recovery first answer: to a request that was let through",
        "8.000 breaker closed: 5 of 5 probes passed",
    ]


def test_a_good_trip_passes():
    """With what it counted."""
    found = show.check(STORY)
    assert found.ok
    assert found.found == "2 connections refused, 3 requests under way answered"


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        ({"history": STORY.history[1:]}, "the rule did not open it"),
        (
            {"history": [{**STORY.history[0], "cause": "slow_calls"}, *STORY.history[1:]]},
            "the rule did not open it",
        ),
        ({"history": STORY.history[:2]}, "probes did not close it"),
        ({"answer": None}, "no gateway was refused"),
        ({"answer": Answer(allow=False, state="open", retry_after="")}, "no gateway was refused"),
        ({"broken": 2}, "2 requests under way were not answered"),
    ],
)
def test_a_trip_that_went_wrong_is_told(damage, complaint):
    """By name."""
    found = show.check(replace(STORY, **damage))
    assert not found.ok
    assert complaint in found.found


@pytest.mark.parametrize(("user", "refused"), [(0, False), (1000, True)])
def test_only_root_has_a_gate(monkeypatch, user, refused):
    """Without it nobody is refused in the kernel, and that is no fault."""
    monkeypatch.setattr("os.geteuid", lambda: user)
    assert show.check(replace(STORY, refused=[])).ok is refused


@pytest.mark.parametrize("user", [0, 1000])
def test_its_settings_are_settings_of_the_bridge(monkeypatch, user):
    """Laid over the sidecar's file by the environment, as any user's may be."""
    monkeypatch.setattr("os.geteuid", lambda: user)
    at = Addresses(*range(20000, 20009))
    found = load(ROOT / "collector-config" / "sidecar" / "bridge.yaml", environment=control.environment(at))
    assert found.control.enabled
    assert found.control.decisions.http.endpoint.port == at.decisions
    assert [gate.ports for gate in found.control.actions.gates.values()] == (
        [(at.engine,)] if user == 0 else []
    )
    assert [str(file) for file in found.rules.files] == [str(control.RULES)]
