"""Cutting to a number of bytes: whole characters, JSON that stays JSON."""

from __future__ import annotations

import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_bridge.processors.redact.truncate import truncated

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=40),
    lambda children: (
        st.lists(children, max_size=5) | st.dictionaries(st.text(max_size=10), children, max_size=5)
    ),
    max_leaves=30,
)


def test_what_fits_is_the_same_object():
    """Nothing is copied where nothing is cut."""
    text = b"0123456789"
    assert truncated(text, 10) is text


def test_a_prompt_ends_with_a_whole_character():
    """cases.md otlp-utf8: 80,000 characters of three bytes under a cap of 65,536."""
    cut = truncated(("你好" * 40_000).encode(), 65_536)
    assert len(cut) == 65_535
    assert cut.decode() == ("你好" * 40_000)[:21_845]


@pytest.mark.parametrize(
    ("text", "limit", "expected"),
    [
        ('{"messages":[{"content":"你好你好"}]}', 36, '{"messages":[{"content":"你好"}]}'),
        ('{"a":1,"bcdefgh":2}', 12, '{"a":1}'),
        ('{"a":12345678901}', 12, "{}"),
        ('["one","two","three"]', 17, '["one","two","t"]'),
        ('["one","two","three"]', 14, '["one","two"]'),
        ('"a plain JSON string"', 10, '"a plain "'),
        (r'["a\n\u4f60\u597d"]', 14, r'["a\n\u4f60"]'),
        (r'["\ud83d\ude00\ud83d\ude00"]', 20, r'["\ud83d\ude00"]'),
        (r'["\\\\\\\\\\\\"]', 10, r'["\\\\\\"]'),
        ('{"a":{"b":[1,2,3,4,5,6]}}', 18, '{"a":{"b":[1,2]}}'),
    ],
)
def test_json_is_closed(text, limit, expected):
    """Strings, arrays and objects end properly; what does not fit is left out."""
    assert truncated(text.encode(), limit).decode() == expected
    assert len(expected.encode()) <= limit


@pytest.mark.parametrize(
    "text",
    [
        "[INST] a template that only looks like an array [/INST]",
        '{"one":1}\n{"two":2}\n{"three":3}',
        "{not json at all, but it goes on and on}",
        "{'role': 'user', 'content': 'a Python literal'}",
        "}{" * 50,
    ],
)
def test_what_is_not_json_is_cut_as_text(text):
    """A brace alone makes no JSON."""
    assert truncated(text.encode(), 20).decode() == text[:20]


@given(json_values, st.integers(2, 200), st.booleans())
def test_cut_json_is_json(value, limit, ascii_only):
    """Whatever the value and the limit."""
    text = json.dumps(value, ensure_ascii=ascii_only).encode(errors="surrogatepass")
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return  # a lone surrogate: not JSON to begin with
    cut = truncated(text, limit)
    assert len(cut) <= limit
    if text[:1] in (b"{", b"[", b'"'):
        orjson.loads(cut)


@given(st.text(), st.integers(0, 50))
def test_cut_text_is_text(text, limit):
    """Never half a character."""
    cut = truncated(text.encode(), limit)
    assert len(cut) <= limit
    cut.decode()


def test_a_hostile_value_costs_linear_time():
    """Backslashes and brackets by the hundred thousand end, and end well formed or short."""
    for piece in (b"\\", b'\\"', b'["', b'{"a":', b"[[", b'",'):
        assert len(truncated(b'{"a":"' + piece * 200_000, 65_536)) <= 65_536
