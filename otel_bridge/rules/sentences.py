"""A rule as a sentence: what it fires on, for a person who did not write it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_bridge.rules.language import (
    AbsentCondition,
    AllCondition,
    AnyCondition,
    EventCondition,
    MetricCondition,
    NotCondition,
    RuleCondition,
    SequenceCondition,
    SpanCondition,
    aggregate,
    children,
)
from otel_bridge.rules.terms import Comparison

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_bridge.rules.language import Leaf, Node, Rule
    from otel_bridge.rules.terms import Test

_OPERATORS = {
    ">": "above",
    ">=": "at least",
    "<": "below",
    "<=": "at most",
    "==": "equal to",
    "!=": "other than",
}


def sentence(rule: Rule) -> str:
    """What a rule fires on, and what becomes of it."""
    parts = [f"{rule.name} ({rule.severity}) fires when {_condition(rule.when, None)}"]  # type: ignore[arg-type]
    if rule.for_:
        parts.append(f", for {duration(rule.for_)} without a break")
    if rule.by:
        parts.append(f", for each {' and '.join(key.label for key in rule.by)} by itself")
    parts.append(".")
    if rule.keep_firing_for:
        parts.append(f" It goes on for {duration(rule.keep_firing_for)} after that has ended.")
    if rule.breaker:
        parts.append(f" It trips the breaker of {rule.breaker}.")
    if rule.engine != "both":
        parts.append(f" Only the {rule.engine} engine evaluates it: {rule.reason}.")
    return "".join(parts)


def duration(seconds: float) -> str:
    """Seconds as people write them."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s" if seconds >= 1 else f"{seconds * 1000:g} ms"


def _condition(node: Node, around: float | None) -> str:
    within: float | None = getattr(node, "within", None) or around
    if isinstance(node, RuleCondition):
        return f"{node.rule} fires"
    if isinstance(node, NotCondition):
        return f"it is not so that {_condition(children(node)[0], within)}"
    if isinstance(node, AbsentCondition):
        (inner,) = children(node)
        inner_window = getattr(inner, "within", None) or within or 0.0
        return f"no {_subject(inner)} came for {duration(inner_window)}"  # type: ignore[arg-type]
    if isinstance(node, AllCondition | AnyCondition | SequenceCondition):
        return _several(node, within)
    return _leaf(node, within)


def _several(node: AllCondition | AnyCondition | SequenceCondition, within: float | None) -> str:
    joined = {"AllCondition": ", and ", "AnyCondition": ", or ", "SequenceCondition": ", then "}
    # The window of several is said once, unless a part has its own.
    parts = [_condition(child, None if node.within else within) for child in children(node)]
    text = joined[type(node).__name__].join(parts)
    if len(parts) > 1 and not isinstance(node, SequenceCondition):
        text = f"{'both ' if len(parts) == 2 and isinstance(node, AllCondition) else ''}{text}"  # noqa: PLR2004
    return f"{text}, within {duration(node.within)}" if node.within else text


def _leaf(leaf: Leaf, within: float | None) -> str:
    computes, settings = aggregate(leaf)
    window = f" within {duration(within)}" if within else ""
    if isinstance(leaf, MetricCondition):
        return _metric(leaf, computes, settings, within)
    if computes in ("", "count", "consecutive"):
        article = "an" if _noun(leaf)[0] in "aeio" else "a"
        count = {"": article, "count": f"{settings} or more", "consecutive": f"{settings} consecutive"}[
            computes
        ]
        plural = "" if computes == "" else "s"
        return f"there {'is' if not plural else 'are'} {count} {_subject(leaf, plural)}{window}"
    over = f" over {duration(within)}" if within else ""
    if computes == "ratio":
        share = _tests(leaf.is_)
        return f"the share of {_counted(leaf)} with {share} is {_compared(settings.is_)}{over}"
    what = f"{_statistic(computes, settings)} of {_subject(leaf, 's')}"
    return f"{what} is {_compared(settings.is_)}{_at(settings, over)}"


def _metric(leaf: MetricCondition, computes: str, settings: Any, within: float | None) -> str:
    where = f" ({_tests(leaf.where)})" if leaf.where else ""
    name = f"{leaf.metric}{where}"
    if not computes:
        return f"{name} has {_tests(leaf.is_)}" if leaf.is_ else f"{name} has a reading"
    over = f" over {duration(within)}" if within else ""
    if computes == "ratio":
        return f"the increase of {name} divided by that of {settings.to} is {_compared(settings.is_)}{over}"
    return f"{_statistic(computes, settings)} of {name} is {_compared(settings.is_)}{_at(settings, over)}"


def _statistic(computes: str, settings: Any) -> str:
    field = getattr(settings, "of", None)
    of = f" of {field}" if field and field != "value" else ""
    names = {
        "rate": f"the rate{of}",
        "increase": "the increase",
        "mean": f"the mean{of}",
        "slope": "the slope",
        "quantile": f"P{getattr(settings, 'q', None) or 0:.4%}".rstrip("%").rstrip("0").rstrip(".") + of,
    }
    if computes == "delta":
        return f"the change of {_statistic(settings.stat, settings)}"
    return names[computes]


def _at(settings: Any, over: str) -> str:
    against = getattr(settings, "against", None)
    return over if against is None else f"{over} against the {duration(against)} before"


def _counted(leaf: Leaf) -> str:
    where = f" with {_tests(leaf.where)}" if leaf.where else ""
    return f"{_noun(leaf)}s{where}"


def _noun(leaf: Leaf) -> str:
    if isinstance(leaf, SpanCondition):
        return "span" if leaf.span == "any" else f"{leaf.span} span"
    return f"{leaf.event} event" if isinstance(leaf, EventCondition) else leaf.metric


def _subject(leaf: Leaf, plural: str = "") -> str:
    tests: dict[str, Test] = {**leaf.where, **leaf.is_}
    return f"{_noun(leaf)}{plural}" + (f" with {_tests(tests)}" if tests else "")


def _tests(tests: Mapping[str, Test]) -> str:
    return " and ".join(
        f"{name} {_compared(test) if isinstance(test, Comparison) else test}" for name, test in tests.items()
    )


def _compared(test: Comparison) -> str:
    return f"{_OPERATORS[test.operator]} {test.quantity.text}"
