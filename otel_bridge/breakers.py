"""Changes of breakers, as control tells them to what acts on them: kernel gates, webhooks, samplers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence


class State(Enum):
    """What a breaker does to traffic."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(frozen=True, slots=True)
class Change:
    """One change of what a breaker does to the traffic of its target, or a longer lease of the same state.

    Attributes:
        target: the breaker's key, from the general to the particular ("llama/8b"); a name, never an address.
        before: the state that it leaves; equal to `state` when only the lease grew.
        state: the state it is in now.
        cause: why, one of a fixed list of words (`control.machine.Cause`).
        reason: why, for people; never a command, path or address.
        until: when the state ends by itself, in seconds of `Clock.monotonic()` (CLOCK_MONOTONIC, which the
            kernel's `bpf_ktime_get_ns` reads too); an action must undo itself then if it hears nothing more.
            0 when CLOSED or HALF_OPEN: these refuse nobody for good.
        probes: how many probes HALF_OPEN admits in all.
        time: unix nanoseconds.
        event: `time.monotonic_ns()` when the deciding event was taken in; 0 when no event decided.
        decided: `time.monotonic_ns()` of the decision.
        evidence: trace ids (16 bytes) of what made it trip, at most ten.
    """

    target: str
    before: State
    state: State
    cause: str
    reason: str
    until: float
    probes: int
    time: int
    event: int = 0
    decided: int = 0
    evidence: Sequence[bytes] = ()

    @property
    def renewal(self) -> bool:
        """Whether only the lease grew."""
        return self.before is self.state


class Gate(Protocol):
    """Something that refuses traffic at once, such as a program in the kernel.

    Attributes:
        name: its name in the configuration, in the audit log and in metrics.
    """

    name: str

    def apply(self, change: Change) -> None:
        """Follow a change, or a longer lease.

        Called in the thread that decided, in the order of the changes: one write to a map, no waiting.

        Raises:
            OSError: it could not; the breaker stands all the same, and the failure is audited.
        """


class Action(Protocol):
    """Something that follows changes a little later, beside the path of the decision (a message, a setting).

    Attributes:
        name: its name in the configuration, in the audit log and in metrics.
    """

    name: str

    async def apply(self, change: Change) -> None:
        """Follow a change; changes of one target come in order, one at a time. Longer leases do not come.

        Raises:
            RetryableError: it could not now; it is tried again, unless a newer change of the target came.
            PermanentError: it never will.
        """
