"""Sampling by trace id alone: nothing waits."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_bridge import catalog
from otel_bridge.processors.sample.threshold import FULL, encoded, threshold_of
from otel_bridge.testing import trace_request
from otel_bridge.verbosity import Verbosity, Wish
from otel_bridge.wire import sized
from tests.support.sampling import Sampling, span, trace_id, until_idle

HALF = {"keep": None, "rate": {"curve": "fixed", "baseline": 0.5}}


async def test_off_unless_switched_on():
    """Nothing is dropped, nothing is written."""
    sampling = Sampling(enabled=False)
    await sampling.send(span(0.0), span(0.99, 1))
    assert set(sampling.left.values()) == {""}
    assert len(sampling.left) == 2


async def test_a_trace_is_kept_from_its_threshold_on():
    """R >= T, and what is kept says T."""
    sampling = Sampling(**HALF)
    outcome = await sampling.send(span(0.0), span(0.4999999999, 1), span(0.5, 2), span(0.9999, 3))
    assert sampling.left == {
        (trace_id(0.5, 2), (3).to_bytes(8, "big")): "ot=th:8",
        (trace_id(0.9999, 3), (4).to_bytes(8, "big")): "ot=th:8",
    }
    assert outcome.accepted == 4
    assert sampling.telemetry.value(catalog.SAMPLE_SPANS, verdict="kept", reason="rate") == 2
    assert sampling.telemetry.value(catalog.SAMPLE_SPANS, verdict="dropped", reason="rate") == 2


async def test_nothing_left_sends_nothing():
    """The request is taken all the same."""
    sampling = Sampling(**HALF)
    assert (await sampling.send(span(0.1))).accepted == 1
    assert sampling.destination.sent == []


async def test_everything_is_kept_at_a_rate_of_one():
    """And says so: th:0 counts for one."""
    sampling = Sampling(keep=None, rate={"curve": "fixed", "baseline": 1.0})
    await sampling.send(span(0.0))
    assert list(sampling.left.values()) == ["ot=th:0"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # Sampled less than here: its threshold is the higher one, and stays.
        ("ot=th:c", "ot=th:c"),
        ("ot=th:4", "ot=th:8"),
        ("ot=th:0", "ot=th:8"),
        ("vendor=x,ot=th:4;rv:f0000000000000", "ot=rv:f0000000000000;th:8,vendor=x"),
        ("vendor=x", "ot=th:8,vendor=x"),
        ("ot=broken", "ot=th:8"),
        # Its own threshold should have dropped it: what it stands for is not known.
        ("ot=th:ff;a:b", "ot=a:b"),
        ("ot=th:ff", ""),
    ],
)
async def test_a_threshold_that_came_along(before, after):
    """It never falls, and everything else stays."""
    sampling = Sampling(**HALF)
    await sampling.send(span(0.9, trace_state=before))
    assert list(sampling.left.values()) == [after]
    inconsistent = sampling.telemetry.value(catalog.SAMPLE_INCONSISTENT)
    assert inconsistent == ("ff" in before)


async def test_randomness_that_came_along_decides():
    """Instead of the trace id's."""
    sampling = Sampling(**HALF)
    await sampling.send(
        span(0.9, trace_state="ot=rv:70000000000000"), span(0.1, 1, trace_state="ot=rv:90000000000000")
    )
    assert sampling.traces == {trace_id(0.1, 1)}


@pytest.mark.parametrize("padded", [b"\x1a\x87\x00ot=th:4", b"\x9a\x00\x07ot=th:4"])
async def test_a_tracestate_that_is_written_longer_than_need_be(padded):
    """Tag or length with bytes too many: the span leaves with the new one."""
    sampling = Sampling(**HALF)
    plain = trace_request([span(0.9, trace_state="ot=th:4")])
    data = lengthened(plain, b"\x1a\x07ot=th:4", padded)
    await sampling.pipeline.consume_traces(data)
    assert list(sampling.left.values()) == ["ot=th:8"]


