"""Brings changes to actions: in order for each target, tried again, each result in the audit log."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog

from otel_bridge import catalog
from otel_bridge.backoff import RetryPolicy
from otel_bridge.control.actions.guard import Guard
from otel_bridge.errors import PermanentError, RetryableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_bridge.backoff import RetryConfig
    from otel_bridge.breakers import Action, Change
    from otel_bridge.contracts import Clock
    from otel_bridge.control.actions.limits import ActionConfig
    from otel_bridge.telemetry import Telemetry

    Audit = Callable[[str, str, str, str, str], None]

log = structlog.get_logger(__name__)

RESULTS = ("done", "dry_run", "limited", "failed", "dropped", "superseded")


@dataclass(frozen=True, slots=True)
class Delivery:
    """How changes are brought to one action.

    Attributes:
        retry: waits between tries.
        max_age: seconds after which a change is given up.
        queue_size: changes that wait; the oldest makes room.
    """

    retry: RetryConfig
    max_age: float
    queue_size: int


@dataclass(slots=True)
class _Lane:
    """The changes of one target on their way to one action, and when each was handed over."""

    waiting: deque[tuple[Change, float]] = field(default_factory=deque)
    task: asyncio.Task[None] | None = None


class _Way:
    """All lanes to one action."""

    def __init__(self, action: Action, config: ActionConfig, delivery: Delivery) -> None:
        self.action = action
        self.guard = Guard(config)
        self.delivery = delivery
        self.policy = RetryPolicy(delivery.retry)
        self.lanes: dict[str, _Lane] = {}

    @property
    def waiting(self) -> int:
        return sum(len(lane.waiting) for lane in self.lanes.values())


class Dispatcher:
    """Follows changes a little later than they happen (board.ActionSink).

    Args:
        clock: for time.
        telemetry: for metrics.
        audit: takes target, event, result, reason and the action's name.
    """

    def __init__(self, clock: Clock, telemetry: Telemetry, audit: Audit) -> None:
        self._clock = clock
        self._audit = audit
        self._ways: list[_Way] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._acted = telemetry.counter(catalog.CONTROL_ACTIONS)
        self._reaction = telemetry.histogram(catalog.CONTROL_REACTION).labels("action")

    def add(self, action: Action, config: ActionConfig, delivery: Delivery) -> None:
        """Have an action follow the changes of its targets."""
        self._ways.append(_Way(action, config, delivery))
        for result in RESULTS:
            self._acted.labels(action.name, result)

    async def start(self) -> None:
        """Begin to bring changes; those submitted before are lost."""
        self._loop = asyncio.get_running_loop()

    async def stop(self, deadline: float) -> None:
        """Bring what waits, for at most so many seconds."""
        tasks = [lane.task for way in self._ways for lane in way.lanes.values() if lane.task is not None]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=max(0.1, deadline))
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        self._loop = None

    def submit(self, change: Change) -> None:
        """Take a change; from any thread."""
        if self._loop is not None and self._ways:
            self._loop.call_soon_threadsafe(self._spread, change)

    def _spread(self, change: Change) -> None:
        now = self._clock.monotonic()
        for way in self._ways:
            verdict = way.guard.judge(change, now)
            if verdict is None:
                continue
            if verdict != "go":
                self._finish(way, change, verdict, f"{change.before.value} to {change.state.value}")
                continue
            if way.waiting >= way.delivery.queue_size:
                self._drop_oldest(way)
            lane = way.lanes.setdefault(change.target, _Lane())
            lane.waiting.append((change, now))
            if lane.task is None:
                lane.task = asyncio.create_task(self._run(way, change.target, lane))

    def _drop_oldest(self, way: _Way) -> None:
        lane = min(
            (lane for lane in way.lanes.values() if lane.waiting), key=lambda found: found.waiting[0][1]
        )
        change, _ = lane.waiting.popleft()
        self._finish(way, change, "dropped", "the queue is full")

    async def _run(self, way: _Way, target: str, lane: _Lane) -> None:
        try:
            while lane.waiting:
                change, since = lane.waiting.popleft()
                result, reason = await self._bring(way, change, since, lane)
                self._finish(way, change, result, reason)
        finally:
            lane.task = None
            way.lanes.pop(target, None)

    async def _bring(self, way: _Way, change: Change, since: float, lane: _Lane) -> tuple[str, str]:
        failures = 0
        while True:
            try:
                await way.action.apply(change)
            except RetryableError as error:
                failures += 1
                delay = way.policy.delay(failures, error.retry_after or 0.0)
                reason = str(error)
            except PermanentError as error:
                return "failed", str(error)
            except Exception as error:  # a bug in one action must not end its lane
                log.exception("an action failed", action=way.action.name, target=change.target)
                return "failed", f"{type(error).__name__}: {error}"
            else:
                if change.event:
                    self._reaction.observe((time.monotonic_ns() - change.event) / 1e9)
                return "done", f"{change.before.value} to {change.state.value}"
            if lane.waiting:
                return "superseded", reason
            if self._clock.monotonic() + delay - since > way.delivery.max_age:
                return "dropped", f"given up after {failures} tries: {reason}"
            await self._clock.sleep(delay)
            if lane.waiting:
                return "superseded", reason

    def _finish(self, way: _Way, change: Change, result: str, reason: str) -> None:
        self._acted.labels(way.action.name, result).inc()
        self._audit(change.target, "action", result, reason, way.action.name)
        if result in {"failed", "dropped"}:
            log.error(
                "a change was not followed", action=way.action.name, target=change.target, reason=reason
            )
