"""What `exporters:` and `storage:` accept, refuse, and never print."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, ConfigDict, ValidationError

from otel_bridge.exporters.otlp.config import (
    Exporters,
    GrpcExporterConfig,
    HttpExporterConfig,
    StorageConfig,
    default_exporters,
)


class Root(BaseModel):
    model_config = ConfigDict(extra="forbid")

    exporters: Exporters


def load(exporters) -> dict[str, GrpcExporterConfig | HttpExporterConfig]:
    return Root.model_validate({"exporters": exporters}).exporters


def problems(exporters) -> dict[str, str]:
    with pytest.raises(ValidationError) as caught:
        load(exporters)
    return {".".join(map(str, error["loc"])): error["msg"] for error in caught.value.errors()}


def test_the_name_gives_the_transport():
    loaded = load(
        {"otlp": None, "otlp/far": {"endpoint": "collector:4317"}, "otlphttp": {}, "otlphttp/x": {}}
    )
    assert [type(config) for config in loaded.values()] == [
        GrpcExporterConfig,
        GrpcExporterConfig,
        HttpExporterConfig,
        HttpExporterConfig,
    ]


def test_defaults_are_the_collectors_or_documented():
    config = default_exporters()["otlp"]
    assert str(config.endpoint) == "127.0.0.1:14317"
    assert not config.secure
    assert (
        config.timeout,
        config.retry_on_failure.initial_interval,
        config.retry_on_failure.max_interval,
    ) == (
        5.0,
        5.0,
        30.0,
    )
    assert config.sending_queue.num_consumers == 10
    assert HttpExporterConfig().max_request_size == 20 << 20


@pytest.mark.parametrize("name", ["jaeger", "otlp/", "otlp/a/b", "otlp/../x", "otlp/.hidden", ""])
def test_a_name_of_another_type_is_refused(name):
    assert "an exporter is called" in problems({name: {}})[f"exporters.{name}"]


def test_every_problem_is_reported_with_its_path():
    found = problems(
        {
            "otlp": {"endpoint": "http://host:1", "colour": "red"},
            "otlphttp/x": {"sending_queue": {"num_consumers": 0}, "timeout": "soon"},
        }
    )
    assert set(found) == {
        "exporters.otlp.endpoint",
        "exporters.otlp.colour",
        "exporters.otlphttp/x.sending_queue.num_consumers",
        "exporters.otlphttp/x.timeout",
    }


def test_at_least_one_destination():
    assert problems({})


def test_secrets_never_print():
    loaded = load({"otlp": {"headers": {"authorization": "Bearer s3cret"}}})
    assert "s3cret" not in repr(loaded)
    assert "s3cret" not in str(loaded["otlp"].model_dump())
    assert "s3cret" not in loaded["otlp"].model_dump_json()


@pytest.mark.parametrize(
    ("config", "secure"),
    [
        ({}, False),
        ({"endpoint": "localhost:4317"}, False),
        ({"endpoint": "[::1]:4317"}, False),
        ({"endpoint": "collector:4317"}, True),
        ({"endpoint": "collector:4317", "tls": {"insecure": True}}, False),
        ({"endpoint": "127.0.0.1:4317", "tls": {"ca_file": "/ca.pem"}}, True),
    ],
)
def test_plain_text_only_on_loopback_or_when_meant(config, secure):
    assert load({"otlp": config})["otlp"].secure is secure


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"endpoint": "http://collector:4318"}, "use https, or set tls.insecure: true"),
        ({"endpoint": "https://c:4318", "tls": {"insecure": True}}, "contradicts an https endpoint"),
        ({"endpoint": "https://c:4318/?a=b"}, "the endpoint is a base URL"),
        ({"endpoint": "collector:4318"}, "URL"),
        ({"tls": {"cert_file": "/c.pem"}}, "give both or neither"),
        ({"tls": {"insecure": True, "ca_file": "/ca.pem"}}, "no other tls setting"),
        ({"retry_on_failure": {"initial_interval": "1m"}}, "must not be shorter"),
        ({"encoding": "json"}, "proto"),
    ],
)
def test_contradictions_say_what_mends_them(config, said):
    assert said in " ".join(problems({"otlphttp": config}).values())


def test_plain_http_to_another_host_when_meant():
    config = load({"otlphttp": {"endpoint": "http://collector:4318/", "tls": {"insecure": True}}})["otlphttp"]
    assert config.endpoint == "http://collector:4318"
    assert not config.loopback


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:4318", "http://[::1]:4318", "http://localhost:1"])
def test_plain_http_on_loopback_needs_no_permission(endpoint):
    assert load({"otlphttp": {"endpoint": endpoint}})["otlphttp"].loopback


def test_storage():
    config = StorageConfig.model_validate({"directory": "/var/lib/otel-bridge", "max_size": "2GiB"})
    assert config.max_size == 2 << 30
    assert config.when_full == "refuse"
    with pytest.raises(ValidationError, match="when_full"):
        StorageConfig.model_validate({"directory": "/x", "when_full": "block"})
