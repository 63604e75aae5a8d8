"""What trips a breaker: E1's defaults, to the call and to the millisecond."""

from __future__ import annotations

import threading
import time

import pytest

from otel_bridge import catalog
from otel_bridge.breakers import State
from otel_bridge.control import machine
from otel_bridge.firings import Firing
from otel_bridge.readings import Reading
from tests.support.control import Recorder, World

KEY = "llama/8b"


def test_five_slow_calls_in_a_row_trip():
    """More than 2000 ms, five times, and not before."""
    world = World()
    world.calls(KEY, 2.001, 2.001, 2.001, 2.001)
    assert world.state(KEY) == "closed"
    world.calls(KEY, 2.001)
    assert world.state(KEY) == "open"
    assert world.record(KEY).cause.value == "slow_calls"


def test_the_reason_counts_calls():
    """One is no row."""
    for consecutive, said in ((1, "1 call was slower than 2000 ms"), (2, "2 calls in a row were slower")):
        world = World(policies=[{"slow_calls": {"consecutive": consecutive}}])
        world.calls(KEY, *[2.001] * consecutive)
        assert world.record(KEY).reason.startswith(said)


@pytest.mark.parametrize("seconds", [(2.1, 2.1, 2.0, 2.1, 2.1, 2.1, 2.1), (2.0,) * 9])
def test_a_call_of_two_seconds_is_not_slow(seconds):
    """The limit is what must be exceeded, and a call below it breaks the run."""
    world = World()
    world.calls(KEY, *seconds)
    assert world.state(KEY) == "closed"


def test_a_run_goes_across_batches_and_within_one():
    """However spans are batched, five in a row are five in a row."""
    one, several = World(), World()
    took = (0.1, 3.0, 3.0, 3.0, 3.0, 3.0, 0.1)
    one.calls(KEY, *took)
    for seconds in took:
        several.calls(KEY, seconds)
    assert one.state(KEY) == several.state(KEY) == "open"


def test_a_run_that_ended_within_the_batch_trips_too():
    """The last call being fast does not undo the five before it."""
    world = World()
    world.calls(KEY, *[3.0] * 5, 0.1)
    assert world.state(KEY) == "open"


async def test_more_than_half_failing_in_a_minute_trips():
    """Half does not; older calls fall out of the window."""
    world = World()
    world.calls(KEY, *[0.1] * 10)
    world.calls(KEY, *[0.1] * 10, error=True)
    assert world.state(KEY) == "closed"
    world.calls(KEY, 0.1, error=True)
    assert world.state(KEY) == "open"
    assert world.record(KEY).cause.value == "error_rate"

    old = World()
    old.calls(KEY, *[0.1] * 9, error=True)
    await old.pass_time(62)
    old.calls(KEY, *[0.1] * 9)
    old.calls(KEY, *[0.1] * 2, error=True)
    assert old.state(KEY) == "closed"


def test_a_rate_needs_a_minimum_of_calls():
    """Nine failures say nothing, ten do."""
    world = World()
    world.calls(KEY, *[0.1] * 9, error=True)
    assert world.state(KEY) == "closed"
    world.calls(KEY, 0.1, error=True)
    assert world.state(KEY) == "open"


def test_a_window_of_counted_calls():
    """The last so many calls count, whenever they were."""
    policy = {"window": {"type": "count", "calls": 20, "minimum_calls": 20}, "targets": ["*"]}
    world = World(policies=[policy])
    world.calls(KEY, *[0.1] * 19, error=True)
    assert world.state(KEY) == "closed"
    world.calls(KEY, 0.1)
    assert world.state(KEY) == "open"
    other = World(policies=[policy])
    other.calls(KEY, *[0.1] * 19, error=True)
    assert other.state(KEY) == "closed"


def test_a_rate_of_slow_calls():
    """Off by default; then a share of the window."""
    policy = {"slow_calls": {"threshold": "1s", "consecutive": None, "rate": 0.3}}
    world = World(policies=[policy])
    world.calls(KEY, *[0.1] * 7, 1.5, 1.5, 1.5)
    assert world.state(KEY) == "closed"
    world.calls(KEY, 1.5)
    assert world.record(KEY).cause.value == "slow_rate"


