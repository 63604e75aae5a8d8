"""What somebody who was woken looks for first: what fires, what is open, what is broken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from otel_bridge.breakers import State
from otel_bridge.ui.runbook import entries

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from otel_bridge.states import BreakerState, RuleState
    from otel_bridge.ui.health import Destination, Probe

MOST = 20
"""Rows; the sections below have them all."""
_GRAVE = "bad"
_MINOR = "warn"
_TRACES = 3


@dataclass(frozen=True, slots=True)
class Concern:
    """One thing that is not as it should be.

    Attributes:
        level: "bad" or "warn".
        word: what it does: firing, open, losing, ….
        what: who does it.
        section: of the page, where the rest is.
        lasts: seconds that it has been so; None: not known.
        why: for people.
        traces: ids of what it is about, the worst first.
        runbook: the anchor of its entry; empty: it has none.
    """

    level: str
    word: str
    what: str
    section: str
    lasts: float | None = None
    why: str = ""
    traces: Sequence[bytes] = ()
    runbook: str = ""


def concerns(
    *,
    not_ready: str | None,
    rules: Sequence[RuleState],
    breakers: Sequence[BreakerState],
    destinations: Sequence[Destination],
    probes: Sequence[Probe],
    now: int,
) -> list[Concern]:
    """All of them, the grave ones first; `now` is unix nanoseconds."""
    found = [
        *([Concern(_GRAVE, "not ready", "the bridge", "", why=not_ready)] if not_ready else []),
        *_destinations(destinations),
        *_breakers(breakers),
        *_rules(rules, now),
        *_probes(probes),
    ]
    return sorted(found, key=lambda one: one.level != _GRAVE)


def _rules(rules: Sequence[RuleState], now: int) -> Iterator[Concern]:
    for rule in rules:
        entry = entries().get(rule.runbook)
        for alert in rule.active:
            of = ", ".join(f"{key} {value}" for key, value in alert.labels.items())
            yield Concern(
                level=_GRAVE if rule.severity == "critical" else _MINOR,
                word="firing",
                what=f"{rule.name} ({of})" if of else rule.name,
                section="rules",
                lasts=max(0.0, (now - alert.since) / 1e9),
                why=alert.summary,
                traces=alert.evidence[:_TRACES],
                runbook=entry.anchor if entry is not None else "",
            )


def _breakers(breakers: Sequence[BreakerState]) -> Iterator[Concern]:
    for one in breakers:
        if one.traffic is not State.CLOSED:
            yield Concern(
                level=_GRAVE if one.traffic is State.OPEN else _MINOR,
                word=one.traffic.value.replace("_", "-"),
                what=f"breaker of {one.target}",
                section="breakers",
                lasts=one.since,
                why=one.reason or one.cause.replace("_", " "),
            )


def _destinations(destinations: Sequence[Destination]) -> Iterator[Concern]:
    for one in destinations:
        if not one.good:
            failures = ", ".join(f"{count} times {code}" for code, count in one.failures.items())
            said = [
                f"{one.lost:,} items are lost for good" if one.lost else "",
                f"{one.waits} of {one.room} wait" if one.word != "losing" else "",
                f"tries failed: {failures}" if failures else "",
            ]
            yield Concern(
                level=_GRAVE if one.word in ("losing", "full") else _MINOR,
                word=one.word,
                what=f"destination {one.name}",
                section="destinations",
                why="; ".join(filter(None, said)),
            )


def _probes(probes: Sequence[Probe]) -> Iterator[Concern]:
    absent = [one.name for one in probes if not one.loaded]
    if absent:
        yield Concern(
            _MINOR, "not loaded", f"probes {', '.join(absent)}", "probes", why="otel-bridge doctor says why"
        )
    for one in probes:
        if one.lost:
            why = f"{one.lost:,} events are lost, {one.events:,} were read"
            yield Concern(_MINOR, "losing", f"probe {one.name}", "probes", why=why)
