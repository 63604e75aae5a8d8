"""What shows only over minutes, from readings to what rules and scrapes are told: C2 to C5."""

from __future__ import annotations

from types import SimpleNamespace

import psutil
import pytest
from prometheus_client import CollectorRegistry

from otel_bridge import catalog, psi
from otel_bridge.gpu.config import GpuConfig
from otel_bridge.gpu.device import ProcessUse
from otel_bridge.gpu.hub import Hub
from otel_bridge.gpu.tenants import Pressures, Tenant
from otel_bridge.readings import Reading
from otel_bridge.rules.load import load_rules
from otel_bridge.shipped import folder
from otel_bridge.testing import FakeClock
from tests.support.gpu import gpu
from tests.support.processes import eventually
from tests.support.rules import Bench
from tests.unit.gpu.conftest import Sink

SECOND = 1_000_000_000
T0 = 1_700_000_000 * SECOND
GPU = {"gpu_uuid": "GPU-a"}
SAMPLES = 6  # of utilisation in a second
LLAMA, QWEN = "a" * 64, "b" * 64


def at(wave, second):
    """A wave's value: of a function, or the number that it always is."""
    return wave(second) if callable(wave) else wave


class Card:
    """One card whose readings come as functions of the second, on a machine of the test's own."""

    def __init__(self, proc, **settings):
        self.proc = proc
        (proc / "self").mkdir(parents=True)
        (proc / "cgroup").mkdir()
        (proc / "self" / "mountinfo").write_text(f"30 1 0:26 / {proc}/cgroup rw - cgroup2 cgroup2 rw\n")
        self.clock, self.sink, self.registry = FakeClock(T0), Sink(), CollectorRegistry()
        self.hub = Hub(GpuConfig(**settings), self.clock, [self.sink], proc=proc)
        self.registry.register(self.hub.board)
        self.pids = []

    def process(self, cgroup):
        """One more process on the card, in a cgroup."""
        pid = 4000 + len(self.pids)
        directory = self.proc / str(pid)
        directory.mkdir()
        (directory / "stat").write_text(f"{pid} (python) S 1 {'0 ' * 17}77 0")
        (directory / "status").write_text(f"NSpid:\t{pid}\t7\n")
        (directory / "cgroup").write_text(f"0::{cgroup}\n")
        self.pids.append(pid)

    def stalls(self, cgroup, *, some, full):
        """What a cgroup's memory.pressure says (shares)."""
        directory = self.proc / "cgroup" / cgroup.lstrip("/")
        directory.mkdir(parents=True, exist_ok=True)
        shares = ("some", some), ("full", full)
        lines = (f"{name} avg10={share * 100:.2f} avg60=0.00 total=1" for name, share in shares)
        (directory / "memory.pressure").write_text("\n".join(lines) + "\n")

    def live(self, seconds, *, busy=0.9, occupancy=0.6, active=0.9, dram=0.1):
        """Have so many seconds of readings."""
        begin = round(self.clock.monotonic())
        for second in range(begin, begin + seconds):
            self.clock._move_to(second + 1)
            now = self.clock.time_ns()
            moments = [now - SECOND + (part + 1) * SECOND // SAMPLES for part in range(SAMPLES)]
            metric = catalog.GPU_UTILIZATION_RATIO
            if busy is not None:
                rates = [reading(metric, at(busy, (one - T0) / 1e9), one) for one in moments]
                self.hub.take_utilization("GPU-a", rates)
            activity = [
                reading(catalog.GPU_SM_ACTIVE_RATIO, at(active, second), now),
                reading(catalog.GPU_DRAM_ACTIVE_RATIO, at(dram, second), now),
            ]
            if occupancy is not None:
                activity.append(reading(catalog.GPU_SM_OCCUPANCY_RATIO, at(occupancy, second), now))
            self.hub.take_slow("GPU-a", "activity", activity)
            if second % 2 == 0:
                self.hub.take_processes("GPU-a", [ProcessUse(pid, 1 << 30) for pid in self.pids], 1 << 34)
            self.hub.second()
            self.hub.flush()

    def shown(self, metric):
        """Its series as a scrape sees them: what is beside the card's UUID in labels, and the value."""
        return {
            tuple(value for key, value in sorted(one.labels.items()) if key != "gpu_uuid"): one.value
            for family in self.registry.collect()
            for one in family.samples
            if one.name == metric.name
        }


def reading(metric, value, moment):
    """One of the card."""
    return Reading(metric.name, GPU, value, moment)


@pytest.fixture
def card(tmp_path):
    """Two tenants' processes on one card: in a container each, which have published spans."""
    made = Card(tmp_path)
    for container, service in ((LLAMA, "llama"), (QWEN, "qwen")):
        made.process(f"/kubepods/{container}")
        made.hub.usage.learn(container, 7, service)
    return made


# C4


@pytest.mark.parametrize(("sign", "expected"), [(1, 1.0), (-1, -1.0)])
def test_a_sawtooth_is_shown_with_what_explains_it(card, monkeypatch, sign, expected):
    """Swing and period of C4's own numbers; the host's memory goes with it, or against it."""

    def part(second):
        return second / 83 % 1

    def memory():
        return SimpleNamespace(percent=50 + sign * 20 * part(card.clock.monotonic()))

    monkeypatch.setattr(psutil, "virtual_memory", memory)
    card.live(320, busy=lambda second: 0.3 + 0.5 * part(second))
    assert card.shown(catalog.GPU_SAWTOOTH_SWING_RATIO)[()] == pytest.approx(0.5, abs=0.05)
    assert card.shown(catalog.GPU_SAWTOOTH_PERIOD)[()] == pytest.approx(83, abs=1)
    assert card.shown(catalog.GPU_SAWTOOTH_HOST_CORRELATION)[()] == pytest.approx(expected, abs=0.1)
    assert card.sink.of(catalog.GPU_SAWTOOTH_SWING_RATIO)[-1] == pytest.approx(0.5, abs=0.05)


def test_steady_work_has_a_swing_of_nothing_and_no_period(card):
    """So that an alert on it resolves; a period of 0 would be a lie."""
    card.live(320)
    assert card.shown(catalog.GPU_SAWTOOTH_SWING_RATIO) == {(): 0}
    assert card.shown(catalog.GPU_SAWTOOTH_PERIOD) == {}


# C3


def test_preemption_is_said_of_each_tenant(card):
    """Occupancy falls while the card is busy: a gap for all who share it; before, none."""
    card.live(80, occupancy=0.9)
    assert set(card.shown(catalog.GPU_PREEMPTED).values()) == {0}
    card.live(25, occupancy=0.1)
    assert card.shown(catalog.GPU_PREEMPTED) == {("llama",): 1, ("qwen",): 1}
    assert min(card.shown(catalog.GPU_PREEMPTION_GAP_RATIO).values()) > 0.35
    told = [one.labels for one in card.sink.readings if one.metric == catalog.GPU_PREEMPTED.name]
    assert {tuple(sorted(labels)) for labels in told} == {("gpu_uuid", "tenant_id")}


def test_the_gap_of_a_card_that_idles_is_nothing(card):
    """Its occupancy falls because there is no work."""
    card.live(80, occupancy=0.9)
    card.live(25, occupancy=0.1, busy=0.3)
    assert set(card.shown(catalog.GPU_PREEMPTED).values()) == {0}
    assert set(card.shown(catalog.GPU_PREEMPTION_GAP_RATIO).values()) == {0}


def test_what_is_read_no_more_is_judged_no_more(card):
    """Neither preemption nor sawtooth goes on as it was, nor ends: it is absent."""
    card.live(320)
    assert card.shown(catalog.GPU_SAWTOOTH_SWING_RATIO)
    assert card.shown(catalog.GPU_PREEMPTED)
    card.live(17, busy=None, occupancy=None)
    assert card.shown(catalog.GPU_PREEMPTED) == {}
    card.live(18, busy=None, occupancy=None)
    assert card.shown(catalog.GPU_SAWTOOTH_SWING_RATIO) == {}


# C5


@pytest.mark.parametrize(
    ("stalls", "activity", "expected"),
    [
        ({"some": 0.2, "full": 0.0}, {"active": 0.2, "dram": 0.1}, ("confirmed", 1)),
        ({"some": 0.2, "full": 0.06}, {"active": 0.2, "dram": 0.1}, ("confirmed", 2)),
        ({"some": 0.2, "full": 0.06}, {"active": 0.2, "dram": 0.9}, ("contended", 2)),
        ({"some": 0.2, "full": 0.06}, {"active": 0.9, "dram": 0.1}, ("unconfirmed", 2)),
        ({"some": 0.1, "full": 0.05}, {"active": 0.2, "dram": 0.1}, ("unconfirmed", 0)),
    ],
)
def test_a_tenant_short_of_host_memory_is_named(card, stalls, activity, expected):
    """And held against what the card did meanwhile; the other one, that has enough, is not blamed."""
    card.stalls(f"/kubepods/{LLAMA}", **stalls)
    card.stalls(f"/kubepods/{QWEN}", some=0, full=0)
    card.live(22, **activity)
    evidence, level = expected
    assert card.shown(catalog.GPU_TENANT_PRESSURE) == {(evidence, "llama"): level, ("unconfirmed", "qwen"): 0}


@pytest.mark.parametrize("worst", [f"/kubepods/{LLAMA}", "/kubepods/another", "/kubepods/third"])
def test_of_several_cgroups_of_a_tenant_the_worst_counts(card, worst):
    """Three pods of one service on one card."""
    for pid, cgroup in ((4002, "/kubepods/another"), (4003, "/kubepods/third")):
        card.process(cgroup)
        card.hub.usage.learn("", pid, "llama")
    for cgroup in (f"/kubepods/{LLAMA}", "/kubepods/another", "/kubepods/third"):
        card.stalls(cgroup, some=0, full=0)
    card.stalls(worst, some=0.5, full=0.2)
    card.live(22, active=0.2)
    assert card.shown(catalog.GPU_TENANT_PRESSURE) == {("confirmed", "llama"): 2}


def test_what_the_whole_machine_waits_for_is_blamed_on_nobody(tmp_path):
    """A process in the root cgroup, one outside of our namespace, one in none, one whose file is gone."""
    card = Card(tmp_path)
    for pid, cgroup in enumerate(("/", "/../x", "", "/gone"), 4000):
        card.process(cgroup)
        card.hub.usage.learn("", pid, f"service-{pid}")
    for cgroup in ("/", "/../x"):
        card.stalls(cgroup, some=0.9, full=0.9)
    card.live(22)
    assert card.shown(catalog.GPU_TENANT_PRESSURE) == {}


def test_mounts_and_each_cgroup_are_read_once_for_all_tenants(tmp_path, monkeypatch):
    """A hundred tenants in two cgroups."""
    read = []
    monkeypatch.setattr(psi, "unified_mount", lambda _: read.append("mounts") or tmp_path)
    monkeypatch.setattr(psi, "read", read.append)
    pressures = Pressures(tmp_path)
    for number in range(100):
        assert pressures.of(Tenant(f"tenant-{number}", frozenset({"/a", "/b"}))) == []
    assert len(read) == 3


# C2, and rules


def shipped(name):
    """A bench with one of the shipped rules."""
    return Bench(loaded=[rule for rule in load_rules([folder("alerts/rules")]) if rule.rule.name == name])


def play_on(bench, readings):
    """What was read, at the pace that it was read."""
    first = readings[0].time
    for one in readings:
        bench.at(1 + (one.time - first) / 1e9)
        bench.reading(one.metric, 1 + (one.time - first) / 1e9, one.value, **one.labels)


def test_memory_that_climbs_to_97_percent_asks_for_eviction_then_a_pause_then_trips(rig):
    """Each level in its turn, 30 s above 95 % as a reading of its own, and the breaker's rule."""
    one = rig("gpu GPU-a 81920 640", "memory ramp 49152 79462 1", "utilization constant 91")

    def ratio():
        one.rounds(1)
        return one.shown(catalog.GPU_MEMORY_USED_RATIO, **GPU)

    eventually("the ramp is over", lambda: ratio() == pytest.approx(0.97, abs=0.001))
    assert [firing.labels["hook"] for firing in one.sink.firings] == ["evict", "pause"]
    assert one.shown(catalog.GPU_MEMORY_SATURATED, **GPU) == 0
    one.rounds(315, seconds=0.1)
    assert one.shown(catalog.GPU_MEMORY_SATURATED, **GPU) == 1
    bench = shipped("GpuMemoryCritical")
    play_on(bench, [r for r in one.sink.readings if r.metric == catalog.GPU_MEMORY_USED_RATIO.name])
    assert [firing.labels for firing in bench.firings if firing.active] == [{"severity": "critical", **GPU}]


def test_a_card_that_was_lost_for_a_moment_begins_its_30_seconds_anew(rig):
    """Nobody knows how full it was meanwhile."""
    full = gpu("GPU-a", memory="constant 79462")
    one = rig(full, retry_interval="1s")
    one.rounds(200, seconds=0.1)
    one.play("error nvmlDeviceGetMemory * 999", full)
    one.rounds(1)
    assert one.shown(catalog.GPU_UP, **GPU) == 0
    one.play(full)
    one.rounds(200, seconds=0.1)
    assert one.shown(catalog.GPU_UP, **GPU) == 1
    assert one.shown(catalog.GPU_MEMORY_SATURATED, **GPU) == 0
    one.rounds(150, seconds=0.1)
    assert one.shown(catalog.GPU_MEMORY_SATURATED, **GPU) == 1


def test_the_first_xid_error_of_a_card_fires_its_rule(rig):
    """It is often the only one: a card that fell off the bus says nothing more."""
    one = rig(gpu("GPU-a"), "xid 79 0")

    def told():
        one.rounds(1, seconds=1)
        return one.sink.of(catalog.GPU_XID_ERRORS)

    eventually("it is told", told)
    bench = shipped("GpuXid")
    play_on(bench, [r for r in one.sink.readings if r.metric == catalog.GPU_XID_ERRORS.name])
    assert [firing.labels for firing in bench.firings if firing.active] == [
        {"severity": "critical", "xid": "79", **GPU}
    ]
