"""Goodput of an engine that is asked for more than it bears: with breaker and limits, and without."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.bench.breaker.world import ENGINE_PORT, GATEWAY, LIMITED_TYPE, TARGET, UNGUARDED

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.bench.breaker.world import World

OVERLOAD = 3.0
"""Requests that come, by those that the engine bears."""

Counts = dict[str, int]


def measure(
    world: World, rounds: int, seconds: float, progress: Callable[[], None]
) -> tuple[list[Counts], list[Counts]]:
    """What became of requests in each round: with, and without."""
    guarded: list[Counts] = []
    alone: list[Counts] = []
    for _ in range(rounds):
        world.operate("disable", TARGET)
        alone.append(_round(world, UNGUARDED, seconds))
        progress()
        world.operate("auto", TARGET)
        guarded.append(_round(world, GATEWAY, seconds))
        progress()
    return guarded, alone


def _round(world: World, port: int, seconds: float) -> Counts:
    """The same requests through a port of nginx, after the engine has come to rest."""
    log, begin = world.log, world.log.end
    slo, rate = world.capacity.slo, OVERLOAD * world.capacity.rate
    world.load.say(do="until_idle", port=ENGINE_PORT, slo=slo)
    log.wait("the engine rests", begin, lambda words: words.get("load") == "idle", 300)
    world.load.say(do="rate", port=port, kind=LIMITED_TYPE, rate=rate, seconds=seconds, slo=slo)
    counts: Counts = log.wait("a round ends", begin, lambda words: "rated" in words, 10 * seconds)["rated"]
    return counts