def lengthened(request: bytes, field: bytes, longer: bytes) -> bytes:
    """The request with one field of its span written longer; the three lengths around it follow."""
    message = ExportTraceServiceRequest.FromString(request)
    body = message.resource_spans[0].scope_spans[0].spans[0].SerializeToString()
    assert field in body
    return sized(1, sized(2, sized(2, body.replace(field, longer))))


@pytest.mark.parametrize("value", [1, 5, 0.5, "1"])
async def test_a_priority_keeps_the_whole_trace(value):
    """From the span on that says it; as if it had been sampled with certainty."""
    sampling = Sampling(**HALF)
    await sampling.send(span(0.1), span(0.1, attributes={"sampling.priority": value}), span(0.2, 1))
    assert list(sampling.left.values()) == ["ot=th:0"] * 2
    await sampling.send(span(0.1, span_id=b"laterone"), span(0.2, 1))
    assert (trace_id(0.1), b"laterone") in sampling.left
    assert sampling.telemetry.value(catalog.SAMPLE_SPANS, verdict="kept", reason="priority") == 3


@pytest.mark.parametrize("value", [0, 0.0, "0"])
async def test_a_priority_of_zero_drops_the_whole_trace(value):
    """Somebody asked for it."""
    sampling = Sampling(**HALF)
    await sampling.send(span(0.9), span(0.9, attributes={"sampling.priority": value}))
    await sampling.send(span(0.9), span(0.8, 1))
    assert sampling.traces == {trace_id(0.8, 1)}
    assert sampling.telemetry.value(catalog.SAMPLE_SPANS, verdict="dropped", reason="priority") == 3


@pytest.mark.parametrize("value", [-1, "high", b"1", "", None, [1]])
async def test_a_priority_that_says_nothing(value):
    """Is none."""
    sampling = Sampling(**HALF)
    await sampling.send(
        span(0.9, attributes={"sampling.priority": value}),
        span(0.1, 1, attributes={"sampling.priority": value}),
    )
    assert sampling.traces == {trace_id(0.9)}


async def test_bad_spans_are_no_traffic_and_no_verdict():
    """They are refused, not sampled."""
    sampling = Sampling(**HALF)
    outcome = await sampling.send(span(0.9, span_id=bytes(8)), {"trace_id": b"short"}, span(0.9, 1))
    assert (outcome.accepted, outcome.rejected) == (1, 2)
    assert sampling.telemetry.value(catalog.SAMPLE_SPANS, verdict="kept", reason="rate") == 1


async def test_an_environment_has_its_own_rate():
    """By the current key or the older one; what is not named shares one."""
    sampling = Sampling(
        keep=None,
        rate={"curve": "fixed", "baseline": 0.01},
        environments={"production": {"baseline": 0.5}, "staging": {"baseline": 1.0}},
    )
    for resource, kept in (
        ({"deployment.environment.name": "production"}, {0.6}),
        ({"deployment.environment": "production"}, {0.6}),
        ({"deployment.environment.name": "staging", "deployment.environment": "production"}, {0.2, 0.6}),
        ({"deployment.environment.name": "elsewhere"}, set()),
        ({}, set()),
    ):
        sampling.destination.sent.clear()
        await sampling.send(span(0.2), span(0.6), resource=resource)
        assert sampling.traces == {trace_id(share) for share in kept}, resource
    for environment, rate in (("production", 0.5), ("staging", 1.0), ("other", 0.01)):
        assert sampling.telemetry.value(catalog.SAMPLE_RATE, environment=environment) == rate


async def test_a_trace_is_whole_when_the_rate_changes():
    """Its first span's rate is that of all; only traces that could be either way are remembered."""
    sampling = Sampling(keep=None)
    at_base = 1 - 0.055  # kept at 10 % and 5.9 %, not at 5 %
    for _ in range(60):
        await sampling.send(*[span(0.0, number) for number in range(100)])
        await sampling.clock.advance(1.0)
    inner = {"kind": 1, "parent_span_id": b"\x01" * 8}  # no request of its own
    await sampling.send(span(at_base, 1, **inner), span(0.99995, 1, **inner))
    for _ in range(10):
        await sampling.send(*[span(0.0, number) for number in range(150)])
        await sampling.clock.advance(1.0)
    await sampling.send(span(0.0))
    assert sampling.telemetry.value(catalog.SAMPLE_RATE, environment="other") == pytest.approx(
        0.058859, abs=1e-6
    )
    await sampling.send(span(at_base, 1), span(at_base, 2))
    assert sampling.traces == {trace_id(0.99995, 1), trace_id(at_base, 2)}
    surge = 0.10 / math.log10(50)
    assert set(sampling.left.values()) == {f"ot=th:{encoded(threshold_of(rate))}" for rate in (0.05, surge)}


