"""What users write under `control.limits`."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from otel_bridge.units import Duration

PositiveDuration = Annotated[Duration, Field(gt=0)]
Amount = Annotated[float, Field(gt=0, le=1e12)]
FieldName = Literal["service", "model", "version", "tenant", "user", "api_key", "request_type"]
SECRET_FIELDS = ("user", "api_key")
"""Fields that are personal data or secrets: only a digest of them is kept."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class LimitHeadersConfig(_Model):
    """Request headers that tell what targets do not name; a gateway sets them, or drops a client's."""

    user: str = "x-otel-bridge-user"
    api_key: str = Field(
        "x-otel-bridge-api-key", description="authorization, where the gateway passes that on."
    )
    request_type: str = "x-otel-bridge-request-type"
    prompt_len: str = Field("x-otel-bridge-prompt-len", description="Bytes of the prompt, or of the body.")
    max_tokens: str = Field("x-otel-bridge-max-tokens", description="The most tokens that are asked for.")


class LimitConfig(_Model):
    """One limit: a bucket for each combination of what `by` names."""

    by: tuple[FieldName, ...] = Field(
        description="What has a bucket of its own: user, api_key, service, model, version, tenant, "
        "request_type; several make one bucket a combination, none one for all."
    )
    match: dict[FieldName, str] = Field(
        default_factory=dict, description="Only requests with these values; shell-style patterns."
    )
    unit: Literal["requests", "tokens"] = Field(
        "requests",
        description="tokens: of the model. Reserved when a request is admitted, by the length of its prompt "
        "and by max_tokens; settled when its span tells what was used.",
    )
    amount: Amount = Field(description="So many in each `per`.")
    per: PositiveDuration = 60.0
    burst: Amount | None = Field(
        None, description="What a full bucket holds, and the largest single request; null: `amount`."
    )
    nameless: Literal["shared", "skip"] = Field(
        "shared",
        description="Requests that lack a value of `by` share one bucket, or the limit is not for them.",
    )
    dry_run: bool = Field(False, description="Only count what would be refused.")

    @field_validator("by")
    @classmethod
    def _each_once(cls, value: tuple[FieldName, ...]) -> tuple[FieldName, ...]:
        if len(set(value)) < len(value):
            raise ValueError(f"each field once; found {', '.join(value)}")
        return value

    @field_validator("match")
    @classmethod
    def _no_secrets(cls, value: dict[FieldName, str]) -> dict[FieldName, str]:
        if "api_key" in value:
            raise ValueError("an api_key is a secret and has no place here; match user or tenant")
        return value

    @property
    def capacity(self) -> float:
        """What a full bucket holds."""
        return self.burst if self.burst is not None else self.amount

    @property
    def rate(self) -> float:
        """What comes back in a second."""
        return self.amount / self.per


class EstimateConfig(_Model):
    """How many tokens a request is taken for until its span tells."""

    bytes_per_token: Annotated[float, Field(gt=0)] = Field(4.0, description="Of the prompt.")
    prompt_tokens: Annotated[int, Field(ge=0)] = Field(
        500, description="The prompt's, where nobody told its length."
    )
    max_tokens: Annotated[int, Field(ge=0)] = Field(
        500, description="The answer's, where nobody told max_tokens."
    )


class LimitsConfig(_Model):
    """How much each user, key, model or kind of request may ask for; the decision API answers 429 beyond."""

    rules: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")], LimitConfig] = Field(
        default_factory=dict,
        description="By a name of your choice. A request must fit in all that concern it; none: no limits.",
    )
    headers: LimitHeadersConfig = LimitHeadersConfig()
    estimate: EstimateConfig = EstimateConfig()
    settle_within: PositiveDuration = Field(
        900.0, description="A request of which no span with its tokens came by then costs what was reserved."
    )
    most_tokens: Annotated[int, Field(ge=1)] = Field(
        10_000_000, description="More tokens than a request ever uses: a span that says so is not believed."
    )
    digest_key: SecretStr | None = Field(
        None,
        min_length=16,
        description="Mixed into the digests of users and API keys, so that nobody can guess them back; the "
        "same on all replicas. null: none is.",
    )
    max_buckets: Annotated[int, Field(ge=1, le=10_000_000)] = Field(
        100_000,
        description="Of one limit in this process; those that are full again go. When all are in use, "
        "newcomers share one. Redis keeps none for longer than it takes to fill.",
    )
    when_cut_off: Literal["local", "closed", "open"] | None = Field(
        None,
        description="What holds while Redis cannot be reached: this bridge's own buckets (local), no limit "
        "(closed), or nobody passes a limit (open). null: as control.redis.when_cut_off.",
    )

    @model_validator(mode="after")
    def _reachable(self) -> Self:
        for name, limit in self.rules.items():
            if limit.unit == "requests" and limit.capacity < 1:
                raise ValueError(
                    f"limit {name} never admits a request, since its bucket holds {limit.capacity:g}: "
                    "set burst to 1 or more"
                )
        return self
