"""Pieces of PromQL as text, and what a rule is compiled for."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from otel_bridge.rules.terms import OneOf

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_bridge.rules.terms import Test

FEWEST_SCRAPES = 4
"""Scrapes that a window must hold: `increase()` needs two, and one may be late or lost."""

INVERSE = {">": "<=", ">=": "<", "<": ">=", "<=": ">", "==": "!=", "!=": "=="}


class NotExpressibleError(Exception):
    """A condition that Prometheus cannot decide as the streaming engine does; the text says why."""


@dataclass(frozen=True, slots=True)
class Target:
    """The Prometheus that rules are compiled for.

    Attributes:
        scrape_interval: seconds between two scrapes, and between two evaluations.
        keep: labels of the scrape that tell one bridge from another; a rule that both engines evaluate is
            decided for each bridge, as each bridge decides it.
        dimensions: attribute keys that `connectors.derive.dimensions` adds to every derived metric.
        runbook_url: the page whose headings alerts link to.
    """

    scrape_interval: float = 15.0
    keep: tuple[str, ...] = ("instance",)
    dimensions: tuple[str, ...] = ()
    runbook_url: str = "runbook.md"


@dataclass(frozen=True, slots=True)
class Selector:
    """Series of one metric.

    Attributes:
        metric: the metric's name.
        matchers: as PromQL writes them.
        example: labels of a series that fits.
        other: labels of a series that fits but for the last matchers; None when those ask for nothing.
    """

    metric: str
    matchers: tuple[str, ...] = ()
    example: Mapping[str, str] = field(default_factory=dict)
    other: Mapping[str, str] | None = None

    def __str__(self) -> str:
        """As PromQL writes it."""
        return f"{self.metric}{{{', '.join(self.matchers)}}}" if self.matchers else self.metric

    def named(self, metric: str, *more: str) -> Selector:
        """The same labels on another metric."""
        return Selector(metric, (*self.matchers, *more), self.example, self.other)


def quoted(text: str) -> str:
    """A text as PromQL writes it."""
    return json.dumps(text, ensure_ascii=False)


def number(value: float) -> str:
    """A number as PromQL writes it."""
    return format(value, ".12g")


def duration(seconds: float) -> str:
    """A duration as PromQL writes it: "5m", "90s", "250ms"."""
    milliseconds = round(seconds * 1000)
    for size, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s")):
        if milliseconds and milliseconds % size == 0:
            return f"{milliseconds // size}{unit}"
    return f"{milliseconds}ms"


def matcher(label: str, values: tuple[str, ...], *, negated: bool = False) -> tuple[str, ...]:
    """That a label is one of some values (`*`: anything), or with `negated` is there and none of them."""
    if len(values) == 1 and "*" not in values[0]:
        found = f"{label}{'!=' if negated else '='}{quoted(values[0])}"
    else:
        pattern = "|".join(".*".join(_escaped(part) for part in value.split("*")) for value in values)
        found = f"{label}{'!~' if negated else '=~'}{quoted(pattern)}"
    return (found, f'{label}!=""') if negated else (found,)


def _escaped(text: str) -> str:
    # Only RE2's own signs: Python's re.escape also escapes what RE2 refuses to see escaped.
    return re.sub(r"([\\.+*?()|\[\]{}^$])", r"\\\1", text)


def label_values(test: Test, words: Mapping[str, str] | None = None) -> tuple[tuple[str, ...], bool]:
    """The label values that a test allows, and whether it turns that around.

    Raises:
        NotExpressibleError: labels are texts, and the test compares a quantity.
    """
    words = words or {}
    if isinstance(test, OneOf):
        return tuple(words.get(_spelled(value), _spelled(value)) for value in test.values), test.negated
    if test.operator not in ("==", "!="):
        raise NotExpressibleError(f"a label is a text, which cannot be compared ({test})")
    return (test.quantity.text,), test.operator == "!="


def _spelled(value: str | float | bool) -> str:  # noqa: FBT001 (a value of YAML)
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def example_of(values: tuple[str, ...], *, negated: bool) -> str:
    """A value that `matcher` lets through."""
    if not negated:
        return values[0].replace("*", "x")
    return next(name for name in ("other", "another", "third") if name not in values)


def without(values: tuple[str, ...], *, negated: bool) -> str:
    """A value that `matcher` holds back."""
    return example_of(values, negated=not negated)
