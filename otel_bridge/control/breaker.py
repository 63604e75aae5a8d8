"""One target's breaker: its record, its policy, and the evidence for its next trip."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from otel_bridge.breakers import State
from otel_bridge.control.machine import Cause, Mode, Record, Verdict
from otel_bridge.control.windows import Evidence, Trip

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from otel_bridge.control.config import PolicyConfig

Step: TypeAlias = "Callable[[Record, float], Record]"
"""From a record and the time to the next record."""

LATEST_NEWS = 30.0
"""Seconds from a call's end until it is told of; so long after a change a span's own clock is believed."""


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls of one target, in the order in which they ended; all arrays have the shape (n,).

    Attributes:
        seconds: how long each took.
        errors: whether it failed.
        ignored: whether it says nothing about the service.
        starts: u8, unix nanoseconds.
        traces: V16.
    """

    seconds: NDArray[np.float64]
    errors: NDArray[np.bool_]
    ignored: NDArray[np.bool_]
    starts: NDArray[np.uint64]
    traces: NDArray[np.void]


class Judged(NamedTuple):
    """A probe that ended.

    Attributes:
        trace: its id in hex.
        verdict: how.
    """

    trace: str
    verdict: Verdict


class Breaker:
    """Mutable only under the controller's lock.

    Attributes:
        key: the target's.
        policy: how it behaves.
        rules: the same, as the machine takes it.
        record: its state.
    """

    def __init__(self, key: str, policy: PolicyConfig, now: float) -> None:
        self.key = key
        self.policy = policy
        self.rules = policy.rules()
        self.record = Record(since=now)
        self.evidence = Evidence(policy)

    @property
    def idle(self) -> bool:
        """Whether it may be forgotten."""
        return self.record.idle

    def due(self, now: float) -> bool:
        """Whether time has changed it: an open or a probe ended."""
        record = self.record
        if record.state is State.OPEN:
            return record.until <= now
        return any(until <= now for until in record.permits.values())

    def traffic(self, record: Record) -> State:
        """What a record of it does to requests: nothing where the policy only observes."""
        return State.CLOSED if self.mode(record) is Mode.OBSERVE else record.traffic

    def mode(self, record: Record) -> Mode:
        """By whom a record of it is decided: an operator's word goes before the policy's."""
        observes = self.policy.mode == "observe" and record.mode is Mode.AUTO
        return Mode.OBSERVE if observes else record.mode

    def word(self, record: Record) -> str:
        """A record in the audit log: its state, and its mode where that is not auto."""
        mode = self.mode(record)
        return record.state.value if mode is Mode.AUTO else f"{record.state.value}/{mode.value}"

    def step(self, function: Callable[..., Record], *args: Any) -> Step:
        """One of the machine's functions, made ready for this breaker."""
        rules = self.rules
        return lambda record, now: function(record, rules, now, *args)

    def began_since(self, calls: Calls, now: float, wall: int) -> NDArray[np.bool_]:
        """Which calls began after the record's last change, and so say something about the target since.

        A call that is told of now began no later than its duration ago, whatever its clock shows. Its span
        may have been under way for a while, so its own clock is asked as well; but only where the first
        answer leaves `LATEST_NEWS`, or a clock that is an hour behind would make a breaker blind for an hour.

        Args:
            calls: ended calls.
            now: monotonic seconds.
            wall: the same moment in unix nanoseconds.
        """
        since = self.record.since
        latest = now - calls.seconds
        if latest.min(initial=now) >= since + LATEST_NEWS:
            return np.ones(len(latest), np.bool_)
        began = calls.starts >= max(0, wall - int((now - since) * 1e9))
        result: NDArray[np.bool_] = (latest >= since) & (began | (latest >= since + LATEST_NEWS))
        return result

    def weigh(self, calls: Calls, now: float, wall: int) -> Trip | None:
        """Add calls to the evidence; says whether, and why, they should trip it.

        Args:
            calls: ended calls.
            now: monotonic seconds.
            wall: the same moment in unix nanoseconds.
        """
        counted = ~calls.ignored
        if self.record.cause is not Cause.NONE:  # a new breaker has no time before it
            counted &= self.began_since(calls, now, wall)
        if counted.all():
            return self.evidence.add(calls.seconds, calls.errors, now)
        if not counted.any():
            return None
        return self.evidence.add(calls.seconds[counted], calls.errors[counted], now)

    def verdicts(self, calls: Calls, now: float, wall: int) -> Iterator[Judged]:
        """What calls say about probes.

        A call without a permit that began after the breaker went half-open is a probe too: it came through a
        gate that admits a share, or past a gateway that does not ask.

        Args:
            calls: of this target, or of one that it governs.
            now: monotonic seconds.
            wall: the same moment in unix nanoseconds.
        """
        record = self.record
        timeouts = self.policy.timeouts
        limit = self.policy.slow_calls.threshold
        bad = calls.errors | (calls.seconds > (limit if timeouts is None else min(limit, timeouts.threshold)))
        told = np.zeros(len(bad), np.bool_)
        for trace in record.permits:
            rows = calls.traces == np.void(bytes.fromhex(trace))
            if rows.any():
                told |= rows
                yield Judged(trace, _verdict(bad[rows], calls.ignored[rows]))
        room = self.rules.probes - len(record.permits) - record.passed
        late = np.flatnonzero(~told & ~calls.ignored & self.began_since(calls, now, wall))
        for row in late[: max(0, room)].tolist():
            verdict = Verdict.FAILED if bad[row] else Verdict.PASSED
            yield Judged(calls.traces[row].tobytes().hex(), verdict)


def _verdict(bad: NDArray[np.bool_], ignored: NDArray[np.bool_]) -> Verdict:
    if ignored.all():
        return Verdict.IGNORED
    return Verdict.FAILED if (bad & ~ignored).any() else Verdict.PASSED
