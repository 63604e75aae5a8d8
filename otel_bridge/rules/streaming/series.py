"""A metric's readings in one group, and whether a condition on them holds at a time."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from otel_bridge.rules.terms import OPERATORS, Dimension, in_unit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from otel_bridge.rules.language import MetricCondition

MAX_SERIES = 100
"""Series of one metric that a group keeps; readings of further ones are passed over."""
KEPT = 10_000
"""Readings that a series keeps at most."""

Points = list[tuple[int, float]]


class SeriesTest:
    """One condition on a metric, compiled.

    Args:
        leaf: of the language.
        unit: of what is compared.
        window: nanoseconds; 0 where the latest reading decides.

    Attributes:
        holds: whether the condition holds for some readings at a time; None: not known.
        counts: whether it looks at how counters grow.
        horizon: how old readings may be and still count, nanoseconds.
        edges: ages at which a reading enters or leaves what is looked at.
    """

    def __init__(self, leaf: MetricCondition, computes: str, settings: Any, unit: str, window: int) -> None:
        self.metric = leaf.metric
        self.divisor: str | None = getattr(settings, "to", None) if computes == "ratio" else None
        self.stale_after = round(leaf.stale_after * 1e9)
        self.window = window
        self._settings = settings
        self.counts = computes in ("increase", "rate", "ratio") or getattr(settings, "stat", "") == "rate"
        against = round(getattr(settings, "against", 0.0) * 1e9)
        self._against = against
        self.horizon = max(window + against, self.stale_after)
        edges = {window, window + against} if computes else {self.stale_after}
        self.edges = tuple(sorted(edges | {edge + 1 for edge in edges}))
        if computes:
            self._compare: Callable[[float, float], bool] = OPERATORS[settings.is_.operator]
            relative = settings.is_.quantity.dimension is Dimension.PERCENT
            shares = computes == "ratio" or (computes == "delta" and relative)
            self._threshold = in_unit(settings.is_.quantity, "1" if shares else unit)
        evaluations: dict[str, Callable[[Readings, int], bool | None]] = {
            "": self._latest,
            "mean": self._each(self._mean),
            "quantile": self._each(self._quantile),
            "slope": self._each(self._slope),
            "increase": self._increase,
            "rate": self._rate,
            "ratio": self._ratio,
            "delta": self._delta,
        }
        self.holds = evaluations[computes]
        self._value_tests = [_value_test(test, unit) for name, test in leaf.is_.items() if name == "value"]
        self._label_tests = [(name, test) for name, test in leaf.is_.items() if name != "value"]

    # One series is enough

    def _latest(self, readings: Readings, time: int) -> bool | None:
        known = False
        for labels, points in readings.series.items():
            index = bisect_right(points, (time, math.inf))
            if not index or points[index - 1][0] < time - self.stale_after:
                continue
            known = True
            value = points[index - 1][1]
            if all(test(value) for test in self._value_tests) and self._labels_fit(labels):
                return True
        return False if known else None

    def _labels_fit(self, labels: tuple[tuple[str, str], ...]) -> bool:
        found = dict(labels)
        return all(fits(found.get(name, ""), test) for name, test in self._label_tests)

    def _each(self, statistic: Callable[[Points], float | None]) -> Callable[[Readings, int], bool | None]:
        def holds(readings: Readings, time: int) -> bool | None:
            known = False
            for points in readings.series.values():
                value = statistic(_between(points, time - self.window, time))
                if value is not None:
                    known = True
                    if self._compare(value, self._threshold):
                        return True
            return False if known else None

        return holds

    def _mean(self, points: Points) -> float | None:
        if len(points) < self._settings.at_least:
            return None
        return math.fsum(value for _, value in points) / len(points)

    def _quantile(self, points: Points) -> float | None:
        if len(points) < self._settings.at_least:
            return None
        values = sorted(value for _, value in points)
        place: int = math.ceil(self._settings.q * len(values))
        return values[place - 1]

    def _slope(self, points: Points) -> float | None:
        if len(points) < 2:  # noqa: PLR2004 (a line has two points)
            return None
        origin = points[0][0]
        times = [(time - origin) / 1e9 for time, _ in points]
        middle = math.fsum(times) / len(times)
        spread = math.fsum((time - middle) ** 2 for time in times)
        if spread == 0:
            return None
        mean = math.fsum(value for _, value in points) / len(points)
        return math.fsum((t - middle) * (v - mean) for t, (_, v) in zip(times, points, strict=True)) / spread

    # Counters are added up

    def _increase(self, readings: Readings, time: int) -> bool | None:
        grown = _growth(readings.series, time - self.window, time)
        return None if grown is None else self._compare(grown, self._threshold)

    def _rate(self, readings: Readings, time: int) -> bool | None:
        grown = _growth(readings.series, time - self.window, time)
        return None if grown is None else self._compare(grown / (self.window / 1e9), self._threshold)

    def _ratio(self, readings: Readings, time: int) -> bool | None:
        above = _growth(readings.series, time - self.window, time)
        below = _growth(readings.divisors, time - self.window, time)
        if above is None or below is None or below < self._settings.at_least:
            return None
        return self._compare(above / below, self._threshold)

    def _delta(self, readings: Readings, time: int) -> bool | None:
        edge = time - self.window
        before = edge - self._against
        if self._settings.stat == "rate":
            new, old = _growth(readings.series, edge, time), _growth(readings.series, before, edge)
            if new is None or old is None:
                return None
            return self._changed(new / self.window, old / self._against)
        known = False
        for points in readings.series.values():
            now, then = (
                self._mean(_between(points, edge, time)),
                self._mean(_between(points, before, edge - 1)),
            )
            if now is None or then is None:
                continue
            changed = self._changed(now, then)
            known = known or changed is not None
            if changed:
                return True
        return False if known else None

    def _changed(self, new: float, old: float) -> bool | None:
        if self._settings.is_.quantity.dimension is not Dimension.PERCENT:
            scale = 1e9 if self._settings.stat == "rate" else 1.0
            return self._compare((new - old) * scale, self._threshold)
        return None if old == 0 else self._compare((new - old) / abs(old), self._threshold)


class Readings:
    """The readings of one metric, and of the one it is divided by, in one group.

    Attributes:
        series: times and values, in order of time, by labels.
        divisors: the same of the other metric.
    """

    __slots__ = ("divisors", "series")

    def __init__(self) -> None:
        self.series: dict[tuple[tuple[str, str], ...], Points] = {}
        self.divisors: dict[tuple[tuple[str, str], ...], Points] = {}

    def add(
        self,
        labels: Mapping[str, str],
        time: int,
        value: float,
        *,
        divisor: bool,
        before: int,
        from_zero: bool = False,
    ) -> bool:
        """Take in a reading and let go of those before a time, but for the last of them.

        Args:
            labels: of its series.
            time: unix nanoseconds.
            value: itself.
            divisor: whether it is of the metric that the other is divided by.
            before: readings before this time are let go.
            from_zero: of a series that is new, whether it counts as 0 right before.

        Returns:
            False: it was passed over, since the group has too many series already.
        """
        kept = self.divisors if divisor else self.series
        key = tuple(sorted(labels.items()))
        points = kept.get(key)
        if points is None:
            if len(kept) >= MAX_SERIES and not _drop_idle(kept, before):
                return False
            points = kept[key] = [(time - 1, 0.0)] if from_zero else []
        insort(points, (time, value))
        gone = max(bisect_left(points, (before, -math.inf)) - 1, len(points) - KEPT)
        if gone > 0:
            del points[:gone]
        return True

    def next_change(self, time: int, ages: Sequence[int]) -> int | None:
        """When after a time the next reading comes to one of some ages; None: none will."""
        found = []
        for points in (*self.series.values(), *self.divisors.values()):
            for age in ages:
                index = bisect_right(points, (time - age, math.inf))
                if index < len(points):
                    found.append(points[index][0] + age)
        return min(found, default=None)


def _drop_idle(kept: dict[tuple[tuple[str, str], ...], Points], before: int) -> bool:
    """Let go of the series that had no reading since a time; whether there was one."""
    idle = [key for key, points in kept.items() if points[-1][0] < before]
    for key in idle:
        del kept[key]
    return bool(idle)


def _between(points: Points, first: int, last: int) -> Points:
    return points[bisect_left(points, (first, -math.inf)) : bisect_right(points, (last, math.inf))]


def _growth(series: Mapping[Any, Points], first: int, last: int) -> float | None:
    """How much counters grew, from the last reading not after `first`; a fall is a restart from 0."""
    total = None
    for points in series.values():
        begin = max(0, bisect_right(points, (first, math.inf)) - 1)
        window = points[begin : bisect_right(points, (last, math.inf))]
        if len(window) < 2:  # noqa: PLR2004 (growth has two ends)
            continue
        grown = math.fsum(
            after - before if after >= before else after for (_, before), (_, after) in pairwise(window)
        )
        total = grown if total is None else total + grown
    return total


def _value_test(test: Any, unit: str) -> Callable[[float], bool]:
    if hasattr(test, "quantity"):
        compare, threshold = OPERATORS[test.operator], in_unit(test.quantity, unit)
        return lambda value: bool(compare(value, threshold))
    wanted = {float(value) for value in test.values}
    return lambda value: (value in wanted) is not test.negated


def fits(text: str, test: Any) -> bool:
    """Whether a label's value passes a test."""
    if hasattr(test, "quantity"):
        return (text == test.quantity.text) is (test.operator == "==")
    found = any(_like(text, str(value)) for value in test.values)
    return bool(text) and not found if test.negated else found


def _like(text: str, pattern: str) -> bool:
    first, *rest = pattern.split("*")
    if not rest:
        return text == pattern
    if not text.startswith(first):
        return False
    at = len(first)
    for part in rest[:-1]:
        at = text.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return len(text) - at >= len(rest[-1]) and text.endswith(rest[-1])
