"""What dashboard-linter holds, and what the users of other dashboards complained of, as tests of ours."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models import units
from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards.build import documents, drift, text
from dashboards.queries.engines import ENGINES
from otel_bridge import catalog
from otel_bridge.bundle.grafana import OLDEST_GRAFANA
from otel_bridge.rules.load import load_rules
from tests.support.grafana import (
    GENERATED,
    annotations,
    filled,
    panels,
    targets,
    variable_queries,
    variables,
)
from tests.support.processes import ROOT

DOCUMENTS = documents()
UIDS = {
    "bridge": "otel-bridge-health",
    "comparison": "otel-bridge-ab",
    "control": "otel-bridge-control",
    "golden": "otel-bridge-golden",
    "gpu": "otel-bridge-gpu",
    "kernel": "otel-bridge-kernel",
    "root-cause": "otel-bridge-root-cause",
    "slo": "otel-bridge-slo",
}
"""Bookmarks and links have them, so they never change."""
TYPES = {"heatmap", "state-timeline", "stat", "table", "timeseries"}
"""Panels that each Grafana since 8.2 has, and none since has removed."""
UNITS = {value for name, value in vars(units).items() if name[0].isupper() and isinstance(value, str)}
OF_THE_PLUGIN = {"expr", "step", "tagKeys", "textFormat", "titleFormat"}
"""Fields of an annotation that the Prometheus plugin reads and Grafana's own model does not name."""

GAUGES = {
    one.name
    for one in vars(catalog).values()
    if isinstance(one, catalog.Metric | catalog.ForeignMetric) and one.kind is catalog.Kind.GAUGE
}

every = pytest.mark.parametrize("name", sorted(DOCUMENTS))


def test_generated_files_are_as_built():
    """Nobody edits them by hand, and nobody forgets to build."""
    files = {GENERATED / f"{name}.json": text(document) for name, document in DOCUMENTS.items()}
    assert drift(files) == []


def test_uids_are_stable():
    """The set, and the address of each."""
    assert {name: document["uid"] for name, document in DOCUMENTS.items()} == UIDS


@every
def test_dashboards_are_of_the_present_schema(name):
    """As Grafana's typed models have it; none is migrated from an older one."""
    assert DOCUMENTS[name]["schemaVersion"] == Dashboard().schema_version


@every
def test_panels_are_of_types_that_the_oldest_grafana_has(name):
    """None that was removed since, none that is newer; the README says which Grafana that is."""
    major_and_minor = OLDEST_GRAFANA.rpartition(".")[0]
    assert f"Oldest version: {major_and_minor}." in (ROOT / "dashboards" / "README.md").read_text()
    assert {panel["type"] for panel in panels(DOCUMENTS[name])} <= TYPES


@every
def test_typed_models_keep_everything(name):
    """What is read into Grafana's models comes out again: no key is misspelt or of another age."""
    register_default_plugins()
    document = DOCUMENTS[name]
    back = json.loads(JSONEncoder(sort_keys=True).encode(Dashboard.from_json(document)))
    lost = list(_lost(document, back, ""))
    assert [path for path in lost if path.rpartition(".")[2] not in OF_THE_PLUGIN] == []
    assert all(path.startswith(".annotations.list[") for path in lost)


def _lost(sent: Any, back: Any, path: str) -> Any:
    if isinstance(sent, dict) and isinstance(back, dict):
        for key, value in sent.items():
            if key in back:
                yield from _lost(value, back[key], f"{path}.{key}")
            else:
                yield f"{path}.{key}"
    elif isinstance(sent, list) and isinstance(back, list) and len(sent) == len(back):
        for at, (one, other) in enumerate(zip(sent, back, strict=True)):
            yield from _lost(one, other, f"{path}[{at}]")
    elif sent != back:
        yield path


@every
def test_dashboards_are_fit_for_provisioning(name):
    """No inputs that provisioning leaves unanswered, no id, not editable, one crosshair."""
    document = DOCUMENTS[name]
    assert not {"__inputs", "__requires", "id"} & document.keys()
    assert "${DS_" not in json.dumps(document)
    assert document["editable"] is False
    assert document["graphTooltip"] == 1
    assert document["title"].startswith("OTel Bridge / ")
    assert document["description"].endswith(".")
    assert document["tags"] == ["otel-bridge"]


@every
def test_every_data_source_is_the_chosen_one(name):
    """An object, and a variable; nothing follows a default, nothing has a name written down."""
    document = DOCUMENTS[name]
    allowed = [
        {"type": "prometheus", "uid": "${datasource}"},
        {"type": "grafana", "uid": "-- Grafana --"},
    ]
    found = list(_under(document, "datasource"))
    assert found
    assert [one for one in found if one not in allowed] == []
    for panel in panels(document):
        assert panel["datasource"] == allowed[0]
        assert all(target["datasource"] == allowed[0] for target in panel["targets"])
    choice = variables(document)["datasource"]
    assert (choice["type"], choice["query"], choice["current"]) == ("datasource", "prometheus", {})


def _under(value: Any, key: str) -> Any:
    if isinstance(value, dict):
        if key in value:
            yield value[key]
        for one in value.values():
            yield from _under(one, key)
    elif isinstance(value, list):
        for one in value:
            yield from _under(one, key)


@every
def test_variables_are_those_that_linters_want(name):
    """Data source, job, instance; each has a label, "All" matches what Prometheus does not know yet."""
    found = variables(DOCUMENTS[name])
    assert list(found)[:3] == ["datasource", "job", "instance"]
    for one in found.values():
        assert one["label"]
        if one["type"] == "query":
            assert one["refresh"] == 2
            assert (one["includeAll"], one["multi"], one["allValue"]) == (True, True, ".*")


