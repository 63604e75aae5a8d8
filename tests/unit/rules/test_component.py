"""The rules as a part of the service."""

from __future__ import annotations

import asyncio

import pytest
import yaml

from otel_bridge import catalog, shipped
from otel_bridge.batch import PlanBuilder
from otel_bridge.errors import ConfigError
from otel_bridge.readings import Reading
from otel_bridge.rules.component import Rules
from otel_bridge.rules.config import RulesConfig
from otel_bridge.rules.load import load_configured
from otel_bridge.shipped import folder
from otel_bridge.telemetry import Telemetry
from otel_bridge.testing import FakeClock
from tests.support.rules import Firings, rule

DROPPED = {"metric": "otel_bridge_kernel_dropped_events", "increase": "> 0", "within": "1m"}


def component(tmp_path, *rules, clock: FakeClock | None = None) -> tuple[Rules, Telemetry, Firings]:
    """With its sinks."""
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump({"rules": list(rules)}))
    telemetry, firings = Telemetry(), Firings()
    rules_ = Rules(RulesConfig(shipped=False, files=[tmp_path]), telemetry, clock or FakeClock(), [firings])
    return rules_, telemetry, firings


async def test_the_bridges_own_metrics_are_read(tmp_path):
    """Each second, off its registry; a first step from nothing is seen."""
    clock = FakeClock()
    rules, telemetry, firings = component(tmp_path, rule(DROPPED, by=["probe"]), clock=clock)
    rules.tap(PlanBuilder())
    await rules.start()
    await asyncio.sleep(0)
    await clock.advance(15)
    telemetry.counter(catalog.KERNEL_DROPPED).labels("tls", 0, "full").inc(3)
    await clock.advance(2)
    await rules.stop(1)
    assert [(firing.active, firing.labels["probe"]) for firing in firings] == [(True, "tls")]


async def test_time_passes_without_items(tmp_path):
    """What changes by itself is looked at."""
    clock = FakeClock()
    when = {"absent": {"event": "tls_handshake", "within": "5s"}}
    rules, _, firings = component(tmp_path, rule(when), clock=clock)
    rules.tap(PlanBuilder())
    await rules.start()
    await asyncio.sleep(0)
    await clock.advance(36)
    await rules.stop(1)
    assert len(firings) == 1


async def test_handed_over_readings_are_not_read_twice(tmp_path):
    """A gauge that a sampler hands over is not taken off the registry as well."""
    clock = FakeClock()
    when = {"metric": "otel_bridge_gpu_memory_used_ratio", "is": {"value": "> 95%"}}
    rules, telemetry, firings = component(tmp_path, rule(when), clock=clock)
    rules.tap(PlanBuilder())
    rules.take_readings(
        [Reading("otel_bridge_gpu_memory_used_ratio", {"gpu_uuid": "a"}, 0.5, clock.time_ns())]
    )
    telemetry.gauge(catalog.GPU_MEMORY_USED_RATIO).labels("a").set(0.99)
    await rules.start()
    await asyncio.sleep(0)
    await clock.advance(3)
    await rules.stop(1)
    assert firings == []


def test_without_rules_nothing_stands_in_the_data_path(tmp_path):
    """Off, no rules, or only rules of Prometheus's."""
    telemetry, clock = Telemetry(), FakeClock()
    assert Rules(RulesConfig(shipped=False), telemetry, clock).tap(PlanBuilder()) is None
    assert Rules(RulesConfig(enabled=False, files=[tmp_path]), telemetry, clock).tap(PlanBuilder()) is None
    only = rule({"span": "any", "within": "1m"}, engine="prometheus", reason="to try it")
    rules, telemetry, _ = component(tmp_path, only)
    assert rules.tap(PlanBuilder()) is None
    assert telemetry.value(catalog.RULES_LOADED, engine="prometheus") == 1


def loaded(**config) -> list[str]:
    """The names of the rules of a configuration."""
    return [item.rule.name for item in load_configured(RulesConfig(**config))]


