"""What breakers and rules are doing now, as parts tell it to whoever shows it to people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_bridge.breakers import State


@dataclass(frozen=True, slots=True)
class BreakerState:
    """One breaker.

    Attributes:
        target: its key.
        traffic: what it does to requests.
        mode: who decides (`control.machine.Mode`), as a word.
        since: seconds that it has been so.
        ends_in: seconds until its state ends by itself; None when it does not.
        cause: why, one of a fixed list of words.
        reason: why, for people.
    """

    target: str
    traffic: State
    mode: str
    since: float
    ends_in: float | None
    cause: str
    reason: str


@dataclass(frozen=True, slots=True)
class ActiveAlert:
    """A rule that fires for one group.

    Attributes:
        labels: the values of the rule's `by`.
        evidence: trace ids (16 bytes) of what made it fire, the worst first.
        since: unix nanoseconds when it began to fire.
        summary: what happened, for people.
    """

    labels: Mapping[str, str]
    evidence: Sequence[bytes]
    since: int
    summary: str


@dataclass(frozen=True, slots=True)
class RuleState:
    """One rule that the bridge evaluates itself.

    Attributes:
        name: the rule's.
        severity: critical, warning or info.
        active: the alerts that fire.
        pending: groups whose condition holds, but not yet for long enough.
        runbook: its heading in the runbook.
    """

    name: str
    severity: str
    active: Sequence[ActiveAlert]
    pending: int
    runbook: str

    @property
    def busy(self) -> bool:
        """Whether it fires, or is about to."""
        return bool(self.active) or self.pending > 0
