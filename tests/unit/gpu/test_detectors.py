"""Detectors over made-up windows: what they must find, and what noise must not make them find."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from otel_bridge import psi
from otel_bridge.gpu.config import PreemptionConfig, SawtoothConfig, TenancyConfig
from otel_bridge.gpu.detectors.preemption import detect_preemption
from otel_bridge.gpu.detectors.sawtooth import detect_sawtooth
from otel_bridge.gpu.detectors.tenancy import (
    Evidence,
    Stall,
    evidence_of,
    stall_of,
)

SAWTOOTH = SawtoothConfig()
PREEMPTION = PreemptionConfig()
TENANCY = TenancyConfig()


def tooth(period, swing, *, seconds=310, step=0.17, phase=0.0, noise=0.0, seed=0):
    """Utilisation that rises from 30 % by a swing and falls back at once."""
    times = np.arange(0, seconds, step)
    values = 0.3 + swing * ((times / period + phase) % 1)
    return times, np.clip(values + np.random.default_rng(seed).normal(0, noise, len(times)), 0, 1)


# Sawtooth


def test_a_swing_of_fifty_points_at_83_seconds_is_found():
    """C4's own numbers."""
    found = detect_sawtooth(*tooth(83, 0.5), SAWTOOTH)
    assert found is not None
    assert found.period == pytest.approx(83, abs=1)
    assert found.swing == pytest.approx(0.5, abs=0.03)


@settings(max_examples=60)
@given(st.floats(15, 98), st.floats(0.4, 0.7), st.floats(0, 1), st.floats(0, 0.05), st.integers(0, 2**32 - 1))
def test_any_period_and_swing_is_found_in_some_noise(period, swing, phase, noise, seed):
    """Period within 3 %, swing within a quarter."""
    found = detect_sawtooth(*tooth(period, swing, phase=phase, noise=noise, seed=seed), SAWTOOTH)
    assert found is not None
    assert found.period == pytest.approx(period, rel=0.03)
    assert found.swing == pytest.approx(swing, rel=0.25)


def autoregressive(memory, seed, count=310):
    """Noise that remembers: from white (0) to a random walk (1)."""
    noise = np.random.default_rng(seed).normal(0, 1, count)
    values = np.zeros(count)
    for i in range(1, count):
        values[i] = memory * values[i - 1] + noise[i]
    return (values - values.min()) / np.ptp(values)


@pytest.mark.parametrize("memory", [0.0, 0.5, 0.9, 0.97, 0.99, 1.0])
def test_noise_is_no_sawtooth(memory):
    """Of 400 windows of noise over the whole range, one at most looks regular."""
    times = np.arange(310.0)
    found = sum(
        detect_sawtooth(times, autoregressive(memory, seed), SAWTOOTH) is not None for seed in range(400)
    )
    assert found <= 1


def test_requests_that_come_and_go_are_no_sawtooth():
    """Random bursts of load: of 400 windows three at most."""
    hits = 0
    for seed in range(400):
        random = np.random.default_rng(seed)
        spans = random.exponential(20, 60).astype(int) + 1
        values = np.concatenate([np.full(n, 0.9 if i % 2 else 0.1) for i, n in enumerate(spans)])[:310]
        hits += detect_sawtooth(np.arange(float(len(values))), values, SAWTOOTH) is not None
    assert hits <= 3


@pytest.mark.parametrize(
    "values",
    [np.full(310, 0.8), np.linspace(0, 1, 310), np.repeat([0.1, 0.9], 155), np.eye(1, 310, 150)[0]],
    ids=["flat", "drift", "step", "spike"],
)
def test_shapes_that_do_not_repeat_are_no_sawtooth(values):
    """However large they are."""
    assert detect_sawtooth(np.arange(310.0), values, SAWTOOTH) is None


