"""When a reading was true, on the axis that kernel events and spans are on.

A reading that the driver does not stamp was true at some moment within its call. The call's beginning and end
are read off CLOCK_BOOTTIME, the clock of kernel events, and moved to unix time as those are. So the middle is
off by half the call at the most, whatever the wall clock does. A stamp of the driver is held against the same
bracket.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_WIDE_NS = 1_000_000
"""A call that took longer was kept waiting, by the scheduler or for the interpreter's lock."""
_TRIES = 3
_KEPT = 1024


class Alignment(Protocol):
    """Boot time to unix time, as kernel events are moved (`kernel.clock.Alignment`)."""

    @property
    def offset(self) -> int:
        """Unix time less boot time, nanoseconds."""

    @property
    def error(self) -> float:
        """How far off that may be, seconds."""

    def sample(self) -> None:
        """Measure anew; due about every second."""


class ReadingClock:
    """Times readings, and keeps account of how exact that is."""

    def __init__(self, alignment: Alignment) -> None:
        self._alignment = alignment
        self._errors: deque[int] = deque(maxlen=_KEPT)

    def align(self) -> None:
        """Follow the wall clock; due about every second."""
        self._alignment.sample()

    def timed(self, call: Callable[[], T], *, tries: int = _TRIES) -> tuple[T, int]:
        """A reading and when it was true (unix nanoseconds); one that was kept waiting is taken again.

        Args:
            call: takes the reading; what it raises is raised.
            tries: the narrowest of so many counts.
        """
        narrowest = _WIDE_NS << 32
        for _ in range(tries):
            before = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
            value = call()
            after = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
            if after - before < narrowest:
                narrowest, middle, found = after - before, (before + after) // 2, value
            if narrowest <= _WIDE_NS:
                break
        self._errors.append(narrowest // 2)
        return found, middle + self._alignment.offset

    def check_stamp(self, stamp: int, before: int, after: int) -> None:
        """Take account of a stamp that the driver gave within a call.

        One from before the call says nothing: the driver may have kept the value. Nor does a call that was
        kept waiting, of which the stamp may be from any moment.

        Args:
            stamp: unix nanoseconds.
            before: CLOCK_BOOTTIME before the call, nanoseconds.
            after: and after it.
        """
        boot = stamp - self._alignment.offset
        if boot >= before and after - before <= _WIDE_NS:
            self._errors.append(max(boot - before, abs(after - boot)))

    def error(self) -> tuple[float, float]:
        """Mean and largest error of the last readings, seconds; what the alignment itself is off included."""
        if not self._errors:
            return 0.0, 0.0
        errors = np.array(self._errors) / 1e9
        return float(errors.mean()) + self._alignment.error, float(errors.max()) + self._alignment.error
