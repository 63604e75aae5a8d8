"""What users write about who is told of firings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

from otel_bridge.backoff import RetryConfig
from otel_bridge.units import Duration

PositiveDuration = Annotated[Duration, Field(gt=0)]
BaseUrl = Annotated[str, Field(pattern=r"^https?://[^\s/?#]+(/[^\s?#]*)?$")]
LabelName = Annotated[str, Field(pattern=r"^[a-zA-Z_][a-zA-Z0-9_]*$")]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ClientTlsConfig(_Model):
    """TLS towards a server."""

    ca_file: Path | None = Field(None, description="Authorities to trust (PEM); null: the system's.")
    cert_file: Path | None = Field(None, description="Our certificate (PEM), for mutual TLS.")
    key_file: Path | None = Field(None, description="The private key (PEM) of cert_file.")

    @model_validator(mode="after")
    def _pair(self) -> Self:
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file and key_file belong together; set both or neither")
        return self


class BasicAuthConfig(_Model):
    """HTTP's basic authentication."""

    username: str = Field(min_length=1)
    password: SecretStr = Field(min_length=1)


class ClientConfig(_Model):
    """How a server is spoken to."""

    timeout: PositiveDuration = Field(5.0, description="How long one try may take.")
    tls: ClientTlsConfig = ClientTlsConfig()
    bearer_token: SecretStr | None = Field(None, description="Shown as `Authorization: Bearer`.")
    basic_auth: BasicAuthConfig | None = None
    headers: dict[str, SecretStr] = Field({}, description="Further headers, such as a tenant's.")
    retry: RetryConfig = Field(
        RetryConfig(initial_interval=1.0), description="Waits between tries that failed in a row."
    )

    @model_validator(mode="after")
    def _one_way_in(self) -> Self:
        if self.bearer_token is not None and self.basic_auth is not None:
            raise ValueError("bearer_token and basic_auth both make the Authorization header; set one")
        return self


class AlertmanagerConfig(ClientConfig):
    """Alerts pushed by Alertmanager's API v2."""

    urls: Annotated[list[BaseUrl], Field(min_length=1)] = Field(
        description="Base URLs of all members of the cluster, such as http://127.0.0.1:9093: each is told."
    )
    labels: dict[LabelName, str] = Field(
        {},
        description="Labels of every alert, as Prometheus has them on this bridge's series (instance), so "
        "that its alerts and the bridge's are the same to Alertmanager.",
    )
    resend_interval: PositiveDuration = Field(
        60.0, description="How often an alert that fires is sent again; unsent for four times that, it ends."
    )
    resolve_delay: Duration = Field(
        30.0,
        description="How long nothing is sent of an alert that ended, before that it ended: time for "
        "Prometheus, which may have the same alert, to see it too instead of firing it anew. A scrape and "
        "an evaluation at least; 0 where Prometheus has no rules of `otel-bridge rules build`.",
    )
    trace_url: str | None = Field(
        None,
        description="Link to a trace, {trace_id} in it: https://jaeger.example/trace/{trace_id}. null: "
        "annotations have the ids alone.",
    )
    generator_url: str = Field("", description="The link beside an alert in Alertmanager's own pages.")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.resolve_delay > 2 * self.resend_interval:
            raise ValueError(
                "resolve_delay must not exceed twice resend_interval: the alert would end by age"
            )
        if self.trace_url is not None and "{trace_id}" not in self.trace_url:
            raise ValueError("trace_url has no {trace_id}")
        if self.labels.keys() & {"alertname", "severity"}:
            raise ValueError("labels: alertname and severity are the rule's to say")
        return self


class GrafanaConfig(ClientConfig):
    """Firings as annotations, by Grafana's HTTP API."""

    url: BaseUrl = Field(description="Grafana's base URL, such as http://127.0.0.1:3000.")
    dashboard_uid: str | None = Field(
        None, description="The dashboard that shows them; null: every one whose query asks for their tags."
    )
    tags: list[str] = Field(
        ["otel-bridge"], description="Tags of every annotation, beside rule and severity."
    )
    queue_size: Annotated[int, Field(ge=1, le=100_000)] = Field(
        1000, description="Annotations that wait for Grafana; further ones are dropped and counted."
    )
    trace_url: str | None = Field(None, description="Link to a trace, {trace_id} in it.")
