"""The streaming engine against the definition, over random streams."""

from __future__ import annotations

from typing import Any as Anything

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.rules import MS, SECOND, START, Bench, rule
from tests.support.rules_reference import Absent, All, Any, Count, Item, Not, Ratio, Reference, Sequence

KINDS = ("tls_handshake", "oom_kill")
TICK = 250 * MS
LATENESS = 4 * SECOND

windows = st.sampled_from([TICK, 2 * TICK, SECOND, 2 * SECOND])
kinds = st.sampled_from(KINDS)
counts = st.builds(Count, kinds, st.integers(1, 3), windows)
runs = st.builds(Count, kinds, st.integers(2, 3), windows, st.just(True))
occurrences = counts | runs
sequences = st.integers(2, 3).flatmap(
    lambda size: st.builds(
        lambda parts, window: Sequence(
            tuple(Count(part.kind, part.needed, window, part.consecutive) for part in parts), window
        ),
        st.lists(occurrences, min_size=size, max_size=size),
        windows,
    )
)
absences = st.builds(Absent, kinds, windows)
leaves = occurrences | sequences | absences


def pairs(kind: type, parts: st.SearchStrategy) -> st.SearchStrategy:
    """`kind` of two different conditions, without what `rules check` refuses."""
    return (
        st.lists(parts, min_size=2, max_size=2, unique=True)
        .filter(lambda found: not all(isinstance(part, Not) for part in found))
        .filter(lambda found: not any(isinstance(part, Not) and part.parts[0] in found for part in found))
        .map(lambda found: kind(tuple(found)))
    )


conditions = (
    leaves
    | pairs(All, leaves | st.builds(lambda part: Not((part,)), occurrences | sequences))
    | pairs(Any, leaves)
    | pairs(All, leaves | pairs(Any, leaves))
)
adding = occurrences | sequences | pairs(All, occurrences | sequences) | pairs(Any, occurrences | sequences)
ratios = st.builds(Ratio, kinds, st.just(3 * SECOND), st.sampled_from([0.3, 0.5]), st.integers(1, 3))
items = st.builds(
    Item, kinds, st.integers(1, 24).map(lambda tick: tick * TICK), st.sampled_from([True, True, False])
)
streams = st.lists(items, min_size=3, max_size=14)
# Few kinds at few moments, so that windows are met at their edges and items at the same time.


def written(condition: Anything) -> dict[str, Anything]:
    """The condition in the rule language."""
    if isinstance(condition, Not):
        return {"not": written(condition.parts[0])}
    if isinstance(condition, Any):
        return {"any": [written(part) for part in condition.parts]}
    if isinstance(condition, All):
        return {"all": [written(part) for part in condition.parts]}
    if isinstance(condition, Sequence):
        steps = [
            {key: value for key, value in written(step).items() if key != "within"}
            for step in condition.steps
        ]
        return {"sequence": steps, "within": condition.window / SECOND}
    leaf: dict[str, Anything] = {"event": condition.kind, "is": {"duration": "> 500ms"}}
    leaf["within"] = condition.window / SECOND
    if isinstance(condition, Absent):
        return {"absent": leaf}
    if isinstance(condition, Ratio):
        return leaf | {"ratio": {"is": f"> {condition.above}", "at_least": condition.at_least}}
    if condition.consecutive:
        return leaf | {"consecutive": condition.needed}
    return leaf if condition.needed == 1 else leaf | {"count": condition.needed}


def together(bench: Bench, reference: Reference, stream: list[Item], sizes: list[int]) -> None:
    """Items in order, some of them in one array, as a ring buffer hands them over."""
    rest = list(stream)
    for size in (*sizes, len(stream)):
        batch, rest = rest[:size], rest[size:]
        if not batch:
            return
        reference.pass_to(batch[0].time - 1)
        bench.at((batch[0].time - 1) / SECOND)
        bench.clock._move_to(batch[-1].time / SECOND)
        bench.events(
            [(item.kind, item.time / SECOND, {"duration": (600 if item.hit else 100) * MS}) for item in batch]
        )
        reference.take_together(batch)
        reference.pass_to(batch[-1].time)


