"""Links from panels to traces, filled in as Grafana does: Tempo, Jaeger, and the bridge's own pages."""

from __future__ import annotations

import json
import re
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from dashboards.build import documents
from tests.support.grafana import link_filled, panels, variables

ROOT_CAUSE = documents()["root-cause"]
SERVICES = ["gateway", 'odd "name"', "a&b=c#d/é"]
"""Grafana puts values into a link's query percent-encoded."""
POD = "vllm-0"
FROM, TO = 1_700_000_000_000, 1_700_000_600_000


def links() -> list[tuple[str, dict]]:
    """Every link of a panel to traces, with the panel's title."""
    return [
        (panel["title"], link)
        for panel in panels(ROOT_CAUSE)
        for link in panel["fieldConfig"]["defaults"].get("links", ())
    ]


def filled(link: dict, service: str) -> str:
    values = {
        "tempo": "tempo-uid",
        "jaeger": "http://jaeger:16686",
        "bridge": "http://localhost:9464",
        "__from": str(FROM),
        "__to": str(TO),
        "__data.fields.Service": service,
        "__field.labels.service_name": service,
        "pod": POD,
    }
    return link_filled(link["url"], values)


def of(kind: str) -> list[dict]:
    found = [link for _, link in links() if kind in link["title"]]
    assert len(found) >= 4
    return found


def in_pod(link: dict) -> bool:
    """Whether it is a link of a pod's row."""
    return "in the pod" in link["title"]


def test_the_panels_of_a_pod_lead_to_its_traces():
    """All of them, and no others."""
    of_pods = {title for title, link in links() if in_pod(link)}
    assert of_pods == {
        panel["title"]
        for row in ROOT_CAUSE["panels"]
        if row.get("repeat") == "pod"
        for panel in row["panels"]
    }
    assert len(of_pods) == 3


def test_each_panel_that_leads_to_traces_leads_to_all_three():
    """Under titles that say where; in a tab of their own."""
    by_panel: dict[str, list[dict]] = {}
    for title, link in links():
        by_panel.setdefault(title, []).append(link)
    assert len(by_panel) >= 4
    for found in by_panel.values():
        assert [link["targetBlank"] for link in found] == [True] * 3
        ends = ("in Tempo", "in Jaeger", "at the bridge")
        assert all(link["title"].endswith(end) for link, end in zip(found, ends, strict=True))


@pytest.mark.parametrize("service", ["gateway", "a&b=c#d/é"])
def test_tempo_is_asked_in_explore(service):
    """The pane is JSON, of the chosen data source and the time shown; the service is a TraceQL string.

    A name with quotes in it would have to be escaped three times; Grafana does it once.
    """
    for link in of("Tempo"):
        url = urlsplit(filled(link, service))
        assert url.path == "/explore"
        query = parse_qs(url.query, strict_parsing=True)
        assert query["schemaVersion"] == ["1"]
        (pane,) = json.loads(query["panes"][0]).values()
        assert pane["datasource"] == "tempo-uid"
        assert pane["range"] == {"from": str(FROM), "to": str(TO)}
        (asked,) = pane["queries"]
        assert asked["datasource"] == {"type": "tempo", "uid": "tempo-uid"}
        assert asked["queryType"] == "traceql"
        of_pod = f' && .k8s.pod.name="{POD}"' if in_pod(link) else ""
        assert asked["query"] == f'{{resource.service.name="{service}"{of_pod}}}'


@pytest.mark.parametrize("service", SERVICES)
def test_jaeger_is_searched_for_the_service(service):
    """Its page of results, times in microseconds."""
    for link in of("Jaeger"):
        url = urlsplit(filled(link, service))
        assert (url.netloc, url.path) == ("jaeger:16686", "/search")
        query = parse_qs(url.query, strict_parsing=True)
        tags = {"tags": [json.dumps({"k8s.pod.name": POD})]} if in_pod(link) else {}
        times = {"start": [str(FROM * 1000)], "end": [str(TO * 1000)]}
        assert query == {"service": [service], **times, **tags}


@pytest.mark.parametrize("service", SERVICES)
def test_the_bridge_lists_the_service(service):
    """Its own page; tests/integration/test_dashboards.py follows it."""
    for link in of("bridge"):
        url = urlsplit(filled(link, service))
        assert (url.netloc, url.path) == ("localhost:9464", "/ui")
        of_pod = {"pod": [POD]} if in_pod(link) else {}
        assert parse_qs(url.query, strict_parsing=True) == {"service": [service], **of_pod}


def test_every_variable_of_a_link_exists():
    """A variable of the dashboard, or one of Grafana's own."""
    own = {"__from", "__to", "__data.fields.Service", "__field.labels.service_name"}
    for _, link in links():
        used = set(re.findall(r"\$\{([\w.]+)\}", unquote(link["url"])))
        assert used <= variables(ROOT_CAUSE).keys() | own
