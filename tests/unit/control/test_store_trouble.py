"""The file of breakers under a running bridge: locked, damaged, no room; breakers go on, and it is said."""

from __future__ import annotations

import os
import sqlite3

import pytest

from otel_bridge import catalog
from tests.support.control import World
from tests.support.processes import eventually

KEY = "llama/8b"


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    """Tried again at once instead of each 10 s."""
    monkeypatch.setattr("otel_bridge.control.store._BUSY", 0.05)
    monkeypatch.setattr("otel_bridge.control.store._RETRY", 0.05)


def up(world: World) -> float:
    """Whether the file is in use."""
    return world.telemetry.value(catalog.CONTROL_STORE_UP, store="sqlite")


def running(file) -> World:
    """A bridge that has written something."""
    world = World(file=file)
    world.calls("before", *[3.0] * 5)
    assert world.store.flush(20)
    assert up(world) == 1
    return world


def trip(world: World, key: str = KEY) -> None:
    """Calls that trip: the breaker opens whatever the file does."""
    world.calls(key, *[3.0] * 5)
    assert world.state(key) == "open"
    assert not world.decider.decide_here(key, "").allow


def kept(world: World, file) -> World:
    """What the next bridge finds."""
    assert world.store.flush(20)
    world.store.close(20)
    return World(world.clock, file)


def test_locked_while_it_runs(tmp_path, capsys):
    """By somebody's shell: said, nothing waits for it, and all is written afterwards."""
    file = tmp_path / "s"
    world = running(file)
    locker = sqlite3.connect(file, isolation_level=None)
    locker.execute("BEGIN IMMEDIATE")
    trip(world)
    eventually("the lock is noticed", lambda: not up(world))
    trip(world, "another")
    assert world.history()[-1].target == "another", "the newest entries are shown from memory"
    locker.execute("ROLLBACK")
    locker.close()
    eventually("it is written again", lambda: up(world))
    assert "breakers cannot be written" in "".join(capsys.readouterr())
    again = kept(world, file)
    assert {key: again.state(key) for key in ("before", KEY, "another")} == dict.fromkeys(
        ("before", KEY, "another"), "open"
    )
    assert {entry.target for entry in again.history()} >= {"before", KEY, "another"}
    assert not list(tmp_path.glob("*.damaged-*"))
    again.store.close(20)


def test_damaged_while_it_runs(tmp_path, capsys):
    """The old file is kept, a new one begun with all that is known, said loudly, without a restart."""
    file = tmp_path / "s"
    world = running(file)
    ruined = os.urandom(file.stat().st_size)
    with file.open("r+b") as raw:
        raw.write(ruined)
    # What only was in the journal is gone as well.
    for suffix in ("-wal", "-shm"):
        path = file.with_name(file.name + suffix)
        with path.open("r+b") as raw:
            raw.write(os.urandom(path.stat().st_size))
    trip(world)
    (found,) = eventually("it is put aside", lambda: list(tmp_path.glob("s.damaged-*[0-9]")))
    assert found.read_bytes()[:100] == ruined[:100]
    eventually("a new one is in use", lambda: up(world))
    assert "is damaged" in "".join(capsys.readouterr())
    assert world.telemetry.value(catalog.CONTROL_STORE_DAMAGED) >= 1
    again = kept(world, file)
    assert {key: again.state(key) for key in ("before", KEY)} == {"before": "open", KEY: "open"}
    assert any(entry.cause == "lost" and str(found) in entry.reason for entry in again.history())
    again.store.close(20)


def test_a_full_disk(tmp_path, capsys):
    """Nothing more fits: said, and written when there is room."""
    file = tmp_path / "s"
    world = running(file)
    database = world.store._db
    (pages,) = database.execute("PRAGMA page_count").fetchone()
    database.execute(f"PRAGMA max_page_count={pages}")
    for number in range(200):
        trip(world, f"target-{number}")
    eventually("it is noticed", lambda: "database or disk is full" in "".join(capsys.readouterr()))
    # The next connection has no such limit: there is room again.
    eventually("it is written again", lambda: up(world))
    again = kept(world, file)
    assert sum(again.state(f"target-{number}") == "open" for number in range(200)) == 200
    again.store.close(20)