def test_timeouts_of_80_ms_where_configured():
    """Three in a row; nobody counts them unless told to."""
    world = World(policies=[{"targets": ["llama/*"], "timeouts": {}}])
    for key in (KEY, "qwen/7b"):
        world.calls(key, 0.081, 0.081)
        assert world.state(key) == "closed"
        world.calls(key, 0.081)
    assert world.record(KEY).cause.value == "timeouts"
    assert world.state("qwen/7b") == "closed"


def test_calls_that_say_nothing_do_not_count():
    """Neither as errors nor as good ones."""
    world = World()
    world.calls(KEY, *[0.1] * 100, error=True, ignored=True)
    assert world.state(KEY) == "closed"
    world.calls(KEY, *[3.0] * 2)
    world.calls(KEY, 0.1, ignored=True)
    world.calls(KEY, *[3.0] * 3)
    assert world.state(KEY) == "open"


def memory(world: World, ratio: float) -> None:
    reading = Reading(catalog.GPU_MEMORY_USED_RATIO.name, {"gpu_uuid": "0"}, ratio, world.clock.time_ns())
    world.sources.take_readings([reading])


async def test_gpu_memory_above_95_percent_for_30_seconds():
    """At 95 % nothing; a dip begins anew; at 30 s every target of the node."""
    world = World()
    world.calls(KEY, 0.1)
    for _ in range(40):
        memory(world, 0.95)
        await world.pass_time(1)
    memory(world, 0.96)
    await world.pass_time(29)
    # Readings come each second; a silence of 29 s is stale, and begins anew.
    memory(world, 0.96)
    assert world.state(KEY) == "closed"
    for _ in range(30):
        assert world.state(KEY) == "closed"
        await world.pass_time(1)
        memory(world, 0.96)
    assert world.state(KEY) == "open"
    assert world.record(KEY).cause.value == "reading"


async def test_stale_readings_trip_nothing_and_silence_closes_nothing():
    """cases.md gpu-lost (a): 20 s at 96 %, then NVML fails for 120 s, then good again."""
    world = World()
    world.calls(KEY, 0.1)
    for _ in range(20):
        memory(world, 0.96)
        await world.pass_time(1)
    await world.pass_time(120)
    memory(world, 0.5)
    assert world.state(KEY) == "closed"
    assert not world.history(KEY)


async def test_memory_that_stays_high_keeps_it_open():
    """A leased open is prolonged by what tripped it, and told as one open."""
    world = World()
    world.calls(KEY, 0.1)
    for _ in range(200):
        memory(world, 0.99)
        await world.pass_time(1)
    assert world.state(KEY) == "open"
    assert len(world.history(KEY)) == 1


async def test_what_came_before_an_open_does_not_count_after_it():
    """The window is empty when the breaker closes again."""
    world = World()
    world.calls(KEY, *[0.1] * 11, error=True)
    assert world.state(KEY) == "open"
    world.board.operate(
        world.board.find(KEY), world.board.find(KEY).step(machine.close, "mended"), "me", "mended"
    )
    await world.pass_time(1)
    world.calls(KEY, *[0.1] * 9, error=True)
    assert world.state(KEY) == "closed"
    world.calls(KEY, 0.1, error=True)
    assert world.state(KEY) == "open"


def test_a_breaker_of_the_service_governs_its_models():
    """The general refuses for the particular, not the other way."""
    world = World()
    firing(world, "llama")
    assert not world.decider.decide_here("llama/8b", "").allow
    assert world.decider.decide_here("llama/8b", "").target == "llama"
    assert world.decider.decide_here("qwen/7b", "").allow
    assert world.decider.decide_here("llama2", "").allow


def firing(world: World, target: str, *, active: bool = True, rule: str = "R", **labels: str) -> None:
    world.sources.take_firing(
        Firing(
            rule,
            {"service": "llama", **labels},
            active,
            world.clock.time_ns(),
            {"summary": "GPU stalls"},
            (bytes(16),),
            target,
            time.monotonic_ns(),
        )
    )


