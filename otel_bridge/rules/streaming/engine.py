"""The streaming engine: spans, kernel events and readings in, firings out.

Every item is placed at its own time, whatever the order of arrival; a rule is looked at, at the time of each
item that it counts, with everything known by then. Times at which a condition changes by itself (a window
ends, nothing came) are looked at by `advance`.
"""

from __future__ import annotations

import heapq
import threading
from bisect import bisect_left, bisect_right
from dataclasses import replace
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING

import structlog

from otel_bridge import catalog
from otel_bridge.firings import Firing
from otel_bridge.rules.check import LONGEST_STREAMING_WINDOW
from otel_bridge.rules.language import RuleCondition, prometheus_name, walk
from otel_bridge.rules.streaming.runtime import MAX_EVIDENCE, Runtime
from otel_bridge.rules.streaming.views import EventView, SpanColumns, SpanView
from otel_bridge.states import ActiveAlert, RuleState

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from otel_bridge.batch import Batch, PlanBuilder
    from otel_bridge.contracts import Now
    from otel_bridge.events import KernelEvents
    from otel_bridge.firings import FiringSink
    from otel_bridge.readings import Reading
    from otel_bridge.rules.config import RulesConfig
    from otel_bridge.rules.load import LoadedRule
    from otel_bridge.rules.streaming.tree import Group
    from otel_bridge.rules.streaming.views import Key
    from otel_bridge.telemetry import Telemetry

log = structlog.get_logger(__name__)

CLOCK_STEP = 1_000_000_000
"""Nanoseconds between wall clock and monotonic time, from which on the clock was set, not slewed."""


class LossLog:
    """Kernel events that were lost, by probe; a rule's window asks whether it is whole."""

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._lost: dict[str, tuple[list[int], list[int]]] = {}

    def note(self, probe: str, time: int, count: int) -> None:
        """So many events of a probe were lost, at about that time."""
        times, counts = self._lost.setdefault(probe, ([], []))
        at = bisect_right(times, time)
        times.insert(at, time)
        counts.insert(at, count)
        gone = bisect_left(times, time - self._keep)
        del times[:gone], counts[:gone]

    def between(self, probe: str, first: int, last: int) -> int:
        """How many were lost in a time, both ends included."""
        if probe not in self._lost:
            return 0
        times, counts = self._lost[probe]
        return sum(counts[bisect_left(times, first) : bisect_right(times, last)])

    def last(self, probe: str, until: int) -> int | None:
        """When some were lost last, not after a time."""
        times, _ = self._lost.get(probe, ([], []))
        index = bisect_right(times, until)
        return times[index - 1] if index else None


