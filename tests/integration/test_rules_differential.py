"""Random rules on random traffic: what the streaming engine and Prometheus say, at each evaluation.

Spans come anywhere between two scrapes, but for the steps by which the streaming engine's windows slide.
"""

from __future__ import annotations

import random
import shutil
import subprocess
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from prometheus_client.utils import floatToGoString

from otel_bridge import catalog
from otel_bridge.rules.prometheus.build import build_files, compile_rules
from otel_bridge.rules.prometheus.promql import Target
from tests.support.rules import Bench, load, rule

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")

TICK = 15
TARGET = Target(scrape_interval=TICK)
TICKS = 60
MICROSECOND = 1e-6
SCENARIOS = 40
FIRST_SECOND = 6
"""Of each interval in which spans come: streaming windows of 5 minutes slide in steps of 5 s."""
GAUGE, COUNTER, BELOW = (
    metric.name
    for metric in (catalog.KERNEL_PROBE_LOADED, catalog.KERNEL_PRODUCED, catalog.KERNEL_LOST_STATE)
)
"""Metrics of the bridge's own, labelled by probe; any others would do."""
SERVICES = ("a", "b")
DURATION = catalog.DERIVED_SPAN_DURATION
BY = {"label": "service.name", "metric": "probe"}


@dataclass(frozen=True)
class Kind:
    """Spans that are alike."""

    service: str
    error: bool
    seconds: float


KINDS = tuple(
    Kind(service, error, seconds)
    for service in SERVICES
    for error in (False, True)
    for seconds in (0.05, 0.3, 1.5, 4.0)
)


@dataclass
class Scenario:
    """A rule, and what the two engines are fed: spans by time, readings by tick."""

    rule: dict[str, Any]
    spans: list[tuple[float, Kind]]
    readings: dict[tuple[str, str], list[float]]
    states: list[frozenset[str]] = field(default_factory=list)


def conditions(rng: random.Random, *, grouped: bool) -> dict[str, Any]:
    """A condition, one or two of them combined."""
    shape = rng.choice(["leaf", "leaf", "leaf", "all", "any", "not"])
    if shape == "leaf":
        return leaf(rng, grouped=grouped)
    if shape == "not":
        return {"all": [leaf(rng, grouped=grouped), {"not": leaf(rng, grouped=grouped)}]}
    return {shape: [leaf(rng, grouped=grouped), leaf(rng, grouped=grouped)]}


def leaf(rng: random.Random, *, grouped: bool) -> dict[str, Any]:
    while True:
        found = rng.choice([span_leaf, span_leaf, metric_leaf])(rng)
        # What is known only of a group that was watched for a whole window: series here are older than spans.
        if not (grouped and "span" in found and "delta" in found):
            return found


def span_leaf(rng: random.Random) -> dict[str, Any]:
    window = rng.choice([60, 120])
    hit = rng.choice([{"status": "error"}, {"duration": "> 400ms"}, {"duration": "<= 100ms"}])
    above, share = rng.choice([">", "<"]), rng.choice([20, 50, 70])
    aggregates: list[dict[str, Any]] = [
        {"is": hit, "count": rng.choice([1, 4, 20])},
        {"is": hit, "ratio": {"is": f"{above} {share}%", "at_least": rng.choice([1, 3])}},
        {"is": hit, "rate": f"> {rng.choice([0.105, 0.3475])}/s"},
        {"mean": {"of": "duration", "is": f"{above} {rng.choice([350, 1100])}ms", "at_least": 3}},
        {
            "quantile": {
                "q": rng.choice([0.5, 0.9, 0.99]),
                "of": "duration",
                "is": f"{rng.choice(['>', '<='])} {rng.choice(['400ms', '2s'])}",
            }
        },
        {"delta": {"stat": "rate", "is": f"{above} {rng.choice([-33, 47])}%", "against": 300}},
        {"delta": {"stat": "mean", "of": "duration", "is": f"{above} 170ms", "against": 300}},
    ]
    return {"span": rng.choice(["server", "any"]), "within": window, **rng.choice(aggregates)}


