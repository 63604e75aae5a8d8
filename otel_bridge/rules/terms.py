"""What a rule says of one value: "> 500ms", ">= 92%", "ENOMEM", [a, b]; and quantities with their units."""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

from otel_bridge.units import parse_byte_size, parse_duration

if TYPE_CHECKING:
    from collections.abc import Callable


class Dimension(Enum):
    """What a quantity measures, as its notation tells."""

    PLAIN = "a plain number"
    TIME = "a duration"
    PERCENT = "a percentage"
    BYTES = "a size"


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number with its dimension.

    Attributes:
        number: seconds, bytes, percent (92 for "92%") or the plain number.
        dimension: which of them.
        text: as the user wrote it.
    """

    number: float
    dimension: Dimension
    text: str


OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """A value against a quantity.

    Attributes:
        operator: a key of OPERATORS.
        quantity: the threshold.
    """

    operator: str
    quantity: Quantity

    def __str__(self) -> str:
        """As the user wrote it."""
        return f"{self.operator} {self.quantity.text}"


@dataclass(frozen=True, slots=True)
class OneOf:
    """A value that equals one of some words, numbers or truth values; or with `negated` none of them.

    Attributes:
        values: what is allowed; texts may hold `*` for any run of characters.
        negated: whether the test is turned around.
    """

    values: tuple[str | float | bool, ...]
    negated: bool = False

    def __str__(self) -> str:
        """For a person."""
        words = " or ".join(str(value) for value in self.values)
        return f"not {words}" if self.negated else words


Test = Comparison | OneOf

_COMPARISON = re.compile(r"\s*(>=|<=|==|!=|>|<)\s*(.+?)\s*")
_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_PERCENT = re.compile(r"([+-]?\d+(?:\.\d+)?)\s*%")


def parse_quantity(text: str) -> Quantity:
    """A quantity from "500ms", "92%", "64MiB", "1200"; a rate may end in "/s".

    Raises:
        ValueError: it is none of them.
    """
    amount = text.removesuffix("/s").strip()
    if _NUMBER.fullmatch(amount):
        return Quantity(float(amount), Dimension.PLAIN, text)
    if match := _PERCENT.fullmatch(amount):
        return Quantity(float(match[1]), Dimension.PERCENT, text)
    sign = -1.0 if amount.startswith("-") else 1.0
    unsigned = amount.lstrip("+-")
    for parse, dimension in ((parse_duration, Dimension.TIME), (parse_byte_size, Dimension.BYTES)):
        try:
            return Quantity(sign * parse(unsigned), dimension, text)
        except ValueError:
            continue
    raise ValueError('a quantity is a number with its unit: "500ms", "92%", "64MiB", or plain: "1200"')


def parse_test(value: Any) -> Test:
    """A test from YAML: "> 500ms", "!= llama", "llama", 3, true, [a, b].

    Raises:
        ValueError: it is none of them.
    """
    if isinstance(value, Comparison | OneOf):
        return value
    if isinstance(value, list):
        if not value or not all(isinstance(item, str | int | float | bool) for item in value):
            raise ValueError("a list here holds at least one text, number or truth value")
        return OneOf(tuple(value))
    if isinstance(value, bool | int | float):
        return OneOf((value,))
    if not isinstance(value, str) or not value.strip():
        raise ValueError('a test is a comparison ("> 500ms"), a value (ENOMEM) or a list of values')
    match = _COMPARISON.fullmatch(value)
    if match is None:
        return OneOf((value,))
    sign, text = match.groups()
    try:
        return Comparison(sign, parse_quantity(text))
    except ValueError:
        if sign in ("==", "!=") and not text[0].isdigit():
            return OneOf((text,), negated=sign == "!=")
        raise


def parse_threshold(value: Any) -> Comparison:
    """A test that is a comparison.

    Raises:
        ValueError: it is no comparison.
    """
    test = parse_test(value)
    if not isinstance(test, Comparison):
        raise ValueError('a comparison is an operator and a quantity: "> 50%", ">= 120/s"')  # noqa: TRY004 (pydantic takes ValueError)
    return test


_TEXT = {"type": "string", "pattern": r"^\s*(>=|<=|==|!=|>|<)\s*\S"}
Threshold = Annotated[
    Comparison, BeforeValidator(parse_threshold), PlainSerializer(str), WithJsonSchema(_TEXT)
]
"""A comparison, written "> 50%"."""

_SCALAR = {"type": ["string", "number", "boolean"]}
ValueTest = Annotated[
    Test,
    BeforeValidator(parse_test),
    PlainSerializer(str),
    WithJsonSchema({"anyOf": [_SCALAR, {"type": "array", "items": _SCALAR, "minItems": 1}]}),
]
"""A test of one value."""


_TIME_UNITS = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}


class UnitError(ValueError):
    """A threshold whose unit is not that of the value it is compared with."""


def in_unit(quantity: Quantity, unit: str) -> float:
    """The number that a value in `unit` (UCUM) is compared with.

    Args:
        quantity: as the user wrote it.
        unit: "s", "ms", "us", "ns", "By", "1" (a ratio), "%", "{thing}" (a count), any other, or "" for
            a value whose unit is not known; a rate's unit ends in "/s".

    Raises:
        UnitError: the notation does not fit the unit; the text says what would.
    """
    unit = unit.removesuffix("/s")
    expected = _expected(unit)
    if quantity.number == 0 and quantity.dimension is Dimension.PLAIN:
        return 0.0
    if quantity.dimension is not expected and not _is_fraction(quantity, unit):
        raise UnitError(f"{_NOTATION[expected]}, since the value is in {unit or 'a unit that is not known'}")
    if expected is Dimension.TIME:
        return round(quantity.number * _TIME_UNITS[unit], 9)
    if unit == "1" and quantity.dimension is Dimension.PERCENT:
        return quantity.number / 100
    return quantity.number


def _expected(unit: str) -> Dimension:
    if unit in _TIME_UNITS:
        return Dimension.TIME
    if unit in ("1", "%"):
        return Dimension.PERCENT
    return Dimension.BYTES if unit == "By" else Dimension.PLAIN


def _is_fraction(quantity: Quantity, unit: str) -> bool:
    """A ratio may also be written as a fraction: 0.92. 92 is a mistake for 92%."""
    return unit == "1" and quantity.dimension is Dimension.PLAIN and abs(quantity.number) <= 1


_NOTATION = {
    Dimension.TIME: 'a duration with its unit ("500ms")',
    Dimension.PERCENT: 'a percentage ("92%")',
    Dimension.BYTES: 'a size with its unit ("64MiB")',
    Dimension.PLAIN: "a plain number",
}
