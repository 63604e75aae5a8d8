"""OpenTelemetry's consistent probability sampling: thresholds of 56 bits.

A trace is sampled when its randomness R is at least the threshold T; its probability is 1 - T / 2^56.
Whoever follows this rule (opentelemetry.io/docs/specs/otel/trace/tracestate-probability-sampling) keeps a
subset of what anybody with a higher probability keeps.
"""

from __future__ import annotations

import math
import re

from otel_bridge.trace_ids import RANDOM_BITS

FULL = 1 << RANDOM_BITS
"""One more than the highest randomness; as a threshold: never."""

DIGITS = 14
"""Hexadecimal digits of 56 bits."""

PRECISION = 4
"""Significant digits of a threshold that is made from a rate, as in the Collector's sampler."""

_HEX = re.compile(rb"[0-9a-fA-F]{1,14}")
_DIGIT_BITS = 4


def threshold_of(probability: float, precision: int = PRECISION) -> int:
    """The threshold of a probability in (0, 1], rounded to some digits as the Collector's sampler does.

    Leading digits that are all 0 or all f say little, so each of them adds one to the precision.
    """
    if probability >= 1:
        return 0
    extremes = [math.frexp(part)[1] for part in (probability, 1 - probability)]
    digits = min(DIGITS, precision + max(-exponent // _DIGIT_BITS for exponent in extremes if exponent <= 0))
    exact = FULL - round(probability * FULL)
    shift = _DIGIT_BITS * (DIGITS - digits)
    return exact if not shift else (exact + (1 << (shift - 1))) >> shift << shift


def probability_of(threshold: int) -> float:
    """The share of traces that a threshold keeps."""
    return (FULL - threshold) / FULL


def encoded(threshold: int) -> str:
    """A threshold as `th` writes it: hexadecimal digits without the zeros at the end."""
    return f"{threshold:0{DIGITS}x}".rstrip("0") or "0"


def decoded(digits: bytes) -> int | None:
    """The threshold that `th` says; None where it is not written so."""
    return int(digits.ljust(DIGITS, b"0"), 16) if _HEX.fullmatch(digits) else None


def randomness_of(digits: bytes) -> int | None:
    """The randomness that `rv` says; None where it is not written so."""
    return int(digits, 16) if len(digits) == DIGITS and _HEX.fullmatch(digits) else None
