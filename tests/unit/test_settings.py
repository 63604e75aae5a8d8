"""The configuration file: layers, every error at once, secrets masked."""

from __future__ import annotations

import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from otel_bridge.errors import ConfigError
from otel_bridge.settings import Settings, effective, load


@pytest.fixture
def write(tmp_path):
    """Write a configuration file, get its path."""

    def writer(text: str | bytes):
        path = tmp_path / "bridge.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return writer


def problems(path=None, **kwargs) -> dict[str, str]:
    """The problems of a configuration by key path."""
    with pytest.raises(ConfigError) as caught:
        load(path, environment={}, **kwargs)
    return {problem.path: str(problem) for problem in caught.value.problems}


def grpc_endpoint(settings: Settings) -> str:
    """Where gRPC listens."""
    return str(settings.receivers.otlp.protocols.grpc.endpoint)


def test_defaults_listen_on_loopback_and_drop_content():
    """Nothing is reached from outside, and no prompt leaves, unless somebody says so."""
    settings = load(environment={})
    protocols = settings.receivers.otlp.protocols
    assert protocols.grpc.endpoint.loopback
    assert protocols.http.endpoint.loopback
    assert settings.service.telemetry.metrics.endpoint.loopback
    assert settings.processors.redact.content == "drop"
    assert not settings.processors.redact.keeps_content


def test_every_problem_is_reported_with_its_path_and_line(write):
    """Three mistakes, three lines, each with what stands there and what may."""
    path = write(
        "receivers:\n"
        "  otlp:\n"
        "    protocols:\n"
        "      grpc:\n"
        "        endpoint: http://0.0.0.0:4317\n"
        "procesors: {}\n"
        "service:\n"
        "  drain_timeout: soon\n"
    )
    found = problems(path)
    assert set(found) == {"receivers.otlp.protocols.grpc.endpoint", "procesors", "service.drain_timeout"}
    assert "without a scheme" in found["receivers.otlp.protocols.grpc.endpoint"]
    assert "line 5" in found["receivers.otlp.protocols.grpc.endpoint"]
    assert "'processors'" in found["procesors"]
    assert "'soon'" in found["service.drain_timeout"]
    assert "200ms" in found["service.drain_timeout"]


@pytest.mark.parametrize(
    ("text", "path", "nearest"),
    [
        (
            "receivers: {otlp: {protocols: {grpc: {endpiont: 'h:1'}}}}",
            "receivers.otlp.protocols.grpc.endpiont",
            "endpoint",
        ),
        ("exporters: {otlp: {endpoint: 'h:1', timeuot: 5s}}", "exporters.otlp.timeuot", "timeout"),
        ("processors: {redact: {contents: keep}}", "processors.redact.contents", "content"),
        ("storage: {dir: /tmp}", "storage.dir", "directory"),
    ],
)
def test_an_unknown_key_gets_the_nearest_name(write, text, path, nearest):
    """At any depth, inside mappings by name too."""
    assert f"'{nearest}'" in problems(write(text))[path]


def test_later_layers_win(write):
    """File, then environment, then --set."""
    path = write("receivers: {otlp: {protocols: {grpc: {endpoint: '127.0.0.1:1'}}}}")
    key = "OTEL_BRIDGE__RECEIVERS__OTLP__PROTOCOLS__GRPC__ENDPOINT"
    override = "receivers.otlp.protocols.grpc.endpoint=127.0.0.1:3"
    assert grpc_endpoint(load(path, environment={})) == "127.0.0.1:1"
    assert grpc_endpoint(load(path, environment={key: "127.0.0.1:2"})) == "127.0.0.1:2"
    assert grpc_endpoint(load(path, environment={key: "127.0.0.1:2"}, overrides=[override])) == "127.0.0.1:3"


def test_environment_references_are_the_collectors(write):
    """`${env:NAME}` and `${env:NAME:-default}`; one that is not set is named."""
    path = write("receivers: {otlp: {protocols: {grpc: {endpoint: '127.0.0.1:${env:PORT:-7}'}}}}")
    assert grpc_endpoint(load(path, environment={})) == "127.0.0.1:7"
    assert grpc_endpoint(load(path, environment={"PORT": "8"})) == "127.0.0.1:8"
    assert "NOBODY" in str(problems(write("storage: {directory: '${env:NOBODY}'}")))


@pytest.mark.parametrize(
    "text",
    [
        "[1, 2]",
        "just text",
        "a: [",
        "a: !!python/object:os.system {}",
        b"\xff\xfe",
        "receivers: 5",
        "exporters: []",
    ],
)
def test_what_is_no_configuration_is_an_error_that_says_so(write, text):
    """Never a traceback of the parser."""
    assert problems(write(text))


def test_a_missing_file_is_named(tmp_path):
    """Path and cause."""
    with pytest.raises(ConfigError, match=r"nowhere\.yaml(.|\n)*No such file"):
        load(tmp_path / "nowhere.yaml", environment={})


def test_an_override_below_a_value_is_refused():
    """A scalar has no keys."""
    assert "mapping" in str(problems(overrides=["service.codec=native", "service.codec.x=1"]))
    assert "key.path=value" in str(problems(overrides=["nonsense"]))


def test_off_may_be_written_bare(write):
    """YAML makes false of it; the file and --set mean the word."""
    assert load(write("kernel: {mode: off}"), environment={}).kernel.mode == "off"
    assert load(overrides=["kernel.mode=off"], environment={}).kernel.mode == "off"


def test_an_empty_file_is_the_defaults(write):
    """As is a file of comments."""
    assert load(write("# nothing\n"), environment={}) == load(environment={})


def test_the_effective_file_can_be_loaded_again(write):
    """print-config | check is the identity."""
    settings = load(environment={})
    assert load(write(effective(settings)), environment={}) == settings


def test_secrets_are_masked(write):
    """Headers, tokens and hash keys show as stars."""
    secret = "s3cr3t-value"
    path = write(
        yaml.safe_dump(
            {
                "receivers": {"otlp": {"protocols": {"http": {"auth": {"bearer_tokens": [secret]}}}}},
                "exporters": {"otlp": {"endpoint": "127.0.0.1:1", "headers": {"authorization": secret}}},
            }
        )
    )
    settings = load(path, environment={})
    assert secret not in effective(settings)
    assert secret not in repr(settings)


def test_the_schema_covers_every_key():
    """Editors get it by `print-config --schema`."""
    schema = Settings.model_json_schema()
    assert set(schema["properties"]) == {
        "receivers",
        "processors",
        "connectors",
        "exporters",
        "storage",
        "kernel",
        "gpu",
        "control",
        "rules",
        "service",
    }
    json.dumps(schema)


_scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
_documents = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
)
_keys = st.sampled_from(["receivers", "processors", "exporters", "storage", "service"])


@given(st.dictionaries(_keys, _documents, max_size=3))
def test_any_document_loads_or_is_explained(tmp_path_factory, document):
    """No document makes anything but a ConfigError with a path for each problem."""
    path = tmp_path_factory.mktemp("any") / "bridge.yaml"
    path.write_text(yaml.safe_dump(document, allow_unicode=False))
    try:
        load(path, environment={})
    except ConfigError as error:
        found = error.problems
    else:
        return
    assert found
    assert all(problem.expected for problem in found)
