"""What users set of derived metrics."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator

from otel_bridge import catalog
from otel_bridge.catalog import prometheus_name
from otel_bridge.explain import nearest
from otel_bridge.units import ByteSize, Duration

if TYPE_CHECKING:
    from otel_bridge.catalog import DerivedMetric

_LABELS = {prometheus_name(key): key for metric in catalog.DERIVED for key in metric.labels}
_RESERVED = ("le", catalog.METRIC_OVERFLOW.key, catalog.GEN_AI_TOKEN_TYPE.key, catalog.CAUSE.key)


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ExemplarConfig(_Model):
    """Traces to look at, one a bucket."""

    enabled: bool = True
    max_age: Duration = Field(
        60.0,
        gt=0,
        description="A bucket keeps the trace of its largest value; after so long any newer one takes its "
        "place.",
    )


class PushConfig(_Model):
    """Where derived metrics are sent by OTLP, beside being served on /metrics."""

    endpoint: str | None = Field(
        None,
        description="URL of an OTLP receiver for metrics; null pushes nothing. For http the whole URL, "
        "/v1/metrics included.",
    )
    protocol: Literal["grpc", "http"] = "grpc"
    interval: Duration = Field(60.0, ge=1, description="Time between two pushes.")
    timeout: Duration = Field(10.0, gt=0, description="Of one push, its retries included.")
    headers: dict[str, SecretStr] = Field(
        default_factory=dict, description="Sent along, for authentication; never shown."
    )


class DeriveConfig(_Model):
    """Metrics made of all spans."""

    enabled: bool = True
    dimensions: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        (),
        max_length=16,
        description="Further labels of every metric: attribute keys, read from the span or else from its "
        "resource.",
    )
    exclude: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        (),
        description="Metrics that are not made, by name or pattern (http.*): those that applications send "
        "themselves.",
    )
    max_series: int = Field(
        2000,
        ge=1,
        le=1_000_000,
        description='Series of each metric; all beyond go into one with otel_metric_overflow="true".',
    )
    max_label_bytes: ByteSize = Field(256, ge=1, description="Longer label values are cut.")
    idle_expiry: Duration = Field(
        900.0, gt=0, description="A series without a span for so long is let go of, and begins at 0 again."
    )
    initial_zero: Duration = Field(
        15.0,
        ge=0,
        description="A new series is served at 0 from its first scrape for so long, so that increase() sees "
        "its first step. Several scrapers each get their zero if this is not below their interval.",
    )
    max_calls: int = Field(
        65_536,
        ge=2,
        description="Spans remembered to count each call of a model once; about 100 bytes each.",
    )
    exemplars: ExemplarConfig = ExemplarConfig()
    push: PushConfig = PushConfig()

    @property
    def metrics(self) -> tuple[DerivedMetric, ...]:
        """Those that are made."""
        return tuple(
            metric
            for metric in catalog.DERIVED
            if not any(fnmatchcase(metric.name, pattern) for pattern in self.exclude)
        )

    @field_validator("exclude")
    @classmethod
    def _exist(cls, exclude: tuple[str, ...]) -> tuple[str, ...]:
        names = [metric.name for metric in catalog.DERIVED]
        for pattern in exclude:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise ValueError(f"{pattern!r} is no derived metric; expected {nearest(pattern, names)}")
        return exclude

    @field_validator("dimensions")
    @classmethod
    def _names_differ(cls, dimensions: tuple[str, ...]) -> tuple[str, ...]:
        names = dict(_LABELS)
        for key in dimensions:
            name = prometheus_name(key)
            if name in map(prometheus_name, _RESERVED):
                raise ValueError(f"{key!r} is a label with a meaning of its own; choose another attribute")
            if names.setdefault(name, key) != key or dimensions.count(key) > 1:
                raise ValueError(
                    f"{key!r} and {names[name]!r} would both be the label {name}; keep one of them"
                )
        return dimensions
