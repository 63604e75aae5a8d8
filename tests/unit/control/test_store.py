"""The file of breakers: what survives, and what happens when it cannot be used."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from otel_bridge import catalog
from otel_bridge.control import machine
from otel_bridge.control.machine import Mode
from tests.support.control import World

KEY = "llama/8b"


def open_one(world: World) -> None:
    world.calls(KEY, *[3.0] * 5)
    assert world.state(KEY) == "open"


def test_a_restart_takes_up_what_was_open(tmp_path):
    """With the same end, and the audit log."""
    world = World(file=tmp_path / "s")
    open_one(world)
    world.store.close(5)
    again = World(world.clock, tmp_path / "s")
    assert again.record(KEY).until == world.record(KEY).until
    assert next(entry.after for entry in again.history(KEY)) == "open"
    again.store.close(5)


@pytest.mark.parametrize("step", [-3600.0, 0.0, 3600.0])
async def test_a_restart_in_the_same_boot_goes_by_elapsed_time(tmp_path, step):
    """Whatever was done to the wall clock."""
    world = World(file=tmp_path / "s")
    open_one(world)
    world.store.close(5)
    await world.clock.advance(50)
    world.clock.step_wall(step)
    again = World(world.clock, tmp_path / "s")
    assert again.state(KEY) == "open"
    await again.pass_time(10)
    assert again.state(KEY) == "half_open"
    again.store.close(5)


@pytest.mark.parametrize("step", [-1e6, -3600.0, 0.0, 3600.0])
async def test_after_another_boot_never_longer_than_one_open_time(tmp_path, step):
    """The wall clock is all there is then, and it may be wrong."""
    world = World(file=tmp_path / "s")
    open_one(world)
    world.store.close(5)
    world.clock.step_wall(step)
    again = World(world.clock, tmp_path / "s", boot="another")
    remaining = again.record(KEY).until - again.clock.monotonic()
    assert remaining <= 60
    await again.pass_time(60)
    assert again.state(KEY) == "half_open"
    again.store.close(5)


@pytest.mark.parametrize(("forced", "longest"), [(False, 60.0), (True, 3600.0)])
def test_after_another_boot_an_operators_long_open_has_a_lease_again(tmp_path, forced, longest):
    """The open time, or the lease of a forced one: a wall clock that stood still must not prolong it."""
    world = World(file=tmp_path / "s")
    open_one(world)
    breaker = world.board.find(KEY)
    order = machine.force_open if forced else machine.open_for
    world.board.operate(breaker, breaker.step(order, 86_400.0, "drill"), "me", "drill")
    world.store.close(5)
    again = World(world.clock, tmp_path / "s", boot="another")
    assert again.record(KEY).until - again.clock.monotonic() == longest
    again.store.close(5)


def test_what_an_operator_said_survives(tmp_path):
    """A disabled breaker is disabled after a restart."""
    world = World(file=tmp_path / "s")
    open_one(world)
    breaker = world.board.find(KEY)
    world.board.operate(breaker, breaker.step(machine.disable, "drill"), "me", "drill")
    world.store.close(5)
    again = World(world.clock, tmp_path / "s")
    assert again.record(KEY).mode is Mode.DISABLED
    assert [entry.actor for entry in again.history(KEY) if entry.reason == "drill"] == ["me"]
    again.store.close(5)


async def test_an_operator_s_long_open_and_observe_survive(tmp_path):
    """Within one boot the times are exact, and nothing is cut."""
    world = World(file=tmp_path / "s")
    for key, function, *rest in (
        ("a", machine.open_for, 14_400.0),
        ("b", machine.decide_by_itself, Mode.OBSERVE),
    ):
        breaker = world.board.obtain(key)
        world.board.operate(breaker, breaker.step(function, *rest, "drill"), "me", "drill")
    world.store.close(5)
    await world.clock.advance(7200)
    again = World(world.clock, tmp_path / "s")
    assert again.record("a").until == world.record("a").until
    assert again.record("b").mode is Mode.OBSERVE
    again.store.close(5)


def test_kill_9_loses_nothing_that_was_flushed(tmp_path):
    """A child trips a breaker, says so, and is killed."""
    script = textwrap.dedent(
        f"""
        import os, pathlib, signal
        from tests.support.control import World
        world = World(file=pathlib.Path({str(tmp_path / "s")!r}))
        world.calls({KEY!r}, *[3.0] * 5)
        assert world.store.flush(5)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    done = subprocess.run([sys.executable, "-c", script], check=False, cwd=Path.cwd())
    assert done.returncode == -9
    again = World(file=tmp_path / "s")
    assert again.state(KEY) == "open"
    assert next(entry.cause for entry in again.history(KEY)) == "slow_calls"
    again.store.close(5)


