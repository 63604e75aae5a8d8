"""Time-slice preemption: a tenant's occupancy falls although the GPU stays busy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_bridge.gpu.config import PreemptionConfig

_MISSING = 3.0
"""Seconds without a reading that break a window."""


@dataclass(frozen=True, slots=True)
class Preemption:
    """What a window says.

    Attributes:
        gap: mean occupancy of the long window less that of the short one, now.
        busy: utilisation is above its limit.
        holds: gap and utilisation were above their limits for the whole duration.
    """

    gap: float
    busy: bool
    holds: bool


def detect_preemption(
    times: NDArray[np.float64],
    occupancy: NDArray[np.float64],
    utilization_times: NDArray[np.float64],
    utilization: NDArray[np.float64],
    config: PreemptionConfig,
) -> Preemption | None:
    """Hold the last readings against the limits, as a Prometheus rule with `for` would.

    Args:
        times: of the occupancy readings, seconds, ascending; the last one is now.
        occupancy: SM occupancy, shares.
        utilization_times: of the utilisation readings, seconds, ascending.
        utilization: shares.
        config: windows and limits.

    Returns:
        None where the readings do not reach back over the long window, or have holes.
    """
    if len(times) == 0:
        return None
    now = times[-1]
    if times[0] > now - config.long + _MISSING or not _is_whole(times, now - config.long):
        return None
    gaps = _mean_before(times, occupancy, config.long) - _mean_before(times, occupancy, config.short)
    judged = times >= now - config.duration
    # A mean over less than the long window is none; it was not judged then.
    complete = times - config.long >= times[0] - _MISSING
    held = judged[0] if len(judged) else False
    steady = bool((gaps[judged] > config.gap).all() and complete[judged].all() and not held)
    busy = _is_busy(utilization_times, utilization, now, config, _MISSING)
    throughout = _is_busy(utilization_times, utilization, now, config, config.duration)
    return Preemption(float(gaps[-1]), busy, steady and throughout)


def _is_busy(
    times: NDArray[np.float64],
    utilization: NDArray[np.float64],
    now: float,
    config: PreemptionConfig,
    seconds: float,
) -> bool:
    """Whether utilisation was above its limit in the last so many seconds, and read throughout."""
    recent = times >= now - seconds
    if not recent.any() or times[recent][-1] < now - _MISSING or not _is_whole(times, now - seconds):
        return False
    return bool((utilization[recent] > config.utilization).all())


def _is_whole(times: NDArray[np.float64], since: float) -> bool:
    """Whether no hole is in the readings from a moment on."""
    recent = times[times >= since]
    if not len(recent) or recent[0] > since + _MISSING:
        return False
    return bool((np.diff(recent) <= _MISSING).all())


def _mean_before(
    times: NDArray[np.float64], values: NDArray[np.float64], seconds: float
) -> NDArray[np.float64]:
    """For each reading the mean of those of the last so many seconds, itself included."""
    sums = np.concatenate(([0.0], np.cumsum(values)))
    first = np.searchsorted(times, times - seconds, side="right")
    last = np.arange(1, len(times) + 1)
    means: NDArray[np.float64] = (sums[last] - sums[first]) / (last - first)
    return means
