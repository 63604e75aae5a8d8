"""What breakers tell people of themselves."""

from __future__ import annotations

from otel_bridge.breakers import State
from tests.support.control import World

KEY = "llama/8b"


async def test_a_breaker_says_what_it_does_why_and_for_how_long():
    """Those that refuse first."""
    world = World()
    world.calls("other", 0.1)
    world.calls(KEY, *[3.0] * 5)
    await world.pass_time(10)
    first, second = world.board.states()
    assert (first.target, first.traffic, first.mode, first.cause) == (KEY, State.OPEN, "auto", "slow_calls")
    assert (round(first.since), round(first.ends_in)) == (10, 50)
    assert "slower" in first.reason
    assert (second.target, second.traffic, second.ends_in) == ("other", State.CLOSED, None)


def test_a_breaker_that_only_observes_lets_traffic_through_and_says_so():
    """Its own state is open, what it does is nothing."""
    world = World(policies=[{"targets": ["*"], "mode": "observe"}])
    world.calls(KEY, *[3.0] * 5)
    [state] = world.board.states()
    assert (state.traffic, state.mode, state.cause) == (State.CLOSED, "observe", "slow_calls")