async def test_a_rule_holds_as_long_as_it_fires():
    """Without a gap, for far longer than its lease; then half-open."""
    world = World()
    firing(world, KEY)
    for _ in range(600):
        await world.pass_time(3)
        assert world.state(KEY) == "open"
    firing(world, KEY, active=False)
    assert world.state(KEY) == "half_open"
    assert [entry.cause for entry in world.history(KEY)] == ["rule", "resolved"]


async def test_a_rule_that_was_lost_with_its_process_ends_by_its_lease(tmp_path):
    """A restarted bridge does not know what the rule says now."""
    world = World(file=tmp_path / "state")
    firing(world, KEY)
    assert world.store.flush(5)
    world.store.close(5)
    again = World(world.clock, tmp_path / "state")
    assert again.state(KEY) == "open"
    await again.pass_time(59)
    assert again.state(KEY) == "open"
    await again.pass_time(1)
    assert again.state(KEY) == "half_open"
    assert again.record(KEY).reason == "its lease ran out"
    again.store.close(5)


async def test_two_alerts_hold_until_both_resolve():
    """Alerts are told apart by rule and labels."""
    world = World()
    firing(world, KEY, gpu="0")
    firing(world, KEY, gpu="1")
    firing(world, KEY, active=False, gpu="0")
    assert world.state(KEY) == "open"
    firing(world, KEY, active=False, gpu="1")
    assert world.state(KEY) == "half_open"


