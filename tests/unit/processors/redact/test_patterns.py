"""Credentials and personal data are found by shape, and hostile text does not slow the search down."""

from __future__ import annotations

import json

import orjson
import pytest

from otel_bridge.processors.redact.patterns import BUILT_IN, Masker, luhn

EVERYTHING = Masker(list(BUILT_IN), [])

FOUND = [
    ("email", "Write to anna.b-c+tag@mail.example.co.uk today"),
    ("email", "电邮foo@bar.example好"),
    ("api_key", "sk-proj-abcDEF0123456789_-xyz"),
    ("api_key", "sk-ant-api03-AAAABBBBCCCCDDDD1111"),
    ("api_key", "key AKIAIOSFODNN7EXAMPLE."),
    ("api_key", "AIza" + "x" * 35),
    ("api_key", "ghp_" + "a1" * 18),
    ("api_key", "hf_" + "aB3" * 12),
    ("api_key", "xoxb-1234567890-abcdef"),
    ("bearer", "Authorization: Bearer abc.def-ghi_123=="),
    ("bearer", "basic dXNlcjpwYXNzd29yZA=="),
    ("jwt", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P"),
    ("card", "4111 1111 1111 1111"),
    ("card", "pay with 5500-0000-0000-0004 please"),
    ("card", "378282246310005"),
    ("card", "no. 1234 4111 1111 1111 1111"),
    ("private_key", "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA\n-----END RSA PRIVATE KEY-----"),
    ("phone", "call +49 30 1234567"),
]
LEFT = [
    "4111 1111 1111 1112",  # wrong check digit
    "1790000000000000000",  # nanoseconds
    "00000000-0000-0000-0000-000000000000",
    "meta-llama/Llama-3.1-8B-Instruct @ v1.2",
    "sk-learn pipelines are fine, and so is risk-averse-but-long-winded-prose",
    "the bearer of bad news",
    "10.0.0.1:8443, 2026-11-29T17:31:21Z",
]


@pytest.mark.parametrize(("name", "text"), FOUND)
def test_what_is_found(name, text):
    """One match of the pattern, and nothing of what matched is left."""
    hits: dict[str, int] = {}
    masked = EVERYTHING.mask(text.encode(), hits).decode()
    assert hits == {name: 1}
    assert f"[{name}]" in masked


@pytest.mark.parametrize("text", LEFT)
def test_what_is_left(text):
    """The very same object comes back."""
    masker = Masker([name for name in BUILT_IN if name != "phone"], [])
    given = text.encode()
    hits: dict[str, int] = {}
    assert masker.mask(given, hits) is given
    assert hits == {}


def test_luhn():
    """Known good numbers, and each with its last digit changed."""
    for number in ("4111111111111111", "378282246310005", "6011111111111117", "30569309025904"):
        assert luhn(number.encode())
        assert not luhn((number[:-1] + str((int(number[-1]) + 1) % 10)).encode())


@pytest.mark.parametrize(
    ("value", "masked"),
    [
        ({"card": 4111111111111111}, {"card": "[card]"}),
        ({"text": "\nanna@example.com\n"}, {"text": "\n[email]\n"}),
        ([{"anna@example.com": [1, 2.5, None, True]}], [{"[email]": [1, 2.5, None, True]}]),
        ({"text": 'she wrote "anna@example.com"'}, {"text": 'she wrote "[email]"'}),
    ],
)
def test_json_stays_json(value, masked):
    """A number becomes a string, an escape is not torn."""
    out = EVERYTHING.mask(json.dumps(value).encode(), {})
    assert orjson.loads(out) == masked


def test_deep_json_stays_json_and_hides_all():
    """Below a hundred levels the rest is hidden whole; nothing of it gets away."""
    deep = b"[" * 500 + b'4111111111111111, "a@example.com"' + b"]" * 500
    out = EVERYTHING.mask(deep, {})
    orjson.loads(out)
    assert b"4111" not in out
    assert b"example.com" not in out


def test_a_pattern_of_ones_own():
    """With its own replacement, or its name."""
    masker = Masker(
        [], [("ticket", r"\bTCK-[0-9]+", None), ("ssn", r"\b[0-9]{3}-[0-9]{2}-[0-9]{4}\b", "***")]
    )
    hits: dict[str, int] = {}
    assert masker.mask(b"TCK-17, TCK-18 of 123-45-6789", hits) == b"[ticket], [ticket] of ***"
    assert hits == {"ticket": 2, "ssn": 1}


@pytest.mark.parametrize(
    "piece",
    [
        b"a",
        b"a@",
        b"a@b.",
        b"4111 ",
        b"1 ",
        b"-----BEGIN ",
        b"eyJ",
        b"bearer ",
        b"sk-",
        b"(",
        b"\\",
        b"+1 ",
        b".",
    ],
)
def test_hostile_text_costs_linear_time(piece):
    """Two million bytes are done in a moment; time that grew with their square would meet the timeout."""
    EVERYTHING.mask((piece * (2_000_000 // len(piece) + 1)), {})


def test_many_texts_are_looked_at_together():
    """A text with a match is not missed for those around it, and a batch without one is seen as such."""
    assert EVERYTHING.may_match([b"a", b"anna@example.com", b"b"])
    assert not EVERYTHING.may_match([b"anna@", b"example.com"])
    assert not EVERYTHING.may_match([])
    anchored = Masker([], [("whole", r"\Asecret\z", None)])
    assert anchored.may_match([b"a", b"secret"])
