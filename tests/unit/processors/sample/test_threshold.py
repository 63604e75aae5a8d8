"""Thresholds, against the values that OpenTelemetry's specification and the Collector's sampler give."""

from __future__ import annotations

import numpy as np
import pytest

from otel_bridge.batch import SPAN
from otel_bridge.processors.sample.threshold import (
    FULL,
    decoded,
    encoded,
    halves,
    probability_of,
    randomness,
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


def test_randomness_is_the_last_seven_bytes_of_the_trace_id():
    """Of each record, whatever stands around it."""
    spans = np.zeros(2, SPAN)
    ids = [
        bytes.fromhex("ffeeddccbbaa99887766554433221100"),
        bytes.fromhex("00000000000000ff0102030405060708"),
    ]
    spans["trace_id"] = np.frombuffer(b"".join(ids), "V16")
    assert randomness(spans).tolist() == [0x66554433221100, 0x02030405060708]
    assert halves(spans)[0].tolist() == [0xFFEEDDCCBBAA9988, 0xFF]
    assert randomness(spans[1:]).tolist() == [0x02030405060708]
    assert randomness_of(b"02030405060708") == 0x02030405060708
    assert max(randomness(spans)) < FULL