def test_a_rise_that_noise_hides_is_seldom_one():
    """Where noise is two fifths of all variance, the mean cycle does not explain enough: a tenth at most."""
    found = 0
    for seed in range(60):
        times, values = tooth(20, 0.5, step=1.0)
        noise = np.random.default_rng(seed).normal(0, values.std() * np.sqrt(0.4 / 0.6), len(values))
        found += detect_sawtooth(times, values + noise, SAWTOOTH) is not None
    assert found <= 6


def test_every_cycle_is_like_the_others():
    """One that is left out among fifteen is enough for none."""
    times, values = tooth(20, 0.5, step=1.0)
    assert detect_sawtooth(times, values, SAWTOOTH) is not None
    values[(times >= 100) & (times < 120)] = 0.55
    assert detect_sawtooth(times, values, SAWTOOTH) is None


def test_small_swings_are_none():
    """Below the configured one."""
    assert detect_sawtooth(*tooth(83, 0.2), SAWTOOTH) is None


def test_a_window_with_holes_or_of_two_periods_tells_nothing():
    """Too little to say so."""
    times, values = tooth(83, 0.5)
    assert detect_sawtooth(times[times < 170], values[times < 170], SAWTOOTH) is None
    kept = (times % 60) < 30
    assert detect_sawtooth(times[kept], values[kept], SAWTOOTH) is None
    assert detect_sawtooth(np.array([]), np.array([]), SAWTOOTH) is None


@pytest.mark.parametrize(("sign", "expected"), [(1, 1.0), (-1, -1.0)])
def test_host_memory_that_goes_with_it_explains_it(sign, expected):
    """And memory that does not, does not."""
    times, values = tooth(83, 0.5)
    host = np.arange(0, 310, 1.0)
    with_it = 0.5 + sign * 0.2 * ((host / 83) % 1)
    found = detect_sawtooth(times, values, SAWTOOTH, host_times=host, host_memory=with_it)
    assert found is not None
    assert found.host_correlation == pytest.approx(expected, abs=0.05)
    apart = np.random.default_rng(1).normal(0.5, 0.1, len(host))
    found = detect_sawtooth(times, values, SAWTOOTH, host_times=host, host_memory=apart)
    assert found is not None
    assert abs(found.host_correlation) < 0.3
    assert detect_sawtooth(times, values, SAWTOOTH).host_correlation is None


# Preemption


def preempted(occupancy, utilization, *, seconds=120, step=1.0):
    """Judge functions of the time, of which the last is now."""
    times = np.arange(-seconds, 0.5 * step, step)
    busy_times = np.arange(-seconds, 0.05, 0.17)
    return detect_preemption(
        times,
        np.array([occupancy(t) for t in times]),
        busy_times,
        np.array([utilization(t) for t in busy_times]),
        PREEMPTION,
    )


def test_occupancy_that_falls_while_the_card_is_busy():
    """0.9 to 0.1, 25 s ago: the gap was above 0.35 for the last 15 s, with utilisation above 85 %."""
    found = preempted(lambda t: 0.1 if t > -25 else 0.9, lambda _: 0.9)
    assert found is not None
    assert found.holds
    assert found.gap == pytest.approx(0.8 * (1 - 25 / 60), abs=0.02)


@pytest.mark.parametrize(
    ("occupancy", "utilization"),
    [
        (lambda t: 0.1 if t > -14 else 0.9, lambda _: 0.9),  # for less than 15 s
        (lambda t: 0.1 if t > -25 else 0.44, lambda _: 0.9),  # a gap of less than 0.35
        (lambda t: 0.1 if t > -25 else 0.9, lambda _: 0.85),  # not above 85 %
        (lambda t: 0.1 if t > -25 else 0.9, lambda t: 0.5 if -8 < t < -7 else 0.9),  # not throughout
        (lambda t: 0.9 if t > -25 else 0.1, lambda _: 0.9),  # it rises
        (lambda t: 0.1 if t > -80 else 0.9, lambda _: 0.9),  # long ago: now it is the rule
    ],
    ids=["short", "small", "idle", "broken", "rise", "old"],
)
def test_what_is_no_preemption(occupancy, utilization):
    """Each condition alone is not enough."""
    found = preempted(occupancy, utilization)
    assert found is not None
    assert not found.holds