def test_the_shipped_rules_are_on_by_default(tmp_path, monkeypatch):
    """Wherever the bridge is started, and beside those of one's own."""
    monkeypatch.chdir(tmp_path)
    assert "TlsStallWithGpuAllocationFailure" in loaded()
    assert loaded(shipped=False) == []
    assert loaded(enabled=False) == []
    (tmp_path / "own.yaml").write_text(
        yaml.safe_dump({"rules": [rule({"event": "reclaim", "within": "1m"})]})
    )
    assert sorted(loaded(files=["own.yaml"])) == sorted([*loaded(), "R"])
    # A set that is named again is the same one.
    assert loaded(files=[folder("alerts/rules")]) == loaded()


def test_shipped_rules_are_left_out_by_name(tmp_path):
    """And one of one's own may take the name; other rules stay."""
    everything = set(loaded())
    assert everything - set(loaded(exclude=["OomKill", "ErrorBudget*"])) == {
        "OomKill",
        *(name for name in everything if name.startswith("ErrorBudget")),
    }
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump({"rules": [rule({"event": "oom_kill", "within": "1m"}, name="OomKill")]}))
    with pytest.raises(ConfigError, match=r"OomKill again; .*`rules\.exclude: \[OomKill\]` leaves"):
        loaded(files=[path])
    assert loaded(files=[path], exclude=["OomKill"])[-1] == "OomKill"


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            {"exclude": ["Kv*", "OomKil"]},
            (
                "rules.exclude.1: found 'OomKil'; expected the name of a shipped rule, or a pattern like "
                "Kv*; did you mean 'OomKill'? `otel-bridge rules explain` lists them all"
            ),
        ),
        (
            {"exclude": ["zzz*"]},
            (
                "rules.exclude.0: found 'zzz*'; expected the name of a shipped rule, or a pattern like Kv*; "
                "`otel-bridge rules explain` lists them all"
            ),
        ),
        (
            {"exclude": ["OomKill"], "shipped": False},
            (
                "rules.exclude.0: found 'OomKill', and no shipped rules; expected an empty list, or "
                "`rules.shipped: true`"
            ),
        ),
    ],
    ids=["misspelt", "of none", "without shipped rules"],
)
def test_what_cannot_be_left_out_is_told(config, said):
    """A name that is misspelt would leave a rule on that its user thinks is off."""
    with pytest.raises(ConfigError) as raised:
        loaded(**config)
    assert [str(problem) for problem in raised.value.problems] == [said]


def test_an_installation_without_its_rules_says_so(monkeypatch, tmp_path):
    """And what starts it nevertheless."""
    monkeypatch.setattr(shipped, "_IN_WHEEL", tmp_path)
    monkeypatch.setattr(shipped, "_PACKAGE", tmp_path / "a")
    with pytest.raises(ConfigError, match="or `shipped: false`"):
        loaded()


def test_bad_rules_are_refused_and_the_old_ones_stay(tmp_path):
    """A reload with a mistake changes nothing."""
    rules, _, firings = component(tmp_path, rule({"event": "oom_kill", "within": "1m"}))
    step = rules.tap(PlanBuilder())
    (tmp_path / "bad.yaml").write_text("rules: 5")
    with pytest.raises(ConfigError):
        rules.tap(PlanBuilder())
    assert rules._engine is step
    assert firings == []


def test_events_of_several_threads_are_one_after_the_other(tmp_path):
    """Kernel readers, the data path and samplers hand over at the same time."""
    from tests.support.rules import Bench

    bench = Bench(rule({"event": "oom_kill", "count": 1000, "within": "1m"}))
    bench.at(1)

    async def hand_over() -> None:
        await asyncio.gather(
            *(asyncio.to_thread(lambda: [bench.event("oom_kill", 1) for _ in range(250)]) for _ in range(4))
        )

    asyncio.run(hand_over())
    assert len(bench.firings) == 1