class RuleEngine:
    """Evaluates rules as their items come in.

    Methods may be called from any thread; none blocks for long, none raises for what an item contains.

    Args:
        rules: those left to Prometheus alone are passed over.
        columns: where columns of spans are asked for.
        sinks: told of each change of an alert.
    """

    def __init__(
        self,
        rules: Sequence[LoadedRule],
        config: RulesConfig,
        columns: PlanBuilder,
        telemetry: Telemetry,
        clock: Now,
        *,
        sinks: Sequence[FiringSink] = (),
    ) -> None:
        self._clock = clock
        self._sinks = tuple(sinks)
        self._lateness = round(config.lateness * 1e9)
        self._ahead = round(config.max_ahead * 1e9)
        self._runbook_url = config.runbook_url
        self._lock = threading.RLock()
        self._offset = clock.time_ns() - round(clock.monotonic() * 1e9)
        self._since = clock.time_ns()
        self._taken_at = 0
        self._retired = False
        self._timers: list[tuple[int, int, Runtime, Group]] = []
        self._timer_count = 0
        self._streaming = [loaded for loaded in rules if loaded.rule.engine != "prometheus"]
        self._losses = LossLog(2 * (self._lateness + round(LONGEST_STREAMING_WINDOW * 1e9)))
        self.runtimes = [self._runtime(loaded) for loaded in _in_order(self._streaming)]
        _number(self.runtimes)
        self._by_name = {runtime.rule.name: runtime for runtime in self.runtimes}
        self._dependents = _dependents(self.runtimes)
        urgent_first = sorted(self.runtimes, key=_urgency)
        self._of_spans = [r for r in urgent_first if any(leaf.of_spans for leaf in r.items)]
        self._of_events = [r for r in urgent_first if any(not leaf.of_spans for leaf in r.items)]
        self._of_metrics = _by_metric(self.runtimes)
        self._columns = SpanColumns(columns)
        for name in sorted(_span_fields(self._of_spans)):
            self._columns.want(name)
        self._firings = telemetry.counter(catalog.RULES_FIRINGS)
        self._active = telemetry.gauge(catalog.RULES_ACTIVE)
        self._incomplete = telemetry.counter(catalog.RULES_INCOMPLETE)
        self._evicted = telemetry.counter(catalog.RULES_EVICTED)
        self._ignored = telemetry.counter(catalog.RULES_IGNORED)
        self._clock_steps = telemetry.counter(catalog.RULES_CLOCK_STEPS)
        self._decision = telemetry.histogram(catalog.RULES_DECISION)
        for runtime in self.runtimes:
            name = runtime.rule.name
            for metric in (self._firings, self._active, self._incomplete, self._evicted):
                metric.labels(name)
            if not runtime.rule.by:
                runtime.group((), self._since)
        for reason in ("late", "future", "series"):
            self._ignored.labels(reason)
        for runtime in self.runtimes:
            for group in runtime.groups.values():
                self._schedule(runtime, group, self._since)

    def _runtime(self, loaded: LoadedRule) -> Runtime:
        return Runtime(
            loaded,
            losses=self._losses,
            lateness=self._lateness,
            since=lambda: self._since,
            fires=self._fires,
            on_evicted=self._on_evicted,
        )

    @property
    def wanted_metrics(self) -> frozenset[str]:
        """Metrics whose readings some rule looks at."""
        return frozenset(self._of_metrics)

    def states(self) -> list[RuleState]:
        """What each rule says now, for people."""
        with self._lock:
            return [
                RuleState(
                    name=runtime.rule.name,
                    severity=runtime.rule.severity,
                    active=[
                        self._active_alert(runtime, group)
                        for group in runtime.groups.values()
                        if group.alert.active
                    ],
                    pending=sum(
                        group.alert.since is not None and not group.alert.active
                        for group in runtime.groups.values()
                    ),
                    runbook=runtime.rule.runbook_entry,
                )
                for runtime in self.runtimes
            ]

    @staticmethod
    def _active_alert(runtime: Runtime, group: Group) -> ActiveAlert:
        labels = runtime.labels(group)
        evidence = _worst(group, group.alert.held - runtime.longest)
        return ActiveAlert(labels, evidence, group.alert.began, _filled(runtime.rule.summary, labels))

    # Taking in

    def process(self, batch: Batch) -> None:
        """Take in the spans of a request (contracts.TraceProcessor); nothing is changed about them."""
        if not self._of_spans or not len(batch):
            return
        with self._lock:
            if not self._retired:
                self._take(SpanView(batch, self._columns.slots), self._of_spans, "span")

    def take(self, events: KernelEvents) -> None:
        """Take in kernel events (events.KernelEventSink)."""
        if not self._of_events or not len(events):
            return
        with self._lock:
            self._take(EventView(events), self._of_events, "event")

    def take_readings(self, readings: Sequence[Reading]) -> None:
        """Take in readings (readings.ReadingSink)."""
        with self._lock:
            now = self._begin()
            for reading in readings:
                self._take_reading(reading, now)
            self._run_timers(now)

    def lost(self, probe: str, count: int) -> None:
        """Events of a probe were lost since it was last asked, up to now."""
        if not count:
            return
        with self._lock:
            now = self._begin()
            self._losses.note(probe, now, count)
            # Losses are counted after they were: an alert may have begun between two counts.
            for runtime in self._of_events:
                if probe in runtime.probes:
                    for group in runtime.groups.values():
                        if group.alert.active and not group.incomplete:
                            self._tell(replace(self._firing(runtime, group, now), again=True))

    def advance(self) -> None:
        """Look at what changes though nothing comes; to be called every so often."""
        with self._lock:
            self._run_timers(self._begin())

    def _begin(self) -> int:
        """Now, unix nanoseconds; where the clock was set, windows begin anew."""
        monotonic = round(self._clock.monotonic() * 1e9)
        now = self._clock.time_ns()
        self._taken_at = monotonic
        shift = now - monotonic - self._offset
        if abs(shift) > CLOCK_STEP:
            self._begin_anew(now, shift)
        self._offset = now - monotonic
        return now

    def _begin_anew(self, now: int, shift: int) -> None:
        log.warning("the wall clock was set: windows of rules begin anew", seconds=shift / 1e9)
        self._clock_steps.inc()
        self._since = now
        self._timers.clear()
        for runtime in self.runtimes:
            runtime.begin_anew(shift)
            for group in runtime.groups.values():
                group.due = None
                self._look(runtime, group, now)

    def _take(self, view: SpanView | EventView, runtimes: Iterable[Runtime], source: str) -> None:
        now = self._begin()
        late, future = view.admit(now, lateness=self._lateness, ahead=self._ahead)
        if late:
            self._ignored.labels("late").inc(late)
        if future:
            self._ignored.labels("future").inc(future)
        if view.newest:
            for runtime in runtimes:
                runtime.take_items(view, source, lambda *seen, r=runtime: self._see(r, *seen))
        self._run_timers(now)

    def _take_reading(self, reading: Reading, now: int) -> None:
        runtimes = self._of_metrics.get(reading.metric)
        if runtimes is None:
            return
        if not now - self._lateness <= reading.time <= now + self._ahead:
            self._ignored.labels("late" if reading.time < now else "future").inc()
            return
        for runtime in runtimes:
            groups = runtime.take_reading(reading, now)
            if groups is None:
                self._ignored.labels("series").inc()
            for group in groups or ():
                self._see(runtime, group, reading.time, True)

    # Looking

    def _see(self, runtime: Runtime, group: Group, time: int, item: bool) -> None:  # noqa: FBT001 (a callback)
        """Look at a group at the time of an item, and where it came late at the times that it may concern."""
        newest = group.alert.newest
        times = runtime.candidates(group, time) if item else {time}
        if time < newest:
            times.add(newest)
        for at in sorted(times):
            while group.due is not None and group.due < at:
                self._look(runtime, group, group.due)
            self._look(runtime, group, at)

    def _look(self, runtime: Runtime, group: Group, time: int) -> None:
        """Look at a group at a time; of a time that is past, levels are those of now."""
        runtime.refresh(group, time)
        truth = runtime.condition.truth(group, time)
        if group.alert.see(time, truth, runtime.holding):
            self._changed(runtime, group, time)
        self._schedule(runtime, group, group.alert.newest)

    def _schedule(self, runtime: Runtime, group: Group, time: int) -> None:
        alert = group.alert
        if not (runtime.drifts or alert.active or alert.since is not None):
            group.due = None
            return
        due = [
            at
            for at in (alert.due(runtime.holding), runtime.condition.changes(group, time))
            if at is not None
        ]
        at = min((moment for moment in due if moment > time), default=None)
        if at is not None and at != group.due:
            self._timer_count += 1
            heapq.heappush(self._timers, (at, self._timer_count, runtime, group))
        group.due = at

    def _run_timers(self, now: int) -> None:
        while self._timers and self._timers[0][0] <= now:
            at, _, runtime, group = heapq.heappop(self._timers)
            if group.due == at:
                self._look(runtime, group, at)

    # Firing

    def _changed(self, runtime: Runtime, group: Group, time: int) -> None:
        rule = runtime.rule
        firing = self._firing(runtime, group, time)
        if firing.active:
            self._firings.labels(rule.name).inc()
            self._active.labels(rule.name).inc()
            self._decision.observe(self._clock.monotonic() - self._taken_at / 1e9)
        else:
            self._active.labels(rule.name).dec()
            group.incomplete = False
        self._tell(firing)
        for dependent in self._dependents.get(rule.name, ()):
            for other in [*dependent.groups.values()]:
                if not rule.by or other.key == group.key:
                    self._look(dependent, other, max(time, other.alert.newest))
            if rule.by and group.key not in dependent.groups:
                self._look(dependent, dependent.group(group.key, time), time)

    def _tell(self, firing: Firing) -> None:
        for sink in self._sinks:
            sink.take_firing(firing)

    def _firing(self, runtime: Runtime, group: Group, time: int) -> Firing:
        rule = runtime.rule
        values = runtime.labels(group)
        labels = {"severity": rule.severity, **rule.labels}
        labels |= {prometheus_name(label): value for label, value in values.items()}
        annotations = {
            "summary": _filled(rule.summary, values),
            "runbook_url": f"{self._runbook_url}#{rule.runbook_entry.lower()}",
        }
        lost = {
            probe: count
            for probe in sorted(runtime.probes)
            if (count := self._losses.between(probe, time - runtime.longest, time))
        }
        if lost and group.alert.active:
            told = ", ".join(f"{count} of probe {probe}" for probe, count in lost.items())
            annotations["incomplete"] = f"kernel events of the window were lost: {told}"
            self._incomplete.labels(rule.name).inc()
            group.incomplete = True
        return Firing(
            rule=rule.name,
            labels=labels,
            active=group.alert.active,
            since=time,
            annotations=annotations,
            evidence=_worst(group, time - runtime.longest),
            target=_filled(rule.breaker, values),
            event=self._taken_at,
        )

    def _fires(self, name: str, key: Key) -> bool:
        runtime = self._by_name.get(name)
        if runtime is None:
            return False
        group = runtime.groups.get(key if runtime.rule.by else ())
        return group is not None and group.alert.active

    def _on_evicted(self, runtime: Runtime, group: Group) -> None:
        self._evicted.labels(runtime.rule.name).inc()
        if group.alert.active:
            group.alert.active = False
            self._changed(runtime, group, group.alert.newest)

    # Reload

    def adopt(self, old: RuleEngine) -> None:
        """Take over from the engine before a reload: windows and alerts of rules that stayed the same.

        Alerts of rules that are gone, or other than before, are resolved. The old engine looks at nothing any
        more, not even at the batches that are still on their way through the old data path.
        """
        with old._lock, self._lock:
            old._retired = True
            self._since = old._since
            for runtime in old.runtimes:
                mine = self._by_name.get(runtime.rule.name)
                if mine is not None and mine.take_over(runtime):
                    for group in mine.groups.values():
                        group.due = None
                        self._schedule(mine, group, max(group.alert.newest, self._since))
                    continue
                for group in runtime.groups.values():
                    if group.alert.active:
                        group.alert.active = False
                        old._changed(runtime, group, group.alert.newest)
            old._timers.clear()