def metric_leaf(rng: random.Random) -> dict[str, Any]:
    above = rng.choice([">", "<"])
    # Between two multiples of the interval, so that it does not matter whether a window's ends are in it.
    window = rng.choice([70, 130, 310])
    return rng.choice(
        [
            {"metric": GAUGE, "is": {"value": f"{above} 50"}, "stale_after": 20},
            {"metric": GAUGE, "mean": {"is": f"{above} 50", "at_least": 3}, "within": window},
            {"metric": GAUGE, "slope": f"{above} 0.3/s", "within": window},
            {
                "metric": GAUGE,
                "delta": {"stat": "mean", "is": f"{above} 23%", "against": 130},
                "within": 70,
            },
            {
                "metric": COUNTER,
                "increase": f"{above} {rng.choice([15, 110])}",
                "within": rng.choice([60, 300]),
            },
            {"metric": COUNTER, "rate": f"{above} 0.71/s", "within": 60},
            {"metric": COUNTER, "ratio": {"to": BELOW, "is": f"{above} 49%"}, "within": 120},
        ]
    )


def scenario(number: int) -> Scenario:
    """Traffic in phases, each of which lasts some minutes."""
    rng = random.Random(number)
    grouped = rng.random() < 0.5
    made = rule(conditions(rng, grouped=grouped), name=f"R{number}", by=[BY] if grouped else [])
    # Not both: an alert that ends and is to begin anew between two evaluations goes on in Prometheus.
    made["for"], made["keep_firing_for"] = rng.choice([(0, 0), (60, 0), (0, 90)])
    spans: list[tuple[float, Kind]] = []
    readings: dict[tuple[str, str], list[float]] = {
        (metric, service): [0.0, 0.0] for metric in (GAUGE, COUNTER, BELOW) for service in SERVICES
    }
    tick = 2
    while tick <= TICKS:
        length = rng.randint(6, 16)
        # Some of each service, always: Prometheus does not see what is unknown between two evaluations.
        busy = [rng.choice([kind for kind in KINDS if kind.service == service]) for service in SERVICES]
        busy += rng.sample(KINDS, rng.choice([0, 1, 3]))
        amounts = {kind: rng.choice([1, 2, 5]) for kind in busy}
        level = {service: rng.choice([0.0, 30.0, 80.0]) for service in SERVICES}
        grows = {
            service: (rng.choice([0.0, 2.0, 20.0]), rng.choice([0.0, 5.0, 30.0])) for service in SERVICES
        }
        for _ in range(min(length, TICKS + 1 - tick)):
            begin = (tick - 1) * TICK
            for kind, count in amounts.items():
                spans += [(begin + rng.uniform(FIRST_SECOND, TICK - 0.5), kind) for _ in range(count)]
            for service in SERVICES:
                readings[GAUGE, service].append(level[service] + rng.choice([0, 1, 2]))
                for metric, growth in zip((COUNTER, BELOW), grows[service], strict=True):
                    readings[metric, service].append(readings[metric, service][-1] + growth)
            tick += 1
    return Scenario(made, sorted(spans, key=lambda span: span[0]), readings)


def stream(case: Scenario, made: dict[str, Any]) -> tuple[list[frozenset[str]], int]:
    """The alerts that fire at each tick; and the first tick before which one came and went unseen."""
    bench = Bench(made)
    states: list[frozenset[str]] = [frozenset()]
    active: set[str] = set()
    unseen = TICKS + 1
    at = 0
    for tick in range(1, TICKS + 1):
        told = len(bench.firings)
        now: float = tick * TICK
        while at < len(case.spans) and case.spans[at][0] <= now:
            moment, kind = case.spans[at]
            bench.at(moment)
            bench.spans(
                [{"at": moment, "seconds": kind.seconds, "error": kind.error}],
                resource={"service.name": kind.service},
            )
            at += 1
        # Right before: a window of whole steps that ends now would leave its first step out.
        now -= MICROSECOND
        bench.at(now)
        for (metric, service), values in case.readings.items():
            bench.reading(metric, now, values[tick], probe=service)
        changed = [firing.labels.get("service_name", "") for firing in bench.firings[told:]]
        if len(changed) != len(set(changed)):
            unseen = min(unseen, tick)
        for firing in bench.firings[told:]:
            (active.add if firing.active else active.discard)(firing.labels.get("service_name", ""))
        states.append(frozenset(active))
    return states, unseen


