"""Thresholds, against the values that OpenTelemetry's specification and the Collector's sampler give."""

from __future__ import annotations

import pytest

from otel_bridge.processors.sample.threshold import (
    decoded,
    encoded,
    probability_of,
    randomness_of,
    threshold_of,
)


@pytest.mark.parametrize(
    ("probability", "th"),
    [
        (1.0, "0"),
        (0.75, "4"),
        (0.5, "8"),
        (0.25, "c"),
        (2**-10, "ffc"),
        # 0.9 of 2^56 in hexadecimal is e6666666666666 and so on; four digits are kept, rounded.
        (0.10, "e666"),
        # One leading f (of 0.95) adds a digit: f33333…
        (0.05, "f3333"),
        # 0.99: fd70a3d7…
        (0.01, "fd70a"),
        # 1 - 1/1000: ffbe76c8b4…, two leading f.
        (0.001, "ffbe77"),
        (0.99, "028f6"),
        (1 / 3, "aaab"),
        (2 / 3, "5555"),
    ],
)
def test_a_rate_becomes_a_threshold(probability, th):
    """Rounded to four digits, one more for each leading digit that says little."""
    assert encoded(threshold_of(probability)) == th
    assert decoded(th.encode()) == threshold_of(probability)
    assert probability_of(threshold_of(probability)) == pytest.approx(probability, rel=2e-4)


@pytest.mark.parametrize("text", [b"", b"g", b"0x1", b"123456789012345", b"-1", b" 1", b"1_0"])
def test_what_is_no_threshold(text):
    """One to fourteen hexadecimal digits, nothing else."""
    assert decoded(text) is None


@pytest.mark.parametrize("text", [b"", b"1234567890123", b"123456789012345", b"xyzxyzxyzxyzxy"])
def test_what_is_no_randomness(text):
    """Exactly fourteen digits."""
    assert randomness_of(text) is None
