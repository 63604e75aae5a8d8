"""Firings: a rule begins or ends to hold for one group, as the rules tell the breaker and Alertmanager."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Firing:
    """One change of one alert.

    Attributes:
        rule: the rule's name.
        labels: what identifies the alert beside the rule: the values of the rule's `by`, severity, static
            labels; bounded. Equal labels are the same alert, as in Alertmanager.
        active: whether it begins to fire, or has resolved.
        since: unix nanoseconds of the event that decided.
        annotations: summary, runbook and links, for people; never a command, path or address.
        evidence: trace ids (16 bytes) of spans and events that made it fire, the worst first; at most ten.
        target: the breaker's target that the rule names, its placeholders filled from the labels; empty:
            the rule trips no breaker.
        event: `time.monotonic_ns()` when the deciding event was taken in: from here
            reactions are measured.
        again: nothing began or ended: an alert that fires has other annotations than when it began.
    """

    rule: str
    labels: Mapping[str, str]
    active: bool
    since: int
    annotations: Mapping[str, str]
    evidence: Sequence[bytes] = ()
    target: str = ""
    event: int = 0
    again: bool = False


class FiringSink(Protocol):
    """Where firings are handed over."""

    def take_firing(self, firing: Firing) -> None:
        """Take one; may be called from any thread; must neither block nor raise."""