@every
def test_every_variable_of_a_query_exists(name):
    """And every variable that there is, is used by one."""
    document = DOCUMENTS[name]
    known = variables(document).keys()
    texts = " ".join(one.expr for one in [*targets(document), *annotations(document)])
    texts += " ".join(selector for selector, _ in variable_queries(document).values())
    used = set(re.findall(r"\$\{?(\w+)\}?", texts)) - {"__rate_interval"}
    assert used <= known
    assert known - used <= {"datasource", "scrape_interval", "tempo", "jaeger", "bridge"}


@every
def test_panels_are_titled_described_and_have_units(name):
    """Titles are told apart within a dashboard; units are Grafana's."""
    found = list(panels(DOCUMENTS[name]))
    titles = [panel["title"] for panel in found]
    assert sorted(titles) == sorted(set(titles))
    for panel in found:
        assert panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS, panel["title"]


@every
def test_panels_lie_side_by_side(name):
    """Inside the grid, none over another, ids unique."""
    document = DOCUMENTS[name]
    taken: set[tuple[int, int]] = set()
    for panel in [*panels(document), *(one for one in document["panels"] if one["type"] == "row")]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
    ids = [*_under(document["panels"], "id")]
    numbers = [one for one in ids if isinstance(one, int)]
    assert len(numbers) == len(set(numbers))


@every
def test_targets_hide_no_spikes_and_starve_on_no_interval(name):
    """A minimum step equal to the scrape interval, no limit of points, each with a letter of its own."""
    for panel in panels(DOCUMENTS[name]):
        assert "maxDataPoints" not in panel
        letters = [target["refId"] for target in panel["targets"]]
        assert letters == [chr(ord("A") + at) for at in range(len(letters))]
        for target in panel["targets"]:
            assert target["interval"] == "$scrape_interval"
            assert target["instant"] != target["range"]


@every
def test_every_selector_is_of_the_chosen_targets(name):
    """By job and instance; engines by the jobs of their row; Prometheus's own alerts are of no target."""
    document = DOCUMENTS[name]
    found = 0
    for one in [*targets(document), *annotations(document)]:
        selectors = re.findall(r"([A-Za-z_][\w:]*)\{([^}]*)\}", one.expr)
        assert selectors, one.place
        for metric, matchers in selectors:
            if metric == catalog.PROMETHEUS_ALERTS.name:
                continue
            found += 1
            job = re.search(r'job=~"\$(\w+)"', matchers)
            assert job, one.place
            assert job[1] in {"job", *ENGINES}, one.place
            assert job[1] in ENGINES or 'instance=~"$instance"' in matchers, one.place
    assert found > 10


@every
def test_every_panel_asks_something(name):
    """None is an empty frame."""
    assert all(panel["targets"] for panel in panels(DOCUMENTS[name]))


@every
def test_rates_have_grafanas_interval(name):
    """But for burn rates, whose windows are those of the alerts; and counters are never shown bare."""
    document = DOCUMENTS[name]
    for one in [*targets(document), *annotations(document)]:
        windows = set(re.findall(r"\[([^\]]+)\]", one.expr))
        allowed = {"5m", "30m", "1h", "2h", "6h", "1d", "3d", "30d"} if name == "slo" else set()
        assert windows <= {"$__rate_interval"} | allowed, one.place
        bare = re.sub(r"(rate|increase)\([^()]*\)", "", one.expr)
        assert set(re.findall(r"[\w:]+(?=\{)", bare)) <= GAUGES, one.place


def test_alerts_that_are_asked_for_by_name_exist():
    """The SLO dashboard shows those of alerts/rules/slo.yaml, all of them; marks are of shipped rules."""
    rules = load_rules([ROOT / "alerts" / "rules"])
    objectives = {one.rule.name for one in load_rules([ROOT / "alerts" / "rules" / "slo.yaml"])}
    (pattern,) = {
        found for one in targets(DOCUMENTS["slo"]) for found in re.findall(r'alertname=~"([^"]+)"', one.expr)
    }
    assert {name for name in objectives if re.fullmatch(pattern, name)} == objectives
    for part in pattern.split("|"):
        assert any(re.fullmatch(part, name) for name in objectives), part
    marked = {name for one in annotations(DOCUMENTS["slo"]) for name in re.findall(r'rule="(\w+)"', one.expr)}
    assert len(marked) == 3
    assert marked <= {one.rule.name for one in rules}


@every
def test_exemplars_are_asked_for_where_there_are_some(name):
    """Of histograms only: Prometheus keeps none for other queries."""
    for panel in panels(DOCUMENTS[name]):
        for target in panel["targets"]:
            if target["exemplar"]:
                assert "_bucket" in target["expr"], panel["title"]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_every_query_parses(tmp_path):
    """By Prometheus's own parser, each expression as the rule of a group."""
    rules, places = [], []
    for document in DOCUMENTS.values():
        asked = [(one.place, one.expr) for one in [*targets(document), *annotations(document)]]
        asked += [(f"{document['uid']} / ${key}", one[0]) for key, one in variable_queries(document).items()]
        names = dict.fromkeys(variables(document), ".*") | {"objective": "0.999"}
        for place, expr in asked:
            made = filled(expr, names, step=15, scrape_interval=60)
            rules.append({"record": f"query:{len(rules)}", "expr": made})
            places.append(place)
    file = tmp_path / "queries.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    done = subprocess.run(["promtool", "check", "rules", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(rules)} rules found" in done.stdout
    assert len(rules) > 150
