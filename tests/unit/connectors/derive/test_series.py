"""Series in time: first steps, exemplars that age, idle ones let go of, room that is taken again."""

from __future__ import annotations

import pytest

from otel_bridge import catalog
from otel_bridge.connectors.derive.series import Reader
from tests.support.deriving import deriving
from tests.unit.connectors.derive.test_derive import lasting

METRIC = catalog.DERIVED_SPAN_DURATION


def seen(bridge, reader):
    """Counts by span name, as an output is shown them."""
    shown = dict(bridge.derive.metrics.points(reader, bridge.clock.monotonic())).get(METRIC, [])
    return {point.labels[1]: point.count for point in shown}


async def test_a_new_series_is_at_zero_when_it_is_first_seen():
    """Of whatever output; then it has its values."""
    bridge, reader = deriving(), Reader()
    bridge.spans(lasting(1, name="a"), lasting(1, name="a"))
    assert seen(bridge, reader) == {"a": 0}
    assert seen(bridge, reader) == {"a": 2}
    bridge.spans(lasting(1, name="a"), lasting(1, name="b"))
    assert seen(bridge, reader) == {"a": 3, "b": 0}
    assert seen(bridge, Reader()) == {"a": 0, "b": 0}
    assert seen(bridge, None) == {"a": 3, "b": 1}


async def test_each_of_several_scrapers_gets_its_zero():
    """Within the time that zero is held after the first of them."""
    bridge = deriving(initial_zero=15)
    reader = bridge.derive.metrics.scraped
    bridge.spans(lasting(1, name="a"))
    assert seen(bridge, reader) == {"a": 0}
    await bridge.clock.advance(14)
    assert seen(bridge, reader) == {"a": 0}
    await bridge.clock.advance(1)
    assert seen(bridge, reader) == {"a": 1}


async def test_an_idle_series_is_let_go_of_and_begins_anew():
    """At zero, with a later start, and without its old exemplars."""
    bridge, reader = deriving(idle_expiry=60), Reader()
    bridge.spans(lasting(1, name="idle"), lasting(1, name="busy"))
    start = bridge.point(METRIC, span_name="idle").start
    seen(bridge, reader)
    for _ in range(2):
        await bridge.clock.advance(40)
        bridge.spans(lasting(1, name="busy"))
        bridge.derive.sweep()
    assert seen(bridge, reader) == {"busy": 3}
    assert bridge.count(catalog.DERIVE_EXPIRED, metric=METRIC.name) == 1
    assert bridge.count(catalog.DERIVE_SERIES, metric=METRIC.name) == 1
    bridge.spans(lasting(30_000, name="idle"))
    assert seen(bridge, reader) == {"busy": 3, "idle": 0}
    again = bridge.point(METRIC, span_name="idle")
    assert (again.count, again.sum, again.start) == (1, 30, start + 80_000_000_000)
    assert [one.value for one in again.exemplars if one] == [30]


async def test_what_overflowed_takes_the_place_of_what_expired():
    """And the overflow series goes, too, when nothing is in it any more."""
    bridge = deriving(max_series=1, idle_expiry=60)
    bridge.spans(lasting(1, name="first"), lasting(1, name="second"))
    assert bridge.overflow(METRIC).count == 1
    await bridge.clock.advance(61)
    bridge.derive.sweep()
    assert not bridge.points(METRIC)
    bridge.spans(lasting(1, name="second"))
    assert [point.labels[1] for point in bridge.points(METRIC)] == ["second"]


async def test_an_exemplar_gives_way_to_a_worse_one_or_after_its_time():
    """The worst of the bucket; an old one to any."""
    bridge = deriving(exemplars={"max_age": 60})

    def worst():
        return [one.value for one in bridge.points(METRIC)[0].exemplars if one]

    for milliseconds, expected in ((60, 0.06), (90, 0.09), (70, 0.09)):
        bridge.spans(lasting(milliseconds))
        assert worst() == [pytest.approx(expected)]
    await bridge.clock.advance(61)
    bridge.spans(lasting(65))
    assert worst() == [pytest.approx(0.065)]


def test_without_exemplars_there_are_none():
    """Nor memory for them."""
    bridge, other = deriving(exemplars={"enabled": False}), deriving()
    for one in (bridge, other):
        one.spans(lasting(1))
    assert bridge.points(METRIC)[0].exemplars == [None] * (len(METRIC.buckets) + 1)
    assert " # {" not in bridge.scrape()
    assert bridge.derive.metrics.nbytes < other.derive.metrics.nbytes / 2


def test_memory_of_ten_thousand_series():
    """Some hundred bytes each, and no more after as many spans again."""
    bridge = deriving(max_series=10_000)
    for _ in range(2):
        for block in range(10):
            bridge.spans(*(lasting(1, name=f"{block}-{n}") for n in range(1000)))
    series = bridge.derive.metrics.series[METRIC]
    assert len(series) == 10_000
    assert series.nbytes / 10_000 < 1400


def test_cells_are_forgotten_and_found_again(monkeypatch):
    """A cache that is full: nothing is lost, no series is there twice."""
    monkeypatch.setattr("otel_bridge.connectors.derive.derive.CELLS", 4)
    bridge = deriving()
    for _ in range(3):
        bridge.spans(*(lasting(1, name=str(n)) for n in range(7)))
    assert sorted(point.count for point in bridge.points(METRIC)) == [3] * 7


def test_a_reload_goes_on_with_the_same_series():
    """While requests of the old configuration are still under way; other dimensions begin anew."""
    old, new, other = deriving(), deriving(max_series=1), deriving(dimensions=["tenant.id"])
    late = old.scan(b"")
    old.spans(lasting(1, name="a"), lasting(1, name="b"))
    new.spans(lasting(1, name="c"))
    new.derive.adopt(old.derive)
    new.spans(lasting(1, name="b"), lasting(1, name="d"))
    old.derive.process(late)
    old.spans(lasting(1, name="a"))
    counts = {point.labels and point.labels[1]: point.count for point in new.points(METRIC)}
    assert counts == {"a": 2, "b": 2, None: 1}
    other.derive.adopt(new.derive)
    assert not other.points(METRIC)