def test_rules_trip_from_any_thread():
    """Many at once, each counted once, and the gate hears of every change in order."""
    world = World()
    gate = Recorder()
    world.board.add_gate(gate, _action())
    threads = [
        threading.Thread(target=firing, args=(world, f"svc{number % 5}"), kwargs={"n": str(number)})
        for number in range(40)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(gate.changes) == 5
    assert all(len(world.record(f"svc{number}").holds) == 8 for number in range(5))


def _action(**fields):
    from otel_bridge.control.actions.limits import ActionConfig

    return ActionConfig.model_validate({"targets": ["*"], **fields})


@pytest.mark.parametrize("target", ["", "a/b/c/d/e", "//"])
def test_a_rule_without_a_target_trips_nothing(target):
    """Nor does it raise: rules must go on."""
    world = World()
    firing(world, target)
    assert not world.board.breakers()


def test_a_target_is_data(tmp_path):
    """Shell and path characters are quoted, whatever a label holds."""
    world = World()
    firing(world, "../../etc/$(reboot);`x`")
    (breaker,) = world.board.breakers()
    assert breaker.key == "../../etc/%24%28reboot%29%3B%60x%60"


def test_targets_are_bounded():
    """Idle ones make room, open ones stay, and what finds no room is counted."""
    world = World(targets={"max_targets": 3})
    for number in range(10):
        world.calls(f"idle{number}", 0.1)
    assert len(world.board.breakers()) == 3
    for number in range(3):
        firing(world, f"open{number}")
    firing(world, "late")
    assert {breaker.key for breaker in world.board.breakers()} == {"open0", "open1", "open2"}
    assert world.telemetry.value(catalog.CONTROL_TARGETS_REFUSED, reason="full") == 1
    assert world.telemetry.value(catalog.CONTROL_STATE, target="idle9") == 0


def test_targets_that_are_not_allowed_have_no_breaker():
    """The allow-list is the operator's."""
    world = World(targets={"allowed": ["llama/*"]})
    firing(world, "qwen")
    firing(world, KEY)
    assert [breaker.key for breaker in world.board.breakers()] == [KEY]
    assert world.telemetry.value(catalog.CONTROL_TARGETS_REFUSED, reason="not_allowed") == 1


def test_observe_decides_and_refuses_nothing():
    """A dry run of the whole breaker: audit and state, but no refusal, no action, no gate."""
    world = World(policies=[{"mode": "observe"}])
    gate = Recorder()
    world.board.add_gate(gate, _action())
    firing(world, KEY)
    assert world.state(KEY) == "open"
    assert world.decider.decide_here(KEY, "").allow
    assert not gate.changes
    assert not world.told.changes
    assert [entry.after for entry in world.history(KEY)] == ["open/observe"]


async def test_observe_comes_back_by_spans_alone():
    """Nobody asks for permits there; spans are the probes."""
    world = World(policies=[{"mode": "observe"}])
    world.calls(KEY, *[3.0] * 5)
    await world.pass_time(60)
    assert world.state(KEY) == "half_open"
    await world.pass_time(1)
    world.calls(KEY, *[0.1] * 5)
    assert world.state(KEY) == "closed"


def test_what_refuses_goes_first(monkeypatch):
    """The gate, then who answers gateways elsewhere; then disk and audit log, and actions at the end."""
    world = World()
    gate = Recorder()
    world.board.add_gate(gate, _action())
    done: list[str] = []

    class Mirror:
        def show(self, _breaker):
            done.append("mirror")

    world.board.mirror = Mirror()
    for name, owner, method in (
        ("gate", gate, "apply"),
        ("saved", world.store, "save"),
        ("audited", world.store, "append"),
        ("told", world.told, "submit"),
    ):
        real = getattr(owner, method)
        monkeypatch.setattr(owner, method, lambda *args, n=name, r=real: (done.append(n), r(*args)))
    firing(world, KEY)
    assert done == ["gate", "mirror", "saved", "audited", "audited", "told"]
    assert [entry.event for entry in world.history(KEY)] == ["action", "transition"]


def test_gates_are_told_at_once_and_of_longer_leases():
    """In the deciding thread; with the end on the monotonic clock."""
    world = World()
    gate = Recorder()
    world.board.add_gate(gate, _action())
    firing(world, KEY)
    (change,) = gate.changes
    assert (change.before, change.state) == (State.CLOSED, State.OPEN)
    assert change.until == world.clock.monotonic() + 60
    assert change.evidence == (bytes(16),)
    assert world.telemetry.value(catalog.CONTROL_ACTIONS, action="recorder", result="done") == 1


async def test_a_gate_hears_of_renewals_but_actions_do_not():
    """A gate's lease must follow; a webhook each few seconds would be noise."""
    world = World()
    gate = Recorder()
    world.board.add_gate(gate, _action())
    firing(world, KEY)
    await world.pass_time(30)
    assert [change.renewal for change in gate.changes] == [False, True]
    assert gate.changes[-1].until == world.clock.monotonic() + 60
    assert len(world.told.changes) == 1


def test_a_gate_that_fails_is_audited_and_hinders_nothing():
    """The breaker stands all the same."""
    world = World()
    gate = Recorder()
    gate.error = OSError(2, "the namespace is gone")
    world.board.add_gate(gate, _action())
    firing(world, KEY)
    assert world.state(KEY) == "open"
    assert any("namespace" in entry.reason for entry in world.history(KEY) if entry.event == "action")


def test_a_gate_that_comes_later_hears_what_is_open():
    """Such as after a restart."""
    world = World()
    firing(world, KEY)
    gate = Recorder()
    world.board.add_gate(gate, _action(targets=["llama/*"]))
    assert [change.state for change in gate.changes] == [State.OPEN]


def test_dry_run_and_allow_list_of_a_gate():
    """Written down, not done."""
    world = World()
    dry, other = Recorder(), Recorder()
    dry.name, other.name = "dry", "other"
    world.board.add_gate(dry, _action(dry_run=True))
    world.board.add_gate(other, _action(targets=["qwen/*"]))
    firing(world, KEY)
    assert not dry.changes
    assert not other.changes
    assert [entry.cause for entry in world.history(KEY) if entry.actor == "dry"] == ["dry_run"]


async def test_a_limit_on_opens_never_holds_back_a_release():
    """Two opens a minute; the third is left out, and so is nothing that makes looser."""
    world = World(policies=[{"on_resolve": "close"}])
    gate = Recorder()
    world.board.add_gate(gate, _action(rate_limit={"changes": 2, "interval": "60s"}))
    for number in range(3):
        firing(world, f"svc{number}")
    for number in range(3):
        firing(world, f"svc{number}", active=False)
    done = [(change.target, change.state.value) for change in gate.changes]
    assert done[:2] == [("svc0", "open"), ("svc1", "open")]
    assert {target for target, state in done[2:] if state == "closed"} == {"svc0", "svc1", "svc2"}
    await world.pass_time(60)
    firing(world, "svc2")
    assert gate.changes[-1].target == "svc2"
