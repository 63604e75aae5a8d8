"""Rules that can never fire: values that no field can have, tests that exclude each other."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from otel_bridge.rules.language import (
    AbsentCondition,
    AllCondition,
    AnyCondition,
    EventCondition,
    MetricCondition,
    NotCondition,
    SequenceCondition,
    SpanCondition,
    aggregate,
    children,
)
from otel_bridge.rules.terms import Comparison, OneOf, UnitError, in_unit

if TYPE_CHECKING:
    from otel_bridge.rules.language import Leaf, Node
    from otel_bridge.rules.terms import Test
    from otel_bridge.rules.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class Interval:
    """Numbers from `low` to `high`, the ends themselves in it unless open."""

    low: float = -math.inf
    high: float = math.inf
    low_open: bool = False
    high_open: bool = False

    @property
    def empty(self) -> bool:
        """Whether no number is in it."""
        return self.low > self.high or (self.low == self.high and (self.low_open or self.high_open))

    def meet(self, other: Interval) -> Interval:
        """The numbers in both."""
        low, low_open = max((self.low, self.low_open), (other.low, other.low_open))
        high, closed = min((self.high, not self.high_open), (other.high, not other.high_open))
        return Interval(low, high, low_open, not closed)


NOT_NEGATIVE = Interval(low=0.0)
SHARE = Interval(0.0, 1.0)


def why_never(node: Node, vocabulary: Vocabulary) -> str | None:
    """Why a condition can never hold; None when it may."""
    if isinstance(node, SpanCondition | EventCondition | MetricCondition):
        return _leaf(node, vocabulary)
    if isinstance(node, AllCondition):
        contradicted = _contradiction(children(node))
        if contradicted is not None:
            return contradicted
    if isinstance(node, NotCondition | AbsentCondition):
        return None
    reasons = [why_never(child, vocabulary) for child in children(node)]
    found = [reason for reason in reasons if reason is not None]
    if isinstance(node, AllCondition | SequenceCondition) and found:
        return found[0]
    if isinstance(node, AnyCondition) and len(found) == len(reasons):
        return found[0]
    return None


def holds_in_silence(node: Node) -> bool | None:
    """Whether a condition holds where nothing ever came; None: that is not known."""
    if isinstance(node, MetricCondition | AbsentCondition):
        return None
    found = [holds_in_silence(child) for child in children(node)]
    if isinstance(node, NotCondition):
        return None if found[0] is None else not found[0]
    if isinstance(node, AllCondition):
        return False if False in found else None if None in found else True
    if isinstance(node, AnyCondition):
        return True if True in found else None if None in found else False
    computes = aggregate(node)[0] if isinstance(node, SpanCondition | EventCondition) else ""
    return None if computes in ("ratio", "rate", "mean", "quantile", "delta") else False


def _contradiction(nodes: list[Node]) -> str | None:
    for node in nodes:
        if isinstance(node, NotCondition) and node.not_ in nodes:
            return "a condition and its opposite"
    return None


def _leaf(leaf: Leaf, vocabulary: Vocabulary) -> str | None:
    for name in {*leaf.where, *leaf.is_}:
        tests = [test for test in (leaf.where.get(name), leaf.is_.get(name)) if test is not None]
        if _numbers(leaf, name, tests, vocabulary).empty or _share_no_word(tests):
            return f"no {name} is {' and '.join(str(test) for test in tests)}"
    computes, settings = aggregate(leaf)
    if computes in ("", "count", "consecutive", "slope"):
        return None
    possible = _possible(leaf, computes, settings, vocabulary)
    unit = _unit(leaf, computes, settings, vocabulary)
    if possible.meet(_interval(settings.is_, unit)).empty:
        return f"no {computes} is {settings.is_}"
    return None


def _numbers(leaf: Leaf, name: str, tests: list[Test], vocabulary: Vocabulary) -> Interval:
    """The values of a field that pass all tests."""
    field = vocabulary.field(leaf, name)
    if field is None or field.names or field.type not in ("number", "any"):
        return Interval()
    out = NOT_NEGATIVE if _is_amount(field.unit) else Interval()
    for test in tests:
        if isinstance(test, Comparison):
            out = out.meet(_interval(test, field.unit))
    return out


def _is_amount(unit: str) -> bool:
    """Whether values in a unit are never negative: times, sizes, counts."""
    return unit in ("s", "ms", "us", "ns", "By") or (unit.startswith("{") and unit != "{error}")


def _interval(test: Comparison, unit: str) -> Interval:
    try:
        value = in_unit(test.quantity, unit)
    except UnitError:
        return Interval()
    return {
        ">": Interval(low=value, low_open=True),
        ">=": Interval(low=value),
        "<": Interval(high=value, high_open=True),
        "<=": Interval(high=value),
        "==": Interval(value, value),
        "!=": Interval(),
    }[test.operator]


def _share_no_word(tests: list[Test]) -> bool:
    words = [set(test.values) for test in tests if isinstance(test, OneOf) and not test.negated]
    exact = [values for values in words if not any("*" in str(value) for value in values)]
    return len(exact) > 1 and not set.intersection(*exact)


def _possible(leaf: Leaf, computes: str, settings: Any, vocabulary: Vocabulary) -> Interval:
    if computes == "ratio":
        return Interval(0.0) if settings.to is not None else SHARE
    if computes == "delta":
        relative = "%" in settings.is_.quantity.text
        return Interval(low=-1.0) if relative else Interval()
    if computes in ("rate", "increase"):
        return NOT_NEGATIVE
    tests = [test for test in (leaf.where.get(settings.of), leaf.is_.get(settings.of)) if test is not None]
    return _numbers(leaf, settings.of, tests, vocabulary)


def _unit(leaf: Leaf, computes: str, settings: Any, vocabulary: Vocabulary) -> str:
    if computes in ("ratio", "delta"):
        return "1"
    field = vocabulary.field(leaf, settings.of) if getattr(settings, "of", None) else None
    return "" if field is None else field.unit
