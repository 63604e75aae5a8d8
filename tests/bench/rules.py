"""The rules engine: events a second on one core with 50 rules, and how long a decision takes.

Rules of every kind: the shipped ones that the bridge evaluates, and variations of them over spans and kernel
events. The stream is spans and kernel events in batches, as a Collector and ring buffers hand them over.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml
from rich.console import Console

from otel_bridge.batch import PlanBuilder
from otel_bridge.contracts import SystemClock
from otel_bridge.events import COMMON, KernelEvents
from otel_bridge.receivers.otlp.codec import choose_codec
from otel_bridge.rules.config import RulesConfig
from otel_bridge.rules.load import LoadedRule, load_rules, load_texts
from otel_bridge.rules.streaming.engine import RuleEngine
from otel_bridge.rules.vocabulary import KIND_NUMBERS
from otel_bridge.telemetry import Telemetry
from otel_bridge.testing import trace_request
from tests.bench import figures

if TYPE_CHECKING:
    from otel_bridge.firings import Firing

RULES = 50
SPANS, EVENTS = 100, 400
"""Items of a batch: the Collector sends some hundred spans at once, a ring is read each few milliseconds."""
SERVICES = 8
MS = 1_000_000
SHIPPED = Path(__file__).parents[2] / "alerts" / "rules"
EVENT = np.dtype(
    [*COMMON.descr, ("run_queue_ns", "<u8"), ("queue_depth", "<u4"), ("major", "<u4"), ("minor", "<u4")]
)
KINDS = ("tcp_retransmit", "sched_wait", "block_io", "tls_handshake", "reclaim")


def variations(count: int) -> list[dict[str, Any]]:
    """So many rules, of every kind in turn."""
    kinds: list[dict[str, Any]] = [
        {
            "span": "server",
            "is": {"status": "error"},
            "ratio": {"is": "> 50%", "at_least": 50},
            "within": "1m",
        },
        {
            "span": "server",
            "quantile": {"q": 0.99, "of": "duration", "is": "> 5s", "at_least": 50},
            "within": "1m",
        },
        {"span": "server", "is": {"duration": "> 4s"}, "consecutive": 5, "within": "1m"},
        {"span": "server", "rate": {"of": "gen_ai.usage.output_tokens", "is": "> 100000000"}, "within": "1m"},
        {
            "all": [
                {"event": "tls_handshake", "is": {"duration": "> 500ms"}, "consecutive": 3},
                {"event": "oom_kill"},
            ],
            "within": "5s",
        },
        {"event": "sched_wait", "is": {"run_queue_ns": "> 900ms"}, "count": 20, "within": "10s"},
        {
            "sequence": [{"event": "reclaim", "is": {"duration": "> 900ms"}}, {"event": "oom_kill"}],
            "within": "5s",
        },
        {"event": "block_io", "is": {"queue_depth": ">= 1000"}, "count": 10, "within": "10s"},
    ]
    out = []
    for number in range(count):
        when = kinds[number % len(kinds)]
        by = ["service.name"] if "span" in when and number % 2 else []
        # A threshold of its own for each, so that no two rules share a mask.
        text = yaml.safe_dump(when).replace("500ms", f"{500 + number}ms").replace("4s", f"4.{number:03}s")
        out.append(
            {
                "name": f"Variation{number}",
                "when": yaml.safe_load(text.replace("900ms", f"{900 + number}ms")),
                "by": by,
                "severity": "info",
                "summary": "s",
            }
        )
    return out


def fifty() -> list[LoadedRule]:
    """The shipped rules that are streamed, and variations up to fifty."""
    shipped = [item for item in load_rules([SHIPPED]) if item.rule.engine != "prometheus"]
    more = {"rules": variations(RULES - len(shipped))}
    return [*shipped, *load_texts({"bench.yaml": yaml.safe_dump(more)})]


@dataclass
class Decisions:
    """A FiringSink that notes how long after the deciding batch was taken in it was told."""

    rule: str
    seconds: list[float] = field(default_factory=list)

    def take_firing(self, firing: Firing) -> None:
        """Note one."""
        if firing.active and firing.rule == self.rule:
            self.seconds.append(time.monotonic() - firing.event / 1e9)


class Stream:
    """Batches made beforehand, their times moved to now when they are used."""

    def __init__(self, columns: PlanBuilder) -> None:
        self._codec, _ = choose_codec("auto")
        self._plan = columns.build()
        random = np.random.default_rng(1)
        self._requests = [self._request(random, number) for number in range(SERVICES)]
        self._events = [self._records(random) for _ in range(SERVICES)]

    def _request(self, random: np.random.Generator, number: int) -> bytes:
        spans = [
            {
                "status": {"code": 2 if random.random() < 0.01 else 0},
                "attributes": {"gen_ai.usage.output_tokens": int(random.integers(10, 500))},
            }
            for _ in range(SPANS)
        ]
        return trace_request(spans, resource={"service.name": f"service-{number}"})

    def _records(self, random: np.random.Generator) -> np.ndarray[Any, Any]:
        records = np.zeros(EVENTS, EVENT)
        records["kind"] = [KIND_NUMBERS[kind] for kind in random.choice(KINDS, EVENTS)]
        records["duration"] = random.integers(1, 100 * MS, EVENTS)
        records["run_queue_ns"] = random.integers(1, 10 * MS, EVENTS)
        return records

    def spans(self, number: int, *, end: int) -> Any:
        """A batch of spans that ended just now; scanning is not the engine's."""
        batch = self._codec.scan(self._requests[number % SERVICES], self._plan)
        spans = batch.spans.copy()
        spans["end"] = end - np.arange(SPANS, dtype=np.uint64)[::-1]
        spans["start"] = spans["end"] - 50 * MS
        batch.spans = spans
        return batch

    def events(self, number: int, *, end: int) -> KernelEvents:
        """A batch of kernel events of just now."""
        records = self._events[number % SERVICES].copy()
        records["time"] = end - np.arange(EVENTS, dtype=np.uint64)[::-1]
        return KernelEvents("bench", records)


