"""Settings of the rules."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from otel_bridge.rules.outputs.config import AlertmanagerConfig, GrafanaConfig
from otel_bridge.units import Duration


class RulesConfig(BaseModel):
    """Composite rules, evaluated as spans, kernel events and readings come in."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool = Field(True, description="Whether the bridge evaluates rules itself.")
    shipped: bool = Field(
        True, description="Whether the rules that ship with the bridge (alerts/rules) are among them."
    )
    exclude: list[Annotated[str, Field(min_length=1)]] = Field(
        [],
        description="Shipped rules that are left out; one of your own may then have the name. * stands for "
        "any text.",
    )
    files: list[Path] = Field([], description="Further rule sets: YAML files, and folders of *.yaml files.")
    lateness: Duration = Field(
        30.0,
        gt=0,
        description="How long after its end an item may come and still count; `absent` waits so much longer.",
    )
    max_ahead: Duration = Field(
        10.0, description="Items further ahead of this machine's clock than so much are not looked at."
    )
    runbook_url: str = Field("runbook.md", description="Where alerts' runbooks are; headings are appended.")
    max_alerts: int = Field(
        2000, ge=1, description="Alerts shown and sent at once; further ones are counted only."
    )
    shortest_alert: Duration = Field(
        60.0,
        description="An alert that ends earlier is shown and sent as firing for so long: Prometheus's next "
        "scrape and evaluation see it too.",
    )
    alertmanager: AlertmanagerConfig | None = Field(
        None, description="Alertmanagers that alerts are pushed to; null: none."
    )
    grafana_annotations: GrafanaConfig | None = Field(
        None, description="A Grafana in which firings are annotations; null: none."
    )