@given(
    own=st.floats(0.001, 1.0),
    others=st.lists(st.integers(0, FULL - 1), min_size=1, max_size=20),
)
async def test_a_lower_rate_keeps_a_subset(own, others):
    """Of what a higher one keeps: what consistent means."""
    kept = {}
    for rate in (own, min(1.0, own * 2)):
        sampling = Sampling(keep=None, rate={"curve": "fixed", "baseline": rate})
        await sampling.send(*[span(value / FULL, number) for number, value in enumerate(others)])
        kept[rate] = sampling.traces
    assert kept[own] <= kept[min(1.0, own * 2)]


async def test_adjusted_counts_over_an_hour():
    """120 requests a second with surges: what is kept stands for what came, to 2 % (its error is 0.6 %)."""
    sampling = Sampling(keep=None)
    random = np.random.default_rng(20260101)
    sent, stood_for, kept = 0, 0.0, 0
    for second in range(3600):
        count = 180 if (second // 300) % 3 == 2 else 120
        ids = random.bytes(16 * count)
        await sampling.send(*[{"trace_id": ids[16 * number : 16 * (number + 1)]} for number in range(count)])
        await sampling.clock.advance(1.0)
        sent += count
        for one in sampling.destination.spans:
            threshold = one.trace_state.removeprefix("ot=th:").ljust(14, "0")
            stood_for += FULL / (FULL - int(threshold, 16))
            kept += 1
        sampling.destination.sent.clear()
    assert sent == 3600 * 140
    assert kept / sent == pytest.approx(0.052, abs=0.003)
    assert stood_for == pytest.approx(sent, rel=0.02)


@pytest.mark.parametrize("keep", [None, {"wait": "1s"}])
async def test_more_is_kept_while_somebody_wants_it(keep):
    """At least so much, with the threshold that says so; afterwards as before."""
    verbosity = Verbosity("info", highest_rate=0.75)
    sampling = Sampling(
        verbosity=verbosity, keep=keep, hold="memory", rate={"curve": "fixed", "baseline": 0.5}
    )

    async def left(number: int) -> dict[float, str]:
        """Which of three traces leave, and with what."""
        shares = (0.1, 0.3, 0.6)
        before = set(sampling.left)
        await sampling.send(*(span(share, number) for share in shares))
        await sampling.clock.advance(2)
        await until_idle()
        found = {key: state for key, state in sampling.left.items() if key not in before}
        return {
            share: state
            for share in shares
            for key, state in found.items()
            if key[0] == trace_id(share, number)
        }

    await sampling.pipeline.start()
    await until_idle()
    try:
        assert await left(1) == {0.6: "ot=th:8"}
        verbosity.want("action", "llama/8b", Wish(sampling_rate=0.75))
        assert await left(2) == {0.3: "ot=th:4", 0.6: "ot=th:4"}
        verbosity.want("action", "qwen", Wish(sampling_rate=0.25))
        verbosity.release("action", "llama/8b")
        assert await left(3) == {0.6: "ot=th:8"}, "never less than usual"
    finally:
        await sampling.pipeline.stop(1)


async def test_a_trace_stays_whole_when_more_is_wanted_in_its_middle():
    """It is judged by the rate at its first span."""
    verbosity = Verbosity("info", highest_rate=1.0)
    sampling = Sampling(verbosity=verbosity, **HALF)
    await sampling.send(span(0.3))
    verbosity.want("action", "llama/8b", Wish(sampling_rate=1.0))
    await sampling.send(span(0.3), span(0.2, 1))
    assert sampling.traces == {trace_id(0.2, 1)}
