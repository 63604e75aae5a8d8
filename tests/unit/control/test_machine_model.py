"""The state machine against its specification (otel_bridge/control/README.md), driven at random."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from otel_bridge.breakers import State
from otel_bridge.control import machine
from otel_bridge.control.codec import Clocks, dump_bytes, load_bytes
from otel_bridge.control.machine import Cause, Mode, Record, Rules, Verdict

OPEN_TIME, PROBES, PROBE_TIMEOUT, MOST_LOST, LEASE = 60.0, 3, 10.0, 4, 25.0
KEYS = ("a", "b", "c")
TRACES = tuple(f"{number:032x}" for number in range(8))


class Specification(RuleBasedStateMachine):
    """Beside each record the least that must be true of it, kept in other words than the machine's."""

    on_resolve = "half_open"

    def __init__(self) -> None:
        super().__init__()
        self.rules = Rules(OPEN_TIME, PROBES, PROBE_TIMEOUT, MOST_LOST, self.on_resolve)
        self.now = 1000.0
        self.record = Record()
        self.firing: dict[str, float] = {}
        self.in_flight: dict[str, float] = {}
        self.passed = 0
        self.overruled: set[str] = set()

    def after(self, record: Record) -> None:
        """Follow the permits of a half-open from the outside."""
        if record.state is not State.HALF_OPEN or record.since != self.record.since:
            self.in_flight, self.passed = {}, 0
        self.record = record
        self.overruled &= record.holds.keys()

    @rule(seconds=st.sampled_from([0.001, 1.0, 9.0, 10.0, 25.0, 59.0, 60.0, 3600.0]))
    def time_passes(self, seconds):
        self.now += seconds
        before = self.record
        self.after(machine.advance(before, self.rules, self.now))
        if before.state is State.OPEN:
            leases = [hold.until for key, hold in before.holds.items() if key not in self.overruled]
            ended = max([before.base_until, *leases]) <= self.now
            expected = State.HALF_OPEN if ended else State.OPEN
            assert self.record.state is expected, "an open ends with its lease, no sooner and no later"
        self.in_flight = {trace: end for trace, end in self.in_flight.items() if end > self.now}

    @rule(cause=st.sampled_from([Cause.SLOW_CALLS, Cause.ERROR_RATE, Cause.TIMEOUTS, Cause.READING]))
    def evidence(self, cause):
        mode = machine.advance(self.record, self.rules, self.now).mode
        self.after(machine.trip(self.record, self.rules, self.now, cause, "because"))
        if mode in (Mode.AUTO, Mode.OBSERVE):
            assert self.record.state is State.OPEN
            assert self.record.until >= self.now + OPEN_TIME
        if mode is Mode.DISABLED:
            assert self.record.state is State.CLOSED

    @rule(key=st.sampled_from(KEYS))
    def alert_fires(self, key):
        before = machine.advance(self.record, self.rules, self.now)
        self.after(self.fired(key))
        if before.mode is Mode.DISABLED:
            assert self.record.state is State.CLOSED
            return
        held = before.holds.get(key)
        assert self.record.holds[key].until >= self.now + LEASE
        if held is None:
            assert self.record.state is State.OPEN, "an alert that newly fires opens"
        elif key in self.overruled:
            assert self.record.state is before.state, "an alert that an operator overruled does not"
        assert self.fired(key) is self.record, "the same alert twice is the same as once"

    def fired(self, key: str) -> Record:
        return machine.fire(
            self.record, self.rules, self.now, key, LEASE, Cause.ALERT, "alert", applied=int(self.now)
        )

    @rule(key=st.sampled_from(KEYS))
    def alert_resolves(self, key):
        before = machine.advance(self.record, self.rules, self.now)
        self.after(machine.resolve(self.record, self.rules, self.now, key))
        assert key not in self.record.holds
        others = before.holds.keys() - self.overruled - {key}
        if before.state is State.OPEN and (others or before.base_until > self.now):
            assert self.record.state is State.OPEN
        elif before.state is State.OPEN and key in before.holds:
            expected = State.CLOSED if self.on_resolve == "close" else State.HALF_OPEN
            assert self.record.state is expected
        assert machine.resolve(self.record, self.rules, self.now, key) is self.record

    @rule(trace=st.sampled_from(TRACES))
    def request_comes(self, trace):
        before = machine.advance(self.record, self.rules, self.now)
        self.after(machine.acquire(self.record, self.rules, self.now, trace))
        assert self.record.state is before.state
        self.in_flight = {known: end for known, end in self.in_flight.items() if end > self.now}
        if self.record.state is not State.HALF_OPEN:
            assert not self.record.permits
            return
        room = PROBES - len(self.in_flight) - self.passed
        admitted = trace in self.record.permits
        assert admitted == (trace in self.in_flight or room > 0)
        if admitted:
            self.in_flight.setdefault(trace, self.now + PROBE_TIMEOUT)

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data(), verdict=st.sampled_from(Verdict))
    def probe_ends(self, data, verdict):
        trace = data.draw(st.sampled_from(sorted(self.in_flight)))
        before = machine.advance(self.record, self.rules, self.now)
        asked = trace in before.permits
        self.after(machine.judge(self.record, self.rules, self.now, trace, verdict))
        if not asked:
            assert self.record.state is before.state
            return
        self.in_flight.pop(trace, None)
        if verdict is Verdict.FAILED:
            assert self.record.state is State.OPEN, "one failure opens again"
        elif verdict is Verdict.IGNORED:
            assert self.record.state is State.HALF_OPEN
            assert self.record.passed == before.passed
        elif before.passed + 1 == PROBES:
            assert self.record.state is State.CLOSED, "all have passed"
        else:
            assert self.record.state is State.HALF_OPEN, "not all have passed"
            self.passed = self.record.passed

    @rule(trace=st.sampled_from(TRACES), verdict=st.sampled_from(Verdict))
    def stranger_ends(self, trace, verdict):
        """An outcome without a permit, of a request admitted before, or twice told, moves nothing."""
        before = machine.advance(self.record, self.rules, self.now)
        if trace not in before.permits:
            self.after(machine.judge(self.record, self.rules, self.now, trace, verdict))
            assert self.record == before

    @rule(seconds=st.sampled_from([1.0, 30.0, 600.0]))
    def operator_opens_for(self, seconds):
        self.after(machine.open_for(self.record, self.rules, self.now, seconds, "operator"))
        assert (self.record.state, self.record.mode) == (State.OPEN, Mode.AUTO)
        assert self.record.until >= self.now + seconds

    @rule(lease=st.sampled_from([5.0, 3600.0]))
    def operator_forces(self, lease):
        self.after(machine.force_open(self.record, self.rules, self.now, lease, "operator"))
        assert (self.record.state, self.record.mode) == (State.OPEN, Mode.FORCED_OPEN)

    @rule()
    def operator_closes(self):
        self.after(machine.close(self.record, self.rules, self.now, "operator"))
        self.overruled = set(self.record.holds)
        assert (self.record.state, self.record.mode) == (State.CLOSED, Mode.AUTO)

    @rule()
    def operator_disables(self):
        self.after(machine.disable(self.record, self.rules, self.now, "operator"))
        assert self.record.traffic is State.CLOSED

    @rule(mode=st.sampled_from([Mode.AUTO, Mode.OBSERVE]))
    def operator_gives_back(self, mode):
        self.after(machine.decide_by_itself(self.record, self.rules, self.now, mode, "operator"))
        assert self.record.mode is mode

    @rule(seconds=st.sampled_from([0.0, 7.0, 1e6]))
    def restart(self, seconds):
        """A file read back within the same boot says the same, whatever the wall clock did meanwhile."""
        written = dump_bytes(self.record, Clocks("boot", self.now, 5_000.0))
        assert load_bytes(written, Clocks("boot", self.now, 5_000.0 - seconds)) == (self.record, True)

    @invariant()
    def an_open_has_a_lease(self):
        if machine.advance(self.record, self.rules, self.now).state is State.OPEN:
            assert self.record.until > self.now

    @invariant()
    def every_cause_is_one_that_leads_there(self):
        """Their counters are served from the start."""
        record = machine.advance(self.record, self.rules, self.now)
        assert record.cause is Cause.NONE or record.cause in machine.LEADS_TO[record.state]

    @invariant()
    def no_more_probes_than_allowed(self):
        assert len(self.record.permits) + self.record.passed <= PROBES
        assert self.record.state is State.HALF_OPEN or not self.record.permits

    @invariant()
    def a_burst_is_admitted_in_part(self):
        """However many ask at once."""
        for now in (self.now, self.now + 1e7):
            record = machine.advance(self.record, self.rules, now)
            if record.state is State.HALF_OPEN:
                for trace in TRACES:
                    record = machine.acquire(record, self.rules, now, trace)
                assert len(record.permits) + record.passed == PROBES

    @invariant()
    def nothing_is_stuck(self):
        """From anywhere but an operator's order, silence and then good requests lead to closed."""
        record = machine.advance(self.record, self.rules, self.now + 1e7)
        assert record.state is not State.OPEN
        now = self.now + 1e7
        for trace in TRACES:
            record = machine.acquire(record, self.rules, now, trace)
            record = machine.judge(record, self.rules, now, trace, Verdict.PASSED)
        assert record.state is State.CLOSED

    @invariant()
    def probes_without_end_are_left(self):
        """Requests that never tell anything do not keep a breaker half-open."""
        record = machine.advance(self.record, self.rules, self.now + 1e7)
        if record.state is not State.HALF_OPEN:
            return
        now = self.now + 1e7
        for step in range(20):
            for trace in TRACES:
                record = machine.acquire(record, self.rules, now, f"{step}{trace}")
            now += PROBE_TIMEOUT
            record = machine.advance(record, self.rules, now)
            if record.state is not State.HALF_OPEN:
                break
        expected = State.OPEN if record.judged else State.CLOSED
        assert record.state is expected


