"""What a user can say about enrichment, and what is refused."""

from __future__ import annotations

import pytest
import yaml
from pydantic import ValidationError

from otel_bridge.processors.enrich.config import EnrichConfig, HeaderSource, StaticSource


def load(text):
    return EnrichConfig.model_validate(yaml.safe_load(text) or {})


def test_the_defaults_name_three_targets():
    config = load("")
    assert list(config.targets) == ["llm.model.id", "llm.prompt.len", "llm.inference.batch_size"]
    assert config.targets["llm.model.id"].sources[0] == HeaderSource(header="x-model-id", kinds=None)


def test_a_named_default_keeps_what_is_not_given():
    config = load("targets: {llm.model.id: {kinds: [server, client]}}")
    assert config.targets["llm.model.id"].kinds == ("server", "client")
    assert config.targets["llm.model.id"].sources == load("").targets["llm.model.id"].sources
    assert len(config.targets) == 3


def test_models_are_the_last_source():
    config = load("models: {vllm: m}")
    sources = config.resolved_targets()["llm.model.id"].sources
    assert sources[-1] == StaticSource(static_map={"vllm": "m"}, by="service.name", kinds=None)


def test_a_dumped_configuration_loads_again():
    config = load("models: {vllm: m}\ntargets: {t: {sources: [{body: [a, b]}, {default: x}]}}")
    assert EnrichConfig.model_validate(config.model_dump(mode="json")) == config


@pytest.mark.parametrize(
    ("text", "path", "message"),
    [
        ("targets: {t: {sources: [{headr: x}]}}", "targets.t.sources.0", "exactly one of attribute"),
        ("targets: {t: {sources: [{header: x, query: y}]}}", "targets.t.sources.0", "exactly one of"),
        (
            "targets: {t: {sources: [{query: a}, {header: [x]}]}}",
            "targets.t.sources.1.header.header",
            "string",
        ),
        ("targets: {t: {sources: []}}", "targets.t.sources", "at least one"),
        ("targets: {t: {}}", "targets.t.sources", "Field required"),
        ("targets: {t: {sources: [{messages: true}]}}", "targets.t", '"int" as type'),
        ("targets: {t: {sources: [{body: 'a[0]'}]}}", "targets.t.sources.0.body.body", "members and [*]"),
        ("targets: {t: {kinds: [sever], sources: [{query: a}]}}", "targets.t.kinds.0", "server"),
        ("targets: {t: {type: int, sources: [{default: abc}]}}", "targets.t", "a default of type int"),
        ("vocabulary: {originals: drop}", "vocabulary.originals", "keep"),
        ("vocabulary: {extra: [{key: a, form: [b]}]}", "vocabulary.extra.0.form", "Extra inputs"),
        ("lineage: {capacity: 1}", "lineage.capacity", "greater than or equal to 2"),
        ("explian: true", "explian", "Extra inputs"),
    ],
)
def test_mistakes_are_named(text, path, message):
    with pytest.raises(ValidationError) as caught:
        load(text)
    (error,) = caught.value.errors()
    assert ".".join(map(str, error["loc"])) == path
    assert message in error["msg"]


def test_every_field_has_a_description():
    def described(schema):
        for definition in (schema, *schema.get("$defs", {}).values()):
            for name, field in definition.get("properties", {}).items():
                if (
                    name not in {"sources", "type", "default", "messages", "paired_span"}
                    and "$ref" not in field
                ):
                    assert "description" in field, name

    described(EnrichConfig.model_json_schema())
