"""Decisions and half-open: who is let through, who must wait, how probes end (cases.md cb-half-open)."""

from __future__ import annotations

import pytest

from otel_bridge import catalog
from otel_bridge.control.config import TargetsConfig
from otel_bridge.control.questions import Questions, trace_of
from otel_bridge.errors import MalformedRequestError
from otel_bridge.targets import key_of, levels, parse_key
from tests.support.control import World

KEY = "llama/8b"


def trace(number: int) -> str:
    return f"{number + 1:032x}"


async def tripped() -> World:
    """A world whose breaker has just gone half-open, after 60 s."""
    world = World()
    world.calls(KEY, *[3.0] * 5)
    await world.pass_time(60)
    assert world.state(KEY) == "half_open"
    await world.pass_time(0.001)
    return world


def test_closed_lets_everything_through():
    """Nothing is asked, nothing is created."""
    world = World()
    decision = world.decider.decide_here(KEY, trace(0))
    assert decision.allow
    assert decision.headers() == {"X-Otel-Bridge-State": "closed"}
    assert not world.board.breakers()


async def test_open_refuses_until_the_open_time_ends():
    """With the time that is left, and some chance on top."""
    world = World()
    world.calls(KEY, *[3.0] * 5)
    await world.pass_time(10)
    decision = world.decider.decide_here(KEY, trace(0))
    assert not decision.allow
    assert 50 <= decision.retry_after <= 60
    headers = decision.headers()
    assert headers["X-Otel-Bridge-State"] == "open"
    assert int(headers["X-Retry-After"]) == decision.retry_after * 1000
    assert int(headers["Retry-After"]) >= decision.retry_after


async def test_a_thousand_decisions_at_once_admit_five():
    """995 are refused, with waits that are spread."""
    world = await tripped()
    draws = iter(number / 1000 for number in range(1000))
    world.decider._draw = lambda: next(draws)
    decisions = [world.decider.decide_here(KEY, trace(number)) for number in range(1000)]
    assert sum(decision.allow for decision in decisions) == 5
    waits = [decision.retry_after for decision in decisions if not decision.allow]
    assert len(waits) == 995
    assert max(waits) - min(waits) > 1


async def test_a_trace_is_decided_once():
    """Every hop and every retry of an admitted trace is admitted, on the same permit."""
    world = await tripped()
    for _ in range(20):
        assert world.decider.decide_here(KEY, trace(7)).probe == trace(7)
    assert len(world.record(KEY).permits) == 1


async def test_all_probes_pass():
    """Closed at the fifth, and not before."""
    world = await tripped()
    for number in range(5):
        world.decider.decide_here(KEY, trace(number))
    for number in range(5):
        assert world.state(KEY) == "half_open"
        world.calls(KEY, 0.1, traces=[trace(number)])
    assert world.state(KEY) == "closed"
    assert world.telemetry.value(catalog.CONTROL_PROBES, verdict="passed") == 5


@pytest.mark.parametrize(("seconds", "error"), [(0.1, True), (2.5, False)])
async def test_one_failed_or_slow_probe_opens_again(seconds, error):
    """For a whole open time."""
    world = await tripped()
    for number in range(5):
        world.decider.decide_here(KEY, trace(number))
    for number in range(4):
        world.calls(KEY, 0.1, traces=[trace(number)])
    world.calls(KEY, seconds, error=error, traces=[trace(4)])
    assert world.state(KEY) == "open"
    await world.pass_time(59)
    assert world.state(KEY) == "open"
    await world.pass_time(1.01)
    assert world.state(KEY) == "half_open"


async def test_a_probe_whose_client_left_gives_its_permit_back():
    """It counts neither way; the next request is a probe."""
    world = await tripped()
    for number in range(5):
        world.decider.decide_here(KEY, trace(number))
    for number in range(4):
        world.calls(KEY, 0.1, traces=[trace(number)])
    world.calls(KEY, 0.1, ignored=True, error=True, traces=[trace(4)])
    assert world.state(KEY) == "half_open"
    assert world.decider.decide_here(KEY, trace(5)).probe == trace(5)
    world.calls(KEY, 0.1, traces=[trace(5)])
    assert world.state(KEY) == "closed"


async def test_a_probe_that_never_ends_gives_its_permit_back():
    """Within the probe time-out, even if nobody ticks."""
    world = await tripped()
    for number in range(5):
        world.decider.decide_here(KEY, trace(number))
    assert not world.decider.decide_here(KEY, trace(9)).allow
    await world.clock.advance(30)
    assert world.decider.decide_here(KEY, trace(9)).allow


async def test_probes_that_hang_open_again():
    """Spans of the target came before, so that silence means that requests hang."""
    world = await tripped()
    for batch in range(2):
        for number in range(5):
            assert world.decider.decide_here(KEY, trace(batch * 10 + number)).allow
        await world.pass_time(30)
    assert world.state(KEY) == "open"
    assert world.record(KEY).cause.value == "probes_lost"


