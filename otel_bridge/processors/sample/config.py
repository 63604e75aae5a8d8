"""What a user can say about sampling."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from otel_bridge import catalog
from otel_bridge.units import ByteSize, Duration

Share = Annotated[float, Field(gt=0, le=1)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RateConfig(_Model):
    """Which share of traces is kept, and what moves it."""

    curve: Literal["traffic", "latency", "fixed"] = Field(
        "traffic",
        description="traffic: max(minimum, surge / log10(100 x rise)) once requests rise or the P99 passes "
        "its inflection, baseline otherwise. latency: by P99 against its baseline, above 2.0: 10 %, below "
        "0.7: 100 %, else 50 %. fixed: always baseline.",
    )
    baseline: Share = Field(0.05, description="While nothing happens (traffic), or always (fixed).")
    minimum: Share = Field(0.01, description="traffic: never less.")
    surge: Share = Field(0.10, description="traffic: the rate at a rise of 10 %, from which the curve falls.")
    rise: float = Field(
        0.30, gt=0, description="traffic: this much more requests than one window before is a surge."
    )
    inflection: float = Field(
        1.3, gt=1, description="traffic: a P99 of so many times its baseline, in two windows in a row."
    )
    window: Duration = Field(10.0, ge=1, le=300, description="Whole seconds; judged anew each second.")
    hold: Duration = Field(
        60.0, description="traffic: how long a rate stands after its cause is gone, so that it does not flap."
    )
    min_requests: int = Field(
        20,
        ge=1,
        description="A window with fewer requests counts as one with so many, and has no P99: the first "
        "requests after an idle night are no surge.",
    )


class KeepConfig(_Model):
    """Traces that are kept whatever the rate; a trace waits until it can be known whether it is one."""

    wait: Duration = Field(
        10.0,
        gt=0,
        description="How long after its first span a trace's verdict falls. Longer than the longest request, "
        "since the span that tells often comes last, plus its exporter's delay (5 s in the SDKs).",
    )
    errors: bool = Field(True, description="Traces with a span of status ERROR.")
    slow: Duration | None = Field(2.0, description="Traces with a span that took at least this long.")
    kernel: dict[str, float] = Field(
        default_factory=lambda: {
            catalog.KERNEL_TCP_RETRANSMITS.key: 1,
            catalog.KERNEL_TCP_RESETS.key: 1,
            catalog.KERNEL_TCP_ZERO_WINDOWS.key: 1,
            catalog.KERNEL_RECEIVE_QUEUE_FULL.key: 1,
            catalog.KERNEL_SCHED_RUN_QUEUE_MAX.key: 10e6,
            catalog.KERNEL_BLOCK_ERRORS.key: 1,
            catalog.KERNEL_BLOCK_SLOW.key: 1,
            catalog.KERNEL_MEMORY_OOM_KILLS.key: 1,
            catalog.KERNEL_MEMORY_LONG_RECLAIMS.key: 1,
            catalog.KERNEL_TLS_HANDSHAKE_TIME.key: 500e6,
            catalog.KERNEL_CUDA_OUT_OF_MEMORY.key: 1,
            catalog.KERNEL_CUDA_FAILURES.key: 1,
        },
        description="Traces with a span on which one of these attributes of the join is at least so much.",
    )


class SampleConfig(_Model):
    """Which traces go on; off unless it is switched on."""

    enabled: bool = Field(False, description="Off, every span goes on.")
    rate: RateConfig = RateConfig()
    environments: dict[str, RateConfig] = Field(
        default_factory=dict,
        description="Rates of their own by deployment.environment.name; what is not given is as in rate. "
        "Each has its own traffic; all other environments share one.",
    )
    keep: KeepConfig | None = Field(
        KeepConfig(), description="null: nothing waits, every span is decided by its trace id alone."
    )
    hold: Literal["disk", "sender", "memory"] = Field(
        "disk",
        description="What a sender may rely on while its spans wait. disk: they are in a file under "
        "storage.directory, and acknowledged. sender: they are acknowledged after the verdict, so each "
        "request takes as long as keep.wait. memory: they are acknowledged at once and lost by kill -9.",
    )
    max_waiting: ByteSize = Field(
        128 << 20, ge=1 << 20, description="The most bytes that wait; at 80 % the oldest are decided early."
    )
    remembered_traces: int = Field(
        131_072,
        ge=1024,
        description="Verdicts kept for spans that come later than the verdict, about 200 bytes each, and "
        "open traces.",
    )

    @field_validator("environments")
    @classmethod
    def _other_is_taken(cls, environments: dict[str, RateConfig]) -> dict[str, RateConfig]:
        if "other" in environments:
            raise ValueError('"other" stands for all environments that are not named; set rate instead')
        return environments

    @model_validator(mode="before")
    @classmethod
    def _inherit(cls, given: Any) -> Any:
        """Fill what an environment leaves out with what `rate` says."""
        if not isinstance(given, dict) or not isinstance(given.get("environments"), dict):
            return given
        rate = given.get("rate", {})
        if isinstance(rate, RateConfig):
            rate = rate.model_dump(exclude_unset=True)
        if not isinstance(rate, dict):
            return given
        environments = {
            name: {**rate, **own} if isinstance(own, dict) else own
            for name, own in given["environments"].items()
        }
        return {**given, "environments": environments}
