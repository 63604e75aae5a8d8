"""The state machine of one breaker: a record, and functions from record to record.

Pure: no clock, no lock, no I/O. Times are seconds of one clock that the caller chooses; `Record.shifted`
moves a record to another clock. Every function first lets time pass (`advance`), and gives the same object
back when nothing changed. README.md is the specification that the tests hold this to.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Literal

from otel_bridge.breakers import State

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_HOLDS = 256
"""Alerts that are told apart for one target; those beyond share one hold, ended by its lease alone."""
OVERFLOW = "overflow"
"""The key of that hold."""


class Mode(Enum):
    """Who decides."""

    AUTO = "auto"
    """The machine."""
    OBSERVE = "observe"
    """The machine, but traffic is let through: a dry run of the whole breaker."""
    FORCED_OPEN = "forced_open"
    """An operator refuses all traffic, for as long as the lease says."""
    DISABLED = "disabled"
    """An operator lets all traffic through; nothing trips."""


class Cause(Enum):
    """Why a record changed; the words of metrics and of the audit log."""

    NONE = "none"
    SLOW_CALLS = "slow_calls"
    SLOW_RATE = "slow_rate"
    ERROR_RATE = "error_rate"
    TIMEOUTS = "timeouts"
    READING = "reading"
    OOM_KILLS = "oom_kills"
    RULE = "rule"
    ALERT = "alert"
    OPERATOR = "operator"
    RESOLVED = "resolved"
    OPEN_TIME_ENDED = "open_time_ended"
    LEASE_ENDED = "lease_ended"
    PROBES_PASSED = "probes_passed"
    PROBE_FAILED = "probe_failed"
    PROBES_LOST = "probes_lost"


LEADS_TO: Mapping[State, tuple[Cause, ...]] = {
    State.CLOSED: (Cause.OPERATOR, Cause.PROBES_LOST, Cause.PROBES_PASSED, Cause.RESOLVED),
    State.HALF_OPEN: (Cause.LEASE_ENDED, Cause.OPEN_TIME_ENDED, Cause.OPERATOR, Cause.RESOLVED),
    State.OPEN: (
        *(Cause.ALERT, Cause.ERROR_RATE, Cause.OOM_KILLS, Cause.OPERATOR, Cause.PROBE_FAILED),
        *(Cause.PROBES_LOST, Cause.READING, Cause.RULE, Cause.SLOW_CALLS, Cause.SLOW_RATE, Cause.TIMEOUTS),
    ),
}
"""What brings a breaker to a state."""


class Verdict(Enum):
    """How a probe ended."""

    PASSED = "passed"
    FAILED = "failed"
    IGNORED = "ignored"
    """In a way that says nothing about the service, such as a client that went away."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What the machine goes by, from a policy.

    Attributes:
        open_time: seconds that an open lasts which nothing holds.
        probes: how many probes must pass.
        probe_timeout: seconds after which a probe that told nothing gives its permit back.
        most_lost: so many probes lost in one half-open end it.
        on_resolve: what follows when the last alert that held the breaker open has resolved.
    """

    open_time: float = 60.0
    probes: int = 5
    probe_timeout: float = 30.0
    most_lost: int = 10
    on_resolve: Literal["half_open", "close"] = "half_open"


@dataclass(frozen=True, slots=True)
class Hold:
    """An alert that holds a breaker open.

    Attributes:
        until: the end of its lease.
        applied: unix nanoseconds of the first time that it was applied; never shifted.
        cause: RULE or ALERT.
        muted: an operator closed the breaker in spite of it: it is remembered, and holds nothing.
    """

    until: float
    applied: int
    cause: Cause
    muted: bool = False


_NO_HOLDS: Mapping[str, Hold] = {}
_NO_PERMITS: Mapping[str, float] = {}


@dataclass(frozen=True, slots=True)
class Record:
    """One breaker, whole: what is kept on disk and shared by replicas.

    Attributes:
        state: the machine's state, whatever the mode.
        mode: who decides.
        since: when the state or the mode last changed.
        base_until: OPEN: the least end that a trip or an operator gave it; 0 when only alerts hold it.
        holds: alerts that fire, by their identity: at once the leases of the open and the last applied
            status of each alert.
        permits: HALF_OPEN: probes under way, by trace id in hex, each with the time at which it is lost.
        passed: HALF_OPEN: probes that passed.
        lost: HALF_OPEN: probes that told nothing in time.
        judged: whether the outcome of any request of this target was ever seen. Where none is, probes cannot
            be judged, and lost ones are no sign of a hang.
        cause: why it is as it is.
        reason: the same for people.
    """

    state: State = State.CLOSED
    mode: Mode = Mode.AUTO
    since: float = 0.0
    base_until: float = 0.0
    holds: Mapping[str, Hold] = field(default_factory=lambda: _NO_HOLDS)
    permits: Mapping[str, float] = field(default_factory=lambda: _NO_PERMITS)
    passed: int = 0
    lost: int = 0
    judged: bool = False
    cause: Cause = Cause.NONE
    reason: str = ""

    @property
    def traffic(self) -> State:
        """What the breaker does to requests."""
        if self.mode is Mode.DISABLED or self.mode is Mode.OBSERVE:
            return State.CLOSED
        return self.state

    @property
    def until(self) -> float:
        """When an OPEN ends unless something prolongs it; 0 in other states."""
        if self.state is not State.OPEN:
            return 0.0
        return max([self.base_until, *(hold.until for hold in self.holds.values() if not hold.muted)])

    @property
    def idle(self) -> bool:
        """Whether it says nothing that a new record would not say."""
        return self.state is State.CLOSED and self.mode is Mode.AUTO and not self.holds

    def shifted(self, seconds: float) -> Record:
        """The same record on a clock that shows so much more."""
        return replace(
            self,
            since=self.since + seconds,
            base_until=self.base_until + seconds if self.base_until else 0.0,
            holds={key: replace(hold, until=hold.until + seconds) for key, hold in self.holds.items()},
            permits={trace: until + seconds for trace, until in self.permits.items()},
        )

    def bounded(self, now: float, longest: float) -> Record:
        """The same record, with nothing in it that ends later than in `longest` seconds.

        For a record from a clock that may have been wrong.
        """
        end = now + longest
        return replace(
            self,
            since=min(self.since, now),
            base_until=min(self.base_until, end),
            holds={key: replace(hold, until=min(hold.until, end)) for key, hold in self.holds.items()},
            permits={trace: min(until, end) for trace, until in self.permits.items()},
        )


def advance(record: Record, rules: Rules, now: float) -> Record:
    """Let time pass."""
    if record.state is State.CLOSED and not record.holds:
        return record
    end = record.until
    leased = end > record.base_until or record.mode is Mode.FORCED_OPEN
    if any(hold.until <= now for hold in record.holds.values()):
        record = replace(record, holds={key: hold for key, hold in record.holds.items() if hold.until > now})
    if record.mode is Mode.FORCED_OPEN and record.base_until <= now:
        record = replace(record, mode=Mode.AUTO, since=now)
    if record.state is State.OPEN and end <= now:
        if leased:
            return _half_open(record, now, Cause.LEASE_ENDED, "its lease ran out")
        return _half_open(record, now, Cause.OPEN_TIME_ENDED, "the open time ended")
    if record.state is State.HALF_OPEN:
        return _lose(record, rules, now)
    return record


def trip(record: Record, rules: Rules, now: float, cause: Cause, reason: str) -> Record:
    """Open for the open time; prolong an open that would end sooner."""
    record = advance(record, rules, now)
    if record.mode in (Mode.DISABLED, Mode.FORCED_OPEN):
        return record
    until = now + rules.open_time
    if record.state is State.OPEN:
        return record if record.base_until >= until else replace(record, base_until=until)
    return _open(record, now, until, cause, reason)


def fire(  # noqa: PLR0917 (`Breaker.step` passes on positions)
    record: Record, rules: Rules, now: float, key: str, lease: float, cause: Cause, reason: str, applied: int
) -> Record:
    """An alert fires, or still does: hold the breaker open until its lease ends.

    Args:
        record: before.
        rules: of the target.
        now: on the record's clock.
        key: the alert's identity.
        lease: seconds.
        cause: RULE or ALERT.
        reason: for people.
        applied: unix nanoseconds.
    """
    record = advance(record, rules, now)
    if record.mode is Mode.DISABLED:
        return record
    known = record.holds.get(key)
    if known is None and len(record.holds) >= MOST_HOLDS:
        key = OVERFLOW
        known = record.holds.get(key)
    until = now + lease
    if known is not None:
        if known.until >= until:
            return record
        return replace(record, holds={**record.holds, key: replace(known, until=until)})
    record = replace(record, holds={**record.holds, key: Hold(until, applied, cause)})
    return record if record.state is State.OPEN else _open(record, now, 0.0, cause, reason)


def resolve(record: Record, rules: Rules, now: float, key: str) -> Record:
    """An alert no longer fires; when it was the last to hold the breaker open, that ends."""
    record = advance(record, rules, now)
    if key not in record.holds:
        return record
    record = replace(record, holds={other: hold for other, hold in record.holds.items() if other != key})
    if record.state is not State.OPEN or record.until > now:
        return record
    if rules.on_resolve == "close":
        return _closed(record, now, Cause.RESOLVED, "the alert resolved")
    return _half_open(record, now, Cause.RESOLVED, "the alert resolved")


def acquire(record: Record, rules: Rules, now: float, trace: str) -> Record:
    """Ask for a probe's permit in HALF_OPEN; it was granted when `trace` is in the result's permits."""
    record = advance(record, rules, now)
    if record.state is not State.HALF_OPEN or trace in record.permits:
        return record
    if len(record.permits) + record.passed >= rules.probes:
        return record
    return replace(record, permits={**record.permits, trace: now + rules.probe_timeout})


def judge(record: Record, rules: Rules, now: float, trace: str, verdict: Verdict) -> Record:
    """A probe ended."""
    record = advance(record, rules, now)
    if trace not in record.permits:
        return record
    permits = {other: until for other, until in record.permits.items() if other != trace}
    if verdict is Verdict.IGNORED:
        return replace(record, permits=permits)
    if verdict is Verdict.FAILED:
        record = replace(record, judged=True)
        return _open(record, now, now + rules.open_time, Cause.PROBE_FAILED, "a probe failed")
    passed = record.passed + 1
    if passed >= rules.probes:
        record = replace(record, judged=True)
        return _closed(record, now, Cause.PROBES_PASSED, f"{passed} of {passed} probes passed")
    return replace(record, permits=permits, passed=passed, judged=True)


def seen(record: Record) -> Record:
    """An outcome of a request was seen, so probes can be judged."""
    return record if record.judged else replace(record, judged=True)


# What operators say.


def open_for(record: Record, rules: Rules, now: float, seconds: float, reason: str) -> Record:
    """Open for a given time; then probes decide."""
    record = advance(record, rules, now)
    return _open(replace(record, mode=Mode.AUTO), now, now + seconds, Cause.OPERATOR, reason)


def force_open(record: Record, rules: Rules, now: float, lease: float, reason: str) -> Record:
    """Open until the lease ends, whatever else happens."""
    record = advance(record, rules, now)
    record = replace(record, mode=Mode.FORCED_OPEN)
    return _open(record, now, now + lease, Cause.OPERATOR, reason)


def close(record: Record, rules: Rules, now: float, reason: str) -> Record:
    """Close; alerts that fire now hold nothing any more until they have resolved."""
    record = advance(record, rules, now)
    holds = {key: replace(hold, muted=True) for key, hold in record.holds.items()}
    return _closed(replace(record, mode=Mode.AUTO, holds=holds), now, Cause.OPERATOR, reason)


def disable(record: Record, rules: Rules, now: float, reason: str) -> Record:
    """Let everything through, and nothing trip, until an operator says otherwise."""
    record = advance(record, rules, now)
    return _closed(replace(record, mode=Mode.DISABLED, holds={}), now, Cause.OPERATOR, reason)


def decide_by_itself(record: Record, rules: Rules, now: float, mode: Mode, reason: str) -> Record:
    """Give the decision back to the machine (`mode` AUTO or OBSERVE); a forced open goes on half-open."""
    record = advance(record, rules, now)
    if record.mode is mode:
        return record
    forced = record.mode is Mode.FORCED_OPEN
    record = replace(record, mode=mode, since=now, cause=Cause.OPERATOR, reason=reason)
    if not forced:
        return record
    record = replace(record, base_until=0.0)
    return record if record.until > now else _half_open(record, now, Cause.OPERATOR, reason)


def _open(record: Record, now: float, until: float, cause: Cause, reason: str) -> Record:
    return _entered(record, State.OPEN, now, cause, reason, base_until=until)


def _half_open(record: Record, now: float, cause: Cause, reason: str) -> Record:
    return _entered(record, State.HALF_OPEN, now, cause, reason)


def _closed(record: Record, now: float, cause: Cause, reason: str) -> Record:
    return _entered(record, State.CLOSED, now, cause, reason)


def _entered(  # noqa: PLR0917 (a record's fields)
    record: Record, state: State, now: float, cause: Cause, reason: str, base_until: float = 0.0
) -> Record:
    """A state begins, without probes."""
    return replace(
        record,
        state=state,
        since=now,
        base_until=base_until,
        permits={},
        passed=0,
        lost=0,
        cause=cause,
        reason=reason,
    )


def _lose(record: Record, rules: Rules, now: float) -> Record:
    """Take back the permits of probes that told nothing in time."""
    permits = {trace: until for trace, until in record.permits.items() if until > now}
    gone = len(record.permits) - len(permits)
    if not gone:
        return record
    lost = record.lost + gone
    if lost < rules.most_lost:
        return replace(record, permits=permits, lost=lost)
    if record.judged:
        reason = f"{lost} probes told nothing in time: requests hang"
        return _open(record, now, now + rules.open_time, Cause.PROBES_LOST, reason)
    reason = f"{lost} probes told nothing, and no request of this target ever does: nobody can judge them"
    return _closed(record, now, Cause.PROBES_LOST, reason)
