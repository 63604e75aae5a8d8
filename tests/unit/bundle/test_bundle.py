"""What `otel-bridge bundle` writes, and what it leaves alone."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner

from otel_bridge import shipped
from otel_bridge.bundle.bundle import MARK, bundle
from otel_bridge.cli import main
from tests.support.grafana import panels, variables
from tests.support.processes import ROOT

NAMES = sorted(path.stem for path in (ROOT / "dashboards" / "generated").glob("*.json"))


@pytest.fixture(scope="module")
def made():
    return bundle()


def run(*arguments):
    return CliRunner().invoke(main, ["bundle", *map(str, arguments)])


def test_a_bundle_has_every_dashboard_three_times(made):
    """For provisioning as generated, as a ConfigMap with the same text, for import."""
    assert len(NAMES) == 8
    for name in NAMES:
        text = (ROOT / "dashboards" / "generated" / f"{name}.json").read_text()
        assert made[Path(f"grafana/dashboards/{name}.json")] == text
        config_map = yaml.safe_load(made[Path(f"kubernetes/dashboards/{name}.yaml")])
        assert config_map["kind"] == "ConfigMap"
        assert config_map["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert config_map["data"] == {f"{name}.json": text}
        assert len(text.encode()) < 256 * 1024, "kubectl apply keeps a copy in an annotation"


@pytest.mark.parametrize("name", NAMES)
def test_an_import_asks_for_its_data_source(made, name):
    """One input, everything it needs, nothing of the variable left; otherwise the same dashboard."""
    provisioned = json.loads(made[Path(f"grafana/dashboards/{name}.json")])
    text = made[Path(f"grafana/import/{name}.json")]
    found = json.loads(text)
    assert [one["name"] for one in found["__inputs"]] == ["DS_PROMETHEUS"]
    kinds = {panel["type"] for panel in panels(found)}
    assert {one["id"] for one in found["__requires"]} == {"grafana", "prometheus", *kinds}
    assert "${datasource}" not in text
    assert "datasource" not in variables(found)
    answered = json.loads(text.replace("${DS_PROMETHEUS}", "${datasource}"))
    assert answered["panels"] == provisioned["panels"]
    assert answered["annotations"] == provisioned["annotations"]


def test_provisioning_files_are_what_grafana_reads(made):
    """Where the dashboards are; exemplars lead to a data source that the file has."""
    providers = yaml.safe_load(made[Path("grafana/provisioning/dashboards/otel-bridge.yaml")])["providers"]
    assert [one["type"] for one in providers] == ["file"]
    sources = yaml.safe_load(made[Path("grafana/provisioning/datasources/otel-bridge.yaml")])["datasources"]
    uids = {one["uid"] for one in sources}
    links = [link for one in sources for link in one["jsonData"].get("exemplarTraceIdDestinations", [])]
    assert {link["name"] for link in links} == {"trace_id"}
    tempo, page = links
    assert tempo["datasourceUid"] in uids
    # Grafana fills in its environment first: two dollars are one of the link's.
    assert page["url"] == "$BRIDGE_URL/ui/trace/$${__value.raw}"


def test_rules_and_routes_are_the_shipped_ones(made):
    """Plain and PrometheusRule, the breaker's route, the Collector's files."""
    plain = {path.name for path in made if path.parent == Path("prometheus/rules")}
    assert plain == {path.name for path in (ROOT / "alerts/generated/prometheus").glob("*.yaml")}
    for name in plain:
        assert yaml.safe_load(made[Path("kubernetes/rules", name)])["kind"] == "PrometheusRule"
    route = yaml.safe_load(made[Path("alertmanager/alertmanager.yml")])["route"]
    assert route["routes"][0]["group_wait"] == "0s"
    assert Path("collector/sidecar/bridge.yaml") in made


def test_alerts_lead_to_an_entry_of_the_bundles_runbook(made):
    """The page that rules name is in the bundle, with a heading for each."""
    anchors = {line[3:].lower() for line in made[Path("runbook.md")].splitlines() if line.startswith("## ")}
    alerts = [
        rule
        for path, text in made.items()
        if path.parent == Path("prometheus/rules")
        for group in yaml.safe_load(text)["groups"]
        for rule in group["rules"]
        if "alert" in rule
    ]
    assert len(alerts) > 20
    for alert in alerts:
        page, _, anchor = alert["annotations"]["runbook_url"].partition("#")
        assert Path(page) in made
        assert anchor in anchors, alert["alert"]


@pytest.mark.parametrize("version", ["1.29", "1.33"])
def test_config_maps_hold_to_kubernetes_schemas(made, version):
    """Those of dashboards; PrometheusRule's schema is its operator's."""
    for name in NAMES:
        document = yaml.safe_load(made[Path(f"kubernetes/dashboards/{name}.yaml")])
        kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_prometheus_takes_them(tmp_path):
    """By promtool, as written."""
    assert run(tmp_path).exit_code == 0
    rules = sorted((tmp_path / "prometheus" / "rules").glob("*.yaml"))
    subprocess.run(["promtool", "check", "rules", *rules], check=True, capture_output=True)
    subprocess.run(
        ["promtool", "check", "config", tmp_path / "prometheus/scrape.yaml"], check=True, capture_output=True
    )


@pytest.mark.skipif(shutil.which("amtool") is None, reason="amtool is not installed")
def test_alertmanager_takes_the_route(tmp_path, made):
    """By amtool, as written, with the secret that it names in a file."""
    config = tmp_path / "alertmanager.yml"
    config.write_text(made[Path("alertmanager/alertmanager.yml")])
    done = subprocess.run(["amtool", "check-config", config], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS" in done.stdout


def test_a_bundle_is_checked_for_drift(tmp_path):
    """Changed, missing and left-over files are named; another write mends them and touches nothing else."""
    assert run(tmp_path, "--check").exit_code == 1
    assert "files in" in run(tmp_path).output
    assert run(tmp_path, "--check").exit_code == 0
    changed, missing = tmp_path / "grafana/dashboards/slo.json", tmp_path / "prometheus/scrape.yaml"
    changed.write_text("{}")
    missing.unlink()
    stale, foreign = tmp_path / "prometheus/rules/old.yaml", tmp_path / "prometheus/rules/mine.yaml"
    stale.write_text("groups: []")
    foreign.write_text("groups: []")
    mark = tmp_path / MARK
    mark.write_text(mark.read_text() + "prometheus/rules/old.yaml\n")
    found = run(tmp_path, "--check")
    assert found.exit_code == 1
    assert {line.strip() for line in found.output.splitlines()[1:]} == {
        str(path) for path in (changed, missing, stale, mark)
    }
    assert run(tmp_path).exit_code == 0
    assert run(tmp_path, "--check").exit_code == 0
    assert not stale.exists()
    assert foreign.exists()


def test_a_list_of_files_cannot_lead_out_of_the_folder(tmp_path):
    """What an earlier bundle is said to have written is removed below the folder only."""
    folder, outside = tmp_path / "bundle", tmp_path / "precious"
    folder.mkdir()
    outside.write_text("")
    (folder / MARK).write_text(f"../precious\n{outside}\n")
    assert run(folder).exit_code == 0
    assert outside.exists()


def test_a_folder_that_cannot_be_written_is_said(tmp_path):
    """With the reason, and no traceback."""
    (tmp_path / "grafana").write_text("a file where a folder should be")
    found = run(tmp_path)
    assert found.exit_code == 1
    assert found.output.startswith("otel-bridge: ")
    assert "grafana" in found.output


def test_what_is_not_shipped_is_said(monkeypatch, tmp_path):
    """Neither a wheel nor a checkout."""
    monkeypatch.setattr(shipped, "_IN_WHEEL", tmp_path)
    monkeypatch.setattr(shipped, "_PACKAGE", tmp_path / "a")
    with pytest.raises(FileNotFoundError, match="install the wheel, or run in a checkout"):
        shipped.folder("dashboards/generated")


def test_setup_ships_what_the_bundle_reads():
    """setup.py cannot import the package that it builds, so it names the folders again."""
    tree = ast.parse((ROOT / "setup.py").read_text())
    (folders,) = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "FOLDERS"
    ]
    assert tuple(folders) == shipped.FOLDERS
