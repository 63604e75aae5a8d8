"""Levels of memory pressure: exact thresholds, hysteresis, nearly full for 30 s."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from otel_bridge.gpu.config import GpuConfig, LevelsConfig
from otel_bridge.gpu.levels import Level, Pressure, level_of

CONFIG = LevelsConfig()
SECOND = 1_000_000_000
ratios = st.floats(0, 1, allow_nan=False)


@pytest.mark.parametrize(
    ("ratio", "level"),
    [(0.0, 0), (0.6999, 0), (0.70, 1), (0.84375, 1), (0.85, 1), (0.8501, 2), (1.0, 2)],
)
def test_the_thresholds(ratio, level):
    """Low below 70 %, medium to 85 %, critical above."""
    assert level_of(ratio, Level.LOW, CONFIG) == level


@given(ratios, st.sampled_from(Level))
def test_a_level_is_that_of_the_reading_or_held_by_the_hysteresis(ratio, before):
    """Never below what the reading says; above it only within the hysteresis of the level it was."""
    level, plain = level_of(ratio, before, CONFIG), level_of(ratio, Level.LOW, CONFIG)
    assert plain <= level <= max(plain, before)
    if level is Level.CRITICAL and plain is not Level.CRITICAL:
        assert ratio >= CONFIG.critical - CONFIG.hysteresis
    if level is Level.MEDIUM and plain is Level.LOW:
        assert ratio >= CONFIG.medium - CONFIG.hysteresis


@given(st.lists(st.floats(0.845, 0.855), min_size=2, max_size=60))
def test_trembling_around_a_threshold_changes_the_level_once_at_most(values):
    """What the hysteresis is for."""
    pressure = Pressure(CONFIG)
    levels = []
    for second, ratio in enumerate(values):
        pressure.read(ratio, second * SECOND)
        levels.append(pressure.level)
    assert sum(a != b for a, b in itertools.pairwise(levels)) <= 1


def fill(pressure, *readings):
    """Read pairs of a second and a ratio."""
    for second, ratio in readings:
        pressure.read(ratio, round(second * SECOND))
    return pressure.saturated


def test_nearly_full_for_thirty_seconds():
    """Not at 29.9, from 30.0 on, and no more with the first reading that is not above."""
    pressure = Pressure(CONFIG)
    assert not fill(pressure, *((second / 10, 0.96) for second in range(300)))
    assert fill(pressure, (30.0, 0.96))
    assert not fill(pressure, (30.1, 0.95))


@given(st.lists(st.tuples(st.floats(0.05, 4.9), st.sampled_from([0.94, 0.96])), max_size=80))
def test_nearly_full_is_the_run_of_readings_above(steps):
    """Held against its definition: the last unbroken run above the limit lasts 30 s."""
    pressure, now, began = Pressure(CONFIG), 0, None
    for step, ratio in steps:
        now += round(step * SECOND)
        pressure.read(ratio, now)
        began = (now if began is None else began) if ratio > CONFIG.saturated else None
        assert pressure.saturated == (began is not None and now - began >= 30 * SECOND)


def test_readings_that_stay_away_begin_the_time_anew():
    """Though nobody says that the GPU is silent: 5 s are none, 5.1 s are."""
    for gap, saturated in ((5.0, True), (5.1, False)):
        pressure = Pressure(CONFIG)
        fill(pressure, *((second, 0.96) for second in range(21)))
        rest = [(20 + gap + second, 0.96) for second in range(11)]
        assert fill(pressure, *rest) == saturated
        assert fill(pressure, *((31 + second, 0.96) for second in range(30)))


def test_silence_is_no_pressure():
    """20 s at 96 %, 120 s of nothing, then 96 % again: the time begins anew."""
    pressure = Pressure(CONFIG)
    fill(pressure, *((second, 0.96) for second in range(21)))
    pressure.silence()
    assert pressure.level is None
    assert not fill(pressure, *((second, 0.96) for second in range(140, 170)))
    assert fill(pressure, (170, 0.96))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"levels": {"medium": 0.9}}, "medium < critical"),
        ({"levels": {"hysteresis": 0.2}}, "hysteresis"),
        ({"levels": {"critical": 1.2}}, "less than or equal to 1"),
        ({"slow_interval": "100ms", "interval": "200ms"}, "slow_interval"),
        ({"interval": "1ms"}, "greater than or equal to 0.01"),
        ({"sawtooth": {"min_period": "1s"}}, "min_period"),
        ({"preemption": {"short": "61s"}}, "short < long"),
        ({"dcgm": {"endpoint": "ftp://x"}}, "pattern"),
        ({"nonsense": 1}, "Extra inputs"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    """Each with what is wrong."""
    with pytest.raises(ValidationError, match=message):
        GpuConfig.model_validate(settings)


def test_off_is_a_word():
    """YAML makes a boolean of it."""
    assert GpuConfig.model_validate({"mode": False}).mode == "off"