class ClosingOnResolve(Specification):
    """The same where a resolve closes."""

    on_resolve = "close"


def test_every_state_is_reached_and_by_every_cause_that_is_told():
    """And nothing else is: from a new record, by everything that may happen, in any order."""
    calls = (Cause.SLOW_CALLS, Cause.SLOW_RATE, Cause.ERROR_RATE, Cause.TIMEOUTS)
    events = [
        *((machine.trip, cause, "") for cause in (*calls, Cause.READING, Cause.OOM_KILLS)),
        *((machine.fire, cause.value, LEASE, cause, "", 0) for cause in (Cause.ALERT, Cause.RULE)),
        *((machine.resolve, cause.value) for cause in (Cause.ALERT, Cause.RULE)),
        (machine.acquire, "trace"),
        *((machine.judge, "trace", verdict) for verdict in Verdict),
        (machine.open_for, 1.0, ""),
        (machine.force_open, 1.0, ""),
        (machine.close, ""),
        (machine.disable, ""),
        *((machine.decide_by_itself, mode, "") for mode in (Mode.AUTO, Mode.OBSERVE)),
    ]
    found: dict[str, Record] = {}
    waiting = [Record(), Record(judged=True)]
    while waiting:
        # What differs by reason or time alone is one.
        record = replace(waiting.pop(), reason="", since=0.0)
        if found.setdefault(repr(record), record) is not record:
            continue
        for on_resolve in ("half_open", "close"):
            rules = Rules(OPEN_TIME, 1, PROBE_TIMEOUT, 1, on_resolve)
            waiting += [event[0](record, rules, 0.0, *event[1:]) for event in events]
            waiting.append(machine.advance(record, rules, 1e6).shifted(-1e6))
    assert {(record.state, record.mode) for record in found.values()} == {
        *((state, mode) for state in State for mode in (Mode.AUTO, Mode.OBSERVE)),
        (State.OPEN, Mode.FORCED_OPEN),
        (State.CLOSED, Mode.DISABLED),
    }
    causes = {(record.state, record.cause) for record in found.values()} - {(State.CLOSED, Cause.NONE)}
    assert causes == {(state, cause) for state, causes in machine.LEADS_TO.items() for cause in causes}


TestSpecification = Specification.TestCase
TestClosingOnResolve = ClosingOnResolve.TestCase
TestSpecification.settings = TestClosingOnResolve.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None
)
