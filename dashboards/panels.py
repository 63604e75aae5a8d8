"""Panels with the defaults that Grafana has today; grafanalib's are those of years ago.

Overridden here, once:

- its schema version, 12, and the shapes that went with it: `layout.PRUNED` names the keys that no Grafana of
  today reads;
- `maxDataPoints` of 100, `Stat` by mean, targets with a step: they hide spikes. A panel has as many points as
  pixels, a minimum step equal to the scrape interval, and shows the latest value;
- the heatmap of the old plugin: it is written out in the present one's shape;
- targets without `range` and `exemplar`;
- dashboards that users can edit: changes would be lost at the next provisioning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attr
from grafanalib import core

from dashboards.queries.promql import Query

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SCHEMA_VERSION = 41
"""Of Grafana 11.6; a newer Grafana migrates upward, an older one reads what it knows."""
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
GRAFANA = {"type": "grafana", "uid": "-- Grafana --"}
SCRAPE_INTERVAL = "$scrape_interval"
"""The least step: `$__rate_interval` is at least four of it, whatever the data source believes."""
COLUMNS = 24


class Target(core.Target):  # type: ignore[misc]  # grafanalib has no types
    """A question in the shape of today's Prometheus data source."""

    def __init__(self, query: Query, ref: str) -> None:
        super().__init__(expr=query.expr, legendFormat=query.legend, refId=ref, datasource=DATASOURCE)
        self._query = query

    def to_json_data(self) -> dict[str, Any]:
        """What the data source reads, and nothing else."""
        out = {
            "datasource": DATASOURCE,
            "editorMode": "code",
            "exemplar": self._query.exemplars,
            "expr": self.expr,
            "format": "table" if self._query.instant else "time_series",
            "instant": self._query.instant,
            "interval": SCRAPE_INTERVAL,
            "range": not self._query.instant,
            "refId": self.refId,
        }
        return out if self._query.instant else {**out, "legendFormat": self.legendFormat}


@attr.s
class Heatmap(core.Panel):  # type: ignore[misc]
    """Series over time, coloured by value: how many of them have it."""

    unit: str = attr.ib(default="")

    def to_json_data(self) -> dict[str, Any]:
        """The plugin's shape since Grafana 9."""
        options = {
            "calculate": True,
            "calculation": {"yBuckets": {"mode": "size", "value": "0.1"}},
            "color": {
                "mode": "scheme",
                "scheme": "Oranges",
                "steps": 64,
                "fill": "dark-orange",
                "exponent": 0.5,
            },
            "cellGap": 1,
            "filterValues": {"le": 1e-9},
            "legend": {"show": True},
            "tooltip": {"mode": "single", "yHistogram": False},
            "yAxis": {"axisPlacement": "left", "min": "0", "max": "1", "unit": self.unit},
            "rowsFrame": {"layout": "auto"},
            "exemplars": {"color": "rgba(255,0,255,0.7)"},
        }
        defaults = {"unit": self.unit, "custom": {"scaleDistribution": {"type": "linear"}}}
        return self.panel_json(  # type: ignore[no-any-return]
            {"type": "heatmap", "options": options, "fieldConfig": {"defaults": defaults, "overrides": []}}
        )


class Table(core.Table):  # type: ignore[misc]
    """Without the keys that came before field options."""

    def to_json_data(self) -> dict[str, Any]:
        """Today's shape."""
        stale = ("color", "mappings")
        return {key: value for key, value in super().to_json_data().items() if key not in stale}


class Row(core.RowPanel):  # type: ignore[misc]
    """A row has no fields and asks nothing."""

    def to_json_data(self) -> dict[str, Any]:
        """Today's shape."""
        repeat = {"repeat": self.repeat.variable} if self.repeat.variable else {}
        return {
            "collapsed": self.collapsed,
            "gridPos": self.gridPos,
            "id": self.id,
            "panels": self.panels,
            "title": self.title,
            "type": "row",
            **repeat,
        }


@attr.s(auto_attribs=True, frozen=True)
class Section:
    """A row of the dashboard with its panels.

    Attributes:
        title: of the row.
        panels: in reading order.
        variable: the row is shown once for each of its values, closed at first: it may be of
            what is absent.
    """

    title: str
    panels: Sequence[core.Panel]
    variable: str | None = None


