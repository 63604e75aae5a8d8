"""What moves breakers: rules of the bridge, alerts, calls that spans told of, gauges."""

from __future__ import annotations

import time
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

import structlog

from otel_bridge import catalog
from otel_bridge.breakers import State
from otel_bridge.control import machine
from otel_bridge.control.machine import Cause, Mode, Verdict
from otel_bridge.control.windows import Level
from otel_bridge.targets import matches, parse_key

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_bridge.control.board import Board
    from otel_bridge.control.breaker import Breaker, Calls
    from otel_bridge.control.config import PolicyConfig, ReadingConfig
    from otel_bridge.firings import Firing
    from otel_bridge.readings import Reading
    from otel_bridge.telemetry import Telemetry

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Watch:
    policy: PolicyConfig
    reading: ReadingConfig
    level: Level


class Sources:
    """Hands evidence to the board; all methods may be called from any thread."""

    def __init__(self, board: Board, telemetry: Telemetry) -> None:
        self._board = board
        self._clock = board.clock
        self._rule_lease = board.config.rules.lease
        self._live_rules: dict[tuple[str, str], float] = {}
        self._watches = [
            _Watch(policy, reading, Level(reading.above, reading.duration, reading.stale_after))
            for policy in board.config.every_policy
            for reading in policy.readings
        ]
        self._late = telemetry.counter(catalog.CONTROL_LATE_RENEWALS)
        self._probes = telemetry.counter(catalog.CONTROL_PROBES)
        for verdict in Verdict:
            self._probes.labels(verdict.value)

    @property
    def restless(self) -> bool:
        """Whether leases must be renewed."""
        return bool(self._live_rules)

    def renew(self) -> None:
        """Renew the leases of rules that still hold in this process."""
        now = self._clock.monotonic()
        with self._board.lock:
            for (key, hold), renewed in list(self._live_rules.items()):
                if now - renewed >= self._rule_lease / 3:
                    self._live_rules[key, hold] = now
                    self.hold(key, hold, self._rule_lease, Cause.RULE, "the rule still holds")

    def take_firing(self, firing: Firing) -> None:
        """Follow a rule of the bridge itself (firings.FiringSink)."""
        if not firing.target or firing.again:
            return
        try:
            key = parse_key(firing.target)
        except ValueError as error:
            log.warning("a rule names no target", rule=firing.rule, error=str(error))
            return
        hold = "rule:" + identity({"alertname": firing.rule, **firing.labels})
        if not firing.active:
            with self._board.lock:
                self._live_rules.pop((key, hold), None)
                self.release(key, hold)
            return
        reason = f"rule {firing.rule}: {firing.annotations.get('summary', 'it holds')}"
        with self._board.lock:
            if self.hold(
                key,
                hold,
                self._rule_lease,
                Cause.RULE,
                reason,
                event=firing.event,
                evidence=firing.evidence,
            ):
                self._live_rules[key, hold] = self._clock.monotonic()

    def take_calls(self, key: str, calls: Calls, event: int) -> None:
        """Follow calls that spans told of.

        Args:
            key: their target.
            calls: in the order in which they ended.
            event: `time.monotonic_ns()` when they were taken in.
        """
        with self._board.lock:
            breaker = self._board.obtain(key)
            for probing in self._board.half_open(key):
                self._judge(probing, calls, event)
            if breaker is None or breaker.record.state is not State.CLOSED:
                return
            if not breaker.record.judged and len(calls.seconds):
                self._board.step(breaker, lambda record, _now: machine.seen(record))
            if breaker.record.mode is Mode.DISABLED:
                return
            trip = breaker.weigh(calls, self._clock.monotonic(), self._clock.time_ns())
            if trip is not None:
                traces = calls.traces[-10:].tobytes()
                evidence = [traces[at : at + 16] for at in range(0, len(traces), 16)]
                self._trip(breaker, trip.cause, trip.reason, event, evidence)

    def take_readings(self, readings: Sequence[Reading]) -> None:
        """Follow gauges (readings.ReadingSink); one that stays too high trips every target of its policy."""
        now = self._clock.monotonic()
        event = time.monotonic_ns()
        with self._board.lock:
            for reading in readings:
                for watch in self._watches:
                    if _watches(watch.reading, reading):
                        self._read(watch, reading, now, event)

    def _read(self, watch: _Watch, reading: Reading, now: float, event: int) -> None:
        series = tuple(sorted(reading.labels.items()))
        seconds = watch.level.read(series, reading.value, now)
        if seconds is None:
            return
        reason = f"{reading.metric} above {watch.reading.above:g} for {seconds:.0f} s"
        for breaker in self._board.breakers():
            if breaker.policy == watch.policy and _worth_telling(breaker, now):
                self._trip(breaker, Cause.READING, reason, event, ())

    def take_kills(self, key: str, reason: str) -> None:
        """The kernel shut the gate of a target by itself."""
        with self._board.lock:
            breaker = self._board.obtain(key)
            if breaker is not None and breaker.record.mode is not Mode.DISABLED:
                self._trip(breaker, Cause.OOM_KILLS, reason, time.monotonic_ns(), ())

    def hold(
        self,
        key: str,
        hold: str,
        lease: float,
        cause: Cause,
        reason: str,
        *,
        event: int = 0,
        evidence: Sequence[bytes] = (),
    ) -> str:
        """An alert fires, or still does.

        Returns:
            "opened" (it is new), "renewed", "disabled" (an operator switched the breaker off); empty: the
            target may have no breaker.
        """
        applied = self._clock.time_ns()
        with self._board.lock:
            breaker = self._board.obtain(key)
            if breaker is None:
                return ""
            known = hold in breaker.record.holds or machine.OVERFLOW in breaker.record.holds
            if not known and self._board.has_lapsed(key, hold):
                self._late.inc()
                log.warning(
                    "an alert came again only after its lease; make the lease longer than Alertmanager's "
                    "repeat_interval, or set control.alertmanager.api",
                    target=key,
                    lease=lease,
                )
            after = self._board.step(
                breaker,
                breaker.step(machine.fire, hold, lease, cause, reason, applied),
                event=event,
                evidence=evidence,
            )
            if after.mode is Mode.DISABLED:
                return "disabled"
            return "renewed" if known else "opened"

    def release(self, key: str, hold: str) -> bool:
        """An alert no longer fires; False when it held nothing."""
        with self._board.lock:
            self._board.has_lapsed(key, hold)
            breaker = self._board.find(key)
            if breaker is None or hold not in breaker.record.holds:
                return False
            self._board.step(breaker, breaker.step(machine.resolve, hold))
            return True

    def applied(self, key: str, hold: str) -> int:
        """When an alert that holds was first applied, unix nanoseconds; 0 when it does not hold."""
        breaker = self._board.find(key)
        found = breaker.record.holds.get(hold) if breaker is not None else None
        return found.applied if found is not None else 0

    def _trip(
        self, breaker: Breaker, cause: Cause, reason: str, event: int, evidence: Sequence[bytes]
    ) -> None:
        self._board.step(breaker, breaker.step(machine.trip, cause, reason), event=event, evidence=evidence)

    def _judge(self, breaker: Breaker, calls: Calls, event: int) -> None:
        now, wall = self._clock.monotonic(), self._clock.time_ns()
        for trace, verdict in list(breaker.verdicts(calls, now, wall)):
            # One that came past every decision has no permit yet.
            self._board.step(breaker, breaker.step(machine.acquire, trace))
            self._probes.labels(verdict.value).inc()
            after = self._board.step(
                breaker,
                breaker.step(machine.judge, trace, verdict),
                event=event,
                evidence=(bytes.fromhex(trace),),
            )
            if after.state is not State.HALF_OPEN:
                return


def identity(labels: Mapping[str, str]) -> str:
    """What tells an alert apart by its labels, whatever their order."""
    digest = blake2b(digest_size=16)
    for name, value in sorted(labels.items()):
        for text in (name, value):
            data = text.encode("utf-8", "replace")
            digest.update(len(data).to_bytes(8, "big"))
            digest.update(data)
    return digest.hexdigest()


def _worth_telling(breaker: Breaker, now: float) -> bool:
    """Whether a trip would tell the breaker anything: each reading would else prolong it by a moment."""
    record = breaker.record
    return record.state is not State.OPEN or record.base_until < now + breaker.policy.open_time / 2


def _watches(watched: ReadingConfig, reading: Reading) -> bool:
    return reading.metric == watched.metric and all(
        matches(reading.labels.get(name, ""), (pattern,)) for name, pattern in watched.labels.items()
    )