def build(rules: list[LoadedRule], sinks: list[Any]) -> tuple[RuleEngine, Stream]:
    """An engine and its stream."""
    columns, clock = PlanBuilder(), SystemClock()
    engine = RuleEngine(rules, RulesConfig(), columns, Telemetry(), clock, sinks=sinks)
    return engine, Stream(columns)


def throughput(seconds: float = 5.0) -> float:
    """Items a second of the engine's own CPU time."""
    engine, stream = build(fifty(), [])
    items, spent, number = 0, 0.0, 0
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        number += 1
        batch = stream.spans(number, end=time.time_ns())
        events = stream.events(number, end=time.time_ns())
        before = time.thread_time()
        engine.process(batch)
        engine.take(events)
        engine.advance()
        spent += time.thread_time() - before
        items += SPANS + EVENTS
    return items / spent


def decision_ms(rounds: int = 1000) -> tuple[float, float]:
    """From taking in a batch to the firing that an event in it decides, P50 and P99 in milliseconds.

    The default rule's shape, by process: each round another process has three slow handshakes and is killed,
    all of it somewhere in a full batch of kernel events.
    """
    composite = {
        "name": "Composite",
        "when": {
            "all": [
                {"event": "tls_handshake", "is": {"duration": "> 500ms"}, "consecutive": 3},
                {"event": "oom_kill"},
            ],
            "within": "5s",
        },
        "by": ["tgid"],
        "breaker": "node",
        "severity": "critical",
        "summary": "s",
    }
    found = Decisions("Composite")
    rules = [*fifty()[:-1], *load_texts({"bench.yaml": yaml.safe_dump({"rules": [composite]})})]
    engine, stream = build(rules, [found])
    for number in range(rounds):
        engine.process(stream.spans(number, end=time.time_ns()))
        events = stream.events(number, end=time.time_ns())
        hits = events.records[100:EVENTS:100]
        hits["kind"], hits["duration"], hits["tgid"] = KIND_NUMBERS["tls_handshake"], 600 * MS, 1000 + number
        kill = events.records[-1:]
        kill["kind"], kill["tgid"] = KIND_NUMBERS["oom_kill"], 1000 + number
        engine.take(events)
        engine.advance()
    if len(found.seconds) != rounds:
        raise RuntimeError(f"{len(found.seconds)} decisions in {rounds} rounds")
    middle, slow = np.percentile(found.seconds, (50, 99)) * 1e3
    return float(middle), float(slow)


def main() -> None:
    """Measure, print, keep."""
    middle, slow = decision_ms()
    results = {
        "rules.events_per_core_second": throughput(),
        "rules.decision_p50_ms": middle,
        "rules.decision_p99_ms": slow,
    }
    for name, value in results.items():
        Console().print(f"{name}: {value:.3g}")
    figures.merge(results)


if __name__ == "__main__":
    main()
