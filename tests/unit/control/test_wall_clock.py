"""A wall clock that is set is one line in the audit log."""

from __future__ import annotations

import pytest

from otel_bridge.control.wall_clock import WallClock
from tests.support.control import World


@pytest.mark.parametrize("step", [-3600.0, -1.5, 3600.0])
async def test_a_clock_that_is_set_is_said_once(step):
    """Whichever way; and once more when it is set back."""
    world = World()
    watch = WallClock(world.clock, world.board.audit)
    for seconds in (step, 0.0, -step):
        world.clock.step_wall(seconds)
        for _ in range(3):
            await world.clock.advance(0.05)
            watch.look()
    entries = world.history()
    assert [(entry.event, entry.cause) for entry in entries] == [("clock", "set")] * 2
    assert f"set by {step:+.1f} s" in entries[0].reason
    assert f"set by {-step:+.1f} s" in entries[1].reason


async def test_a_clock_that_is_slewed_is_not():
    """By 500 ppm, for a week."""
    world = World()
    watch = WallClock(world.clock, world.board.audit)
    for _ in range(7 * 24):
        world.clock.step_wall(3600 * 500e-6 / 4)
        await world.clock.advance(3600)
        watch.look()
    assert not world.history()