def test_readings_with_holes_or_of_too_short_a_time_tell_nothing():
    """None, not a no."""
    assert preempted(lambda _: 0.5, lambda _: 0.9, seconds=50) is None
    times = np.concatenate((np.arange(-120, -30, 1.0), np.arange(-20, 1, 1.0)))
    busy = np.full(len(times), 0.9)
    assert detect_preemption(times, busy, times, busy, PREEMPTION) is None
    nothing = np.array([])
    assert detect_preemption(nothing, nothing, nothing, nothing, PREEMPTION) is None


def test_without_utilization_there_is_no_preemption():
    """Under MIG it is absent."""
    times = np.arange(-120, 1, 1.0)
    falls = np.where(times > -25, 0.1, 0.9)
    found = detect_preemption(times, falls, np.array([]), np.array([]), PREEMPTION)
    assert found is not None
    assert not found.holds


@given(st.floats(0.1, 0.9), st.floats(0.0, 0.15), st.integers(0, 2**32 - 1))
def test_noise_around_a_level_is_no_preemption(level, noise, seed):
    """However busy the card."""
    random = np.random.default_rng(seed)
    found = preempted(lambda _: float(np.clip(level + random.normal(0, noise), 0, 1)), lambda _: 0.95)
    assert found is not None
    assert not found.holds


@given(st.lists(st.floats(0, 1), min_size=130, max_size=130))
def test_the_verdict_is_that_of_its_definition(values):
    """Held against a loop that says it word by word."""
    times = np.arange(-129.0, 1.0)
    occupancy = np.array(values)
    busy = np.full(len(times), 0.9)
    found = detect_preemption(times, occupancy, times, busy, PREEMPTION)
    assert found is not None

    def gap(now):
        long = occupancy[(times > now - 60) & (times <= now)].mean()
        return long - occupancy[(times > now - 5) & (times <= now)].mean()

    gaps = [gap(now) for now in times[times >= -15]]
    assert found.gap == pytest.approx(gaps[-1], abs=1e-9)
    assume(all(abs(value - PREEMPTION.gap) > 1e-9 for value in gaps))
    assert found.holds == all(value > PREEMPTION.gap for value in gaps)


# Tenancy


@pytest.mark.parametrize(
    ("some", "full", "stall"),
    [(0.1, 0.05, 0), (0.101, 0.0, 1), (0.0, 0.051, 2), (0.5, 0.05, 1), (0.0, 0.0, 0)],
)
def test_stalls_have_exact_limits(some, full, stall):
    """Medium above 0.1, critical above 0.05."""
    assert stall_of(psi.Pressure(psi.Stall(some, 0.0), psi.Stall(full, 0.0)), TENANCY) == stall


@pytest.mark.parametrize(
    ("stall", "sm", "dram", "evidence"),
    [
        (Stall.CRITICAL, 0.2, 0.1, Evidence.CONFIRMED),
        (Stall.CRITICAL, 0.2, None, Evidence.CONFIRMED),
        (Stall.MEDIUM, 0.9, 0.1, Evidence.UNCONFIRMED),
        (Stall.MEDIUM, 0.2, 0.7, Evidence.CONTENDED),
        (Stall.MEDIUM, None, 0.1, Evidence.UNKNOWN),
        (Stall.NONE, 0.2, 0.7, Evidence.UNCONFIRMED),
    ],
)
def test_a_stall_is_held_against_the_card_s_activity(stall, sm, dram, evidence):
    """Who starves, who contends, and what cannot be said."""
    assert evidence_of(stall, sm, dram, TENANCY) is evidence
