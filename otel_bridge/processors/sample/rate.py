"""The share of traces that is kept, second by second, from the traffic of one environment."""

from __future__ import annotations

import math
import statistics
from collections import deque
from typing import TYPE_CHECKING

from otel_bridge.processors.sample.traffic import Traffic

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from otel_bridge.processors.sample.config import RateConfig

LEAST_RISE = 0.10
"""The traffic curve's logarithm is 1 at a rise of 10 %; a smaller rise counts as this one."""

BASELINE_WINDOWS = 30
"""The P99's baseline is the median of so many windows, so that a rise is judged by what was before it."""
_LEAST_WINDOWS = 3

_OVERLOADED, _UNDERLOADED = 2.0, 0.7
_LATENCY_RATES = (0.10, 0.50, 1.00)
"""The latency curve: P99 above 2.0 baselines, between, below 0.7."""

_ROUNDING = 1e-9

_LONGEST_GAP = 3600
"""Seconds without a call that are gone through one by one; what is longer changes nothing more."""


class RateController:
    """Time is given in monotonic seconds and never looked up.

    A rise is one episode: while its `hold` lasts, the largest rise seen in it makes the rate.
    """

    def __init__(self, config: RateConfig, now: float) -> None:
        self._config = config
        self._window = round(config.window)
        self._traffic = Traffic(self._window, config.min_requests)
        self._began = now
        # As they were at the end of each second, the latest last; one window back is the first.
        self._requests: deque[int] = deque(maxlen=self._window + 1)
        self._p99s: deque[float | None] = deque(maxlen=self._window + 1)
        self._baselines: deque[float] = deque(maxlen=BASELINE_WINDOWS)
        self._rise = 0.0
        self._until = 0
        self._rate = _LATENCY_RATES[1] if config.curve == "latency" else config.baseline

    @property
    def bounds(self) -> tuple[float, float]:
        """The lowest and the highest rate that this configuration can give."""
        config = self._config
        if config.curve == "latency":
            return _LATENCY_RATES[0], _LATENCY_RATES[-1]
        if config.curve == "fixed":
            return config.baseline, config.baseline
        rates = (config.baseline, config.minimum, max(config.minimum, config.surge))
        return min(rates), max(rates)

    def observe(self, now: float, durations: NDArray[np.uint64]) -> None:
        """Take requests in that have just arrived; durations in nanoseconds."""
        self._advance(now)
        if len(durations):
            self._traffic.add(durations)

    def rate(self, now: float) -> float:
        """The rate at this moment."""
        self._advance(now)
        return self._rate

    def adopt(self, older: RateController) -> None:
        """Go on with what another one of the same window has seen."""
        if older._window != self._window:
            return
        self._traffic, self._began = older._traffic, older._began
        self._requests, self._p99s, self._baselines = older._requests, older._p99s, older._baselines
        if older._config == self._config:
            self._rise, self._until, self._rate = older._rise, older._until, older._rate

    def _advance(self, now: float) -> None:
        ended = int(now - self._began) - self._traffic.seconds
        if ended > _LONGEST_GAP:
            self._began += ended - _LONGEST_GAP
            ended = _LONGEST_GAP
        for _ in range(ended):
            self._end_second()

    def _end_second(self) -> None:
        traffic = self._traffic
        traffic.end_second()
        self._requests.append(traffic.requests)
        self._p99s.append(traffic.p99)
        if traffic.seconds % self._window == 0 and traffic.p99 is not None:
            self._baselines.append(traffic.p99)
        if self._config.curve == "traffic":
            self._follow_traffic()
        elif self._config.curve == "latency":
            self._follow_latency()

    def _follow_traffic(self) -> None:
        config, second = self._config, self._traffic.seconds
        rise = self._rise_now()
        if rise >= config.rise - _ROUNDING or self._inflected():
            in_episode = second < self._until
            self._rise = max(rise, LEAST_RISE, self._rise if in_episode else 0.0)
            self._until = second + round(config.hold)
            self._rate = min(1.0, max(config.minimum, config.surge / math.log10(100 * self._rise)))
        elif second >= self._until:
            self._rate = config.baseline

    def _rise_now(self) -> float:
        """Requests of the last window against those of the one before; 0 before there were two."""
        if self._traffic.seconds < 2 * self._window:
            return 0.0
        before = max(self._requests[0], self._config.min_requests)
        return max(self._requests[-1], self._config.min_requests) / before - 1

    def _inflected(self) -> bool:
        """Whether the P99 has passed its inflection, two windows in a row."""
        return all(ratio is not None and ratio >= self._config.inflection for ratio in self._ratios())

    def _follow_latency(self) -> None:
        """A level is taken when two windows in a row say so."""
        before, now = self._ratios()
        if before is not None and now is not None and _latency_rate(before) == _latency_rate(now):
            self._rate = _latency_rate(now)

    def _ratios(self) -> tuple[float | None, float | None]:
        """The P99 of the window before and of the last, in baselines; None where one is not known."""
        before, now = self._p99s[0], self._p99s[-1]
        if len(self._p99s) <= self._window or len(self._baselines) < _LEAST_WINDOWS:
            return None, None
        baseline = statistics.median(self._baselines)
        return before and before / baseline, now and now / baseline


def _latency_rate(ratio: float) -> float:
    overloaded, usual, idle = _LATENCY_RATES
    if ratio > _OVERLOADED:
        return overloaded
    return idle if ratio < _UNDERLOADED else usual