async def test_half_open_waits_for_the_first_request():
    """30 minutes without traffic are no reason for anything."""
    world = await tripped()
    await world.pass_time(1800)
    assert world.state(KEY) == "half_open"
    assert world.decider.decide_here(KEY, trace(0)).probe


async def test_requests_that_nobody_asked_about_are_probes_too():
    """Behind a gate that admits a share, there is no decision."""
    world = await tripped()
    await world.pass_time(5)
    world.calls(KEY, 0.1, 0.1, 0.1)
    assert world.record(KEY).passed == 3
    world.calls(KEY, 0.1, 0.1, 0.1)
    assert world.state(KEY) == "closed"


async def test_a_request_from_before_the_half_open_is_no_probe():
    """It was let in by another state, and may have waited since."""
    world = await tripped()
    world.calls(KEY, 60.0)
    assert world.state(KEY) == "half_open"
    assert world.record(KEY).passed == 0


async def test_a_probe_of_the_service_and_its_model_needs_both():
    """A permit that is of no use goes back."""
    world = World()
    for key in ("llama", KEY):
        world.calls(key, *[3.0] * 5)
    await world.pass_time(60)
    for number in range(5):
        assert world.decider.decide_here("llama", trace(number)).allow
    assert not world.decider.decide_here(KEY, trace(9)).allow
    assert not world.record(KEY).permits


async def test_a_request_without_a_trace_is_admitted_too():
    """Under a name of its own."""
    world = await tripped()
    assert len({world.decider.decide_here(KEY, "").probe for _ in range(5)}) == 5
    assert not world.decider.decide_here(KEY, "").allow


async def test_a_fallback_stands_for_the_429():
    """As the policy names it."""
    world = World(
        policies=[{"fallback": "smaller"}], decisions={"fallbacks": {"smaller": {"body": '{"model": "1b"}'}}}
    )
    world.calls(KEY, *[3.0] * 5)
    assert world.decider.decide_here(KEY, "").fallback.body == '{"model": "1b"}'


@pytest.mark.parametrize("step", [-3600.0, 3600.0])
async def test_wall_clock_steps_change_nothing(step):
    """Half-open at T+60 by elapsed time (cases.md cb-store-clock)."""
    world = World()
    world.calls(KEY, *[3.0] * 5)
    await world.pass_time(40)
    world.clock.step_wall(step)
    await world.pass_time(19.9)
    assert world.state(KEY) == "open"
    await world.pass_time(0.2)
    assert world.state(KEY) == "half_open"


# Questions

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_question_in_headers():
    """A target and a trace."""
    questions = Questions(TargetsConfig())
    headers = {"x-otel-bridge-service": "llama", "x-otel-bridge-model": "meta/8b", "traceparent": PARENT}
    assert questions.read(headers) == ("llama/meta%2F8b", "0af7651916cd43dd8448eb211c80319c")


def test_what_the_gateway_names_goes_before_what_a_client_sent():
    """A client must not choose its breaker."""
    questions = Questions(TargetsConfig())
    headers = {"x-otel-bridge-service": "harmless", "x-otel-bridge-model": "8b"}
    assert questions.read(headers, "service=llama")[0] == "llama/8b"
    assert questions.read(headers, extra={"service": "llama", "model": "70b"})[0] == "llama/70b"
    assert questions.read(headers, body=b'{"service": "llama"}')[0] == "llama/8b"


@pytest.mark.parametrize("body", [b"[]", b"{", b'{"service": 1}', b"\xff", b"null"])
def test_a_body_that_is_no_question(body):
    """Said, not guessed."""
    with pytest.raises(MalformedRequestError):
        Questions(TargetsConfig()).read({}, body=body)


@pytest.mark.parametrize(
    "text", ["", "00", PARENT[:30], PARENT.replace("-", "_"), PARENT.upper(), "00-" + "0" * 32 + "-x-01"]
)
def test_what_is_no_traceparent(text):
    """No trace id is made up."""
    assert trace_of(text) == ""


@pytest.mark.parametrize(
    ("parts", "key"),
    [
        (["llama"], "llama"),
        (["llama", ""], "llama"),
        (["", "8b"], "-/8b"),
        (["-", "8b"], "%2D/8b"),
        (["", ""], ""),
        (["a/b", "c d"], "a%2Fb/c%20d"),
        (["é"], "%C3%A9"),
        (["a\x00\n"], "a%00%0A"),
    ],
)
def test_keys_of_parts(parts, key):
    """One spelling each, and back."""
    assert key_of(parts) == key
    if key:
        assert parse_key(key) == key


def test_long_parts_are_cut_and_told_apart():
    """Bounded, and still two."""
    first, second = key_of(["a" * 5000 + "1"]), key_of(["a" * 5000 + "2"])
    assert len(first) <= 96
    assert first != second
    assert levels("a/b/c") == ["a", "a/b", "a/b/c"]
