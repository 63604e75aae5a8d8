"""Trips, one after the other: the engine is overloaded, refuses, is left alone, and takes requests again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.bench.breaker.world import ENGINE_PORT, GATEWAY, TARGET

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.bench.breaker.world import World


@dataclass
class Trips:
    """What was measured, in seconds, one figure a trip.

    Attributes:
        decision: from the deciding spans' arrival to the decision.
        kernel: from the decision to the first connection that the kernel refused.
        gateway: from the decision to the first answer 429 of nginx.
        backpressure: from the deciding spans' arrival to the signed BACKPRESSURE_HIGH at its receiver.
        recovery: from the end of the overload to the first answer after it, beyond the open time.
        bare: a refusal where nobody decides.
        reopened: how often it opened once more before a trip was over: the engine was still busy with what
            it had taken before.
    """

    decision: list[float] = field(default_factory=list)
    kernel: list[float] = field(default_factory=list)
    gateway: list[float] = field(default_factory=list)
    backpressure: list[float] = field(default_factory=list)
    recovery: list[float] = field(default_factory=list)
    bare: list[float] = field(default_factory=list)
    reopened: int = 0


def measure(world: World, trips: int, progress: Callable[[], None]) -> Trips:
    """Trip the breaker so many times; `progress` hears of each.

    Raises:
        BenchError: something did not happen.
    """
    found = Trips()
    with world.watched():
        found.bare = [words["bare"] / 1e9 for words in world.log.all() if "bare" in words]
        for _ in range(trips):
            _trip(world, found)
            progress()
    return found


def _trip(world: World, found: Trips) -> None:
    log, begin = world.log, world.log.end
    world.gateway.say(go=True)
    world.load.say(do="overload", ports=[ENGINE_PORT, GATEWAY], workers=world.capacity.clients)
    opened = log.wait(f"{TARGET} opens", begin, lambda words: words.get("change") == "open")
    event, decided = opened["event"], opened["decided"]

    def after(key: str, value: Any) -> Callable[[dict[str, Any]], bool]:
        return lambda words: words.get(key) == value and words["at"] >= decided

    kernel = log.wait("the kernel refuses", begin, after("kernel", "refused"))
    gateway = log.wait("nginx refuses", begin, after("gateway", "refused"))
    webhook = log.wait("a webhook comes", begin, after("webhook", "BACKPRESSURE_HIGH"))
    world.load.say(do="stop")
    stopped = log.wait("the overload ends", begin, after("load", "stopped"))["at"]
    success = log.wait(
        "the engine answers again",
        begin,
        lambda words: words.get("steady") == 200 and words["began"] > decided,
    )
    log.wait("all is answered", begin, after("load", "drained"))
    _until_closed(world, begin)
    found.decision.append((decided - event) / 1e9)
    found.kernel.append((kernel["at"] - decided) / 1e9)
    found.gateway.append((gateway["at"] - decided) / 1e9)
    found.backpressure.append((webhook["at"] - event) / 1e9)
    found.recovery.append((success["at"] - stopped) / 1e9 - world.open_time)
    found.reopened += sum(words.get("change") == "open" for words in log.all(begin)) - 1


def _until_closed(world: World, begin: int) -> None:
    """Slow calls that were under way may trip it once more, so the last change counts and not the first."""
    while True:
        place = world.log.end
        changes = [words["change"] for words in world.log.all(begin) if "change" in words]
        if changes[-1] == "closed":
            return
        world.log.wait("the breaker closes", place, lambda words: "change" in words)
