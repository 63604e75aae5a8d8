"""Replicas on a real Redis: cases.md cb-half-open (a) and cb-store-clock, and Redis lost and back."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from otel_bridge import catalog
from otel_bridge.contracts import SystemClock
from otel_bridge.control.config import ControlConfig
from otel_bridge.control.control import Control
from otel_bridge.telemetry import Telemetry
from tests.support.control import calls
from tests.support.redis_server import Redis, needs_redis

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = needs_redis
KEY = "llama/8b"


@pytest.fixture
def redis(tmp_path):
    server = Redis(tmp_path)
    yield server
    server.stop()


class ShiftedClock(SystemClock):
    """A replica's own wall clock, off by hours; and its own monotonic clock."""

    def __init__(self, wall: float = 0.0, monotonic: float = 0.0) -> None:
        self.wall = wall
        self._monotonic = monotonic

    def time_ns(self) -> int:
        return super().time_ns() + int(self.wall * 1e9)

    def monotonic(self) -> float:
        return super().monotonic() + self._monotonic


class Replica:
    """One bridge's control part."""

    def __init__(self, port: int, path: Path, name: str, clock: Any = None, **config: Any) -> None:
        self.clock = clock or SystemClock()
        self.telemetry = Telemetry()
        redis_config = {
            "url": f"redis://127.0.0.1:{port}/0",
            # A busy machine is no lost Redis: only the test of a silent one has it short.
            "timeout": "30s",
            "sync_interval": "200ms",
        } | config.pop("redis", {})
        self.control = Control(
            ControlConfig.model_validate(
                {
                    "enabled": True,
                    "state": {"file": str(path / f"{name}.sqlite")},
                    "operators": {"socket": None},
                    "decisions": {"http": {"enabled": False}},
                    "redis": redis_config,
                    **config,
                }
            ),
            self.telemetry,
            self.clock,
        )

    @property
    def state(self) -> str:
        breaker = self.control.board.find(KEY)
        return breaker.record.state.value if breaker is not None else "none"

    @property
    def remaining(self) -> float:
        breaker = self.control.board.find(KEY)
        assert breaker is not None
        return breaker.record.until - self.clock.monotonic()

    def trip(self) -> None:
        self.control.sources.take_calls(KEY, calls(self.clock, *[3.0] * 5), 1)

    def well(self, trace: str) -> None:
        self.control.sources.take_calls(KEY, calls(self.clock, 0.1, traces=[trace]), 1)

    def words(self) -> list[str]:
        return [entry.cause for entry in self.control.store.history(None, 1000)]


@asynccontextmanager
async def replicas(*members: Replica) -> AsyncIterator[tuple[Replica, ...]]:
    for member in members:
        await member.control.start()
    try:
        yield members
    finally:
        for member in members:
            await member.control.stop(1)


async def until(check: Any) -> None:
    end = time.monotonic() + 60.0
    while not check():
        if time.monotonic() > end:
            pytest.fail("not in time")
        await asyncio.sleep(0.01)


def trace(number: int) -> str:
    return f"{number + 1:032x}"


async def test_four_replicas_admit_five_of_a_thousand(redis, tmp_path):
    """1,000 decisions at once, 1 ms after the open time: five in all; they close it for everybody."""
    policies = [{"open_time": "1s"}]
    members = [Replica(redis.port, tmp_path, str(number), policies=policies) for number in range(4)]
    async with replicas(*members):
        members[0].trip()
        await until(lambda: all(member.state == "open" for member in members))
        await until(lambda: all(member.state == "half_open" for member in members))
        decisions = await asyncio.gather(
            *(members[number % 4].control.decider.decide(KEY, trace(number)) for number in range(1000))
        )
        admitted = [decision for decision in decisions if decision.allow]
        assert len(admitted) == 5
        waits = {round(decision.retry_after, 3) for decision in decisions if not decision.allow}
        assert len(waits) > 100
        # Each outcome is seen by another replica than the one that admitted it.
        for number, decision in enumerate(admitted):
            members[number % 4].well(decision.probe)
        await until(lambda: all(member.state == "closed" for member in members))


