"""A regular rise and fall of utilisation, and whether the host's memory goes with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_bridge.gpu.config import SawtoothConfig

STEP = 1.0
"""Seconds of the grid on which a window is looked at."""
CYCLES = 3
"""So many periods must fit into a window: two are seen in any noise."""
_LEAST_FILLED = 0.8
_LEAST_AUTOCORRELATION = 0.6
_AS_HIGH = 0.8
"""Every multiple of a period is one too; of peaks about as high the shortest counts."""
_LEAST_EXPLAINED = 0.7
"""Share of the variance that the mean cycle explains; in noise it is about one over the cycles."""
_LEAST_OF_A_CYCLE = 0.7
"""Every single cycle goes with the mean one so far: a single step or a drift is no sawtooth."""


@dataclass(frozen=True, slots=True)
class Sawtooth:
    """A regular rise and fall.

    Attributes:
        period: seconds.
        swing: from the mean cycle's lowest to its highest point, a share.
        host_correlation: of utilisation with host memory, -1 to 1; None: not known.
    """

    period: float
    swing: float
    host_correlation: float | None = None


def window(config: SawtoothConfig) -> float:
    """Seconds of readings that are looked at."""
    return CYCLES * config.max_period + config.min_period


def detect_sawtooth(
    times: NDArray[np.float64],
    utilization: NDArray[np.float64],
    config: SawtoothConfig,
    *,
    host_times: NDArray[np.float64] | None = None,
    host_memory: NDArray[np.float64] | None = None,
) -> Sawtooth | None:
    """Find the period at which utilisation is most like itself, and hold each cycle against the mean one.

    Args:
        times: seconds, ascending.
        utilization: shares.
        config: which periods and swings count.
        host_times: of the host's memory readings.
        host_memory: its used share.

    Returns:
        None where there is none, or where the window is not filled well enough to tell.
    """
    if len(times) == 0 or times[-1] - times[0] < CYCLES * config.min_period:
        return None
    grid = np.arange(max(times[0], times[-1] - window(config)), times[-1], STEP)
    if _filled(times, grid) < _LEAST_FILLED:
        return None
    values = np.interp(grid, times, utilization)
    if np.ptp(values) < config.swing:
        return None
    level = values - values.mean()
    period = _period(level, config)
    if period is None:
        return None
    profile, fit = _fold(level, period)
    swing = float(np.ptp(profile))
    if swing < config.swing or not fit:
        return None
    correlation = _correlation(grid, level, host_times, host_memory)
    return Sawtooth(period * STEP, min(1.0, swing), correlation)


def _filled(times: NDArray[np.float64], grid: NDArray[np.float64]) -> float:
    nearest = np.searchsorted(times, grid, side="right") - 1
    near = (nearest >= 0) & (grid - times[np.maximum(nearest, 0)] <= 2 * STEP)
    return float(near.mean()) if len(grid) else 0.0


def _period(level: NDArray[np.float64], config: SawtoothConfig) -> float | None:
    """The shortest lag, in steps, at which the autocorrelation has a peak near its highest."""
    most = min(int(config.max_period / STEP), len(level) // CYCLES)
    least = int(config.min_period / STEP)
    if most <= least:
        return None
    found = _autocorrelation(level, most + 1)
    lags = np.arange(least, most + 1)
    peaks = [
        lag
        for lag in lags
        if found[lag] >= _LEAST_AUTOCORRELATION
        and found[lag] >= found[lag - 1]
        and found[lag] >= found[lag + 1]
    ]
    if not peaks:
        return None
    highest = max(found[lag] for lag in peaks)
    lag = next(lag for lag in peaks if found[lag] >= _AS_HIGH * highest)
    return float(lag + _vertex(found[lag - 1], found[lag], found[lag + 1]))


def _vertex(left: float, middle: float, right: float) -> float:
    """Where, between -0.5 and 0.5, the parabola through three points peaks."""
    bend = left - 2 * middle + right
    return 0.0 if bend >= 0 else float(np.clip((left - right) / (2 * bend), -0.5, 0.5))


def _autocorrelation(level: NDArray[np.float64], most: int) -> NDArray[np.float64]:
    """Of lags 0 to `most`, each held against the parts that overlap."""
    n = len(level)
    spectrum = np.fft.rfft(level, 2 * n)
    products = np.fft.irfft(spectrum * np.conj(spectrum))[: most + 1]
    squares = np.concatenate(([0.0], np.cumsum(level**2)))
    lags = np.arange(most + 1)
    energy = np.sqrt((squares[n - lags]) * (squares[n] - squares[lags]))
    out: NDArray[np.float64] = np.divide(products, energy, out=np.zeros(most + 1), where=energy > 0)
    return out


def _fold(level: NDArray[np.float64], period: float) -> tuple[NDArray[np.float64], bool]:
    """The mean cycle, and whether it explains the whole window and every cycle of it."""
    bins = int(period)
    position = np.arange(len(level)) / period
    phase = (position % 1 * bins).astype(int)
    counts = np.bincount(phase, minlength=bins)
    profile = np.bincount(phase, level, minlength=bins) / np.maximum(counts, 1)
    expected = profile[phase]
    total = float((level**2).sum())
    explained = 1 - float(((level - expected) ** 2).sum()) / total if total else 0.0
    cycle = position.astype(int)
    alike = [
        _pearson(level[cycle == number], expected[cycle == number])
        for number in range(int(position[-1] + 1 / period))
    ]
    return profile, explained >= _LEAST_EXPLAINED and min(alike, default=0.0) >= _LEAST_OF_A_CYCLE


def _pearson(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    a, b = a - a.mean(), b - b.mean()
    scale = float(np.sqrt((a**2).sum() * (b**2).sum()))
    return float((a * b).sum()) / scale if scale > 0 else 0.0


def _correlation(
    grid: NDArray[np.float64],
    level: NDArray[np.float64],
    times: NDArray[np.float64] | None,
    values: NDArray[np.float64] | None,
) -> float | None:
    if times is None or values is None or not len(times) or _filled(times, grid) < _LEAST_FILLED:
        return None
    return _pearson(level, np.interp(grid, times, values))