def series(case: Scenario) -> list[dict[str, str]]:
    """What Prometheus scrapes."""
    out: dict[str, list[float]] = {}
    bounds = [*map(floatToGoString, DURATION.buckets), "+Inf"]
    for kind in KINDS:
        times = [time for time, found in case.spans if found == kind]
        counts = [float(bisect_left(times, tick * TICK)) for tick in range(TICKS + 1)]
        labels = (
            f'instance="i", service_name="{kind.service}", span_kind="SPAN_KIND_SERVER", '
            f'status_code="STATUS_CODE_{"ERROR" if kind.error else "UNSET"}", span_name="{kind.seconds}"'
        )
        first = bisect_left(DURATION.buckets, kind.seconds)
        for place, bound in enumerate(bounds):
            if bound in ("0.1", "0.4", "2.0", "+Inf"):
                name = f'{DURATION.prometheus}_bucket{{{labels}, le="{bound}"}}'
                out[name] = counts if place >= first else [0.0] * len(counts)
        out[f"{DURATION.prometheus}_count{{{labels}}}"] = counts
        out[f"{DURATION.prometheus}_sum{{{labels}}}"] = [count * kind.seconds for count in counts]
    for (metric, service), values in case.readings.items():
        name = metric if metric == GAUGE else f"{metric}_total"
        out[f'{name}{{instance="i", probe="{service}"}}'] = values
    # The engine began at 0; it was watched since before the first sample.
    return [
        {"series": name, "values": " ".join(["_", *(f"{value:g}" for value in values[1:])])}
        for name, values in out.items()
    ]


def expected(case: Scenario, services: frozenset[str]) -> list[dict[str, Any]]:
    base = {"severity": "warning", "instance": "i"}
    return [
        {
            "exp_labels": {**base, "service_name": service} if service else base,
            "exp_annotations": {
                "summary": "s",
                "runbook_url": f"runbook.md#{case.rule['name'].lower()}",
            },
        }
        for service in sorted(services)
    ]


def written(case: Scenario, ticks: range, folder: Path) -> Path:
    """A test file with the rules beside it; its path."""
    loaded = load(case.rule)
    (compiled,) = compile_rules(loaded, TARGET).values()
    assert not compiled.streaming_only
    for path, text in build_files(loaded, TARGET).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    checks = [
        {
            "eval_time": f"{tick * TICK}s",
            "alertname": case.rule["name"],
            "exp_alerts": expected(case, case.states[tick]),
        }
        for tick in ticks
    ]
    test = {
        "name": f"{case.rule['name']}: {case.rule['when']}",
        "interval": f"{TICK}s",
        "input_series": series(case),
        "alert_rule_test": checks,
    }
    file = folder / "differential.yaml"
    rules = "generated/prometheus/test.yaml"
    content = {"rule_files": [rules], "evaluation_interval": f"{TICK}s", "tests": [test]}
    file.write_text(yaml.safe_dump(content))
    return file


def test_both_engines_agree(tmp_path: Path):
    """At every evaluation of every scenario, but where something came and went between two of them."""
    files, compared, firing = [], 0, 0
    for number in range(SCENARIOS):
        case = scenario(number)
        case.states, unseen = stream(case, case.rule)
        if case.rule["for"] or case.rule["keep_firing_for"]:
            # What the condition itself did.
            _, unseen = stream(case, {**case.rule, "for": 0, "keep_firing_for": 0})
        ticks = range(unseen)
        compared += len(ticks)
        firing += sum(bool(case.states[tick]) for tick in ticks)
        files.append(written(case, ticks, tmp_path / str(number)))
    done = subprocess.run(["promtool", "test", "rules", *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-20_000:]
    # Otherwise it would say little.
    assert compared > 0.7 * SCENARIOS * TICKS
    assert 0.1 * compared < firing < 0.9 * compared
