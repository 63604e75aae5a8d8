"""Conditions over metrics, decided by the series that Prometheus scrapes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_bridge.catalog import Kind
from otel_bridge.rules.language import aggregate
from otel_bridge.rules.prometheus.leaves import (
    CompiledLeaf,
    Grouping,
    at_least,
    change,
    check_window,
    growth,
    is_relative,
    ranged,
    threshold_of,
)
from otel_bridge.rules.prometheus.promql import (
    NotExpressibleError,
    Selector,
    duration,
    example_of,
    label_values,
    matcher,
    number,
    without,
)
from otel_bridge.rules.prometheus.samples import STEADY, SeriesSample, around, factors, pairs, passing
from otel_bridge.rules.terms import OPERATORS, Comparison, in_unit
from otel_bridge.rules.vocabulary import VALUE

if TYPE_CHECKING:
    from otel_bridge.rules.language import GroupKey, MetricCondition
    from otel_bridge.rules.prometheus.promql import Target
    from otel_bridge.rules.terms import Test
    from otel_bridge.rules.vocabulary import Series, Vocabulary

_WORST = {">": "max", ">=": "max", "<": "min", "<=": "min"}
"""Of a group's series, the one that decides whether some series passes."""


class MetricLeaf:
    """Compiles one condition over a metric; its methods raise NotExpressibleError."""

    def __init__(
        self,
        leaf: MetricCondition,
        window: float,
        groups: Grouping,
        vocabulary: Vocabulary,
        target: Target,
        *,
        interpolate: bool,
    ) -> None:
        self._leaf = leaf
        self._window = window
        self._groups = groups
        self._target = target
        self._interpolate = interpolate
        self._series = vocabulary.metrics[leaf.metric]
        self._vocabulary = vocabulary
        self._counted = self._select(leaf.metric, self._series)

    def compile(self) -> CompiledLeaf:
        """The value, its comparison, and examples of both."""
        computes, settings = aggregate(self._leaf)
        if not computes:
            return self._latest()
        check_window(self._window, self._target)
        compilers = {
            "increase": self._growth,
            "rate": self._growth,
            "ratio": self._ratio,
            "mean": self._mean,
            "quantile": self._quantile,
            "slope": self._slope,
            "delta": self._delta,
        }
        return compilers[computes](settings)

    # Which series

    def _select(self, metric: str, series: Series) -> Selector:
        name = metric
        if series.own and series.kind is Kind.COUNTER:
            name += "_total"
        if series.kind is Kind.HISTOGRAM:
            name += "_count"
        return self._narrowed(Selector(name, (), self._groups.example(_source)), self._leaf.where)

    def _narrowed(self, base: Selector, tests: dict[str, Test]) -> Selector:
        matchers, example, other = base.matchers, dict(base.example), base.other
        for name, test in tests.items():
            if name == VALUE:
                continue
            values, negated = label_values(test)
            matchers += matcher(name, values, negated=negated)
            other = {**example, name: without(values, negated=negated)}
            example[name] = example_of(values, negated=negated)
        return Selector(base.metric, matchers, example, other)

    def _over(self, operation: str, vector: str, extra: str = "") -> str:
        return self._groups.over(operation, vector, _source, extra)

    def _leaf_of(
        self,
        value: str,
        operation: str,
        test: tuple[str, float],
        examples: tuple[tuple[SeriesSample, ...], tuple[SeriesSample, ...]],
        *,
        present: str = "",
        covers: float = 0.0,
    ) -> CompiledLeaf:
        return CompiledLeaf(value, operation, *test, present, covers or self._window, *examples)

    def _named(self, operation: str) -> str:
        return f"{operation}_{duration(self._window)}"

    # The latest value

    def _latest(self) -> CompiledLeaf:
        tests = [test for name, test in self._leaf.is_.items() if name == VALUE]
        tests += [test for name, test in self._leaf.where.items() if name == VALUE]
        selector = self._narrowed(self._counted, self._leaf.is_)
        single = tests[0] if len(tests) == 1 else None
        same = selector.matchers == self._counted.matchers
        if isinstance(single, Comparison) and single.operator in _WORST and same:
            threshold = in_unit(single.quantity, self._series.unit)
            good, bad = passing(around(threshold), single.operator, threshold, lambda value: value)
            value = self._over(_WORST[single.operator], str(selector))
            # It moves at every step: a value in a label would make another alert each time.
            moving = 1.0 if single.operator.startswith(">") else -1.0
            examples = (self._constant(selector, good, moving), self._constant(selector, bad, -moving))
            return self._leaf_of(value, "worst", (single.operator, threshold), examples, covers=0.0)
        return self._number_of_hits(selector, tests)

    def _number_of_hits(self, selector: Selector, tests: list[Test]) -> CompiledLeaf:
        hits = str(selector)
        for test in tests:
            hits = f"({self._filtered(hits, test)})"
        known = self._over("count", str(self._counted))
        value = f"{self._over('count', hits)} or 0 * {known}"
        good = self._passing_all(tests)
        bad = self._failing_any(tests, good)
        if selector.other is not None and selector.matchers != self._counted.matchers:
            labels = pairs(selector.other)
            false: tuple[SeriesSample, ...] = (SeriesSample(selector.metric, labels, good, ((STEADY, 0.0),)),)
        elif bad is not None:
            false = self._constant(selector, bad)
        else:
            # Every reading is a hit: what is false is that there is one, and that is not known.
            false = ()
        return self._leaf_of(value, "hits", (">", 0.0), (self._constant(selector, good), false))

    def _filtered(self, vector: str, test: Test) -> str:
        if isinstance(test, Comparison):
            return f"{vector} {test.operator} {number(in_unit(test.quantity, self._series.unit))}"
        numbers = [float(value) for value in test.values]
        if test.negated:
            return " ".join([vector, *(f"!= {number(value)}" for value in numbers)])
        return " or ".join(f"{vector} == {number(value)}" for value in numbers)

    def _passes(self, test: Test, value: float) -> bool:
        if isinstance(test, Comparison):
            threshold = in_unit(test.quantity, self._series.unit)
            return bool(OPERATORS[test.operator](value, threshold))
        return (value in {float(known) for known in test.values}) is not test.negated

    def _candidates(self, tests: list[Test]) -> list[float]:
        values = [1.0, 0.0, 2.0]
        for test in tests:
            if isinstance(test, Comparison):
                values += around(in_unit(test.quantity, self._series.unit))
            else:
                values += [float(value) for value in test.values]
        return values

    def _passing_all(self, tests: list[Test]) -> float:
        found = (v for v in self._candidates(tests) if all(self._passes(test, v) for test in tests))
        value = next(found, None)
        if value is None:
            raise NotExpressibleError("no value passes all tests of the condition")
        return value

    def _failing_any(self, tests: list[Test], good: float) -> float | None:
        candidates = [*self._candidates(tests), good + 1]
        return next((v for v in candidates if not all(self._passes(test, v) for test in tests)), None)

    def _constant(self, selector: Selector, value: float, moving: float = 0.0) -> tuple[SeriesSample, ...]:
        return (SeriesSample(selector.metric, pairs(selector.example), value, ((STEADY, moving),)),)

    # Counters

    def _growing(self, selector: Selector, *phases: tuple[float, float]) -> SeriesSample:
        return SeriesSample(selector.metric, pairs(selector.example), 0.0, phases)

    def _growth(self, settings: Any) -> CompiledLeaf:
        computes, _ = aggregate(self._leaf)
        step = self._target.scrape_interval
        value = self._over("sum", growth(self._counted, self._window, function=computes))
        unit = "{observation}" if self._series.kind is Kind.HISTOGRAM else self._series.unit
        threshold = threshold_of(settings, unit + ("/s" if computes == "rate" else ""))
        span = 1.0 if computes == "rate" else self._window
        base = max(1.0, abs(threshold) / span * step * 2)
        good, bad = passing(
            (base, 0.0, base / 4), settings.is_.operator, threshold, lambda rate: rate / step * span
        )
        true, false = (self._growing(self._counted, (STEADY, rate)) for rate in (good, bad))
        test = (settings.is_.operator, threshold)
        return self._leaf_of(value, self._named(computes), test, ((true,), (false,)))

    def _ratio(self, settings: Any) -> CompiledLeaf:
        other = self._select(settings.to, self._vocabulary.metrics[settings.to])
        above, below = (self._over("sum", growth(found, self._window)) for found in (self._counted, other))
        threshold = threshold_of(settings, "1")
        base = max(10.0, settings.at_least * self._target.scrape_interval / self._window * 2)
        good, bad = passing(
            [threshold * 2, threshold / 2, threshold + 1],
            settings.is_.operator,
            threshold,
            lambda share: share,
        )
        true, false = (
            (self._growing(self._counted, (STEADY, base * share)), self._growing(other, (STEADY, base)))
            for share in (good, bad)
        )
        return self._leaf_of(
            at_least(f"{above} / {below}", below, settings.at_least),
            self._named("ratio"),
            (settings.is_.operator, threshold),
            (true, false),
            present=self._over("group", str(other)),
        )

    # Gauges

    def _need_samples(self, settings: Any, window: float) -> None:
        scrapes = int(window / self._target.scrape_interval)
        if settings.at_least > scrapes:
            raise NotExpressibleError(
                f"{settings.at_least} readings in {duration(window)}, of which Prometheus sees {scrapes}"
            )

    def _enough(self, value: str, settings: Any, window: float, offset: float = 0.0) -> str:
        if settings.at_least <= 1:
            return value
        count = f"count_over_time({ranged(self._counted, window, offset)})"
        return f"({value} and {count} >= {number(settings.at_least)})"

    def _each(self, value: str, settings: Any, operation: str, unit: str) -> CompiledLeaf:
        """Some series passes: the one with the largest value, or with the smallest."""
        operator, threshold = settings.is_.operator, threshold_of(settings, unit)
        good, bad = passing(around(threshold), operator, threshold, lambda found: found)
        present = self._over("group", str(self._counted)) if getattr(settings, "at_least", 1) > 1 else ""
        return self._leaf_of(
            self._over(_WORST[operator], value),
            self._named(operation),
            (operator, threshold),
            (self._constant(self._counted, good), self._constant(self._counted, bad)),
            present=present,
        )

    def _mean(self, settings: Any) -> CompiledLeaf:
        self._need_samples(settings, self._window)
        value = self._enough(f"avg_over_time({ranged(self._counted, self._window)})", settings, self._window)
        return self._each(value, settings, "mean", self._series.unit)

    def _quantile(self, settings: Any) -> CompiledLeaf:
        if self._series.kind is Kind.HISTOGRAM:
            return self._quantile_of_buckets(settings)
        if not self._interpolate:
            raise NotExpressibleError("a quantile of readings is one of the few that were scraped")
        value = f"quantile_over_time({number(settings.q)}, {ranged(self._counted, self._window)})"
        return self._each(
            self._enough(value, settings, self._window), settings, "quantile", self._series.unit
        )

    def _quantile_of_buckets(self, settings: Any) -> CompiledLeaf:
        buckets = Selector(
            self._leaf.metric + "_bucket", self._counted.matchers, self._counted.example, self._counted.other
        )
        grown = self._over("sum", growth(buckets, self._window), "le")
        operator, threshold = settings.is_.operator, threshold_of(settings, self._series.unit)
        good, bad = passing(
            (threshold * 2, threshold / 2, threshold + 1), operator, threshold, lambda value: value
        )
        count = self._over("sum", growth(self._counted, self._window))
        rate = 10.0 + settings.at_least
        true, false = (
            (
                self._growing(self._counted, (STEADY, rate)),
                *(
                    SeriesSample(
                        buckets.metric,
                        (*pairs(buckets.example), ("le", bound)),
                        0.0,
                        ((STEADY, rate if upper >= value else 0.0),),
                    )
                    for bound, upper in (
                        (number(threshold / 2), threshold / 2),
                        (number(threshold * 1.5), threshold * 1.5),
                        (number(threshold * 2), threshold * 2),
                        ("+Inf", float("inf")),
                    )
                ),
            )
            for value in (good, bad)
        )
        return self._leaf_of(
            at_least(f"histogram_quantile({number(settings.q)}, {grown})", count, settings.at_least),
            self._named("quantile"),
            (operator, threshold),
            (true, false),
            present=self._over("group", str(self._counted)),
        )

    def _slope(self, settings: Any) -> CompiledLeaf:
        operator, threshold = settings.is_.operator, threshold_of(settings, self._series.unit + "/s")
        good, bad = passing(around(threshold), operator, threshold, lambda found: found)
        true, false = (
            SeriesSample(
                self._counted.metric,
                pairs(self._counted.example),
                0.0,
                ((STEADY, slope * self._target.scrape_interval),),
            )
            for slope in (good, bad)
        )
        value = self._over(_WORST[operator], f"deriv({ranged(self._counted, self._window)})")
        return self._leaf_of(value, self._named("slope"), (operator, threshold), ((true,), (false,)))

    # Changes

    def _delta(self, settings: Any) -> CompiledLeaf:
        check_window(settings.against, self._target, "a time to compare with")
        window, against, relative = self._window, settings.against, is_relative(settings)
        operator = settings.is_.operator
        if settings.stat == "quantile":
            if not self._interpolate:
                raise NotExpressibleError("a change of a quantile is an estimate")
            if self._series.kind is Kind.HISTOGRAM:
                raise NotExpressibleError("a change of a histogram's quantile is not offered")
        per_second = "/s" if settings.stat == "rate" else ""
        threshold = threshold_of(settings, "1" if relative else self._series.unit + per_second)
        if settings.stat == "rate":
            new = self._over("sum", growth(self._counted, window, function="rate"))
            old = self._over("sum", growth(self._counted, against, window, "rate"))
            value = change(new, old, relative=relative)
        else:
            value = self._over(_WORST[operator], self._change_of_each(settings, relative=relative))
        return self._leaf_of(
            value,
            self._named(f"delta_{settings.stat}"),
            (operator, threshold),
            self._changing(settings, threshold, relative=relative),
            present=self._over("group", str(self._counted)),
            covers=window + against,
        )

    def _change_of_each(self, settings: Any, *, relative: bool) -> str:
        self._need_samples(settings, min(self._window, settings.against))

        def statistic(window: float, offset: float) -> str:
            found = ranged(self._counted, window, offset)
            if settings.stat == "mean":
                return self._enough(f"avg_over_time({found})", settings, window, offset)
            return self._enough(
                f"quantile_over_time({number(settings.q)}, {found})", settings, window, offset
            )

        new, old = statistic(self._window, 0.0), statistic(settings.against, self._window)
        return change(new, old, relative=relative)

    def _changing(
        self, settings: Any, threshold: float, *, relative: bool
    ) -> tuple[tuple[SeriesSample, ...], tuple[SeriesSample, ...]]:
        step, before = self._target.scrape_interval, -self._window
        base = 100.0 if relative else max(1.0, 4 * abs(threshold))
        unit = 1.0 if relative else base
        good, bad = passing(
            factors(threshold / unit), settings.is_.operator, threshold, lambda factor: (factor - 1) * unit
        )
        if settings.stat == "rate":
            a_step = base * step
            true, false = (
                self._growing(self._counted, (before, a_step), (STEADY, a_step * factor))
                for factor in (good, bad)
            )
            return (true,), (false,)
        true, false = (
            SeriesSample(
                self._counted.metric,
                pairs(self._counted.example),
                base,
                ((STEADY, 0.0),),
                jump=(before, base * (factor - 1)),
            )
            for factor in (good, bad)
        )
        return (true,), (false,)


def _source(key: GroupKey) -> str:
    return key.key("metric")
