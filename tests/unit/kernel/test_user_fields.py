"""Fields of functions as events tell them: what is computed of what the kernel read, by hand beside it."""

from __future__ import annotations

import numpy as np
import pytest

from otel_bridge.events import COMMON
from otel_bridge.kernel.config import UserConfig
from otel_bridge.kernel.probes.user import Functions
from otel_bridge.kernel.records import USER_EVENT

READ = {"argument": 1, "type": "i64"}
HELPER = {**READ, "told": False}
UNSIGNED = {"argument": 1, "type": "u64"}
ROWS = {"rows": HELPER, "layers": HELPER}


def told(fields, *calls):
    """What events of calls tell; a call is what the kernel read for each field, modulo 2^64."""
    functions = Functions.of(
        UserConfig.model_validate(
            {"functions": [{"name": "evict", "library": "x", "symbol": "evict", "fields": fields}]}
        )
    )
    records = np.zeros(len(calls), USER_EVENT)
    for record, call in zip(records, calls, strict=True):
        record["fields"][: len(call)] = [value % 2**64 for value in call]
    records["time"] = range(len(calls))
    parts = [*functions.split(records)]
    assert {name for name, _ in parts} == {"evict"}
    return [part for _, part in parts]


def as_rows(part):
    """Times and own fields."""
    own = [name for name in part.dtype.names if name not in COMMON.names]
    return own, [(int(row["time"]), *(int(row[name]) for name in own)) for row in part]


@pytest.mark.parametrize(
    ("field", "calls", "expected"),
    [
        # rows, layers, value
        ({"plus": "rows"}, [(128, 2, 64), (-5, 2, 3)], [192, -2]),
        ({"less": "rows", "plus": "layers"}, [(128, 2, 64)], [-62]),
        ({"times": "layers"}, [(128, 2, 7), (0, -3, 7), (0, 0, 7)], [14, -21, 0]),
        ({"times": ["layers", "rows"]}, [(128, 2, 7)], [1792]),
        ({"plus": "rows", "times": "layers"}, [(256, 3, 128)], [1152]),
        ({"plus": "rows", "times": "layers", "per": 100}, [(256, 3, 128), (256, -3, 128)], [11, -12]),
    ],
)
def test_values_are_added_multiplied_and_divided_in_that_order(field, calls, expected):
    """Whatever the order that they are written in."""
    [part] = told({**ROWS, "value": {**READ, **field}}, *calls)
    assert as_rows(part) == (["value"], [*enumerate(expected)])


def test_a_field_is_computed_with_what_others_were_computed_to():
    """As the bytes of cells: the layers are the difference of two pointers, by the size of one."""
    fields = {
        "evict_count": READ,
        "first_layer": {**UNSIGNED, "told": False},
        "layers": {**UNSIGNED, "less": "first_layer", "per": 0x48, "told": False},
        "k_row": {**UNSIGNED, "told": False},
        "freed_bytes": {**UNSIGNED, "plus": "k_row", "times": ["layers", "evict_count"]},
    }
    begin = 0xFFFF_8000_0000_0000
    [part] = told(fields, (7, begin, begin + 32 * 0x48, 2048, 1024), (0, begin, begin + 0x48, 34, 34))
    assert as_rows(part) == (["evict_count", "freed_bytes"], [(0, 7, 688128), (1, 0, 0)])


def test_a_product_that_is_too_large_is_no_value():
    """Rather than what is left of it in 64 bits; the event is told without, and so is what is made of it."""
    fields = {
        **ROWS,
        "bytes": {**READ, "times": ["rows", "layers"]},
        "again": {**READ, "plus": "bytes"},
        "other": READ,
    }
    large = 2**40
    calls = [(1, 1, 1, 1, 5), (large, large, 1, 1, 6), (large, 4, -1, 3, 7), (large, large, large, 1, 8)]
    apart = {tuple(own): rows for own, rows in map(as_rows, told(fields, *calls))}
    assert apart == {
        ("bytes", "again", "other"): [(0, 1, 2, 5), (2, -4 * large, 3 - 4 * large, 7)],
        ("other",): [(1, 6), (3, 8)],
    }


def test_the_largest_product_that_is_told():
    """2^62, of either sign."""
    fields = {"factor": HELPER, "value": {**READ, "times": "factor"}}
    within, beyond = told(fields, (2**31, 2**31), (2**31, -(2**31)), (2**31, 2**31 + 1))[::-1]
    assert as_rows(within) == (["value"], [(0, 2**62), (1, -(2**62))])
    assert as_rows(beyond) == ([], [(2,)])


def test_values_that_nothing_is_computed_with_keep_their_sign():
    """Addresses and sizes of all 64 bits."""
    [part] = told({"a": UNSIGNED, "b": {**UNSIGNED, "per": 2}, "c": READ}, (2**64 - 1, 2**64 - 2, -1))
    assert as_rows(part) == (["a", "b", "c"], [(0, 2**64 - 1, 2**63 - 1, -1)])
