"""A dashboard: panels in rows, variables, annotations, links between dashboards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attr
from grafanalib import core

from dashboards.panels import COLUMNS, DATASOURCE, GRAFANA, SCHEMA_VERSION, Row
from dashboards.queries import variables
from dashboards.queries.annotations import MARKS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dashboards.panels import Section

Json = dict[str, Any]

TAG = "otel-bridge"
SCRAPE_INTERVALS = ("1m", "15s", "30s", "2m", "5m")
"""The first is the default: with it panels have data at every scrape interval up to it."""
PRUNED = frozenset(
    {
        *("__inputs", "cacheTimeout", "columns", "editable", "error", "fontSize", "gnetId", "height"),
        *("hideControls", "hideTimeOverride", "minSpan", "rows", "sharedCrosshair", "span", "style"),
        *("thresholdsStyle", "time_options"),
    }
)
"""Keys that grafanalib writes and no Grafana since 10 reads."""

_ON_TIME_RANGE = 2
_HIDDEN = 2
_SHARED_CROSSHAIR = 1


def query_variable(name: str, label: str, query: str, *, several: bool = True, hidden: bool = False) -> Json:
    """A variable whose values Prometheus knows; one of several values is "All" at first."""
    out = {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": "variable"},
        "refresh": _ON_TIME_RANGE,
        "sort": 1,
        "regex": "",
        "hide": _HIDDEN if hidden else 0,
        "includeAll": several,
        "multi": several,
        "options": [],
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]} if several else {},
    }
    return {**out, "allValue": ".*"} if several else out


def choice_variable(name: str, label: str, values: Sequence[str]) -> Json:
    """A variable of fixed values; the first is the default."""
    options = [{"selected": at == 0, "text": value, "value": value} for at, value in enumerate(values)]
    return {
        "name": name,
        "label": label,
        "type": "custom",
        "query": ",".join(values),
        "hide": 0,
        "includeAll": False,
        "multi": False,
        "options": options,
        "current": options[0],
    }


def datasource_variable(name: str, label: str, plugin: str) -> Json:
    """A variable of data sources; empty, so that no name is written down and the chosen one counts."""
    return {
        "name": name,
        "label": label,
        "type": "datasource",
        "query": plugin,
        "refresh": 1,
        "regex": "",
        "hide": 0,
        "includeAll": False,
        "multi": False,
        "options": [],
        "current": {},
    }


def text_variable(name: str, label: str, value: str) -> Json:
    """A variable that is typed in."""
    option = {"selected": True, "text": value, "value": value}
    return {
        "name": name,
        "label": label,
        "type": "textbox",
        "query": value,
        "hide": 0,
        "options": [option],
        "current": option,
    }


SERVICE = query_variable("service", "Service", variables.SERVICE)
MODEL = query_variable("model", "Model", variables.MODEL)
GPU = query_variable("gpu", "GPU", variables.GPU)
TARGET = query_variable("target", "Target", variables.TARGET)


def assemble(
    uid: str, title: str, description: str, sections: Iterable[Section], own_variables: Sequence[Json] = ()
) -> Json:
    """The dashboard as Grafana reads it, for provisioning.

    Args:
        uid: stable: links between dashboards and bookmarks have it.
        title: as in Grafana's list.
        description: what it answers.
        sections: from top to bottom.
        own_variables: beside data source, job, instance and scrape interval, which all have.
    """
    made = core.Dashboard(
        title=title,
        uid=uid,
        description=description,
        tags=[TAG],
        graphTooltip=_SHARED_CROSSHAIR,
        schemaVersion=SCHEMA_VERSION,
        refresh="30s",
        timezone="browser",
        time=core.Time("now-1h", "now"),
        templating=core.Templating(
            list=[
                datasource_variable("datasource", "Prometheus", "prometheus"),
                query_variable("job", "Job", variables.JOB),
                query_variable("instance", "Instance", variables.INSTANCE),
                *own_variables,
                choice_variable("scrape_interval", "Scrape interval", SCRAPE_INTERVALS),
            ]
        ),
        annotations=core.Annotations(list=_annotations()),
        links=[_between_dashboards()],
        panels=_placed(sections),
    ).auto_panel_ids()
    return {**_pruned(_plain(made)), "editable": False}


def _placed(sections: Iterable[Section]) -> list[core.Panel]:
    out: list[core.Panel] = []
    y = 0
    for section in sections:
        closed = section.variable is not None
        at = core.GridPos(h=1, w=COLUMNS, x=0, y=y)
        panels, y = _rows(section.panels, y + 1)
        row = Row(
            title=section.title,
            gridPos=at,
            collapsed=closed,
            repeat=core.Repeat(variable=section.variable),
            panels=panels if closed else [],
        )
        out += [row] if closed else [row, *panels]
    return out


def _rows(panels: Sequence[core.Panel], y: int) -> tuple[list[core.Panel], int]:
    """Left to right, and on to the next line when full; also where the next section begins."""
    out = []
    x = line = 0
    for panel in panels:
        size = panel.gridPos
        if x + size.w > COLUMNS:
            x, y, line = 0, y + line, 0
        out.append(attr.evolve(panel, gridPos=attr.evolve(size, x=x, y=y)))
        x, line = x + size.w, max(line, size.h)
    return out, y + line


def _annotations() -> list[Json]:
    built_in = {
        "name": "Annotations & Alerts",
        "builtIn": 1,
        "datasource": GRAFANA,
        "enable": True,
        "hide": True,
        "iconColor": "rgba(0, 211, 255, 1)",
        "type": "dashboard",
    }
    return [
        built_in,
        *(
            {
                "name": mark.name,
                "datasource": DATASOURCE,
                "enable": True,
                "hide": False,
                "iconColor": mark.color,
                "expr": mark.expr,
                "step": "$scrape_interval",
                "titleFormat": mark.title,
                "textFormat": "",
                "tagKeys": "",
            }
            for mark in MARKS
        ),
    ]


def _between_dashboards() -> Json:
    return {
        "title": "OTel Bridge",
        "type": "dashboards",
        "tags": [TAG],
        "asDropdown": True,
        "includeVars": True,
        "keepTime": True,
        "targetBlank": False,
        "icon": "external link",
        "tooltip": "The other dashboards of the bridge, for the same time and services",
        "url": "",
    }


def _plain(value: Any) -> Any:
    """Grafanalib's objects as what JSON has."""
    if hasattr(value, "to_json_data"):
        return _plain(value.to_json_data())
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value


def _pruned(value: Any) -> Any:
    """Without what is stale or not set; a threshold's first step begins at null."""
    if isinstance(value, dict):
        return {
            key: _pruned(one)
            for key, one in value.items()
            if key not in PRUNED and (one is not None or (key == "value" and "color" in value))
        }
    if isinstance(value, list):
        return [_pruned(one) for one in value]
    return value