def lines(
    title: str,
    description: str,
    unit: str,
    queries: Query | Sequence[Query],
    *,
    width: int = 12,
    links: Sequence[Mapping[str, Any]] = (),
    stacked: bool = False,
    signed: bool = False,
    top: float | None = None,
) -> core.Panel:
    """Values over time; `top` ends the axis where that is known, `signed` values may be below 0."""
    ends = {"min": None if signed else 0, "max": top}
    return core.TimeSeries(
        **_common(title, description, queries, width, 8),
        unit=unit,
        fillOpacity=30 if stacked else 8,
        stacking={"mode": "normal" if stacked else "none", "group": "A"},
        legendDisplayMode="table" if width >= COLUMNS // 2 else "list",
        legendCalcs=["lastNotNull", "max"],
        tooltipMode="multi",
        tooltipSort="desc",
        extraJson={
            "fieldConfig": {"defaults": {"links": list(links), **ends}},
            "options": {"legend": {"showLegend": True}},
        },
    )


def number(
    title: str,
    description: str,
    unit: str,
    query: Query,
    *,
    width: int = 4,
    steps: Sequence[tuple[float, str]] = (),
) -> core.Panel:
    """The latest value, over a small line; `steps` colour it from a value on."""
    colors = [{"color": "green", "value": None}, *({"color": color, "value": at} for at, color in steps)]
    return core.Stat(
        **{**_common(title, description, [query], width, 4), "thresholds": colors},
        format=unit,
        reduceCalc="lastNotNull",
        noValue="none",
        color={"mode": "thresholds"},
        textMode="auto",
        colorMode="value",
        extraJson={"options": {"wideLayout": True, "showPercentChange": False}},
    )


def states(
    title: str,
    description: str,
    queries: Query | Sequence[Query],
    names: Mapping[int, tuple[str, str]],
    *,
    width: int = 24,
) -> core.Panel:
    """Which state something was in when; `names` gives each value its text and colour."""
    options = {
        str(value): {"text": text, "color": color, "index": value} for value, (text, color) in names.items()
    }
    return core.StateTimeline(
        **_common(title, description, queries, width, 8),
        mappings=[{"type": "value", "options": options}],
        showValue="never",
        fillOpacity=70,
        colorMode="thresholds",
        extraJson={
            "fieldConfig": {"defaults": {"unit": "short"}},
            "options": {"legend": {"showLegend": True}, "tooltip": {"sort": "none"}},
        },
    )


def table(
    title: str,
    description: str,
    unit: str,
    query: Query,
    names: Mapping[str, str],
    *,
    width: int = 12,
    links: Sequence[Mapping[str, Any]] = (),
) -> core.Panel:
    """The values now, the largest first; `names` gives the labels that are shown a heading."""
    organize = {"excludeByName": {"Time": True}, "renameByName": {**names, "Value": title}}
    return Table(
        **_common(title, description, [query], width, 8),
        unit=unit,
        displayMode="auto",
        sortBy=[core.TableSortByField(displayName=title, desc=True)],
        transformations=[{"id": "organize", "options": organize}],
        extraJson={
            "fieldConfig": {"defaults": {"links": list(links), "color": {"mode": "thresholds"}}},
            "options": {"cellHeight": "sm"},
        },
    )


def heatmap(title: str, description: str, unit: str, query: Query, *, width: int = 24) -> core.Panel:
    """How many series have which value, over time."""
    return Heatmap(**_common(title, description, [query], width, 8), unit=unit)


def _common(
    title: str, description: str, queries: Query | Sequence[Query], width: int, height: int
) -> dict[str, Any]:
    every = [queries] if isinstance(queries, Query) else queries
    return {
        "title": title,
        "description": description,
        "dataSource": DATASOURCE,
        "targets": [Target(query, chr(ord("A") + at)) for at, query in enumerate(every)],
        "maxDataPoints": None,
        "interval": SCRAPE_INTERVAL,
        "thresholds": [{"color": "green", "value": None}],
        "gridPos": core.GridPos(h=height, w=width, x=0, y=0),
    }