async def test_a_new_replica_takes_over_the_end(redis, tmp_path):
    """B starts later, with other clocks, and opens at once with the same end."""
    first = Replica(redis.port, tmp_path, "a")
    async with replicas(first):
        first.trip()
        await until(lambda: redis.command("EXISTS", f"otel-bridge:breaker:{KEY}") == "1")
        second = Replica(redis.port, tmp_path, "b", ShiftedClock(wall=-3600, monotonic=5000))
        before = time.monotonic()
        async with replicas(second):
            # Redis was asked for its time meanwhile.
            took = time.monotonic() - before
            assert second.state == "open"
            assert second.remaining == pytest.approx(first.remaining, abs=0.05 + took)
            assert (await second.control.history(KEY, 10))[0].cause == "slow_calls"


async def test_flushall_is_mended(redis, tmp_path):
    """Both go on, write back, and say so once."""
    members = [Replica(redis.port, tmp_path, name) for name in "ab"]
    async with replicas(*members):
        members[0].trip()
        await until(lambda: members[1].state == "open")
        end, before = members[1].remaining, time.monotonic()
        redis.command("FLUSHALL")

        def written_back() -> int:
            return sum(member.words().count("written_back") for member in members)

        await until(written_back)
        # Time for the other one to say it as well.
        await asyncio.sleep(1)
        assert [member.state for member in members] == ["open", "open"]
        assert members[1].remaining == pytest.approx(end - (time.monotonic() - before), abs=0.3)
        assert written_back() == 1
        third = Replica(redis.port, tmp_path, "c")
        async with replicas(third):
            assert third.state == "open"


async def test_a_lost_redis_hinders_no_decision(redis, tmp_path):
    """By its own state, at once, and said; what happened meanwhile is shared afterwards."""
    members = [Replica(redis.port, tmp_path, name) for name in "ab"]
    async with replicas(*members):
        redis.stop()
        members[0].trip()
        await until(lambda: all(member.control.board.replicas.cut_off for member in members))
        decision = members[0].control.decider.decide_here(KEY, trace(0))
        assert not decision.allow
        assert decision.degraded
        assert members[1].control.decider.decide_here(KEY, trace(0)).allow
        assert members[0].telemetry.value(catalog.CONTROL_STORE_UP, store="redis") == 0
        redis.start()
        await until(lambda: members[1].state == "open")
        assert members[0].words().count("cut_off") == 1
        assert members[0].words().count("reached") == 1


async def test_a_redis_that_swallows_packets(redis, tmp_path):
    """Stopped, not closed: time-outs instead of refusals; permits are given locally then."""
    settings = {"policies": [{"open_time": "300ms"}], "redis": {"timeout": "200ms"}}
    member = Replica(redis.port, tmp_path, "a", **settings)
    async with replicas(member):
        member.trip()
        await until(lambda: member.state == "half_open")
        assert redis.process is not None
        redis.process.send_signal(19)
        try:
            before = time.monotonic()
            decisions = await asyncio.gather(
                *(member.control.decider.decide(KEY, trace(number)) for number in range(200))
            )
            # One after the other they would wait for 40 s.
            assert time.monotonic() - before < 20
            assert sum(decision.allow for decision in decisions) == 5
            assert member.control.board.replicas.cut_off
        finally:
            redis.process.send_signal(18)
        await until(lambda: not member.control.board.replicas.cut_off)


@pytest.mark.parametrize(("rule", "allow"), [("open", False), ("closed", True)])
async def test_when_cut_off_as_configured(redis, tmp_path, rule, allow):
    """All refused, or all let through, whatever the own breakers say."""
    redis.stop()
    member = Replica(redis.port, tmp_path, "a", redis={"when_cut_off": rule})
    async with replicas(member):
        member.trip()
        for key in (KEY, "other"):
            decision = member.control.decider.decide_here(key, "")
            assert decision.allow is allow
            assert decision.degraded
        assert member.words().count("cut_off") == 1
    redis.start()


async def test_a_restart_without_redis_goes_by_its_own_file(redis, tmp_path):
    """And no longer than the open time."""
    first = Replica(redis.port, tmp_path, "a")
    async with replicas(first):
        first.trip()
        end = first.remaining
    redis.stop()
    again = Replica(redis.port, tmp_path, "a")
    async with replicas(again):
        assert again.state == "open"
        assert again.remaining <= end
    redis.start()


