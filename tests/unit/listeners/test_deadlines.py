"""One timer for many waits: each ends in time, and nobody else's cancellation is taken for it."""

from __future__ import annotations

import asyncio

import pytest

from otel_bridge.listeners.deadlines import Deadlines

FOR_EVER = 3600.0


async def test_a_wait_that_takes_too_long_ends():
    """With a TimeoutError, and the task goes on."""
    deadlines = Deadlines(0.01)
    with pytest.raises(TimeoutError), deadlines.within():
        await asyncio.sleep(FOR_EVER)
    assert asyncio.current_task().cancelling() == 0
    await asyncio.sleep(0)


async def test_one_that_ends_in_time_is_left_alone():
    """Also when its time comes later on."""
    deadlines = Deadlines(0.01)
    with deadlines.within():
        await asyncio.sleep(0)
    await asyncio.sleep(0.05)


async def test_each_of_many_has_its_own_time():
    """Those that began later end later; those that are done in time do not end otherwise."""
    deadlines, ended = Deadlines(0.05), []

    async def wait(number, seconds):
        try:
            with deadlines.within():
                await asyncio.sleep(seconds)
        except TimeoutError:
            ended.append(number)

    async with asyncio.TaskGroup() as group:
        for number in range(5):
            group.create_task(wait(number, 0 if number == 2 else FOR_EVER))
            await asyncio.sleep(0.02)
    assert ended == [0, 1, 3, 4]


async def test_the_timer_is_set_again_after_all_were_done():
    """There is none while nobody waits."""
    deadlines = Deadlines(0.01)
    for _ in range(2):
        with pytest.raises(TimeoutError), deadlines.within():
            await asyncio.sleep(FOR_EVER)
        await asyncio.sleep(0.03)


async def test_who_is_cancelled_stays_cancelled():
    """Before its time, and at the very moment."""
    deadlines = Deadlines(FOR_EVER)

    async def wait():
        with deadlines.within():
            await asyncio.sleep(FOR_EVER)

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    both = asyncio.create_task(wait())
    await asyncio.sleep(0)
    (waiting,) = deadlines._due
    waiting.expire()
    both.cancel()
    with pytest.raises(asyncio.CancelledError):
        await both


async def test_an_error_within_is_that_error():
    """Even if time was up as well."""
    deadlines = Deadlines(0.01)

    async def fail_when_cancelled():
        try:
            await asyncio.sleep(FOR_EVER)
        except asyncio.CancelledError:
            raise ValueError("mine") from None

    with pytest.raises(ValueError, match="mine"), deadlines.within():
        await fail_when_cancelled()
    assert asyncio.current_task().cancelling() == 0
