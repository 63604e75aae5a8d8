"""What a user may write, and what is said about mistakes."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from otel_bridge.processors.redact.config import RedactConfig


def test_defaults_forward_no_content():
    """A7: measured in process, not forwarded."""
    config = RedactConfig()
    assert config.enabled
    assert config.content == "drop"
    assert not config.keeps_content
    assert config.max_attribute_bytes is None
    assert "phone" not in config.patterns


@pytest.mark.parametrize(
    ("given", "keeps"),
    [({"content": "keep"}, True), ({"content": "hash"}, False), ({"enabled": False}, True)],
)
def test_keeps_content(given, keeps):
    """What enrich needs to know before it converts messages."""
    assert RedactConfig(**given).keeps_content is keeps


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"content": "mask"}, "'keep', 'hash' or 'drop'"),
        ({"patterns": ["e-mail"]}, "any of email, api_key"),
        ({"max_attribute_bytes": 10}, "at least 64 bytes"),
        ({"max_attribute_bytes": "64"}, None),
        ({"custom_patterns": [{"name": "x", "regex": "(?<=a)b"}]}, "RE2 syntax"),
        ({"custom_patterns": [{"name": "x", "regex": "a*"}]}, "does not match the empty text"),
        ({"custom_patterns": [{"name": "email", "regex": "a"}]}, "names of their own (email twice)"),
        ({"keys": [""]}, "keys that are not empty"),
        ({"hash_keys": "x"}, "Extra inputs are not permitted"),
    ],
)
def test_mistakes_are_explained(given, message):
    """What was expected is in the text."""
    if message is None:
        RedactConfig(**given)
        return
    with pytest.raises(ValidationError) as caught:
        RedactConfig(**given)
    assert message in str(caught.value)


def test_the_hash_key_never_prints():
    """Not in a dump, not in a representation, not in JSON."""
    config = RedactConfig(hash_key="correct horse battery staple")
    for shown in (repr(config), str(config.model_dump()), config.model_dump_json()):
        assert "horse" not in shown
