"""The tests of rules, compiled: one mask for what a rule asks of a view."""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

import numpy as np

from otel_bridge.columns import Words, any_of
from otel_bridge.rules.terms import OPERATORS, Comparison, in_unit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from otel_bridge.rules.terms import Test
    from otel_bridge.rules.vocabulary import Field


def compile_tests(
    tests: Mapping[str, Test], fields: Mapping[str, Field]
) -> Callable[[Any], NDArray[np.bool_] | None]:
    """One mask for several tests; None where there are none, so that nothing need be computed.

    Args:
        tests: by field.
        fields: what each field is.
    """
    # The unit belongs to what is tested: another rule set may have declared another one.
    compiled = [
        ((name, test, fields[name].unit), _compile(name, test, fields[name]))
        for name, test in sorted(tests.items(), key=lambda item: _reads_texts(item[1], fields[item[0]]))
    ]

    def mask(view: Any) -> NDArray[np.bool_] | None:
        out: NDArray[np.bool_] | None = None
        for key, one in compiled:
            if out is not None and not any_of(out):
                return out
            found = view.masks.get(key)
            if found is None:
                found = view.masks[key] = one(view)
            out = found if out is None else out & found
        return out

    return mask


def _reads_texts(test: Test, field: Field) -> bool:
    """Whether a test looks at texts, which costs the most: it comes last, when nothing else has failed."""
    return not isinstance(test, Comparison) and any(
        isinstance(value, str) and value not in field.names for value in test.values
    )


def _compile(name: str, test: Test, field: Field) -> Callable[[Any], NDArray[np.bool_]]:
    if isinstance(test, Comparison):
        return _compile_comparison(name, test, field)
    numbers: set[float] = set()
    texts: list[str] = []
    for value in test.values:
        if isinstance(value, bool | int | float):
            numbers.add(float(value))
        elif value in field.names:
            numbers.update(field.names[value])
        else:
            texts.append(_canonical(value) if field.type == "address" else value)
    exact = [text for text in texts if "*" not in text]
    globs = [text for text in texts if "*" in text]
    words = Words(exact, "verbatim") if exact else None
    pattern = re.compile(b"|".join(_glob(text) for text in globs), re.DOTALL) if globs else None
    listed = np.array(sorted(numbers))

    def mask(view: Any) -> NDArray[np.bool_]:
        out: NDArray[np.bool_] = (
            np.isin(view.numbers(name), listed) if len(listed) else np.zeros(len(view), np.bool_)
        )
        if words is not None or pattern is not None:
            out = out | view.text_mask(name, words, pattern)
        if test.negated:
            there: NDArray[np.bool_] = ~np.isnan(view.numbers(name)) | view.text_mask(name, None, None)
            out = there & ~out
        return out

    return mask


def _compile_comparison(name: str, test: Comparison, field: Field) -> Callable[[Any], NDArray[np.bool_]]:
    compare: Callable[[Any, Any], NDArray[np.bool_]] = OPERATORS[test.operator]
    threshold = test.quantity.number if field.names else in_unit(test.quantity, field.unit)

    def mask(view: Any) -> NDArray[np.bool_]:
        values = view.numbers(name)
        out = compare(values, threshold)
        if test.operator == "!=":
            out &= ~np.isnan(values)
        return out

    return mask


def _canonical(text: str) -> str:
    try:
        return str(ip_address(text))
    except ValueError:
        return text


def _glob(text: str) -> bytes:
    return b".*".join(re.escape(part.encode()) for part in text.split("*"))