def feed(bench: Bench, reference: Reference, stream: list[Item]) -> None:
    """The same to both, item by item; the clock stands at the newest item; then twenty seconds of nothing."""
    wall = 0
    for item in stream:
        wall = max(wall, item.time)
        reference.pass_to(wall - 1)
        bench.at((wall - 1) / SECOND)
        bench.clock._move_to(wall / SECOND)
        bench.event(item.kind, item.time / SECOND, duration=(600 if item.hit else 100) * MS)
        if item.time >= wall - LATENESS:
            reference.take(item)
        reference.pass_to(wall)
    reference.pass_to(wall + 20 * SECOND)
    bench.at(wall / SECOND + 20)


def compare(condition: Anything, stream: list[Item], before: int = 0, after: int = 0, grid: int = 0) -> None:
    """Run both, and compare what they said."""
    bench = Bench(
        rule(written(condition), **{"for": before / SECOND, "keep_firing_for": after / SECOND}),
        config={"lateness": LATENESS / SECOND},
    )
    reference = Reference(
        condition,
        before,
        after,
        LATENESS,
        grid,
        drifts=grid > 0 or drifts(condition),
        kinds=frozenset(kinds_of(condition)),
    )
    feed(bench, reference, stream)
    assert [(item.active, item.since - START) for item in bench.firings] == reference.changes


def drifts(condition: Anything) -> bool:
    """Whether it may come to hold though nothing comes."""
    if isinstance(condition, Not | Absent):
        return True
    return any(drifts(part) for part in getattr(condition, "parts", ()))


def kinds_of(condition: Anything) -> set[str]:
    """The kinds of items that it looks at."""
    parts = (*getattr(condition, "parts", ()), *getattr(condition, "steps", ()))
    return {condition.kind} if hasattr(condition, "kind") else set().union(*map(kinds_of, parts))


holdings = st.sampled_from([0, 500 * MS, 3 * SECOND])


@settings(max_examples=100, deadline=None)
@given(conditions, streams, holdings, holdings)
def test_items_in_order(condition, stream, before, after):
    """Every change of the alert, to the nanosecond."""
    compare(condition, sorted(stream, key=lambda item: item.time), before, after)


@settings(max_examples=100, deadline=None)
@given(adding, streams, holdings, holdings)
def test_items_out_of_order(condition, stream, before, after):
    """Late items count as if they had come in time, as far as `lateness` allows."""
    compare(condition, stream, before, after)


@settings(max_examples=100, deadline=None)
@given(conditions, streams)
def test_absence_and_items_out_of_order(condition, stream):
    """What was decided by what was known is not taken back; so of these, when they begin first."""
    compare(condition, stream, after=3600 * SECOND)


@settings(max_examples=100, deadline=None)
@given(adding, streams, st.lists(st.integers(1, 5), max_size=6), holdings)
def test_items_handed_over_together(condition, stream, sizes, after):
    """What is in one array is decided item by item all the same."""
    bench = Bench(rule(written(condition), keep_firing_for=after / SECOND), config={"lateness": "60s"})
    reference = Reference(condition, 0, after, 60 * SECOND, kinds=frozenset(kinds_of(condition)))
    together(bench, reference, sorted(stream, key=lambda item: item.time), sizes)
    assert [(item.active, item.since - START) for item in bench.firings] == reference.changes


@settings(max_examples=50, deadline=None)
@given(ratios, streams, holdings, holdings)
def test_shares(condition, stream, before, after):
    """Windows that slide in steps."""
    compare(condition, sorted(stream, key=lambda item: item.time), before, after, condition.window // 60)


@settings(max_examples=100, deadline=None)
@given(counts | sequences, streams, st.randoms())
def test_what_only_adds_up_fires_in_any_order(condition, stream, random):
    """Nothing that comes later takes a count or a sequence back: order of arrival must not matter."""
    fired = []
    shuffled = list(stream)
    random.shuffle(shuffled)
    for items_ in (sorted(stream, key=lambda item: item.time), shuffled):
        bench = Bench(rule(_without_runs(condition), keep_firing_for="1h"), config={"lateness": "60s"})
        for item in items_:
            bench.clock._move_to(max(bench.clock.monotonic(), item.time / SECOND))
            bench.event(item.kind, item.time / SECOND, duration=(600 if item.hit else 100) * MS)
        fired.append(bool(bench.firings))
    assert fired[0] == fired[1]


def _without_runs(condition: Anything) -> dict[str, Anything]:
    found = written(condition)
    for step in found.get("sequence", []):
        step.pop("consecutive", None)
    return found
