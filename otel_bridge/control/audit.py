"""The audit log's entries: who changed what, why, and what was done about it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

MACHINE = "machine"
"""Who, when nobody but the state machine and its inputs decided."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line.

    Attributes:
        time: unix nanoseconds.
        target: the breaker's key; empty for what concerns all.
        event: "transition", "action", "alert", "store", "operator", "clock".
        before: state and mode before ("closed", "open/forced_open"); empty where nothing changed.
        after: the same afterwards.
        cause: one of `Cause`, or for other events a word of theirs ("delivered", "unknown_target").
        actor: MACHINE, an operator, or an action's name.
        reason: for people.
        replica: which bridge wrote it.
    """

    time: int
    target: str
    event: str
    before: str = ""
    after: str = ""
    cause: str = ""
    actor: str = MACHINE
    reason: str = ""
    replica: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)
