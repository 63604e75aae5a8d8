"""Calls that began before a breaker changed say nothing about the target since, whatever clocks show."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_bridge.control.breaker import LATEST_NEWS, Breaker, Calls
from otel_bridge.control.config import ControlConfig
from otel_bridge.control.machine import Cause, Record
from tests.support.control import SECOND, World

KEY = "llama/8b"
CLOSED_AT = 5_000.0
WALL = 1_700_000_000 * SECOND
"""Of the bridge, when its monotonic clock shows CLOSED_AT."""
HOURS = 10 * 3600
milliseconds = st.integers(1, HOURS * 1000).map(lambda number: number / 1000)


def counts(began: float, took: float, under_way: float, skew: float) -> bool:
    """Whether a call counts.

    Args:
        began: seconds after the breaker closed.
        took: its seconds.
        under_way: from its end to the bridge.
        skew: what the service's clock shows more than the bridge's.
    """
    breaker = Breaker(KEY, ControlConfig().policy(KEY), 0.0)
    breaker.record = Record(since=CLOSED_AT, cause=Cause.PROBES_PASSED)
    told = began + took + under_way
    start = WALL + round((began + skew) * SECOND)
    # Of others in the batch, one that took no time at all and one that took ages, it takes nothing over.
    batch = Calls(
        np.array([0.0, took, 2.0 * HOURS + told]),
        np.zeros(3, np.bool_),
        np.zeros(3, np.bool_),
        np.full(3, start, "<u8"),
        np.zeros(3, "V16"),
    )
    _, found, _ = breaker.began_since(batch, CLOSED_AT + told, WALL + round(told * SECOND)).tolist()
    return bool(found)


@given(milliseconds, milliseconds, st.integers(-HOURS, HOURS))
def test_a_call_that_is_told_of_at_its_end_is_judged_without_its_clock(before, longer, skew):
    """One that was under way when the breaker closed, however long it took, and wherever its clock is."""
    assert not counts(-before, before + longer, 0.0, skew)


@given(milliseconds, milliseconds, st.floats(0, LATEST_NEWS), st.booleans())
def test_with_one_clock_what_began_after_counts_and_nothing_else(away, took, under_way, after):
    """As long as its span was not under way for longer than is allowed for."""
    began = away if after else -away
    if began + took + under_way >= 0:  # it is told of after the change
        assert counts(began, took, under_way, 0.0) is after


@given(milliseconds, milliseconds, milliseconds, st.integers(-HOURS, HOURS))
def test_a_wrong_clock_blinds_nobody_for_long(later, took, under_way, skew):
    """Half a minute after the change every call counts."""
    assert counts(LATEST_NEWS + later, took, under_way, skew)


async def closed_again(**config) -> World:
    """A breaker that tripped, and whose probes have passed just now."""
    world = World(**config)
    world.calls(KEY, *[3.0] * 5)
    await world.pass_time(60)
    await world.pass_time(1)
    world.calls(KEY, *[0.1] * 5)
    assert [entry.after for entry in world.history(KEY)] == ["open", "half_open", "closed"]
    return world


@pytest.mark.parametrize("error", [False, True])
async def test_what_was_under_way_at_the_recovery_does_not_trip_again(error):
    """Neither as slow nor as failed, in any number, in one batch with the probes or later."""
    world = await closed_again()
    world.calls(KEY, *[70.0] * 50, error=error)
    for _ in range(20):
        await world.pass_time(1)
        world.calls(KEY, *[70.0] * 50, error=error)
    assert world.state(KEY) == "closed"


async def test_what_began_after_the_recovery_trips_at_once():
    """As before; what was under way neither helps nor hinders the run."""
    world = await closed_again()
    await world.pass_time(3)
    world.calls(KEY, *[2.5] * 4)
    world.calls(KEY, *[4.0] * 9)
    assert world.state(KEY) == "closed"
    world.calls(KEY, 2.5)
    assert world.state(KEY) == "open"
    assert world.record(KEY).reason == "5 calls in a row were slower than 2000 ms"


async def test_a_new_breaker_has_no_time_before_it():
    """The call that made it began before it, and counts."""
    world = World()
    world.calls(KEY, *[3600.0] * 5)
    assert world.state(KEY) == "open"


async def test_probes_come_back_though_a_services_clock_is_behind():
    """Where nobody asks for permits, calls are the probes; a wrong clock only delays them."""
    world = World()
    world.calls(KEY, *[3.0] * 5)
    await world.pass_time(60)
    await world.pass_time(1)
    behind = world.clock.time_ns()
    world.clock.step_wall(3600)
    for _ in range(5):
        world.calls(KEY, 0.1, wall=behind)
    assert world.state(KEY) == "half_open"
    await world.pass_time(LATEST_NEWS)
    for _ in range(5):
        world.calls(KEY, 0.1, wall=behind)
    assert world.state(KEY) == "closed"
