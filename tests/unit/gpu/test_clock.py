"""When a reading was true: the middle of its call, on the axis of kernel events."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from otel_bridge.gpu import clock
from otel_bridge.gpu.clock import ReadingClock

OFFSET = 1_700_000_000_000_000_000
MS = 1_000_000


class Alignment:
    """Boot time to unix time, known to 5 us."""

    offset, error = OFFSET, 5e-6

    def sample(self):
        """Nothing to measure."""


@pytest.fixture
def boot(monkeypatch):
    """The boot clock says these moments, one after the other."""
    moments: list[int] = []

    def now(which):
        assert which == time.CLOCK_BOOTTIME
        return moments.pop(0)

    fake = SimpleNamespace(CLOCK_BOOTTIME=time.CLOCK_BOOTTIME, clock_gettime_ns=now)
    monkeypatch.setattr(clock, "time", fake)
    return moments


@pytest.mark.parametrize(
    ("moments", "value", "moment"),
    [
        ([1000, 3000], 0, 2000),
        ([0, 2 * MS, 3 * MS, 3 * MS + 100], 1, 3 * MS + 50),  # the first was kept waiting
        ([0, 4 * MS, 5 * MS, 7 * MS, 8 * MS, 11 * MS], 1, 6 * MS),  # all were: the narrowest counts
    ],
)
def test_a_reading_was_true_in_the_middle_of_the_narrowest_call(boot, moments, value, moment):
    """And no call is made that is not needed."""
    boot += moments
    calls = iter(range(10))
    assert ReadingClock(Alignment()).timed(lambda: next(calls)) == (value, OFFSET + moment)
    assert boot == []


def test_the_error_is_half_the_call_and_what_the_alignment_is_off(boot):
    """Mean and largest, of all readings since."""
    one = ReadingClock(Alignment())
    assert one.error() == (0.0, 0.0)
    boot += [0, 20_000, 0, 40_000]
    for _ in range(2):
        one.timed(lambda: None)
    assert one.error() == (pytest.approx(20e-6), pytest.approx(25e-6))


@pytest.mark.parametrize(
    ("stamp", "before", "after", "error"),
    [
        (130_000, 100_000, 200_000, 70e-6),  # it may be 30 us early or 70 late
        (90_000, 100_000, 200_000, None),  # of a value that the driver has kept
        (500_000, 100_000, 100_000 + MS + 1, None),  # a call that was kept waiting says nothing of a stamp
        (900_000, 100_000, 200_000, 800e-6),  # a clock that is ahead
    ],
)
def test_a_stamp_of_the_driver_is_held_against_its_call(stamp, before, after, error):
    """Where it says something."""
    one = ReadingClock(Alignment())
    one.check_stamp(OFFSET + stamp, before, after)
    _, largest = one.error()
    assert largest == (0.0 if error is None else pytest.approx(error + 5e-6))
