"""All breakers together: one lock, and each change carried to gates, actions, disk and replicas.

Evidence may come from any thread, and the thread that brings it decides: under the lock it moves the record
and flips the gates, a matter of microseconds. Everything that takes longer is handed on.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

import structlog

from otel_bridge import catalog
from otel_bridge.breakers import Change, State
from otel_bridge.control import machine
from otel_bridge.control.actions.guard import Guard
from otel_bridge.control.audit import MACHINE, Entry
from otel_bridge.control.breaker import Breaker
from otel_bridge.control.machine import Cause, Mode, Record
from otel_bridge.states import BreakerState
from otel_bridge.targets import levels, matches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_bridge.breakers import Gate
    from otel_bridge.contracts import Clock
    from otel_bridge.control.actions.limits import ActionConfig
    from otel_bridge.control.breaker import Step
    from otel_bridge.control.config import ControlConfig
    from otel_bridge.control.store import StateStore
    from otel_bridge.telemetry import Telemetry

log = structlog.get_logger(__name__)

STATE_VALUES = {State.CLOSED: 0, State.HALF_OPEN: 1, State.OPEN: 2}
_RENEWAL = 1.0
"""Seconds by which a lease must have grown before gates are told."""


class Replicas(Protocol):
    """Other bridges that share the breakers."""

    @property
    def cut_off(self) -> bool:
        """Whether they cannot be reached."""

    def submit(self, key: str, step: Step, entry: Entry | None) -> None:
        """Do to the shared record what was done here; from any thread, without waiting."""

    async def settle(self, key: str, step: Step) -> Record | None:
        """Do it to the shared record first; None: they could not be reached."""


class Mirror(Protocol):
    """Shows elsewhere what breakers are."""

    def show(self, breaker: Breaker) -> None:
        """A breaker's record is another now; called under the lock."""


class ActionSink(Protocol):
    """Where changes go that are followed a little later."""

    def submit(self, change: Change) -> None:
        """Take one; from any thread, without waiting."""


class _Flip(NamedTuple):
    """What a gate did with a change: the audit log's word, the error if it failed, monotonic nanoseconds."""

    gate: str
    change: Change
    result: str
    error: OSError | None
    time: int


