"""Conditions over spans, decided by the metrics that the bridge derives of every span."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from otel_bridge import catalog
from otel_bridge.catalog import prometheus_name
from otel_bridge.model import SpanKind, StatusCode
from otel_bridge.rules.language import aggregate
from otel_bridge.rules.prometheus.leaves import (
    CompiledLeaf,
    Grouping,
    at_least,
    change,
    check_window,
    growth,
    is_relative,
    offset_by,
    or_zero,
    share,
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
from otel_bridge.rules.prometheus.samples import STEADY, SpanSample, at_most, factors, pairs, passing
from otel_bridge.rules.terms import OPERATORS, Comparison, in_unit
from otel_bridge.rules.vocabulary import DURATION, attribute_of

if TYPE_CHECKING:
    from otel_bridge.rules.language import GroupKey, SpanCondition
    from otel_bridge.rules.prometheus.promql import Target
    from otel_bridge.rules.terms import Test

METRIC = catalog.DERIVED_SPAN_DURATION
_COUNT = METRIC.prometheus + "_count"
_SUM = METRIC.prometheus + "_sum"
_BUCKET = METRIC.prometheus + "_bucket"
_NANOSECONDS = 1e9

_KIND = prometheus_name(catalog.SPAN_KIND.key)
_STATUS = prometheus_name(catalog.STATUS_CODE.key)
_STATUSES = {status.name.lower(): f"STATUS_CODE_{status.name}" for status in StatusCode} | {
    str(int(status)): f"STATUS_CODE_{status.name}" for status in StatusCode
}
_FIELD_LABELS = {"name": prometheus_name(catalog.SPAN_NAME.key), "status": _STATUS}


@dataclass(frozen=True, slots=True)
class _Cut:
    """Spans on one side of a bucket's bound."""

    above: bool
    bound: float


@dataclass(frozen=True, slots=True)
class _Selection:
    """Spans that pass some tests.

    Attributes:
        count: their series in `_count`.
        cut: on which side of a bound they are; None where their duration is not asked for.
        miss: labels of spans that fail the last tests; None where those only ask for a duration.
    """

    count: Selector
    cut: _Cut | None = None
    miss: dict[str, str] | None = None
    seconds: tuple[float, float] = field(default=(0.1, 0.1))


