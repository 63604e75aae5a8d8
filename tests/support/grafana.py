"""What Grafana does with a dashboard before Prometheus sees it: panels found, variables filled in."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tests.support.processes import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

GENERATED = ROOT / "dashboards" / "generated"

ROUND_STEPS = (
    *((1.5, 1), (3.5, 2), (7.5, 5), (12.5, 10), (17.5, 15), (25, 20), (45, 30), (90, 60), (210, 120)),
    *((450, 300), (750, 600), (1050, 900), (1500, 1200), (2700, 1800), (5400, 3600)),
)
"""Seconds below which a step is made which round one: `roundInterval` of @grafana/data 11.6."""

FALLBACK = " or on () vector(0)"
"""What a query ends with whose series exist only after the first failure; tests look without it."""


@dataclass(frozen=True)
class Asked:
    """One question of a dashboard: a panel's target, an annotation or a variable.

    Attributes:
        place: for messages.
        expr: PromQL as it stands in the dashboard.
    """

    place: str
    expr: str


def panels(document: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Every panel but rows, those in closed rows included."""
    for panel in document["panels"]:
        if panel["type"] == "row":
            yield from panel.get("panels", ())
        else:
            yield panel


def variables(document: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Variables by name."""
    return {one["name"]: one for one in document["templating"]["list"]}


def targets(document: Mapping[str, Any]) -> list[Asked]:
    """The questions of all panels."""
    return [
        Asked(f"{document['uid']} / {panel['title']} / {target['refId']}", target["expr"])
        for panel in panels(document)
        for target in panel["targets"]
    ]


def annotations(document: Mapping[str, Any]) -> list[Asked]:
    """The questions of all annotations."""
    return [
        Asked(f"{document['uid']} / annotation {one['name']}", one["expr"])
        for one in document["annotations"]["list"]
        if "expr" in one
    ]


def variable_queries(document: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Selector and label of each variable that asks Prometheus."""
    out = {}
    for name, one in variables(document).items():
        if one["type"] == "query":
            found = re.fullmatch(r"label_values\((.+), (\w+)\)", one["query"]["query"])
            assert found, one["query"]["query"]
            out[name] = (found[1], found[2])
    return out


def step(seconds: float, points: int, least: float) -> float:
    """The step that Grafana asks a panel's range with, seconds.

    Args:
        seconds: the dashboard's range.
        points: the most that the panel draws: its pixels.
        least: the panel's minimum step, seconds.
    """
    wanted = seconds / points
    return max(least, next(made for below, made in ROUND_STEPS if wanted < below))


def filled(expr: str, values: Mapping[str, str], *, step: float, scrape_interval: float) -> str:
    """The expression with its variables' values, as Grafana's Prometheus data source fills them in.

    Args:
        expr: of the dashboard.
        values: of the dashboard's variables.
        step: of the query, seconds.
        scrape_interval: the panel's minimum step, seconds.
    """
    rate = max(step + scrape_interval, 4 * scrape_interval)
    known = {**values, "__rate_interval": f"{rate:g}s", "__interval": f"{step:g}s"}

    def value(match: re.Match[str]) -> str:
        return known[match[1]]

    return re.sub(r"\$\{?(\w+)\}?", value, expr)


def link_filled(url: str, values: Mapping[str, str]) -> str:
    """A data link with its variables' values: encoded, unless the link is what begins the address."""

    def value(match: re.Match[str]) -> str:
        found = values[match[1]]
        return found if match.start() == 0 else quote(found, safe="")

    return re.sub(r"\$\{([\w.]+)\}", value, url)
