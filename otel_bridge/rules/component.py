"""The rules as a part of the service: loaded, fed, looked at as time passes, replaced on reload."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from otel_bridge import catalog
from otel_bridge.readings import Reading
from otel_bridge.rules.load import load_configured
from otel_bridge.rules.streaming.engine import RuleEngine

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from prometheus_client.metrics_core import Metric as Family

    from otel_bridge.batch import PlanBuilder
    from otel_bridge.contracts import Clock, TraceProcessor
    from otel_bridge.events import KernelEvents
    from otel_bridge.firings import FiringSink
    from otel_bridge.rules.config import RulesConfig
    from otel_bridge.states import RuleState
    from otel_bridge.telemetry import Telemetry


LOOK_INTERVAL = 0.1
"""Seconds between two looks for conditions that change by themselves."""
READ_INTERVAL = 1.0
"""Seconds between two readings of the bridge's own metrics."""


class Rules:
    """Feeds the streaming engine; a KernelEventSink and a ReadingSink.

    Args:
        config: which rules.
        sinks: told of each change of an alert.
    """

    def __init__(
        self, config: RulesConfig, telemetry: Telemetry, clock: Clock, sinks: Sequence[FiringSink] = ()
    ) -> None:
        self._config = config
        self._telemetry = telemetry
        self._clock = clock
        self._sinks = list(sinks)
        self._loaded = telemetry.gauge(catalog.RULES_LOADED)
        self._engine: RuleEngine | None = None
        self._handed_over: frozenset[str] = frozenset()
        self._looking: asyncio.Task[None] | None = None

    def add_sink(self, sink: FiringSink) -> None:
        """Tell one more; before the first `tap`."""
        self._sinks.append(sink)

    def tap(self, columns: PlanBuilder, config: RulesConfig | None = None) -> TraceProcessor | None:
        """Load the rules, and make the step of the data path that reads spans; None when rules are off.

        Args:
            columns: of the new data path.
            config: another configuration than before (a reload).

        Raises:
            ConfigError: with every mistake in the rule sets.
        """
        config = self._config if config is None else config
        rules = load_configured(config)
        for engine in ("both", "streaming", "prometheus"):
            self._loaded.labels(engine).set(sum(item.rule.engine == engine for item in rules))
        new = RuleEngine(rules, config, columns, self._telemetry, self._clock, sinks=self._sinks)
        if self._engine is not None:
            new.adopt(self._engine)
        self._config, self._engine = config, new
        return new if new.runtimes else None

    async def start(self) -> None:
        """Begin to look at what changes though nothing comes."""
        self._looking = asyncio.create_task(self._look_for_ever())

    async def stop(self, _deadline: float) -> None:
        """Stop looking; alerts that fire are left as they are: whoever follows them has a time-out."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
            self._looking = None

    def take(self, events: KernelEvents) -> None:
        """Take kernel events (events.KernelEventSink)."""
        if self._engine is not None:
            self._engine.take(events)

    def take_readings(self, readings: Sequence[Reading]) -> None:
        """Take readings (readings.ReadingSink)."""
        names = {reading.metric for reading in readings}
        if not names <= self._handed_over:
            self._handed_over |= names
        if self._engine is not None:
            self._engine.take_readings(readings)

    def states(self) -> list[RuleState]:
        """What each rule says now, of those that the bridge evaluates."""
        return self._engine.states() if self._engine is not None else []

    def lost(self, probe: str, count: int) -> None:
        """Kernel events of a probe were lost."""
        if self._engine is not None:
            self._engine.lost(probe, count)

    async def _look_for_ever(self) -> None:
        read_at = self._clock.monotonic()
        while True:
            await self._clock.sleep(LOOK_INTERVAL)
            engine = self._engine
            if engine is None:
                continue
            if self._clock.monotonic() >= read_at:
                read_at = self._clock.monotonic() + READ_INTERVAL
                engine.take_readings(self._own_readings(engine))
            engine.advance()

    def _own_readings(self, engine: RuleEngine) -> list[Reading]:
        """The bridge's own metrics that rules look at, but for those that somebody hands over as readings."""
        wanted = engine.wanted_metrics - self._handed_over
        if not wanted:
            return []
        names = [*wanted, *(f"{name}_total" for name in wanted)]
        families: Iterable[Family] = self._telemetry.registry.restricted_registry(names).collect()
        now = self._clock.time_ns()
        return [
            Reading(family.name, sample.labels, sample.value, now)
            for family in families
            for sample in family.samples
            if sample.name in (family.name, f"{family.name}_total")
        ]