def _worst(group: Group, since: int) -> list[bytes]:
    """Trace ids of the hits since a time, the longest first, each once."""
    recent = sorted((item for item in group.evidence if item[0] >= since), key=lambda item: -item[1])
    return list(dict.fromkeys(trace_id for _, _, trace_id in recent))[:MAX_EVIDENCE]


def _filled(text: str, values: dict[str, str]) -> str:
    for label, value in values.items():
        text = text.replace(f"{{{label}}}", value)
    return text


def _in_order(rules: Sequence[LoadedRule]) -> list[LoadedRule]:
    """Rules that others refer to come before those."""
    by_name = {loaded.rule.name: loaded for loaded in rules}
    graph = {name: _references(loaded) & by_name.keys() for name, loaded in by_name.items()}
    return [by_name[name] for name in TopologicalSorter(graph).static_order()]


def _references(loaded: LoadedRule) -> set[str]:
    return {node.rule for _, node, _ in walk(loaded.rule) if isinstance(node, RuleCondition)}


def _urgency(runtime: Runtime) -> tuple[bool, int]:
    """What trips a breaker is looked at before what only tells people."""
    rule = runtime.rule
    return not rule.breaker, ("critical", "warning", "info").index(rule.severity)


def _number(runtimes: Sequence[Runtime]) -> None:
    """Give conditions that look at the same things the same number."""
    numbers: dict[object, int] = {}
    for runtime in runtimes:
        for leaf in runtime.items:
            leaf.number = numbers.setdefault(leaf.key, len(numbers))


def _dependents(runtimes: Sequence[Runtime]) -> dict[str, list[Runtime]]:
    out: dict[str, list[Runtime]] = {}
    for runtime in runtimes:
        for name in runtime.refers_to:
            out.setdefault(name, []).append(runtime)
    return out


def _by_metric(runtimes: Sequence[Runtime]) -> dict[str, list[Runtime]]:
    out: dict[str, list[Runtime]] = {}
    for runtime in runtimes:
        for leaf in runtime.metrics:
            for name in {leaf.test.metric, leaf.test.divisor} - {None}:
                kept = out.setdefault(str(name), [])
                if runtime not in kept:
                    kept.append(runtime)
    return out


def _span_fields(runtimes: Iterable[Runtime]) -> set[str]:
    names: set[str] = set()
    for runtime in runtimes:
        names.update(runtime.by["span"])
        for leaf in runtime.items:
            if leaf.of_spans:
                names.update(leaf.wanted)
    return names
