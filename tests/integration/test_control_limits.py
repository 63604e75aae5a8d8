"""Limits on a real Redis: shared exactly, reckoned there as here, lost and back (cases.md rl-bucket)."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from otel_bridge import catalog
from otel_bridge.contracts import SystemClock
from otel_bridge.control.limits.local import Draw, LocalBuckets
from otel_bridge.control.limits.scripts import SETTLE, TAKE
from otel_bridge.testing import FakeClock
from tests.support.limits import Limited, trace
from tests.support.redis_server import Redis, needs_redis

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = needs_redis
SLOW = {"per-user": {"by": ["user"], "amount": 50, "per": "10h"}}
TOKENS = {"tokens": {"by": ["user"], "unit": "tokens", "amount": 1000, "per": "10h"}}


@pytest.fixture
def redis(tmp_path):
    server = Redis(tmp_path)
    yield server
    server.stop()


class Replica(Limited):
    """One bridge's limits, on the real clock."""

    def __init__(self, server: Redis, rules: Any, clock: Any = None, **config: Any) -> None:
        shared = {
            "url": f"redis://127.0.0.1:{server.port}/0",
            "sync_interval": "100ms",
            "timeout": "5s",
        } | config.pop("redis", {})
        super().__init__(rules, clock=clock or SystemClock(), redis=shared, **config)

    async def decide(self, number: int = 0, **told: Any):
        """Whether a request may pass."""
        extra = {"trace_id": trace(number)} | {name: str(value) for name, value in told.items()}
        return await self.decider.decide(*self.questions.ask({}, extra=extra))

    def words(self) -> list[str]:
        """What is in the audit log."""
        return [entry.cause for entry in self.world.history()]


@asynccontextmanager
async def replicas(*members: Replica) -> AsyncIterator[tuple[Replica, ...]]:
    for member in members:
        await member.limiter.start()
    try:
        yield members
    finally:
        for member in members:
            await member.limiter.stop(1)


async def until(check: Any) -> None:
    end = time.monotonic() + 20.0
    while not check():
        if time.monotonic() > end:
            pytest.fail("not in time")
        await asyncio.sleep(0.01)


async def test_replicas_share_exactly(redis):
    """400 at once over four replicas: 50, not one more or less; another user has 50 of its own."""
    members = [Replica(redis, SLOW) for _ in range(4)]
    async with replicas(*members):
        for user in ("alice", "bob"):
            decisions = await asyncio.gather(
                *(members[number % 4].decide(number, user=user) for number in range(400))
            )
            assert sum(decision.allow for decision in decisions) == 50
            assert {decision.limit for decision in decisions if not decision.allow} == {"per-user"}
        assert not any(decision.degraded for decision in decisions)


class ShiftedClock(SystemClock):
    """A replica whose clocks are off."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def time_ns(self) -> int:
        return super().time_ns() + int(self.seconds * 1e9)

    def monotonic(self) -> float:
        return super().monotonic() + self.seconds


async def test_callers_clocks_refill_nothing(redis):
    """A second apart, in turn, 600 requests: what Redis's own time has brought, and no more."""
    rules = {"all": {"by": [], "amount": 150, "per": "1s"}}
    members = [Replica(redis, rules, ShiftedClock(seconds)) for seconds in (0, -1, 3600)]
    async with replicas(*members):
        begin = time.monotonic()
        passed = 0
        for number in range(600):
            passed += (await members[number % 3].decide()).allow
        assert 150 <= passed <= 150 + 150 * (time.monotonic() - begin)


async def test_a_span_settles_at_whichever_replica_it_comes(redis):
    """Reserved at one, settled at another, gone from Redis."""
    first, second = Replica(redis, TOKENS), Replica(redis, TOKENS)
    async with replicas(first, second):
        assert (await first.decide(1, user="alice", prompt_len=2000, max_tokens=400)).allow
        assert not (await second.decide(2, user="alice", prompt_len=0, max_tokens=200)).allow
        second.used(trace(1), 300)
        await until(lambda: second.count(catalog.LIMIT_SETTLEMENTS, outcome="settled") == 1)
        assert second.count(catalog.LIMIT_TOKENS, limit="tokens", kind="returned") == 600
        assert (await second.decide(2, user="alice", prompt_len=0, max_tokens=700)).allow
        first.used(trace(1), 300)
        await until(lambda: first.count(catalog.LIMIT_SETTLEMENTS, outcome="unreserved") == 1)


