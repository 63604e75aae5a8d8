"""What a user can say about enrichment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    field_validator,
    model_validator,
)

from otel_bridge import catalog
from otel_bridge.columns import JsonPaths
from otel_bridge.processors.enrich import defaults

Kind = Literal["unspecified", "internal", "server", "client", "producer", "consumer"]
ValueKind = Literal["string", "int", "double", "bool"]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _json_paths(paths: tuple[str, ...]) -> tuple[str, ...]:
    JsonPaths(paths)
    return paths


def _some(items: tuple[Any, ...]) -> tuple[Any, ...]:
    """At least one; as a validator of its own, it is silent about lists whose items are wrong already."""
    if not items:
        raise ValueError("at least one")
    return items


def _one_or_many(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


def _prompt_or_paths(value: Any) -> Any:
    return defaults.PROMPT_PATHS if value is True else _one_or_many(value)


Keys = Annotated[tuple[str, ...], BeforeValidator(_one_or_many), AfterValidator(_some)]
Paths = Annotated[Keys, AfterValidator(_json_paths)]


class _Source(_Model):
    kinds: tuple[Kind, ...] | None = Field(
        None, description="Span kinds for which this source is asked; null: the target's."
    )


class AttributeSource(_Source):
    """A span attribute; for names of the current vocabulary, whatever older name stood for it counts too."""

    attribute: Keys = Field(description="Keys, the first that has a value wins.")


class HeaderSource(_Source):
    """A request header, as HTTP instrumentations record it."""

    header: str = Field(min_length=1, description="The header's name, in any case.")


class MetadataSource(_Source):
    """gRPC request metadata, as RPC instrumentations record it."""

    grpc_metadata: str = Field(min_length=1, description="The metadata key.")


class BodySource(_Source):
    """A value in the JSON request body, where an instrumentation captured it."""

    body: Paths = Field(description='JSON paths like "model" or "messages[*].role".')


class BodyTextSource(_Source):
    """The UTF-8 length of text in the JSON request body."""

    body_text: Annotated[Paths, BeforeValidator(_prompt_or_paths)] = Field(
        description="JSON paths whose strings are measured and added up."
    )


class MessagesSource(_Source):
    """The UTF-8 length of the prompt as GenAI instrumentations record it, in every vocabulary."""

    messages: Literal[True]


class QuerySource(_Source):
    """A query parameter of the request's URL."""

    query: str = Field(min_length=1, description="The parameter's name; its first occurrence counts.")


class ResourceSource(_Source):
    """A resource attribute; for LLM requests only."""

    resource: Keys = Field(description="Keys, the first that has a value wins.")


class PairedSource(_Source):
    """The span of the other side, whose gen_ai.response.id is this span's gen_ai.request.id."""

    paired_span: Literal[True]


class ParentSource(_Source):
    """The nearest ancestor in the same trace that has a value, in this request or a recent one."""

    parent_span: Annotated[int, Field(ge=1, le=64)] = Field(description="How many generations up to look.")


class StaticSource(_Source):
    """A fixed value by a resource attribute; for LLM requests only."""

    static_map: dict[str, str] = Field(description="From the resource attribute's value to the target's.")
    by: str = Field("service.name", min_length=1, description="The resource attribute.")


class DefaultSource(_Source):
    """A fixed value for LLM requests to which no other source gave one."""

    default: str | int | float | bool


_SOURCES: dict[str, type[_Source]] = {
    "attribute": AttributeSource,
    "header": HeaderSource,
    "grpc_metadata": MetadataSource,
    "body": BodySource,
    "body_text": BodyTextSource,
    "messages": MessagesSource,
    "query": QuerySource,
    "resource": ResourceSource,
    "paired_span": PairedSource,
    "parent_span": ParentSource,
    "static_map": StaticSource,
    "default": DefaultSource,
}


def _source_of(value: Any) -> str | None:
    """Which source a mapping is, by the key that only that one has."""
    if isinstance(value, _Source):
        return next(key for key, kind in _SOURCES.items() if isinstance(value, kind))
    named = [key for key in _SOURCES if isinstance(value, Mapping) and key in value]
    return named[0] if len(named) == 1 else None


Source = Annotated[
    Annotated[AttributeSource, Tag("attribute")]
    | Annotated[HeaderSource, Tag("header")]
    | Annotated[MetadataSource, Tag("grpc_metadata")]
    | Annotated[BodySource, Tag("body")]
    | Annotated[BodyTextSource, Tag("body_text")]
    | Annotated[MessagesSource, Tag("messages")]
    | Annotated[QuerySource, Tag("query")]
    | Annotated[ResourceSource, Tag("resource")]
    | Annotated[PairedSource, Tag("paired_span")]
    | Annotated[ParentSource, Tag("parent_span")]
    | Annotated[StaticSource, Tag("static_map")]
    | Annotated[DefaultSource, Tag("default")],
    Discriminator(
        _source_of,
        custom_error_type="source",
        custom_error_message="A source is a mapping with exactly one of " + ", ".join(_SOURCES),
    ),
]

