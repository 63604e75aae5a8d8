"""What a user can say about redaction."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from otel_bridge.batch import STATUS_MESSAGE
from otel_bridge.processors.redact.patterns import BUILT_IN, compiled
from otel_bridge.units import ByteSize

LEAST_CAP = 64
"""Bytes; below it a cap would leave nothing that could be read."""

PATTERN_ATTRIBUTES = (
    "exception.message",
    "exception.stacktrace",
    "error.message",
    STATUS_MESSAGE,
    "http.request.header.authorization",
    "http.request.header.proxy-authorization",
    "http.request.header.cookie",
    "http.request.header.x-api-key",
    "http.request.header.api-key",
    "http.request.header.x-goog-api-key",
    "http.response.header.set-cookie",
    "rpc.grpc.request.metadata.authorization",
)
"""Where credentials turn up beside content; few spans carry any, so looking is cheap."""


def _regex(value: str) -> str:
    try:
        expression = compiled(value)
    except ValueError as error:
        raise ValueError(f"RE2 syntax (no look-around, no back-references): {error}") from None
    if expression.search(b"") is not None:
        raise ValueError("an expression that does not match the empty text")
    return value


class CustomPattern(BaseModel):
    """An expression of the user's own."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(
        pattern=r"^[a-z][a-z0-9_]*$", description="Names the pattern in metrics and in what replaces a match."
    )
    regex: Annotated[str, AfterValidator(_regex)] = Field(
        description="RE2 syntax; matched against UTF-8 in linear time."
    )
    replacement: str | None = Field(None, description="What stands in the place of a match; null: [NAME].")


class RedactConfig(BaseModel):
    """What of prompts, answers and credentials leaves the node."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool = Field(True, description="false forwards everything as it came.")
    content: Literal["keep", "hash", "drop"] = Field(
        "drop",
        description="Prompts, answers, tool calls and raw bodies. drop: measured by enrich, never forwarded; "
        "hash: a keyed hash in their place, so that equal texts can be counted; keep: forwarded.",
    )
    hash_key: SecretStr | None = Field(
        None,
        description="Key of the hash. The same key on every node makes hashes comparable; null draws one at "
        "start, so hashes are comparable within one run only.",
    )
    keys: tuple[str, ...] = Field((), description="Further attribute keys that carry content.")
    prefixes: tuple[str, ...] = Field((), description="Further beginnings of keys that carry content.")
    allow: tuple[str, ...] = Field(
        (), description="Keys that are forwarded although they count as content (exact keys)."
    )
    exceptions: Literal["keep", "mask", "drop"] = Field(
        "mask",
        description="Exception messages, stack traces and status messages, which may quote a prompt. mask: "
        "quoted texts and what repeats the span's own content is hidden; drop: only the exception's type "
        "stays.",
    )
    max_attribute_bytes: ByteSize | None = Field(
        None,
        description="The most bytes of one attribute's value, of any key; longer ones are cut at a whole "
        "character, JSON stays well formed. null: no limit.",
    )
    patterns: tuple[str, ...] = Field(
        tuple(name for name, pattern in BUILT_IN.items() if pattern.default),
        description="What is masked in kept content and in `pattern_attributes`: " + ", ".join(BUILT_IN),
    )
    custom_patterns: tuple[CustomPattern, ...] = Field((), description="Expressions of your own.")
    pattern_attributes: tuple[str, ...] = Field(
        PATTERN_ATTRIBUTES, description="Attributes beside content in which patterns are masked (exact keys)."
    )

    @property
    def keeps_content(self) -> bool:
        """Whether content is forwarded as text."""
        return not self.enabled or self.content == "keep"

    @field_validator("keys", "prefixes", "allow", "pattern_attributes")
    @classmethod
    def _not_empty(cls, keys: tuple[str, ...]) -> tuple[str, ...]:
        if "" in keys:
            raise ValueError("keys that are not empty")
        return keys

    @field_validator("patterns")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        unknown = [name for name in names if name not in BUILT_IN]
        if unknown:
            raise ValueError(f"any of {', '.join(BUILT_IN)} (not {', '.join(unknown)})")
        return names

    @field_validator("max_attribute_bytes")
    @classmethod
    def _readable(cls, size: int | None) -> int | None:
        if size is not None and size < LEAST_CAP:
            raise ValueError(f"at least {LEAST_CAP} bytes, or null for no limit")
        return size

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        names = [*self.patterns, *(pattern.name for pattern in self.custom_patterns)]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"patterns with names of their own ({', '.join(twice)} twice)")
        return self