async def test_full_buckets_leave_redis(redis):
    """Nothing is kept of who asked, once it makes no difference; and no name of a user ever."""
    rules = {
        "fast": {"by": ["user", "api_key"], "amount": 100, "per": "1s"},
        "fast-tokens": {"by": ["user"], "unit": "tokens", "amount": 10_000, "per": "1s"},
    }
    bridge = Replica(redis, rules, limits={"settle_within": "1s"})
    async with replicas(bridge):
        for number in range(50):
            await bridge.decide(number, user=f"alice{number}@example.org", api_key="sk-secret", max_tokens=5)
            bridge.used(trace(number), 3)
        await until(lambda: bridge.count(catalog.LIMIT_SETTLEMENTS, outcome="settled") == 50)
        keys = redis.command("KEYS", "*")
        assert "alice" not in keys
        assert "secret" not in keys
        await until(lambda: redis.command("KEYS", "*") == "{otel-bridge:limits}:number")


async def test_a_lost_redis_is_said_and_leaves_the_own_buckets(redis):
    """They go on from where the shared ones were; afterwards Redis counts again."""
    bridge = Replica(redis, SLOW)
    async with replicas(bridge):
        for number in range(30):
            assert (await bridge.decide(number, user="alice")).allow
        redis.stop()
        decisions = [await bridge.decide(number, user="alice") for number in range(30)]
        assert [decision.allow for decision in decisions] == [True] * 20 + [False] * 10
        assert all(decision.degraded for decision in decisions)
        assert bridge.count(catalog.CONTROL_STORE_UP, store="redis-limits") == 0
        redis.start()
        await until(lambda: not bridge.limiter.shared.cut_off)
        assert not (await bridge.decide(user="bob")).degraded
        assert bridge.words() == ["limits_cut_off", "limits_reached"]


@pytest.mark.parametrize(("rule", "allow"), [("closed", True), ("open", False)])
@pytest.mark.parametrize("own", [True, False])
async def test_when_cut_off_as_configured(redis, rule, allow, own):
    """No limit, or nobody passes one; by a setting of its own, or as the breakers."""
    redis.stop()
    where = {"limits": {"when_cut_off": rule}} if own else {"redis": {"when_cut_off": rule}}
    bridge = Replica(redis, SLOW, **where)
    async with replicas(bridge):
        for number in range(60):
            decision = await bridge.decide(number, user="alice")
            assert (decision.allow, decision.degraded) == (allow, True)
            assert bool(decision.retry_after) is not allow
        assert bridge.words() == ["limits_cut_off"]
    redis.start()


async def test_a_redis_that_swallows_packets(redis):
    """The first to ask wait for the time-out; all others are answered at once."""
    bridge = Replica(redis, SLOW, redis={"timeout": "200ms"})
    async with replicas(bridge):
        assert (await bridge.decide(user="alice")).allow
        redis.process.send_signal(19)
        try:
            decisions = await asyncio.gather(*(bridge.decide(number, user="alice") for number in range(200)))
            assert sum(decision.allow for decision in decisions) == 49
            question = bridge.questions.ask({}, extra={"user": "bob"})
            assert bridge.decider.decide_here(*question).degraded
        finally:
            redis.process.send_signal(18)
        await until(lambda: not bridge.limiter.shared.cut_off)


