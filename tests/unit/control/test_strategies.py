"""Strategies: the same for a trace wherever it is asked for, in exact shares, each with its figures."""

from __future__ import annotations

import random

import numpy as np
import pytest
from prometheus_client import CollectorRegistry
from pydantic import ValidationError

from otel_bridge import catalog
from otel_bridge.control.config import StrategiesConfig
from otel_bridge.control.strategies import Strategies, bucket_of, buckets
from otel_bridge.testing import FakeClock
from tests.support.control import calls

MILLION = 1_000_000
MOST_CHI_SQUARED = 181.0
"""99 degrees of freedom, exceeded once in a million."""


def config(**settings):
    return StrategiesConfig.model_validate({"enabled": True} | settings)


def ids(kind):
    """A million trace ids as the kind of program makes them."""
    halves = np.zeros((MILLION, 2), ">u8")
    if kind == "random":
        return np.random.default_rng(17).bytes(16 * MILLION)
    halves[:, {"counted": 1, "counted in front": 0}[kind]] = np.arange(1, MILLION + 1)
    return halves.tobytes()


@pytest.mark.parametrize("kind", ["random", "counted", "counted in front"])
def test_a_million_ids_spread_evenly(kind):
    """Chi-squared over the hundred buckets."""
    counts = np.bincount(buckets(np.frombuffer(ids(kind), "V16")), minlength=100)
    assert len(counts) == 100
    assert ((counts - MILLION / 100) ** 2 / (MILLION / 100)).sum() < MOST_CHI_SQUARED


def test_one_is_told_as_many_are():
    """The decision API and the data path agree."""
    traces = [random.Random(number).getrandbits(128) for number in range(1009)] + [1, (1 << 128) - 1]
    raw = np.frombuffer(b"".join(trace.to_bytes(16, "big") for trace in traces), "V16")
    assert buckets(raw).tolist() == [bucket_of(trace) for trace in traces]


def test_a_trace_keeps_its_bucket_over_versions():
    """Numbers that must never change: other replicas may run another version."""
    told = {0x0AF7651916CD43DD8448EB211C80319C: 72, 1: 4, (1 << 128) - 1: 18}
    assert {trace: bucket_of(trace) for trace in told} == told


def test_the_shares_are_exact():
    """0 to 4, 5 to 9, and the rest."""
    strategies = Strategies(config())
    found = {}
    for trace in range(1, 5000):
        name, bucket = strategies.of(f"{trace:032x}")
        found.setdefault(name, set()).add(bucket)
    assert found == {
        "grey-a": set(range(5)),
        "circuit-test": set(range(5, 10)),
        "production": set(range(10, 100)),
    }
    assert strategies.of("") == ("production", -1)


def test_a_share_that_grows_takes_from_the_rest_alone():
    """The others keep their traces."""
    before = Strategies(config(shares=[{"name": "a", "buckets": [0, 4]}, {"name": "b", "buckets": [50, 54]}]))
    after = Strategies(config(shares=[{"name": "a", "buckets": [0, 9]}, {"name": "b", "buckets": [50, 54]}]))
    for trace in range(1, 3001):
        was, bucket = before.of(f"{trace:032x}")
        expected = "a" if bucket in range(5, 10) else was
        assert after.of(f"{trace:032x}")[0] == expected


def test_calls_are_counted_and_timed_by_strategy():
    """A refused call is counted, and says nothing about how long calls take."""
    strategies = Strategies(config())
    registry = CollectorRegistry()
    registry.register(strategies)
    grey = next(f"{n:032x}" for n in range(1, 1000) if strategies.of(f"{n:032x}")[0] == "grey-a")
    clock = FakeClock()
    strategies.take(calls(clock, 0.2, 3.0, traces=[grey, grey]))
    strategies.take(calls(clock, 1.0, error=True, traces=[grey]))
    strategies.take(calls(clock, 9.0, ignored=True, traces=[grey]))
    counted, timed = catalog.CONTROL_STRATEGY_CALLS.name, catalog.CONTROL_STRATEGY_DURATION.name

    def value(name, **labels):
        return registry.get_sample_value(name, labels)

    results = {r: value(f"{counted}_total", strategy="grey-a", result=r) for r in ("ok", "error", "ignored")}
    assert results == {"ok": 2, "error": 1, "ignored": 1}
    assert value(f"{counted}_total", strategy="production", result="ok") == 0
    assert value(f"{timed}_count", strategy="grey-a") == 3
    assert value(f"{timed}_sum", strategy="grey-a") == pytest.approx(4.2)
    assert [value(f"{timed}_bucket", strategy="grey-a", le=le) for le in ("0.1", "0.25", "1.0", "5.0")] == [
        0,
        1,
        2,
        3,
    ]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"shares": [{"name": "a", "buckets": [5, 4]}]}, "found 5 to 4"),
        ({"shares": [{"name": "a", "buckets": [0, 100]}]}, "less than 100"),
        (
            {"shares": [{"name": "a", "buckets": [0, 5]}, {"name": "b", "buckets": [5, 9]}]},
            "bucket 5 belongs",
        ),
        ({"shares": [{"name": "a", "buckets": [0, 5]}], "rest": "a"}, "a name of its own"),
        ({"shares": [{"name": "a b", "buckets": [0, 5]}]}, "pattern"),
    ],
)
def test_a_bad_configuration(settings, says):
    """Each says what was found."""
    with pytest.raises(ValidationError, match=says):
        config(**settings)