@pytest.mark.parametrize("damage", ["header", "garbage", "half", "page"])
def test_a_damaged_file_is_kept_and_a_new_one_begun(tmp_path, damage, capsys):
    """Said loudly: on the log, in the audit log, in a metric."""
    file = tmp_path / "s"
    world = World(file=file)
    for number in range(200):
        world.calls(f"t{number}", *[3.0] * 5)
    world.store.close(5)
    data = file.read_bytes()
    ruined = {
        "header": b"\0" * 100 + data[100:],
        "garbage": os.urandom(5000),
        "half": data[: len(data) // 2],
        "page": data[:4096] + b"\xff" * 8192 + data[12288:],
    }[damage]
    file.write_bytes(ruined)
    again = World(world.clock, file)
    (kept,) = tmp_path.glob("s.damaged-*")
    assert kept.read_bytes() == ruined
    assert not again.board.breakers()
    assert again.telemetry.value(catalog.CONTROL_STORE_DAMAGED) == 1
    assert again.telemetry.value(catalog.CONTROL_STORE_UP, store="sqlite") == 1
    assert str(kept) in again.history()[0].reason
    assert "the state of breakers is lost" in "".join(capsys.readouterr())
    open_one(again)
    again.store.close(5)
    last = World(world.clock, file)
    assert last.state(KEY) == "open"
    last.store.close(5)


def test_a_damaged_record_costs_only_itself(tmp_path):
    """The others are taken up."""
    file = tmp_path / "s"
    world = World(file=file)
    open_one(world)
    world.calls("other", *[3.0] * 5)
    world.store.close(5)
    with sqlite3.connect(file) as db:
        db.execute("UPDATE breakers SET record = ? WHERE target = 'other'", (b'{"clocks": {}, "record": 1}',))
    db.close()
    again = World(world.clock, file)
    assert again.state(KEY) == "open"
    assert again.board.find("other") is None
    again.store.close(5)


def test_two_bridges_on_one_file(tmp_path, capsys):
    """The second works in memory, leaves the file alone, and says so."""
    world = World(file=tmp_path / "s")
    open_one(world)
    second = World(world.clock, tmp_path / "s")
    assert second.board.find(KEY) is None
    assert "another bridge uses it" in second.history()[0].reason
    assert second.telemetry.value(catalog.CONTROL_STORE_UP, store="sqlite") == 0
    open_one(second)
    assert [entry.after for entry in second.history(KEY)] == ["open"]
    second.store.close(5)
    world.store.close(5)
    assert not list(tmp_path.glob("*.damaged-*"))


def test_a_file_locked_by_somebody_else(tmp_path, monkeypatch):
    """The same, and it is used as soon as it can be."""
    monkeypatch.setattr("otel_bridge.control.store._BUSY", 0.05)
    monkeypatch.setattr("otel_bridge.control.store._RETRY", 0.05)
    file = tmp_path / "s"
    World(file=file).store.close(5)
    locker = sqlite3.connect(file, isolation_level=None)
    locker.execute("PRAGMA locking_mode=EXCLUSIVE")
    locker.execute("BEGIN EXCLUSIVE")
    world = World(file=file)
    assert "cannot be used" in world.history()[0].reason
    open_one(world)
    locker.close()
    import time

    end = time.monotonic() + 10
    while not world.telemetry.value(catalog.CONTROL_STORE_UP, store="sqlite") and time.monotonic() < end:
        time.sleep(0.02)
    assert world.store.flush(5)
    world.store.close(5)
    again = World(world.clock, file)
    assert again.state(KEY) == "open"
    assert next(entry.after for entry in again.history(KEY)) == "open"
    again.store.close(5)


def test_a_place_that_cannot_be_written(tmp_path):
    """A file stands where a directory should."""
    (tmp_path / "x").write_text("")
    world = World(file=tmp_path / "x" / "s")
    open_one(world)
    assert "set control.state.file" in world.history()[0].reason
    world.store.close(5)


def test_the_audit_log_is_bounded(tmp_path):
    """The oldest entries go."""
    world = World(file=tmp_path / "s", state={"file": str(tmp_path / "s"), "max_audit_entries": 100})
    for number in range(500):
        world.board.audit("t", "operator", "x", str(number))
    entries = world.store.history("t", 10_000)
    assert entries[0].reason == "499"
    assert len(entries) <= 100
    world.store.close(5)


def test_the_file_is_its_owner_s_alone(tmp_path):
    """It names services and people."""
    world = World(file=tmp_path / "d" / "s")
    open_one(world)
    world.store.close(5)
    assert (tmp_path / "d" / "s").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "d").stat().st_mode & 0o777 == 0o700