_FITTING = {"string": ("str",), "int": ("int",), "double": ("float", "int"), "bool": ("bool",)}


class TargetConfig(_Model):
    """One attribute to be found, and where."""

    type: ValueKind = Field("string", description="The type in which it is written.")
    kinds: tuple[Kind, ...] = Field(("server",), description="Span kinds that get it.")
    overwrite: bool = Field(False, description="Whether a value already on the span is replaced.")
    minimum: float | None = Field(None, description="Numbers below it are not believed.")
    maximum: float | None = Field(None, description="Numbers above it are not believed.")
    max_length: int = Field(256, ge=1, le=512, description="Longer texts (UTF-8 bytes) are not believed.")
    sources: Annotated[tuple[Source, ...], AfterValidator(_some)] = Field(
        description="In order; the first that has a value wins."
    )

    @model_validator(mode="after")
    def _lengths_are_ints(self) -> Self:
        measured = any(isinstance(source, BodyTextSource | MessagesSource) for source in self.sources)
        if measured and self.type != "int":
            raise ValueError('"int" as type, because body_text and messages measure a length')
        return self

    @model_validator(mode="after")
    def _defaults_fit(self) -> Self:
        for source in self.sources:
            if isinstance(source, DefaultSource) and type(source.default).__name__ not in _FITTING[self.type]:
                raise ValueError(f"a default of type {self.type}, not {source.default!r}")
        return self


class ExtraKey(_Model):
    """A further name of the vocabulary, into which other names are turned."""

    key: str = Field(min_length=1, description="The attribute to write.")
    type: ValueKind = "string"
    from_: tuple[str, ...] = Field(
        (), alias="from", description="Attributes that mean the same, the first that has a value wins."
    )
    unit: Literal["s", "ms", "us", "ns"] | None = Field(
        None, description="Unit of the attributes in `from` where it is a time; written in seconds."
    )


class VocabularyConfig(_Model):
    """How GenAI attributes of all vocabularies become those of the current semantic conventions."""

    enabled: bool = Field(True, description="Whether older and other names are turned into current ones.")
    originals: Literal["keep", "remove"] = Field(
        "keep", description="remove: attributes whose value is now under the current name are taken off."
    )
    extra: tuple[ExtraKey, ...] = Field((), description="Names beyond the semantic conventions.")


class LineageConfig(_Model):
    """The memory behind the sources parent_span and paired_span."""

    capacity: int = Field(
        65_536,
        ge=2,
        le=16_777_216,
        description="Spans remembered for later ones, up to 170 bytes each; the oldest are forgotten.",
    )


def _default_targets() -> dict[str, TargetConfig]:
    return {name: TargetConfig.model_validate(given) for name, given in defaults.TARGETS.items()}


class EnrichConfig(_Model):
    """What is found out about each LLM request and written on its span."""

    enabled: bool = Field(True, description="false writes nothing.")
    explain: bool = Field(
        False, description="Also write which source won, as otel_bridge.enrich.<target>.source."
    )
    body_attributes: tuple[str, ...] = Field(
        defaults.BODY_ATTRIBUTES, description="Span attributes that hold a captured request body."
    )
    models: dict[str, str] = Field(
        default_factory=dict,
        description="The model by service.name, for servers that do not tell it (vLLM); the last resort of "
        f"{catalog.LLM_MODEL_ID.key}.",
    )
    targets: dict[str, TargetConfig] = Field(
        default_factory=_default_targets,
        description="By attribute name. Those of the defaults that are not named stay; of a default that is "
        "named, what is given replaces what was.",
    )
    vocabulary: VocabularyConfig = VocabularyConfig()
    lineage: LineageConfig = LineageConfig()

    @field_validator("targets", mode="before")
    @classmethod
    def _over_defaults(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise ValueError("a mapping from attribute names to targets")  # noqa: TRY004 (pydantic collects ValueErrors)
        merged: dict[str, Any] = dict(defaults.TARGETS)
        for name, given in value.items():
            if isinstance(given, Mapping):
                merged[name] = {**merged.get(name, {}), **given}
            else:
                merged[name] = given
        return {name: given for name, given in merged.items() if given is not None}

    def resolved_targets(self) -> dict[str, TargetConfig]:
        """The targets, with `models` as the last source of the model."""
        targets = dict(self.targets)
        name = catalog.LLM_MODEL_ID.key
        if self.models and name in targets:
            last = StaticSource(static_map=self.models, by="service.name", kinds=None)
            targets[name] = targets[name].model_copy(update={"sources": (*targets[name].sources, last)})
        return targets
