"""What the shape of a rule set cannot tell.

Unknown names, wrong units, groups without bound, rules that never fire or wait for each other.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any

from otel_bridge.catalog import Kind
from otel_bridge.explain import nearest
from otel_bridge.rules import bounds
from otel_bridge.rules.language import (
    AbsentCondition,
    EventCondition,
    MetricCondition,
    RuleCondition,
    SequenceCondition,
    SpanCondition,
    aggregate,
    walk,
)
from otel_bridge.rules.terms import Comparison, Dimension, OneOf, UnitError, in_unit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from otel_bridge.explain import Path
    from otel_bridge.rules.language import Delta, Leaf, Rule
    from otel_bridge.rules.terms import Test
    from otel_bridge.rules.vocabulary import Field, Vocabulary

LONGEST_STREAMING_WINDOW = 3600.0
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_RESERVED_LABELS = frozenset({"alertname", "severity", "rule"})
_NUMERIC = ("number", "any")


@dataclass(frozen=True, slots=True)
class Mistake:
    """One thing wrong with a rule.

    Attributes:
        path: from the rule: ("when", "all", "0", "is").
        found: what stands there.
        expected: what would be right.
    """

    path: Path
    found: str
    expected: str


def check_rule(rule: Rule, vocabulary: Vocabulary) -> list[Mistake]:
    """All mistakes of one rule that can be told without the others."""
    return _Checker(rule, vocabulary).run()


def check_references(rules: Mapping[str, Rule]) -> list[tuple[str, Mistake]]:
    """Mistakes in how rules refer to one another, each with the name of the rule that has it."""
    mistakes = []
    graph: dict[str, set[str]] = {}
    for name, rule in rules.items():
        graph[name] = set()
        for path, node, _ in walk(rule):
            if not isinstance(node, RuleCondition):
                continue
            graph[name].add(node.rule)
            other = rules.get(node.rule)
            if other is None:
                mistakes.append(
                    (name, Mistake((*path, "rule"), repr(node.rule), nearest(node.rule, [*rules])))
                )
            elif other.by and other.by != rule.by:
                expected = "a rule without `by`, or with the same `by` as this rule"
                mistakes.append((name, Mistake((*path, "rule"), f"{node.rule} with another `by`", expected)))
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle = error.args[1]
        mistakes.append(
            (circle[0], Mistake(("when",), "a circle: " + " → ".join(circle), "rules that end somewhere"))
        )
    return mistakes


class _Checker:
    def __init__(self, rule: Rule, vocabulary: Vocabulary) -> None:
        self._rule = rule
        self._vocabulary = vocabulary
        self._streams = rule.engine != "prometheus"
        self._mistakes: list[Mistake] = []

    def run(self) -> list[Mistake]:
        self._check_labels()
        for path, node, window in walk(self._rule):
            if isinstance(node, SpanCondition | EventCondition | MetricCondition):
                self._check_leaf(path, node, window)
            elif isinstance(node, SequenceCondition):
                self._check_sequence(path, node, window)
            elif isinstance(node, AbsentCondition):
                self._check_absent(path, node)
        never = bounds.why_never(self._rule.when, self._vocabulary)  # type: ignore[arg-type]
        if never is not None and not self._mistakes:
            self._say(("when",), f"a rule that can never fire: {never}", "a condition that can hold")
        if bounds.holds_in_silence(self._rule.when):  # type: ignore[arg-type]
            self._say(
                ("when",), "a rule that fires while nothing happens", "`absent`, or something that comes"
            )
        return self._mistakes

    def _say(self, path: Path, found: str, expected: str) -> None:
        self._mistakes.append(Mistake(path, found, expected))

    # Labels

    def _check_labels(self) -> None:
        rule = self._rule
        names = {key.label for key in rule.by}
        taken = [key.prometheus for key in rule.by] + [*rule.labels]
        for name in {name for name in taken if taken.count(name) > 1 or name in _RESERVED_LABELS}:
            self._say(("by",), f"the label {name!r} twice, or one of the bridge's own", "labels of its own")
        for name in rule.labels:
            if not re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", name):
                self._say(("labels", name), repr(name), "letters, digits and underscores")
        for key in ("summary", "breaker"):
            for name in _PLACEHOLDER.findall(getattr(rule, key)):
                if name not in names:
                    expected = f"a label of `by`: {', '.join(sorted(names))}" if names else "no placeholder"
                    self._say((key,), f"{{{name}}}", expected)

    def _check_group(self, path: Path, leaf: Leaf) -> None:
        source = source_of(leaf)
        for index, key in enumerate(self._rule.by):
            name = key.key(source)
            found = self._vocabulary.field(leaf, name)
            where = ("by", str(index))
            if found is None:
                place = ".".join(path)
                self._say(
                    where,
                    f"{key.label}, which {named(leaf)} ({place}) does not have",
                    f"a label that all have, or `{source}:` beside it with the name it has there",
                )
            elif not found.bounded:
                self._say(where, f"{name}, which has values without bound", "a label with few values")

    # Conditions over items

    def _check_leaf(self, path: Path, leaf: Leaf, window: float | None) -> None:
        if not self._check_name(path, leaf):
            return
        self._check_group(path, leaf)
        for key, tests in (("where", leaf.where), ("is", leaf.is_)):
            for name, test in tests.items():
                self._check_test((*path, key, name), leaf, name, test)
        computes, settings = aggregate(leaf)
        if computes:
            self._check_aggregate(path, leaf, computes, settings)
        self._check_window(path, leaf, computes, window)

    def _check_name(self, path: Path, leaf: Leaf) -> bool:
        if isinstance(leaf, EventCondition) and leaf.event not in self._vocabulary.events:
            self._say((*path, "event"), repr(leaf.event), nearest(leaf.event, [*self._vocabulary.events]))
            return False
        if isinstance(leaf, MetricCondition):
            series = self._vocabulary.metrics.get(leaf.metric)
            if series is None:
                near = nearest(leaf.metric, [*self._vocabulary.metrics])
                self._say(
                    (*path, "metric"), repr(leaf.metric), f"{near}, or a declaration of it under `metrics`"
                )
                return False
            if self._streams and not series.own:
                self._say(
                    (*path, "metric"),
                    f"{leaf.metric}, which the bridge does not read",
                    "`engine: prometheus` with the reason",
                )
        return True

    def _check_window(self, path: Path, leaf: Leaf, computes: str, window: float | None) -> None:
        latest = isinstance(leaf, MetricCondition) and not computes
        if latest and leaf.within is not None:
            self._say((*path, "within"), "a window", "none, since a metric's latest reading decides")
        elif window is None and not latest:
            self._say(path, "no window", "`within` here or around it")
        if self._streams and not latest and (window or 0) > LONGEST_STREAMING_WINDOW:
            self._say(path, "a window of more than an hour", "an hour at most, or `engine: prometheus`")

    def _check_test(self, path: Path, leaf: Leaf, name: str, test: Test) -> None:
        found = self._vocabulary.field(leaf, name)
        if found is None:
            self._say(
                path, f"{name!r}, a field of no {named(leaf)}", nearest(name, self._vocabulary.fields(leaf))
            )
        elif isinstance(test, Comparison):
            self._check_threshold(path, found, test)
        elif isinstance(test, OneOf):
            self._check_words(path, found, test)

    def _check_threshold(self, path: Path, found: Field, test: Comparison, per_second: str = "") -> None:
        if found.type not in _NUMERIC or found.names:
            if test.operator not in ("==", "!="):
                self._say(path, f"{str(test)!r}", "a value or a list of values, since it is no quantity")
            return
        try:
            in_unit(test.quantity, found.unit + per_second)
        except UnitError as error:
            self._say(path, f"{str(test)!r}", str(error))

    def _check_words(self, path: Path, found: Field, test: OneOf) -> None:
        for value in test.values:
            if found.type == "number" and isinstance(value, str) and value not in found.names:
                expected = nearest(value, [*found.names]) if found.names else "a comparison or a number"
                self._say(path, repr(value), expected)
            if found.type in ("text", "address") and not isinstance(value, str):
                self._say(path, repr(value), "a text (in quotes)")

    # What is computed over the window

    def _check_aggregate(self, path: Path, leaf: Leaf, computes: str, settings: Any) -> None:
        where = (*path, computes)
        if computes in ("ratio", "consecutive") and not leaf.is_ and getattr(settings, "to", None) is None:
            self._say(path, f"{computes} without `is`", "`is`, to tell hits from the rest")
        check: Callable[[Path, Any, str, Any], None] = (
            self._check_metric_aggregate if isinstance(leaf, MetricCondition) else self._check_item_aggregate
        )
        check(where, leaf, computes, settings)
        if self._streams and computes == "delta" and settings.stat == "quantile":
            self._say(
                where,
                "a change of a quantile",
                "`engine: prometheus`: to stream it, all values would be kept",
            )

    def _check_item_aggregate(
        self, path: Path, leaf: SpanCondition | EventCondition, computes: str, settings: Any
    ) -> None:
        if computes in ("count", "consecutive"):
            return
        if computes == "ratio":
            if settings.to is not None:
                self._say(
                    (*path, "to"), repr(settings.to), "nothing: only counters are divided by each other"
                )
            self._check_unit(path, "1", settings.is_)
            return
        name = settings.of
        if name is None or (name == "value" and "of" not in settings.model_fields_set):
            if computes == "rate" or (computes == "delta" and settings.stat == "rate"):
                self._check_change(path, "{hit}/s", computes, settings)
            else:
                self._say(path, "no field", "`of`, with a field")
            return
        found = self._vocabulary.field(leaf, name)
        if found is None or found.type not in _NUMERIC or found.names:
            self._say((*path, "of"), repr(name), "a field that is a quantity")
            return
        rate = computes == "rate" or getattr(settings, "stat", "") == "rate"
        self._check_change(path, found.unit + ("/s" if rate else ""), computes, settings)

    def _check_metric_aggregate(
        self, path: Path, leaf: MetricCondition, computes: str, settings: Any
    ) -> None:
        series = self._vocabulary.metrics[leaf.metric]
        kinds = _KINDS_OF[settings.stat if computes == "delta" else computes]
        if series.kind not in kinds:
            named_kinds = " or ".join(kind.value for kind in kinds)
            self._say(path, f"{computes} of a {series.kind.value}", f"a {named_kinds}")
            return
        if leaf.is_:
            self._say(path, f"`is` beside {computes}", "one of them: readings are not counted one by one")
        if getattr(settings, "of", None) not in (None, "value"):
            self._say((*path, "of"), repr(settings.of), "nothing: a metric has its value alone")
        if self._streams and series.kind is Kind.HISTOGRAM:
            self._say(path, "a histogram", "`engine: prometheus`, since readings are single values")
        if computes == "ratio":
            self._check_divisor(path, settings.to)
            self._check_unit(path, "1", settings.is_)
            return
        per_second = "/s" if computes in ("rate", "slope") or getattr(settings, "stat", "") == "rate" else ""
        unit = "{observation}" if series.kind is Kind.HISTOGRAM and per_second else series.unit
        self._check_change(path, unit + per_second, computes, settings)

    def _check_divisor(self, path: Path, to: str | None) -> None:
        if to is None:
            self._say(path, "a ratio of a counter to nothing", "`to`, with the other counter")
            return
        other = self._vocabulary.metrics.get(to)
        if other is None or other.kind is not Kind.COUNTER:
            self._say((*path, "to"), repr(to), "a counter of the catalog or of `metrics`")

    def _check_change(self, path: Path, unit: str, computes: str, settings: Any) -> None:
        relative = computes == "delta" and _is_relative(settings)
        self._check_unit(path, "1" if relative else unit, settings.is_)

    def _check_unit(self, path: Path, unit: str, threshold: Comparison) -> None:
        if threshold.operator in ("==", "!="):
            self._say(
                (*path, "is"), f"{str(threshold)!r}", "one of >, >=, <, <=: what is measured is seldom equal"
            )
        try:
            in_unit(threshold.quantity, unit)
        except UnitError as error:
            self._say((*path, "is"), f"{str(threshold)!r}", str(error))

    # Combinations

    def _check_sequence(self, path: Path, node: SequenceCondition, window: float | None) -> None:
        if window is None:
            self._say(path, "a sequence without a window", "`within`")
        for index, step in enumerate(node.sequence):
            where = (*path, "sequence", str(index))
            if not isinstance(step, SpanCondition | EventCondition):
                self._say(where, "a step that is no occurrence", "a condition over spans or events")
            elif aggregate(step)[0] not in ("", "count", "consecutive"):
                self._say(where, aggregate(step)[0], "a plain condition, `count` or `consecutive`")
            elif step.within is not None:
                self._say((*where, "within"), "a window of a step", "the window of the sequence")

    def _check_absent(self, path: Path, node: AbsentCondition) -> None:
        leaf = node.absent
        if not isinstance(leaf, SpanCondition | EventCondition) or aggregate(leaf)[0]:
            self._say(
                (*path, "absent"),
                "a condition that is no plain occurrence",
                "a span or an event, without anything computed over the window",
            )


_KINDS_OF: dict[str, tuple[Kind, ...]] = {
    "ratio": (Kind.COUNTER,),
    "increase": (Kind.COUNTER,),
    "rate": (Kind.COUNTER, Kind.HISTOGRAM),
    "mean": (Kind.GAUGE,),
    "slope": (Kind.GAUGE,),
    "quantile": (Kind.GAUGE, Kind.HISTOGRAM),
}


def _is_relative(delta: Delta) -> bool:
    """A change in percent, whatever unit the statistic has."""
    return delta.is_.quantity.dimension is Dimension.PERCENT


def source_of(leaf: Leaf) -> str:
    """Which source a condition looks at: the key that names it."""
    if isinstance(leaf, SpanCondition):
        return "span"
    return "event" if isinstance(leaf, EventCondition) else "metric"


def named(leaf: Leaf) -> str:
    """What a condition looks at, for a person."""
    if isinstance(leaf, SpanCondition):
        return "span" if leaf.span == "any" else f"{leaf.span} span"
    return f"event {leaf.event}" if isinstance(leaf, EventCondition) else f"metric {leaf.metric}"
