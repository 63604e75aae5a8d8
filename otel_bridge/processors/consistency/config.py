"""What a user can say about the check of contexts."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from otel_bridge.units import ByteSize, Duration


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return text


Pattern = Annotated[str, AfterValidator(_pattern)]

_HTTP = r"(GET|HEAD|POST|PUT|PATCH|DELETE|OPTIONS|CONNECT|TRACE|HTTP)( /[^?\s]*)?"
_RPC = r"[\w.$]+/\w+"


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RoleConfig(_Model):
    """One place on the way of a request."""

    role: str = Field(min_length=1, description="Its name in metrics and log lines.")
    services: tuple[str, ...] = Field(
        min_length=1,
        description="service.name, with * and ?; case does not matter. The first role that fits.",
    )
    names: tuple[Pattern, ...] = Field(
        (), description="What its entry spans are called, whole names; empty: names are not checked."
    )


def _default_chain() -> tuple[RoleConfig, ...]:
    return (
        RoleConfig(
            role="gateway",
            services=("*gateway*", "envoy*", "kong*", "traefik*", "nginx*", "litellm*"),
            names=(_HTTP, _RPC, r"(ingress|egress)( \S+)?"),
        ),
        RoleConfig(role="kserve", services=("kserve*", "*-transformer"), names=(_HTTP, _RPC)),
        RoleConfig(role="triton", services=("triton*",), names=("InferRequest", _HTTP, _RPC)),
        RoleConfig(
            role="backend",
            services=("vllm*", "sglang*", "tgi*", "text-generation-inference*", "llama*", "*-predictor"),
            names=("llm_request", _HTTP, _RPC),
        ),
    )


class ConsistencyConfig(_Model):
    """Looks for broken contexts in a share of the traces; it changes nothing."""

    enabled: bool = True
    share: float = Field(
        0.1,
        gt=0,
        le=1,
        description="Share of the traces that is checked: those that a sampler with this rate keeps, so that "
        "an example can be looked up.",
    )
    window: Duration = Field(
        60.0,
        gt=0,
        description="A trace is judged when so long no span of it came: longer than the longest request, "
        "since a parent comes after its children.",
    )
    max_bytes: ByteSize = Field(
        32 << 20,
        ge=1 << 16,
        description="The most bytes of traces that wait; the oldest are given up unjudged.",
    )
    max_spans: int = Field(2000, ge=1, description="A trace with more spans is given up unjudged.")
    chain: tuple[RoleConfig, ...] = Field(
        default_factory=_default_chain, description="The way of a request, from the first to the last."
    )
    request_ids: tuple[str, ...] = Field(
        (
            "gen_ai.request.id",
            "gen_ai.response.id",
            "http.request.header.x-request-id",
            "http.response.header.x-request-id",
        ),
        description="Span attributes that hold one and the same text on both sides of a call.",
    )
