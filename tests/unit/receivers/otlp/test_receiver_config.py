"""What can be written under `receivers.otlp`, and what is said about it."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from otel_bridge.receivers.otlp.config import OtlpReceiverConfig

PEM = {"cert_file": "c.pem", "key_file": "k.pem"}


def config(grpc=None, http=None) -> OtlpReceiverConfig:
    return OtlpReceiverConfig.model_validate({"protocols": {"grpc": grpc, "http": http}})


def test_defaults():
    """Loopback, the registered ports, 64 MiB; both protocols, also in the Collector's short form."""
    for found in (OtlpReceiverConfig(), OtlpReceiverConfig.model_validate({"protocols": None}), config()):
        assert str(found.protocols.grpc.endpoint) == "127.0.0.1:4317"
        assert str(found.protocols.http.endpoint) == "127.0.0.1:4318"
        assert found.protocols.grpc.max_request_size == found.protocols.http.max_request_size == 64 << 20
        assert list(found.warnings()) == []


@pytest.mark.parametrize(
    ("grpc", "http", "place", "words"),
    [
        ({"endpoint": "http://h:1"}, {}, ("grpc", "endpoint"), "without a scheme"),
        ({"endpoint": "4317"}, {}, ("grpc", "endpoint"), "host:port"),
        ({"max_request_size": 0}, {}, ("grpc", "max_request_size"), "greater than 0"),
        ({"max_request_size": "2GiB"}, {}, ("grpc", "max_request_size"), "less than"),
        ({}, {"max_concurrent_requests": 0}, ("http", "max_concurrent_requests"), "greater than 0"),
        ({}, {"read_timeout": "0s"}, ("http", "read_timeout"), "greater than 0"),
        ({}, {"cors": {}}, ("http", "cors"), "Extra inputs"),
        ({"tls": {"cert_file": "c.pem"}}, {}, ("grpc", "tls", "key_file"), "required"),
        ({"tls": PEM | {"min_version": "1.3"}}, {}, ("grpc", "tls", "min_version"), "'1.2'"),
        ({"auth": {}}, {}, ("grpc", "auth"), "bearer_token_file or bearer_tokens"),
        ({"auth": {"bearer_tokens": [""]}}, {}, ("grpc", "auth", "bearer_tokens", 0), "at least 1"),
        ({"enabled": False}, {"enabled": False}, (), "at least one of grpc and http"),
    ],
)
def test_mistakes_are_told_with_their_place(grpc, http, place, words):
    with pytest.raises(ValidationError) as caught:
        config(grpc, http)
    [error] = caught.value.errors()
    assert error["loc"] == ("protocols", *place)
    assert words in error["msg"]


@pytest.mark.parametrize(
    ("grpc", "expected"),
    [
        ({"endpoint": "127.0.0.1:1"}, []),
        ({"endpoint": "localhost:1"}, []),
        ({"endpoint": "[::1]:1"}, []),
        ({"endpoint": "0.0.0.0:1"}, ["without TLS", "without authentication"]),
        ({"endpoint": "[::]:1"}, ["without TLS", "without authentication"]),
        ({"endpoint": "bridge.example:1"}, ["without TLS", "without authentication"]),
        ({"endpoint": "0.0.0.0:1", "tls": PEM}, ["without authentication"]),
        ({"endpoint": "0.0.0.0:1", "tls": PEM | {"client_ca_file": "ca.pem"}}, []),
        ({"endpoint": "0.0.0.0:1", "auth": {"bearer_tokens": ["t"]}}, ["without TLS"]),
        ({"endpoint": "0.0.0.0:1", "tls": PEM, "auth": {"bearer_tokens": ["t"]}}, []),
        ({"endpoint": "0.0.0.0:1", "enabled": False}, []),
    ],
)
def test_exposed_listeners_are_warned_about(grpc, expected):
    warnings = list(config(grpc).warnings())
    assert len(warnings) == len(expected)
    for warning, words in zip(warnings, expected, strict=True):
        assert words in warning
        assert "receivers.otlp.protocols.grpc" in warning


def test_tokens_never_print():
    """Not in a repr, not in a dump, not in JSON."""
    found = config({"auth": {"bearer_tokens": ["hunter2"]}})
    for text in (repr(found), str(found), str(found.model_dump()), found.model_dump_json()):
        assert "hunter2" not in text


def test_every_setting_is_described():
    """The descriptions become the documentation."""
    for model in OtlpReceiverConfig.model_json_schema()["$defs"].values():
        if model["type"] == "object":
            for name, field in model["properties"].items():
                assert "description" in field or "$ref" in field, (model["title"], name)
