"""What users write under `control.actions`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

from otel_bridge.backoff import RetryConfig
from otel_bridge.control.actions.limits import ActionConfig
from otel_bridge.control.gate.config import GateConfig
from otel_bridge.units import Duration, Endpoint

PositiveDuration = Annotated[Duration, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class CircuitConfig(_Model):
    """The circuit on a webhook's own receiver."""

    failures: Count = Field(5, description="After so many failures in a row nothing is sent for open_time.")
    open_time: PositiveDuration = 30.0


class WebhookConfig(ActionConfig):
    """Tells a gateway, or anybody, over HTTP."""

    url: str = Field(pattern=r"^https?://", description="Where to; the template may add a query.")
    template: Literal["plain", "envoy_ai_gateway", "litellm", "kong"] = Field(
        "plain", description="In whose words; README.md shows each."
    )
    secret: SecretStr | None = Field(
        None,
        min_length=24,
        description='Signs each message (HMAC-SHA256). Base64 behind "whsec_", or a text as it is.',
    )
    headers: dict[str, SecretStr] = Field(
        default_factory=dict, description="Sent along, for authentication; never shown."
    )
    timeout: PositiveDuration = Field(5.0, description="Of one try.")
    retry: RetryConfig = Field(
        default=RetryConfig(initial_interval=0.5, max_interval=30.0, multiplier=2.0),
        description="Waits between tries.",
    )
    max_age: PositiveDuration = Field(
        600.0, description="A message that could not be delivered for so long is dropped and audited."
    )
    queue_size: Count = Field(1000, description="Messages that wait; the oldest makes room.")
    circuit: CircuitConfig = CircuitConfig()
    ca_file: Path | None = Field(None, description="Authorities to trust instead of the system's.")
    insecure: bool = Field(False, description="Allow plain http to another machine.")
    runtime_key: str = Field(
        "fault.http.abort.abort_percent",
        pattern=r"^[A-Za-z0-9_.]+$",
        description="envoy_ai_gateway: the runtime key that is set to the share of requests to refuse.",
    )
    half_open_percent: Annotated[int, Field(ge=0, le=100)] = Field(
        90, description="envoy_ai_gateway: the share that is refused while half-open."
    )
    model_id: str = Field("", description="litellm: the id of the deployment that is taken out.")

    @model_validator(mode="after")
    def _complete(self) -> Self:
        host = self.url.partition("://")[2].partition("/")[0].rpartition("@")[2]
        name = host[1 : host.find("]")] if host.startswith("[") else host.partition(":")[0]
        if self.url.startswith("http://") and not self.insecure and not Endpoint(name, 0).loopback:
            raise ValueError("plain http to another machine: use https, or set insecure: true")
        if self.template == "litellm" and not self.model_id:
            raise ValueError("template litellm needs model_id, the deployment's id in LiteLLM")
        return self


class VerbosityConfig(ActionConfig):
    """Has the bridge tell more from a trip until the breaker is closed again."""

    sampling_rate: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None,
        description="At least this share of all traces is kept, not only of the target's; needs "
        "processors.sample.enabled. null: sampling stays as it is.",
    )
    log_level: Literal["debug", "info", "warning"] | None = Field(
        None, description="The bridge logs from this level on, if that is more than usual. null: as usual."
    )

    @model_validator(mode="after")
    def _does_something(self) -> Self:
        if self.sampling_rate is None and self.log_level is None:
            raise ValueError("it would do nothing: set sampling_rate, log_level or both")
        return self


class ActionsConfig(_Model):
    """What follows the changes of breakers."""

    webhooks: dict[str, WebhookConfig] = Field(default_factory=dict, description="By a name of your choice.")
    gates: dict[str, GateConfig] = Field(
        default_factory=dict, description="Gates in the kernel, by a name of your choice."
    )
    verbosity: dict[str, VerbosityConfig] = Field(
        default_factory=dict, description="More traces, more log lines, by a name of your choice."
    )
    pins: Path | None = Field(
        Path("/sys/fs/bpf/otel-bridge"),
        description="A directory of bpffs in which gates outlive the bridge; null: they end with it.",
    )
    scan_interval: PositiveDuration = Field(
        2.0, description="Time between two looks for namespaces of services that have a gate."
    )

    @property
    def highest_sampling_rate(self) -> float:
        """The most that any of them may ask of sampling; 0: none does."""
        wanted = [found.sampling_rate or 0.0 for found in self.verbosity.values() if not found.dry_run]
        return max(wanted, default=0.0)