class SpanLeaf:
    """Compiles one condition over spans.

    Raises (all methods):
        NotExpressibleError: derived metrics cannot tell.
    """

    def __init__(
        self, leaf: SpanCondition, window: float, groups: Grouping, target: Target, *, interpolate: bool
    ) -> None:
        self._leaf = leaf
        self._window = window
        self._groups = groups
        self._target = target
        self._interpolate = interpolate
        self._labels = {prometheus_name(key) for key in METRIC.labels} | {
            prometheus_name(key) for key in target.dimensions
        }
        base = self._kind_selection()
        self._all = self._select(base, leaf.where)
        self._hits = self._select(self._all, leaf.is_)

    def compile(self) -> CompiledLeaf:
        """The value, its comparison, and examples of both."""
        check_window(self._window, self._target)
        computes, settings = aggregate(self._leaf)
        if computes == "consecutive":
            raise NotExpressibleError("counters do not keep which span followed which")
        compilers = {
            "": self._counted,
            "count": self._counted,
            "ratio": self._ratio,
            "rate": self._rate,
            "mean": self._mean,
            "quantile": self._quantile,
            "delta": self._delta,
        }
        return compilers[computes](settings)

    # Which spans

    def _kind_selection(self) -> _Selection:
        kind = self._leaf.span
        example = self._groups.example(self._source)
        if kind == "any":
            return _Selection(Selector(_COUNT, (), example))
        value = f"SPAN_KIND_{SpanKind[kind.upper()].name}"
        return _Selection(Selector(_COUNT, matcher(_KIND, (value,)), {**example, _KIND: value}))

    def _source(self, key: GroupKey) -> str:
        return self._label(key.key("span"))

    def _label(self, name: str) -> str:
        """The label in which the derived metric has a span's field."""
        label = _FIELD_LABELS.get(name) or prometheus_name(attribute_of(name)[1])
        if label not in self._labels:
            raise NotExpressibleError(
                f"{METRIC.prometheus} has no label for {name} (connectors.derive.dimensions may add one)"
            )
        return label

    def _select(self, base: _Selection, tests: dict[str, Test]) -> _Selection:
        matchers, example, miss, cut = base.count.matchers, dict(base.count.example), None, base.cut
        seconds = base.seconds
        for name, test in tests.items():
            if name == DURATION:
                if cut is not None:
                    raise NotExpressibleError("two bounds of the duration")
                cut = self._cut(test)
                seconds = (cut.bound * 2, cut.bound) if cut.above else (cut.bound, cut.bound * 2)
                continue
            label = self._label(name)
            values, negated = label_values(test, _STATUSES if name == "status" else None)
            matchers += matcher(label, values, negated=negated)
            if miss is None:
                miss = {**example, label: without(values, negated=negated)}
            example[label] = example_of(values, negated=negated)
        return _Selection(Selector(_COUNT, matchers, example), cut, miss, seconds)

    def _cut(self, test: Test) -> _Cut:
        if not isinstance(test, Comparison) or test.operator not in (">", "<="):
            raise NotExpressibleError(f"buckets tell '>' and '<=' of a duration, not '{test}'")
        bound = in_unit(test.quantity, "s")
        self._need_bound(bound, str(test))
        return _Cut(test.operator == ">", bound)

    def _need_bound(self, bound: float, what: str) -> None:
        if bound in METRIC.buckets:
            return
        below = max((edge for edge in METRIC.buckets if edge < bound), default=0.0)
        above = min((edge for edge in METRIC.buckets if edge > bound), default=math.inf)
        raise NotExpressibleError(
            f"'{what}' lies between the bounds {below:g} s and {above:g} s of {METRIC.prometheus}"
        )

    # What is computed

    def _sum(self, vector: str, extra: str = "") -> str:
        return self._groups.over("sum", vector, self._source, extra)

    def _grown(
        self, selection: _Selection, window: float = 0.0, offset: float = 0.0, function: str = "increase"
    ) -> str:
        """How many spans there were in the window, or a second; one value a group."""
        window = window or self._window
        count = self._sum(growth(selection.count, window, offset, function))
        if selection.cut is None:
            return count
        bucket = selection.count.named(_BUCKET, at_most(selection.cut.bound))
        upto = self._sum(growth(bucket, window, offset, function))
        return f"({count} - {upto})" if selection.cut.above else upto

    def _hit_count(self, window: float = 0.0, offset: float = 0.0, function: str = "increase") -> str:
        return or_zero(
            self._grown(self._hits, window, offset, function),
            self._grown(self._all, window, offset, function),
        )

    def _need_no_cut(self, what: str) -> None:
        if self._all.cut is not None or self._hits.cut is not None:
            raise NotExpressibleError(
                f"{what} of spans of some durations only; buckets keep their number alone"
            )

    def _need_duration(self, field_name: str | None) -> None:
        if field_name != DURATION:
            raise NotExpressibleError(f"{METRIC.prometheus} keeps durations, not {field_name}")

    def _present(self) -> str:
        return self._groups.over("group", str(self._all.count), self._source)

    def _watched(self, value: str, ago: float) -> str:
        """A value where there were series so long ago: what is counted since then is whole."""
        return f"({value}) and " + self._groups.over(
            "group", f"{self._all.count}{offset_by(ago)}", self._source
        )

    # Examples

    def _per_step(self, least: float) -> float:
        """Spans a step, so that more than so many are in every window."""
        return float(math.ceil(least * self._target.scrape_interval / self._window) + 2)

    def _sample(
        self, *phases: tuple[float, float], hit: bool = True, seconds: float | None = None
    ) -> SpanSample:
        labels = self._hits.count.example
        lasting = self._hits.seconds[0 if hit else 1]
        if not hit and self._hits.miss is not None:
            labels, lasting = self._hits.miss, self._all.seconds[0]
        return SpanSample(pairs(labels), lasting if seconds is None else seconds, phases or ((STEADY, 10.0),))

    def _leaf_of(
        self,
        value: str,
        operation: str,
        test: tuple[str, float],
        examples: tuple[tuple[SpanSample, ...], tuple[SpanSample, ...]],
        *,
        present: str = "",
        covers: float = 0.0,
    ) -> CompiledLeaf:
        name = f"{operation}_{duration(self._window)}"
        return CompiledLeaf(value, name, *test, present, covers or self._window, *examples)

    def _counted(self, settings: Any) -> CompiledLeaf:
        needed = settings or 1
        many, none = self._sample((STEADY, self._per_step(needed))), self._nothing()
        return self._leaf_of(self._hit_count(), "count", (">=", float(needed)), ((many,), (none,)))

    def _nothing(self) -> SpanSample:
        """Series that are there, and do not grow."""
        return self._sample((STEADY, 0.0))

    def _ratio(self, settings: Any) -> CompiledLeaf:
        every = self._grown(self._all)
        value = share(self._hit_count(), every, settings.at_least)
        threshold = threshold_of(settings, "1")
        rate = (STEADY, self._per_step(settings.at_least))
        hits, misses = self._sample(rate), self._sample(rate, hit=False)
        good = OPERATORS[settings.is_.operator](1.0, threshold)
        examples = ((hits,), (misses,)) if good else ((misses,), (hits,))
        return self._leaf_of(
            value, "ratio", (settings.is_.operator, threshold), examples, present=self._present()
        )

    def _rate(self, settings: Any) -> CompiledLeaf:
        step = self._target.scrape_interval
        if settings.of is None:
            value, threshold, each = self._hit_count(function="rate"), threshold_of(settings, "{hit}/s"), 1.0
        else:
            self._need_duration(settings.of)
            self._need_no_cut("a sum")
            value = or_zero(
                self._sum(growth(self._hits.count.named(_SUM), self._window, function="rate")),
                self._grown(self._all, function="rate"),
            )
            threshold = threshold_of(settings, "ns/s") / _NANOSECONDS
            each = self._hits.seconds[0]
        operator = settings.is_.operator
        if operator in ("<", "<="):
            value = self._watched(value, self._window)
        few = max(1.0, abs(threshold) * step / each)
        good, bad = passing((0.0, few * 0.1, few * 2), operator, threshold, lambda rate: rate * each / step)
        examples = ((self._sample((STEADY, good)),), (self._sample((STEADY, bad)),))
        return self._leaf_of(value, "rate", (operator, threshold), examples)

    def _mean(self, settings: Any) -> CompiledLeaf:
        self._need_duration(settings.of)
        self._need_no_cut("a mean")
        count = self._grown(self._hits)
        total = self._sum(growth(self._hits.count.named(_SUM), self._window))
        threshold = threshold_of(settings, "ns") / _NANOSECONDS
        return self._leaf_of(
            share(total, count, settings.at_least),
            "mean",
            (settings.is_.operator, threshold),
            self._lasting(settings, threshold),
            present=self._present(),
        )

    def _lasting(
        self, settings: Any, threshold: float
    ) -> tuple[tuple[SpanSample, ...], tuple[SpanSample, ...]]:
        good, bad = passing(
            (threshold * 2, threshold / 2, threshold + 1),
            settings.is_.operator,
            threshold,
            lambda seconds: seconds,
        )
        rate = (STEADY, self._per_step(settings.at_least))
        return (self._sample(rate, seconds=good),), (self._sample(rate, seconds=bad),)

    def _quantile(self, settings: Any) -> CompiledLeaf:
        """P_q is above a bound if, and only if, less than the q-th part is at most that bound."""
        self._need_duration(settings.of)
        self._need_no_cut("a quantile")
        operator, threshold = settings.is_.operator, threshold_of(settings, "ns") / _NANOSECONDS
        count = self._grown(self._hits)
        examples = self._lasting(settings, threshold)
        if operator not in (">", "<=") or threshold not in METRIC.buckets:
            if not self._interpolate:
                self._need_bound(threshold, str(settings.is_))
                raise NotExpressibleError(f"buckets tell '>' and '<=' of a quantile, not '{settings.is_}'")
            buckets = self._sum(growth(self._hits.count.named(_BUCKET), self._window), "le")
            quantile = f"histogram_quantile({number(settings.q)}, {buckets})"
            value = at_least(quantile, count, settings.at_least)
            test = (operator, threshold)
        else:
            bucket = self._hits.count.named(_BUCKET, at_most(threshold))
            value = share(self._sum(growth(bucket, self._window)), count, settings.at_least)
            test = ("<" if operator == ">" else ">=", settings.q)
        return self._leaf_of(
            value,
            f"p{number(settings.q * 100).replace('.', '_')}",
            test,
            examples,
            present=self._present(),
        )

    def _delta(self, settings: Any) -> CompiledLeaf:
        check_window(settings.against, self._target, "a time to compare with")
        if settings.stat == "quantile":
            return self._delta_of_quantile(settings)
        window, against, relative = self._window, settings.against, is_relative(settings)
        then = self._grown(self._hits, against, window)
        if settings.stat == "rate" and settings.of is None:
            new, old = self._hit_count(function="rate"), self._hit_count(against, window, "rate")
            scale, enough = 1.0, f"{_whole(then)} >= {number(settings.at_least)}"
        else:
            self._need_duration(settings.of)
            self._need_no_cut("a sum")
            total, scale = self._hits.count.named(_SUM), _NANOSECONDS
            function = "rate" if settings.stat == "rate" else "increase"
            new = self._sum(growth(total, window, function=function))
            old = self._sum(growth(total, against, window, function))
            enough = f"{_whole(then)} >= {number(settings.at_least)}"
            if settings.stat == "mean":
                now = self._grown(self._hits)
                new, old = f"{new} / {now}", f"{old} / {then}"
                enough += f" and {_whole(now)} >= {number(settings.at_least)}"
        threshold = (
            threshold_of(settings, "1")
            if relative
            else threshold_of(settings, "ns" if scale > 1 else "") / scale
        )
        value = f"({change(new, old, relative=relative)}) and {enough}"
        return self._leaf_of(
            self._watched(value, window + against),
            f"delta_{settings.stat}",
            (settings.is_.operator, threshold),
            self._changing(settings, threshold, relative=relative),
            present=self._present(),
            covers=window + against,
        )

    def _delta_of_quantile(self, settings: Any) -> CompiledLeaf:
        if not self._interpolate:
            raise NotExpressibleError("a change of a quantile of buckets is an estimate")
        self._need_duration(settings.of)
        self._need_no_cut("a quantile")
        window, against, relative = self._window, settings.against, is_relative(settings)
        buckets = self._hits.count.named(_BUCKET)
        new, old = (
            f"histogram_quantile({number(settings.q)}, {self._sum(growth(buckets, length, ago), 'le')})"
            for length, ago in ((window, 0.0), (against, window))
        )
        threshold = threshold_of(settings, "1" if relative else "ns") / (1.0 if relative else _NANOSECONDS)
        value = change(new, old, relative=relative)
        if settings.at_least > 1:
            counts = self._grown(self._hits), self._grown(self._hits, against, window)
            value = f"({value})" + "".join(f" and {one} >= {number(settings.at_least)}" for one in counts)
        return self._leaf_of(
            value,
            "delta_quantile",
            (settings.is_.operator, threshold),
            self._lengthening(settings, threshold, relative=relative),
            present=self._present(),
            covers=window + against,
        )

    def _changing(
        self, settings: Any, threshold: float, *, relative: bool
    ) -> tuple[tuple[SpanSample, ...], tuple[SpanSample, ...]]:
        if settings.stat == "mean":
            return self._lengthening(settings, threshold, relative=relative)
        step, each = self._target.scrape_interval, self._hits.seconds[0] if settings.of else 1.0
        base = self._per_step(settings.at_least) + 20
        if not relative:
            base += math.ceil(4 * abs(threshold) * step / each)
        unit = 1.0 if relative else base * each / step
        good, bad = passing(
            factors(threshold / unit), settings.is_.operator, threshold, lambda factor: (factor - 1) * unit
        )
        before = -self._window
        changed, kept = (self._sample((before, base), (STEADY, base * factor)) for factor in (good, bad))
        return (changed,), (kept,)

    def _lengthening(
        self, settings: Any, threshold: float, *, relative: bool
    ) -> tuple[tuple[SpanSample, ...], tuple[SpanSample, ...]]:
        """Spans of one duration that give way to spans of another."""
        base = 0.4 if relative else max(0.4, 4 * abs(threshold))
        unit = 1.0 if relative else base
        good, bad = passing(
            [factor for factor in factors(threshold / unit) if factor],
            settings.is_.operator,
            threshold,
            lambda factor: (factor - 1) * unit,
        )
        rate = self._per_step(settings.at_least)
        before = -self._window
        old = self._sample((before, rate), (STEADY, 0.0), seconds=base)
        longer, same = (
            self._sample((before, 0.0), (STEADY, rate), seconds=base * factor) for factor in (good, bad)
        )
        return (old, longer), (old, same)


def _whole(expression: str) -> str:
    return f"({expression})" if " or " in expression else expression
