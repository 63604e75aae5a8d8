"""Kernel time and span time on one axis.

Programs stamp events with CLOCK_BOOTTIME, which never steps and counts through suspend; spans carry
wall-clock time, which slews and steps. The offset between the two is measured again and again, and each event
is moved by the offset that held at its own time.
"""

from __future__ import annotations

import ctypes
import errno
import os
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from otel_bridge.errors import BridgeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

_TRIES = 5
_HISTORY = 64
# The kernel slews by at most 500 ppm (adjtimex); what moves faster has stepped.
_STEP_RATE = 0.001
_TFD_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC
_TFD_TIMER_ABSTIME_CANCEL_ON_SET = 3
_FAR_FUTURE = 1 << 40  # seconds


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement.

    Attributes:
        boot: CLOCK_BOOTTIME of it, nanoseconds.
        offset: wall-clock time minus boot time, nanoseconds.
        error: the offset is off by at most this, nanoseconds.
    """

    boot: int
    offset: int
    error: int


def boot_time_namespace_offset(path: Path = Path("/proc/self/timens_offsets")) -> int:
    """How far a time namespace sets this process's boot time ahead of the kernel's own, nanoseconds."""
    try:
        lines = path.read_text().splitlines()
    except OSError:  # before Linux 5.6 there are none
        return 0
    for line in lines:
        name, _, rest = line.partition(" ")
        if name in ("boottime", "7"):
            seconds, nanoseconds = rest.split()
            return int(seconds) * 1_000_000_000 + int(nanoseconds)
    return 0


def measure() -> Sample:
    """The offset now: wall-clock time read between two readings of boot time, the narrowest of some tries."""
    ahead = boot_time_namespace_offset()
    best: Sample | None = None
    for _ in range(_TRIES):
        before = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        wall = time.clock_gettime_ns(time.CLOCK_REALTIME)
        after = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        middle = (before + after) // 2 - ahead
        sample = Sample(middle, wall - middle, (after - before + 1) // 2)
        if best is None or sample.error < best.error:
            best = sample
    assert best is not None
    return best


class _Table(NamedTuple):
    times: NDArray[np.int64]
    offsets: NDArray[np.int64]
    slopes: NDArray[np.float64]
    lengths: NDArray[np.int64]


class Alignment:
    """Turns boot time into unix time.

    Args:
        measure: takes a measurement; a test gives its own.
    """

    def __init__(self, measure: Callable[[], Sample] = measure) -> None:
        self._measure = measure
        self._samples: deque[Sample] = deque([measure()], _HISTORY)
        self._error = self._samples[0].error
        self.steps = 0
        self._table = self._tabulate()

    def sample(self) -> None:
        """Measure once more; due about every second, and at once when the wall clock was set."""
        last, new = self._samples[-1], self._measure()
        moved = abs(new.offset - last.offset)
        uncertain = last.error + new.error
        if _stepped(moved, new.boot - last.boot, uncertain):
            self.steps += 1
            self._error = new.error
        else:
            # Between two measurements the true offset was at most this far from the one that was used.
            self._error = new.error + max(0, moved - uncertain)
        self._samples.append(new)
        self._table = self._tabulate()

    @property
    def error(self) -> float:
        """How far off a converted time may be, seconds."""
        return self._error / 1e9

    @property
    def offset(self) -> int:
        """Wall-clock time minus boot time at the last measurement, nanoseconds."""
        return self._samples[-1].offset

    def to_unix(self, boot: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Boot times as unix nanoseconds, each by the offset of its own time.

        Between two measurements the offset is interpolated; across a step the old one holds until the new one
        was measured, which is right after the step (`StepNotice`).
        """
        times, offsets, slopes, lengths = self._table
        given = boot.astype("<i8")
        out: NDArray[np.uint64]
        if len(given) and given.min() >= times[-1]:  # nearly always: events are read soon after they happened
            out = (given + offsets[-1]).astype("<u8")
            return out
        index = np.clip(np.searchsorted(times, given, side="right") - 1, 0, len(times) - 1)
        since = np.clip(given - times[index], 0, lengths[index])
        correction = np.rint(slopes[index] * since).astype("<i8")
        out = (given + offsets[index] + correction).astype("<u8")
        return out

    def _tabulate(self) -> _Table:
        """Each measurement with the rate at which the offset moves until the next one."""
        times, offsets, errors = np.array(
            [(sample.boot, sample.offset, sample.error) for sample in self._samples], "<i8"
        ).T
        moved, lengths = np.diff(offsets), np.diff(times)
        steady = (lengths > 0) & ~_stepped(moved, lengths, errors[:-1] + errors[1:])
        slopes = np.zeros(len(moved))
        np.divide(moved, lengths, out=slopes, where=steady)
        return _Table(times, offsets, np.append(slopes, 0.0), np.append(lengths, 0))


def _stepped(moved: Any, length: Any, uncertain: Any) -> Any:
    """Whether offsets moved by more than slewing explains, of a number or of an array of them."""
    return abs(moved) > length * _STEP_RATE + uncertain


class StepNotice:
    """A descriptor that becomes readable when somebody sets the wall clock.

    Raises:
        BridgeError: the kernel has no such timer.
    """

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd: int = self._libc.timerfd_create(time.CLOCK_REALTIME, _TFD_FLAGS)
        if self.fd < 0:
            raise BridgeError(f"timerfd_create: {os.strerror(ctypes.get_errno())}")
        self._arm()

    def _arm(self) -> None:
        interval_then_value = (ctypes.c_long * 4)(0, 0, _FAR_FUTURE, 0)
        if self._libc.timerfd_settime(self.fd, _TFD_TIMER_ABSTIME_CANCEL_ON_SET, interval_then_value, None):
            number = ctypes.get_errno()
            os.close(self.fd)
            raise BridgeError(f"timerfd_settime: {os.strerror(number)}")

    def acknowledge(self) -> bool:
        """Whether the clock was set since the last time; call when the descriptor is readable."""
        try:
            os.read(self.fd, 8)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno != errno.ECANCELED:
                raise
        self._arm()
        return True

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self.fd)
