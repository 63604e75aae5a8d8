"""One condition over spans or a metric as a PromQL value and a comparison, one value a group.

A value is missing, or not a number, where the streaming engine would not know the condition's truth: no
comparison holds of it then, neither the condition's nor its opposite.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from otel_bridge.rules.prometheus.promql import FEWEST_SCRAPES, NotExpressibleError, duration, number
from otel_bridge.rules.terms import Dimension, in_unit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_bridge.rules.language import GroupKey, Rule
    from otel_bridge.rules.prometheus.promql import Selector, Target
    from otel_bridge.rules.prometheus.samples import Sampled


@dataclass(frozen=True, slots=True)
class CompiledLeaf:
    """A condition, compiled.

    Attributes:
        value: PromQL; one element a group whose truth is known.
        operation: what the value is, for a recorded name ("ratio_5m").
        operator: what the value is compared with, the operator.
        threshold: and the number.
        present: PromQL; an element for each group that has series, where `value` may be missing
            nevertheless; empty where it cannot.
        covers: seconds that the value looks back.
        true: samples that make it hold, for a test.
        false: samples that make it known not to hold.
    """

    value: str
    operation: str
    operator: str
    threshold: float
    present: str
    covers: float
    true: tuple[Sampled, ...]
    false: tuple[Sampled, ...]


class Grouping:
    """The labels of a rule's alerts, and how each source's series are brought to them."""

    def __init__(self, rule: Rule, target: Target) -> None:
        self.keep = target.keep if rule.engine == "both" else ()
        self._by: Sequence[GroupKey] = rule.by
        self.labels = tuple(dict.fromkeys((*self.keep, *(key.prometheus for key in rule.by))))

    def over(self, operation: str, vector: str, source: Callable[[GroupKey], str], extra: str = "") -> str:
        """An aggregation to one element a group.

        Args:
            operation: "sum", "max", ….
            vector: what is aggregated.
            source: the label in which the vector has a key.
            extra: a further label that stays.
        """
        for key in self._by:
            if source(key) != key.prometheus:
                vector = f'label_replace({vector}, "{key.prometheus}", "$1", "{source(key)}", "(.*)")'
        labels = ", ".join((*self.labels, extra) if extra else self.labels)
        return f"{operation} by ({labels}) ({vector})"

    def example(self, source: Callable[[GroupKey], str]) -> dict[str, str]:
        """Labels of a series in some group."""
        return {name: f"{name}-1" for name in self.keep} | {
            source(key): f"{key.prometheus}-1" for key in self._by
        }


def check_window(window: float, target: Target, what: str = "a window") -> None:
    """Raises NotExpressibleError where a window holds too few scrapes."""
    if window < FEWEST_SCRAPES * target.scrape_interval:
        least = duration(FEWEST_SCRAPES * target.scrape_interval)
        raise NotExpressibleError(
            f"{what} of {duration(window)} is shorter than {FEWEST_SCRAPES} scrapes ({least})"
        )


def threshold_of(settings: Any, unit: str) -> float:
    """The number that a value in some unit is compared with."""
    return in_unit(settings.is_.quantity, unit)


def is_relative(settings: Any) -> bool:
    """Whether a change is one in percent."""
    return bool(settings.is_.quantity.dimension is Dimension.PERCENT)


def growth(selector: Selector, window: float, offset: float = 0.0, function: str = "increase") -> str:
    """How much counters grew in a window."""
    return f"{function}({ranged(selector, window, offset)})"


def ranged(selector: Selector, window: float, offset: float = 0.0) -> str:
    """A window of series."""
    return f"{selector}[{duration(window)}]{offset_by(offset)}"


def offset_by(seconds: float) -> str:
    """How long ago."""
    return f" offset {duration(seconds)}" if seconds else ""


def at_least(value: str, count: str, least: float) -> str:
    """A value where there were enough items."""
    return f"({value}) and {_braced(count)} >= {number(least)}"


def share(part: str, whole: str, least: float) -> str:
    """A part of a whole that has enough items; of none it is 0/0, which is no number anyway."""
    return f"{part} / {whole}" if least <= 1 else at_least(f"{part} / {whole}", whole, least)


def change(new: str, old: str, *, relative: bool) -> str:
    """The change from one value to another."""
    difference = f"({new}) - ({old})"
    return f"({difference}) / abs({old})" if relative else difference


def or_zero(value: str, known: str) -> str:
    """A sum that is 0 where nothing was a hit, for every group that is known."""
    return value if value == known else f"({value} or 0 * {_braced(known)})"


def _braced(expression: str) -> str:
    return f"({expression})" if " or " in expression or " and " in expression else expression
