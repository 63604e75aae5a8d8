"""The control part as the service sees it: made from the configuration, started and stopped as one."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import TYPE_CHECKING

import structlog

from otel_bridge.backoff import RetryConfig
from otel_bridge.control.actions.dispatch import Delivery, Dispatcher
from otel_bridge.control.actions.verbosity import VerbosityAction
from otel_bridge.control.actions.webhook import Webhook
from otel_bridge.control.alertmanager import AlertmanagerWebhook
from otel_bridge.control.alerts import AlertBook
from otel_bridge.control.answering.supervisor import OwnProcess
from otel_bridge.control.board import Board
from otel_bridge.control.calls import CallTap
from otel_bridge.control.decider import Decider
from otel_bridge.control.gate.keeper import Keeper
from otel_bridge.control.grpc_decisions import GrpcDecisions
from otel_bridge.control.http_decisions import DecisionMetrics, HttpDecisions
from otel_bridge.control.limits.claims import Claims
from otel_bridge.control.limits.limiter import Limiter
from otel_bridge.control.limits.usage import UsageTap
from otel_bridge.control.operators import Operators
from otel_bridge.control.questions import Questions
from otel_bridge.control.replicas import RedisReplicas
from otel_bridge.control.sources import Sources
from otel_bridge.control.store import StateStore
from otel_bridge.control.strategies import Strategies
from otel_bridge.control.wall_clock import WallClock
from otel_bridge.verbosity import Verbosity

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from otel_bridge.batch import Batch, PlanBuilder
    from otel_bridge.breakers import Action, Gate
    from otel_bridge.contracts import Clock, Component, TraceProcessor
    from otel_bridge.control.actions.limits import ActionConfig
    from otel_bridge.control.audit import Entry
    from otel_bridge.control.config import ControlConfig
    from otel_bridge.firings import Firing
    from otel_bridge.readings import Reading
    from otel_bridge.telemetry import Telemetry

log = structlog.get_logger(__name__)

TICK = 0.05
"""Seconds between two looks at breakers that time may change; an open ends at most so late."""
IDLE_TICK = 0.25
_AT_ONCE = Delivery(RetryConfig(), max_age=60.0, queue_size=1000)
"""Of actions within this process, which never fail."""


class Control:
    """Breakers with all that surrounds them; a FiringSink and a ReadingSink.

    Args:
        config: what users wrote; `enabled` is the caller's to look at.
        telemetry: for metrics.
        clock: for time.
        verbosity: how much the bridge tells; None: nobody follows it.
    """

    def __init__(
        self,
        config: ControlConfig,
        telemetry: Telemetry,
        clock: Clock,
        verbosity: Verbosity | None = None,
    ) -> None:
        self.config = config
        self._clock = clock
        replica = f"{socket.gethostname()}/{os.getpid()}"
        self.store = StateStore(config.state, clock, telemetry)
        self.board = Board(config, telemetry, clock, self.store, replica)
        self.sources = Sources(self.board, telemetry)
        claims = Claims(config.limits, config.targets) if config.limits.rules else None
        self.limiter = (
            Limiter(config, claims, telemetry, clock, self.board.audit) if claims is not None else None
        )
        self.decider = Decider(self.board, self.limiter)
        self.actions = Dispatcher(clock, telemetry, self.board.audit)
        self.board.actions = self.actions
        self._webhooks = [
            Webhook(name, found, telemetry, clock) for name, found in config.actions.webhooks.items()
        ]
        for webhook, found in zip(self._webhooks, config.actions.webhooks.values(), strict=True):
            self.actions.add(webhook, found, Delivery(found.retry, found.max_age, found.queue_size))
        verbosity = verbosity or Verbosity("info")
        for name, wanted in config.actions.verbosity.items():
            self.actions.add(VerbosityAction(name, wanted, verbosity), wanted, _AT_ONCE)
        self._replicas = (
            RedisReplicas(config.redis, self.board, clock, telemetry, replica)
            if config.redis is not None
            else None
        )
        self.board.replicas = self._replicas
        self.gates = Keeper(config.actions, telemetry, clock, self.sources.take_kills)
        for gate in self.gates.gates:
            self.board.add_gate(gate, gate.config)
        questions = Questions(config.targets, claims)
        self.strategies = Strategies(config.strategies) if config.strategies.enabled else None
        if self.strategies is not None:
            telemetry.registry.register(self.strategies)
        decisions, alertmanager = config.decisions, config.alertmanager
        self.http = self._http(questions, telemetry) if decisions.http.enabled else None
        self.grpc = (
            GrpcDecisions(decisions.grpc, self.decider, questions, telemetry, self.strategies)
            if decisions.grpc.enabled
            else None
        )
        self.alertmanager = None
        if alertmanager is not None:
            book = AlertBook(alertmanager, self.board, self.sources, telemetry, clock)
            self.alertmanager = AlertmanagerWebhook(alertmanager, book, telemetry, clock)
        self.operators = Operators(config.operators, self.board, self.history, self.limiter)
        self._wall_clock = WallClock(clock, self.board.audit)
        self._started: list[Component] = []
        self._ticker: asyncio.Task[None] | None = None

    def _http(self, questions: Questions, telemetry: Telemetry) -> HttpDecisions | OwnProcess:
        config = self.config.decisions.http

        def here(path: Path | None = None) -> HttpDecisions:
            # Who asks at the socket has been let in already.
            found = config if path is None else config.model_copy(update={"auth": None, "tls": None})
            return HttpDecisions(
                found,
                self.decider,
                questions,
                lambda interface: DecisionMetrics(telemetry, interface),
                self.strategies,
                path=path,
            )

        return OwnProcess(self.config, self.board, telemetry, here) if config.process == "own" else here()

    def tap(self, columns: PlanBuilder) -> TraceProcessor | None:
        """A step of the data path that tells of calls and of what they used; None when nobody asks."""
        config = self.config
        taps: list[TraceProcessor] = []
        if config.spans.enabled:
            taps.append(CallTap(config.spans, config.targets, columns, self.sources, self.strategies))
        if self.limiter is not None and any(limit.settles for limit in self.limiter.limits):
            taps.append(UsageTap(config.spans, columns, self.limiter))
        return _Taps(taps) if len(taps) > 1 else next(iter(taps), None)

    def add_gate(self, gate: Gate, config: ActionConfig) -> None:
        """Have a gate follow the breakers; it hears of those that refuse already."""
        self.board.add_gate(gate, config)

    def add_action(self, action: Action, config: ActionConfig, delivery: Delivery) -> None:
        """Have an action follow the breakers; before `start`."""
        self.actions.add(action, config, delivery)

    def take_firing(self, firing: Firing) -> None:
        """Follow a rule (firings.FiringSink)."""
        self.sources.take_firing(firing)

    def take_readings(self, readings: Sequence[Reading]) -> None:
        """Follow gauges (readings.ReadingSink)."""
        self.sources.take_readings(readings)

    async def start(self) -> None:
        """Take up what was kept, then serve.

        Raises:
            StartError: a port or a file cannot be used.
        """
        for warning in self.config.warnings():
            log.warning(warning)
        try:
            for webhook in self._webhooks:
                await webhook.start()
            await self.actions.start()
            await self.gates.start()
            self.board.load()
            self.gates.settle()
            for part in (
                self._replicas,
                self.limiter,
                self.operators,
                self.http,
                self.grpc,
                self.alertmanager,
            ):
                if part is not None:
                    self._started.append(part)
                    await part.start()
        except BaseException:
            await self.stop(0.0)
            raise
        self._ticker = asyncio.create_task(self._tick())
        log.info(
            "control",
            decisions=self.http.port if self.http is not None else None,
            ext_authz=self.grpc.port if self.grpc is not None else None,
            alertmanager=self.alertmanager.port if self.alertmanager is not None else None,
            operators=str(self.config.operators.socket),
        )

    async def stop(self, deadline: float) -> None:
        """Take nothing new, tell whoever follows, keep the rest."""
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.gather(self._ticker, return_exceptions=True)
            self._ticker = None
        while self._started:
            await self._started.pop().stop(deadline)
        await self.gates.stop(deadline)
        await self.actions.stop(deadline)
        for webhook in self._webhooks:
            await webhook.stop()
        await asyncio.to_thread(self.store.close, max(1.0, deadline))

    async def history(self, target: str | None, limit: int) -> list[Entry]:
        """The newest entries of the audit log, those of all replicas where they can be had."""
        if self._replicas is not None:
            shared = await self._replicas.history(target, limit)
            if shared is not None:
                return shared
        return await asyncio.to_thread(self.store.history, target, limit)

    async def _tick(self) -> None:
        while True:
            busy = self.board.restless or self.sources.restless
            await self._clock.sleep(TICK if busy else IDLE_TICK)
            self.sources.renew()
            self.board.advance()
            self._wall_clock.look()
            if self.limiter is not None:
                self.limiter.tick()


class _Taps:
    """Several steps of the data path as one."""

    def __init__(self, taps: Sequence[TraceProcessor]) -> None:
        self._taps = taps

    def process(self, batch: Batch) -> None:
        for tap in self._taps:
            tap.process(batch)