@pytest.mark.parametrize("trouble", ["FLUSHALL", "SCRIPT FLUSH", "SET", "HSET"])
async def test_what_becomes_of_redis_s_contents(redis, trouble):
    """Forgotten, or overwritten by somebody: a new bucket, and no decision goes wrong."""
    bridge = Replica(redis, SLOW)
    async with replicas(bridge):
        await bridge.decide(user="alice")
        (key,) = [key for key in redis.command("KEYS", "*").splitlines() if "per-user" in key]
        words = {"SET": ["SET", key, "x"], "HSET": ["HSET", key, "level", "x"]}.get(trouble, trouble.split())
        redis.command(*words)
        kept = trouble == "SCRIPT FLUSH"
        assert sum([(await bridge.decide(user="alice")).allow for _ in range(60)]) == 50 - kept
        assert bridge.words() == []


async def test_what_waits_is_brought_before_the_end(redis):
    """A stop loses no settlement."""
    bridge = Replica(redis, TOKENS)
    async with replicas(bridge):
        await bridge.decide(1, user="alice", prompt_len=0, max_tokens=900)
        bridge.used(trace(1), 100)
    again = Replica(redis, TOKENS)
    async with replicas(again):
        assert (await again.decide(2, user="alice", prompt_len=0, max_tokens=900)).allow


# The script and the reference

_TEST_CLOCK = "local function clock() return tonumber(redis.call('GET', 'now')) end\n"
RULES = {
    "one": {"by": ["user"], "unit": "tokens", "amount": 100, "per": "10000s"},
    "two": {"by": [], "unit": "tokens", "amount": 150, "per": "10000s"},
    "three": {"by": ["user"], "amount": 6, "per": "10000s"},
    "four": {"by": [], "unit": "tokens", "amount": 40, "per": "10000s", "dry_run": True},
}
operations = st.lists(
    st.one_of(
        st.tuples(st.just("wait"), st.integers(-2000, 8000)),
        st.tuples(
            st.just("take"),
            st.sampled_from("ab"),
            st.floats(0.5, 100).map(lambda amount: round(amount, 3)),
            st.integers(0, 5),
        ),
        st.tuples(st.just("settle"), st.integers(0, 5), st.floats(0, 150), st.integers(-3000, 0)),
    ),
    max_size=40,
)


@pytest.fixture(scope="module")
def shared_redis(tmp_path_factory):
    server = Redis(tmp_path_factory.mktemp("redis"))
    yield server
    server.stop()


@settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(operations)
async def test_redis_reckons_as_the_reference_does(shared_redis, steps):
    """The same waits, levels and settlements, step by step, on one clock that also goes back."""
    shared_redis.command("FLUSHALL")
    bridge = Replica(shared_redis, RULES)
    clock = FakeClock()
    local = LocalBuckets(bridge.claims.limits, clock, 1e9, 1000)
    async with replicas(bridge):
        shared = bridge.limiter.shared
        shared._take = shared._redis.register_script(_TEST_CLOCK + TAKE)
        shared._settle = shared._redis.register_script(_TEST_CLOCK + SETTLE)
        for word, *values in steps:
            if word == "wait":
                clock._monotonic += values[0]
                clock.step_wall(values[0])
            await shared._redis.set("now", clock.time_ns() // 1000)
            if word == "take":
                user, amount, number = values
                draws = [
                    Draw(limit, user if limit.config.by else "*", amount if limit.settles else 1.0)
                    for limit in bridge.claims.limits
                    if amount <= limit.capacity
                ]
                found = await shared.take(draws, trace(number))
                expected = local.take(draws, trace(number))
                for one, other in zip(found, expected, strict=True):
                    assert one == pytest.approx(other, abs=1e-6)
            elif word == "settle":
                number, used, before = values
                end = clock.time_ns() + before * 1_000_000_000
                told = []
                shared._told = lambda _trace, settled, told=told: told.append(settled)
                assert await shared._bring([(trace(number), used, end)])
                expected = local.settle(trace(number), used, end)
                (found,) = told
                assert (found is None) == (expected is None)
                for one, other in zip(found or [], expected or [], strict=True):
                    assert one.limit == other.limit
                    assert one.change == pytest.approx(other.change, abs=1e-6)