class Board:
    """Every breaker of this bridge.

    Methods may be called from any thread; whoever looks at several things in a row holds `lock`.

    Args:
        config: all of `control`.
        telemetry: for metrics.
        clock: for time.
        store: where records and the audit log go.
        replica: this bridge's name in the audit log.
    """

    def __init__(
        self,
        config: ControlConfig,
        telemetry: Telemetry,
        clock: Clock,
        store: StateStore,
        replica: str = "",
    ) -> None:
        self.config = config
        self.clock = clock
        self.store = store
        self.lock = threading.RLock()
        self.replicas: Replicas | None = None
        self.actions: ActionSink | None = None
        self.mirror: Mirror | None = None
        self.refusing: dict[str, Breaker] = {}
        self._replica = replica
        self._breakers: OrderedDict[str, Breaker] = OrderedDict()
        self._lapsed: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._restless: dict[str, Breaker] = {}
        self._gates: list[tuple[Gate, Guard]] = []
        self._state = telemetry.gauge(catalog.CONTROL_STATE)
        self._count = telemetry.gauge(catalog.CONTROL_TARGETS)
        self._refused = telemetry.counter(catalog.CONTROL_TARGETS_REFUSED)
        self._transitions = telemetry.counter(catalog.CONTROL_TRANSITIONS)
        self._leases = telemetry.counter(catalog.CONTROL_LEASES_ENDED)
        self._reaction = telemetry.histogram(catalog.CONTROL_REACTION)
        self._acted = telemetry.counter(catalog.CONTROL_ACTIONS)
        for reason in ("not_allowed", "full"):
            self._refused.labels(reason)
        for step in ("decision", "gate", "action"):
            self._reaction.labels(step)
        # Prometheus sees a counter grow only from a value that it has scraped; the first trip counts, too.
        for state, causes in machine.LEADS_TO.items():
            for cause in causes:
                self._transitions.labels(state.value, cause.value)

    def add_gate(self, gate: Gate, config: ActionConfig) -> None:
        """Have a gate follow the changes of its targets from now on; it hears of what is open already."""
        guard = Guard(config)
        with self.lock:
            self._gates.append((gate, guard))
            for breaker in self.refusing.values():
                change = self._as_change(breaker, Record(), breaker.record, 0, (), time.monotonic_ns())
                flip = self._flip(gate, guard, change)
                if flip is not None:
                    self._account(flip)

    def load(self) -> None:
        """Take up what the store kept."""
        records, trouble = self.store.open()
        if trouble is not None:
            self.store.append(replace(trouble, replica=self._replica))
        now = self.clock.monotonic()
        with self.lock:
            for key, (record, exact) in records.items():
                breaker = self.obtain(key)
                if breaker is None:
                    continue
                kept = record if exact else record.bounded(now, self._longest_lease(breaker, record))
                self._settle(breaker, breaker.record, kept, note="taken up after a restart")
                self.step(breaker, breaker.step(machine.advance))

    def _longest_lease(self, breaker: Breaker, record: Record) -> float:
        """What an open may last whose clock cannot be trusted any more."""
        alertmanager = self.config.alertmanager
        return max(
            breaker.policy.open_time,
            self.config.rules.lease,
            alertmanager.lease if alertmanager is not None else 0.0,
            self.config.operators.forced_open_lease if record.mode is Mode.FORCED_OPEN else 0.0,
        )

    def advance(self) -> None:
        """Let time pass for every breaker that it may change."""
        with self.lock:
            for breaker in list(self._restless.values()):
                self.step(breaker, breaker.step(machine.advance), share=False)

    @property
    def restless(self) -> bool:
        """Whether time alone may change something."""
        return bool(self._restless)

    def breakers(self) -> list[Breaker]:
        """All breakers, those that refuse first."""
        with self.lock:
            return sorted(self._breakers.values(), key=lambda b: (-STATE_VALUES[b.traffic(b.record)], b.key))

    def states(self) -> list[BreakerState]:
        """What each breaker does now, for people; those that refuse first."""
        now = self.clock.monotonic()
        return [
            BreakerState(
                target=breaker.key,
                traffic=breaker.traffic(record),
                mode=breaker.mode(record).value,
                since=max(0.0, now - record.since),
                ends_in=max(0.0, record.until - now) if record.until else None,
                cause=record.cause.value,
                reason=record.reason,
            )
            for breaker in self.breakers()
            for record in (breaker.record,)
        ]

    def find(self, key: str) -> Breaker | None:
        """One breaker; None when there is none."""
        return self._breakers.get(key)

    def obtain(self, key: str) -> Breaker | None:
        """The breaker of a target, made if need be; None when it may have none."""
        breaker = self._breakers.get(key)
        if breaker is not None:
            self._breakers.move_to_end(key)
            return breaker
        if not matches(key, self.config.targets.allowed):
            self._refused.labels("not_allowed").inc()
            return None
        if len(self._breakers) >= self.config.targets.max_targets and not self._make_room():
            self._refused.labels("full").inc()
            return None
        breaker = Breaker(key, self.config.policy(key), self.clock.monotonic())
        self._breakers[key] = breaker
        self._state.labels(key).set(0)
        self._count.set(len(self._breakers))
        return breaker

    def in_the_way(self, key: str) -> list[Breaker]:
        """Breakers that govern a key and do not simply let its requests through, as of now."""
        found = []
        now = self.clock.monotonic()
        for level in levels(key):
            breaker = self.refusing.get(level)
            if breaker is None:
                continue
            if breaker.due(now):
                self.step(breaker, breaker.step(machine.advance), share=False)
            if breaker.traffic(breaker.record) is not State.CLOSED:
                found.append(breaker)
        return found

    def half_open(self, key: str) -> list[Breaker]:
        """Breakers that govern a key and wait for probes."""
        if not self._restless:
            return []
        found = (self._restless.get(level) for level in levels(key))
        return [breaker for breaker in found if breaker and breaker.record.state is State.HALF_OPEN]

    def has_lapsed(self, key: str, hold: str) -> bool:
        """Whether an alert's lease ran out with nothing heard of it since; forgets that."""
        return self._lapsed.pop((key, hold), ...) is None

    def operate(self, breaker: Breaker, step: Step, actor: str, reason: str) -> Record:
        """Do what an operator says, and write it down even where it changes nothing."""
        with self.lock:
            before = breaker.record
            after = self.step(breaker, step, actor=actor, note=reason)
            if (before.state, before.mode, before.since) == (after.state, after.mode, after.since):
                self.audit(breaker.key, "operator", "unchanged", reason, actor)
            return after

    def audit(self, target: str, event: str, cause: str, reason: str, actor: str = MACHINE) -> None:
        """Add to the audit log what moved no breaker."""
        self._append(Entry(self.clock.time_ns(), target, event, cause=cause, reason=reason, actor=actor))

    def adopt(self, key: str, record: Record) -> None:
        """Take over a record that the replicas agreed on; its times are on this process's clock."""
        with self.lock:
            breaker = self.obtain(key)
            if breaker is None:
                return
            before = breaker.record
            after = machine.advance(record, breaker.rules, self.clock.monotonic())
            if (before.state, before.mode) == (after.state, after.mode):
                # Copies differ by the time that a message took; that is no change.
                after = replace(after, since=before.since)
            if after != before:
                self._settle(breaker, before, after, actor="replica")

    def step(
        self,
        breaker: Breaker,
        step: Step,
        *,
        event: int = 0,
        evidence: Sequence[bytes] = (),
        actor: str = MACHINE,
        note: str = "",
        share: bool = True,
    ) -> Record:
        """Move a breaker; gives its record afterwards.

        Args:
            breaker: which.
            step: how.
            event: `time.monotonic_ns()` when what decided it was taken in; 0: nothing did.
            evidence: trace ids of what decided it.
            actor: who decided.
            note: for the audit log, instead of the record's reason.
            share: whether the shared record must be moved too; time alone moves it by itself.
        """
        before = breaker.record
        after = step(before, self.clock.monotonic())
        if after is before:
            return before
        entry = self._settle(breaker, before, after, note=note, event=event, evidence=evidence, actor=actor)
        if share and self.replicas is not None:
            self.replicas.submit(breaker.key, step, entry)
        return after

    def _settle(
        self,
        breaker: Breaker,
        before: Record,
        after: Record,
        *,
        note: str = "",
        event: int = 0,
        evidence: Sequence[bytes] = (),
        actor: str = MACHINE,
    ) -> Entry | None:
        breaker.record = after
        self._index(breaker)
        decided = time.monotonic_ns()
        moved = (before.state, before.mode, before.since) != (after.state, after.mode, after.since)
        grew = breaker.traffic(after) is State.OPEN and after.until >= before.until + _RENEWAL
        change = None
        flips: list[_Flip] = []
        # First what refuses requests: gates, and who answers gateways elsewhere. The rest only tells of it.
        if moved or grew:
            change = self._as_change(breaker, before, after, event, evidence, decided)
            flips = self._flip_gates(change)
        if self.mirror is not None:
            self.mirror.show(breaker)
        self.store.save(breaker.key, after)
        for flip in flips:
            self._account(flip)
        if after.cause is Cause.LEASE_ENDED and moved:
            self._note_lapsed(breaker.key, before)
        if not moved:
            return None
        breaker.evidence.clear()
        self._state.labels(breaker.key).set(STATE_VALUES[breaker.traffic(after)])
        self._transitions.labels(after.state.value, after.cause.value).inc()
        reason = note or after.reason
        entry = Entry(
            self.clock.time_ns(),
            breaker.key,
            "transition",
            breaker.word(before),
            breaker.word(after),
            after.cause.value,
            actor,
            reason,
            self._replica,
        )
        self.store.append(entry)
        if change is not None and not change.renewal:
            if event:
                self._reaction.labels("decision").observe((decided - event) / 1e9)
            if self.actions is not None:
                self.actions.submit(change)
        log.info(
            "breaker", target=breaker.key, state=breaker.word(after), cause=after.cause.value, reason=reason
        )
        return entry

    def _index(self, breaker: Breaker) -> None:
        record = breaker.record
        _keep(self._restless, breaker, record.state is not State.CLOSED or bool(record.holds))
        _keep(self.refusing, breaker, breaker.traffic(record) is not State.CLOSED)

    def _note_lapsed(self, key: str, before: Record) -> None:
        self._leases.inc()
        for hold, held in before.holds.items():
            if held.cause is Cause.ALERT:
                self._lapsed[key, hold] = None
        while len(self._lapsed) > machine.MOST_HOLDS:
            self._lapsed.popitem(last=False)

    def _as_change(  # noqa: PLR0917 (all that makes a change)
        self,
        breaker: Breaker,
        before: Record,
        after: Record,
        event: int,
        evidence: Sequence[bytes],
        decided: int,
    ) -> Change:
        return Change(
            target=breaker.key,
            before=breaker.traffic(before),
            state=breaker.traffic(after),
            cause=after.cause.value,
            reason=after.reason,
            until=after.until if breaker.traffic(after) is State.OPEN else 0.0,
            probes=breaker.rules.probes,
            time=self.clock.time_ns(),
            event=event,
            decided=decided,
            evidence=tuple(evidence[:10]),
        )

    def _flip_gates(self, change: Change) -> list[_Flip]:
        if change.renewal and change.state is not State.OPEN:
            return []
        return [flip for gate, guard in self._gates if (flip := self._flip(gate, guard, change)) is not None]

    def _flip(self, gate: Gate, guard: Guard, change: Change) -> _Flip | None:
        """Have one gate follow; None where the change is none of its business."""
        verdict = guard.judge(change, self.clock.monotonic())
        if verdict is None:
            return None
        result = {"go": "done", "dry_run": "dry_run", "limited": "limited"}[verdict]
        error = None
        if verdict == "go":
            try:
                gate.apply(change)
            except OSError as found:
                result, error = "failed", found
        return _Flip(gate.name, change, result, error, time.monotonic_ns())

    def _account(self, flip: _Flip) -> None:
        """Write down what a gate did."""
        change = flip.change
        if flip.error is not None:
            log.error("a gate does not follow", gate=flip.gate, target=change.target, error=str(flip.error))
        elif flip.result == "done" and change.event:
            self._reaction.labels("gate").observe((flip.time - change.event) / 1e9)
        if not change.renewal or flip.error is not None:
            reason = f"{change.before.value} to {change.state.value}"
            self._acted.labels(flip.gate, flip.result).inc()
            self.audit(change.target, "action", flip.result, str(flip.error or reason), flip.gate)

    def _make_room(self) -> bool:
        for key, breaker in self._breakers.items():
            if breaker.idle:
                del self._breakers[key]
                self._state.remove(key)
                return True
        return False

    def _append(self, entry: Entry) -> None:
        self.store.append(replace(entry, replica=self._replica))


def _keep(among: dict[str, Breaker], breaker: Breaker, wanted: bool) -> None:  # noqa: FBT001 (a set's membership)
    if wanted:
        among[breaker.key] = breaker
    else:
        among.pop(breaker.key, None)
