"""Dashboards for Grafana's pages, and how Grafana is told where everything lies."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

OLDEST_GRAFANA = "11.0.0"
"""The oldest Grafana that has every panel and option that the dashboards use."""

DASHBOARDS = """\
# Grafana reads the dashboards from here and shows them in a folder of their own.
apiVersion: 1
providers:
  - name: otel-bridge
    folder: OTel Bridge
    folderUid: otel-bridge
    type: file
    disableDeletion: true
    allowUiUpdates: false
    updateIntervalSeconds: 30
    options:
      path: /var/lib/grafana/dashboards/otel-bridge
"""

DATASOURCES = """\
# Data sources with links between metrics and traces. Grafana fills in $PROMETHEUS_URL, $TEMPO_URL and
# $BRIDGE_URL (the bridge's own pages, as browsers reach them: http://localhost:9464) from its environment;
# take what you have already out.
apiVersion: 1
datasources:
  - name: Prometheus (OTel Bridge)
    uid: otel-bridge-prometheus
    type: prometheus
    access: proxy
    url: $PROMETHEUS_URL
    jsonData:
      httpMethod: POST
      # As long as Prometheus's scrape_interval.
      timeInterval: 15s
      exemplarTraceIdDestinations:
        - name: trace_id
          datasourceUid: otel-bridge-tempo
        - name: trace_id
          url: $BRIDGE_URL/ui/trace/$${__value.raw}
          urlDisplayLabel: At the bridge
  - name: Tempo (OTel Bridge)
    uid: otel-bridge-tempo
    type: tempo
    access: proxy
    url: $TEMPO_URL
    jsonData:
      nodeGraph: {enabled: true}
      serviceMap: {datasourceUid: otel-bridge-prometheus}
"""


def export(document: Mapping[str, Any]) -> dict[str, Any]:
    """A dashboard for import through Grafana's pages, which asks for the data source once.

    Provisioning does not resolve `__inputs`, so this is a file of its own.
    """
    named: dict[str, Any] = _replaced(document, "${datasource}", "${DS_PROMETHEUS}")
    kept = [one for one in named["templating"]["list"] if one["name"] != "datasource"]
    plugins = sorted({one["type"] for one in _panels(named)} - {"row"})
    prometheus = {"type": "datasource", "pluginId": "prometheus", "pluginName": "Prometheus"}
    return {
        "__inputs": [
            {
                **prometheus,
                "name": "DS_PROMETHEUS",
                "label": "Prometheus",
                "description": "The Prometheus that scrapes the bridge",
            }
        ],
        "__requires": [
            {"type": "grafana", "id": "grafana", "name": "Grafana", "version": OLDEST_GRAFANA},
            {"type": "datasource", "id": "prometheus", "name": "Prometheus", "version": "1.0.0"},
            *({"type": "panel", "id": one, "name": one, "version": ""} for one in plugins),
        ],
        **named,
        "templating": {"list": kept},
    }


def written(document: Mapping[str, Any]) -> str:
    """The text of a dashboard's file."""
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _replaced(value: Any, old: str, new: str) -> Any:
    if isinstance(value, dict):
        return {key: _replaced(one, old, new) for key, one in value.items()}
    if isinstance(value, list):
        return [_replaced(one, old, new) for one in value]
    return value.replace(old, new) if isinstance(value, str) else value


def _panels(document: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for panel in document["panels"]:
        yield panel
        yield from panel.get("panels", ())