async def test_an_operator_s_order_reaches_all(redis, tmp_path):
    """Disabled here is disabled everywhere."""
    from otel_bridge.control import machine

    members = [Replica(redis.port, tmp_path, name) for name in "ab"]
    async with replicas(*members):
        breaker = members[0].control.board.obtain(KEY)
        members[0].control.board.operate(breaker, breaker.step(machine.disable, "drill"), "alice", "drill")
        await until(lambda: members[1].control.board.find(KEY) is not None)
        await until(lambda: members[1].control.board.find(KEY).record.mode.value == "disabled")
        members[1].trip()
        assert members[1].control.decider.decide_here(KEY, "").allow
        entries = await members[1].control.history(KEY, 10)
        assert [(entry.actor, entry.reason) for entry in entries] == [("alice", "drill")]


@pytest.mark.parametrize("record", [b"", b"{}", b"\xff", b'{"state": "ajar"}'])
async def test_nonsense_in_redis(redis, tmp_path, record):
    """The replica goes on by itself, and says so."""
    member = Replica(redis.port, tmp_path, "a")
    async with replicas(member):
        redis.command(
            "HSET", f"otel-bridge:breaker:{KEY}", "version", "1", "record", record.decode("latin-1")
        )
        redis.command("SADD", "otel-bridge:targets", KEY)
        await until(lambda: member.control.board.replicas.cut_off)
        member.trip()
        assert not member.control.decider.decide_here(KEY, "").allow


async def test_a_killed_replica_s_permits_return(redis, tmp_path):
    """cb-half-open (c): the pod that held all permits is gone; within the probe time-out others get them."""
    policies = [{"open_time": "300ms", "half_open": {"probe_timeout": "2s"}}]
    doomed, left = (Replica(redis.port, tmp_path, name, policies=policies) for name in "ab")
    async with replicas(left):
        async with replicas(doomed):
            doomed.trip()
            await until(lambda: (doomed.state, left.state) == ("half_open", "half_open"))
            decisions = [await doomed.control.decider.decide(KEY, trace(number)) for number in range(5)]
            assert all(decision.probe for decision in decisions)
            assert not (await left.control.decider.decide(KEY, trace(9))).allow
        for number in range(9, 14):
            end = time.monotonic() + 60
            while not (await left.control.decider.decide(KEY, trace(number))).probe:
                assert time.monotonic() < end
                await asyncio.sleep(0.02)
            left.well(trace(number))
        await until(lambda: left.state == "closed")


async def test_a_replica_that_lost_its_file_asks_the_others(redis, tmp_path):
    """cb-store-clock: A is started again with nothing of its own, and ends when B does."""
    first, second = (Replica(redis.port, tmp_path, name) for name in "ab")
    async with replicas(second):
        async with replicas(first):
            first.trip()
            await until(lambda: second.state == "open")
        again = Replica(redis.port, tmp_path, "new", ShiftedClock(wall=3600, monotonic=-700))
        async with replicas(again):
            assert again.state == "open"
            assert again.remaining == pytest.approx(second.remaining, abs=0.5)


@pytest.mark.parametrize("step", [-3600.0, 3600.0])
async def test_wall_clocks_that_are_set_change_nothing(redis, tmp_path, step):
    """cb-store-clock: on one replica, while both are open; both are half-open by elapsed time."""
    policies = [{"open_time": "3s"}]
    clock = ShiftedClock()
    members = [
        Replica(redis.port, tmp_path, "a", clock, policies=policies),
        Replica(redis.port, tmp_path, "b", policies=policies),
    ]
    async with replicas(*members):
        members[0].trip()
        begin = time.monotonic()
        await until(lambda: members[1].state == "open")
        ends = [member.remaining + time.monotonic() for member in members]
        clock.wall += step
        await until(lambda: all(member.state == "half_open" for member in members))
        assert time.monotonic() - begin >= 3
        for end in ends:
            assert end == pytest.approx(begin + 3, abs=0.5)
        words = [word for member in members for word in member.words()]
        assert set(words) == {"slow_calls", "open_time_ended", "set"}
        assert words.count("set") == 1
