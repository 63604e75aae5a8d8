"""The files that are written: those in the repository, and what every alert must be."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from otel_bridge import catalog
from otel_bridge.cli_rules_build import build
from otel_bridge.rules.load import load_rules
from otel_bridge.rules.prometheus.build import build_files, compile_rules, drift, write_files
from otel_bridge.rules.prometheus.promql import Target
from otel_bridge.testing import trace_request
from tests.support.deriving import deriving
from tests.support.rules import load, rule

ALERTS = Path(__file__).parents[4] / "alerts"
RULES = load_rules([ALERTS / "rules"])
FILES = build_files(RULES, Target())


GENERATED = [
    one
    for path in sorted((ALERTS / "generated" / "prometheus").glob("*.yaml"))
    for group in yaml.safe_load(path.read_text())["groups"]
    for one in group["rules"]
    if "alert" in one
]


def test_the_repository_has_what_a_build_writes():
    """`otel-bridge rules build` after a change."""
    assert drift(ALERTS, FILES) == []


def test_every_rule_is_an_alert():
    """None is lost."""
    assert {one["alert"] for one in GENERATED} == {loaded.rule.name for loaded in RULES}


@pytest.mark.parametrize("alert", GENERATED, ids=lambda alert: alert["alert"])
def test_no_label_changes_while_an_alert_fires(alert):
    """Case rule-labels: values are for annotations; in a label each would be another alert."""
    assert not any("{{" in value for value in alert["labels"].values())
    assert set(alert["labels"]) >= {"severity"}


@pytest.mark.parametrize("alert", GENERATED, ids=lambda alert: alert["alert"])
def test_every_alert_leads_to_its_runbook(alert):
    """There is a heading of that name."""
    anchor = alert["annotations"]["runbook_url"].partition("#")[2]
    headings = re.findall(r"^#+ (.+)$", (ALERTS / "runbook.md").read_text(), re.MULTILINE)
    assert anchor in {heading.strip().lower().replace(" ", "-") for heading in headings}


def test_each_rule_has_a_test_that_fires_and_one_that_stays_silent():
    """Both are written."""
    names = [
        test["name"]
        for path in (ALERTS / "tests").glob("*.yaml")
        for test in yaml.safe_load(path.read_text())["tests"]
    ]
    expected = [f"{one.rule.name} {word}" for one in RULES for word in ("fires", "stays silent")]
    assert sorted(names) == sorted(expected)


def test_promtool_takes_the_shipped_rules_and_their_tests_hold():
    """The real one."""
    if shutil.which("promtool") is None:
        pytest.skip("needs promtool: apt-get install prometheus")
    for command, folder in (("check", "generated/prometheus"), ("test", "tests")):
        paths = sorted((ALERTS / folder).glob("*.yaml"))
        done = subprocess.run(
            ["promtool", command, "rules", *paths], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_operators_rules_are_the_same():
    """In a PrometheusRule."""
    for path in sorted((ALERTS / "generated" / "prometheus").glob("*.yaml")):
        wrapped = yaml.safe_load((ALERTS / "generated" / "prometheus-operator" / path.name).read_text())
        assert wrapped["kind"] == "PrometheusRule"
        assert re.fullmatch(r"[a-z0-9-]+", wrapped["metadata"]["name"])
        assert wrapped["spec"] == yaml.safe_load(path.read_text())


def test_rules_over_spans_ask_for_series_that_are_served():
    """Names, labels and bounds as the derived metrics show them."""
    when = {"span": "server", "is": {"status": "error", "duration": "> 2s", "name": "span"}, "within": "5m"}
    [found] = compile_rules(load(rule(when, by=["service.name"])), Target()).values()
    bench = deriving()
    bench.request(trace_request([{"status": {"code": 2}}]))
    served = [
        (sample.name, sample.labels)
        for family in text_string_to_metric_families(bench.scrape())
        for sample in family.samples
    ]
    [value] = found.recorded.values()
    for metric, matchers in re.findall(r"(\w+)\{([^}]*)\}", value):
        wanted = dict(re.findall(r'(\w+)="([^"]*)"', matchers))
        assert any(name == metric and wanted.items() <= labels.items() for name, labels in served), metric


def test_the_command_builds_checks_and_says_what_follows_the_bridge(tmp_path):
    """A file that was changed by hand, and one that is left over, are found; others' files are let be."""
    runner = CliRunner()
    sets, out = tmp_path / "sets", tmp_path / "out"
    sets.mkdir()
    when = {"event": "oom_kill", "within": "5m"}
    (sets / "a.yaml").write_text(yaml.safe_dump({"rules": [rule(when, name="Killed")]}))
    (sets / "b.yaml").write_text(yaml.safe_dump({"rules": [rule(when, name="Other")]}))
    arguments = [str(sets), "--out", str(out), "--scrape-interval", "30s"]
    done = runner.invoke(build, arguments)
    assert done.exit_code == 0, done.output
    assert "2 rules, 6 files; 2 follow the bridge's own alerts" in done.output
    assert "Killed: no metric has the single oom_kill events" in done.output
    assert runner.invoke(build, [*arguments, "--check"]).exit_code == 0
    own = out / "generated" / "prometheus" / "own.yaml"
    own.write_text("groups: []\n")
    (sets / "b.yaml").unlink()
    (out / "generated" / "prometheus" / "a.yaml").write_text("groups: []\n")
    changed = runner.invoke(build, [*arguments, "--check"])
    assert changed.exit_code == 1
    assert "prometheus/a.yaml" in changed.output
    assert "prometheus/b.yaml" in changed.output
    assert runner.invoke(build, arguments).exit_code == 0
    assert not (out / "tests" / "b.yaml").exists()
    assert own.exists()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--scrape-interval", "soon"], 2, "a duration is seconds"),
        (["--scrape-interval", "10ms"], 2, "expected 1s or more"),
    ],
)
def test_mistakes_on_the_command_line(arguments, code, said):
    """Say what is right."""
    done = CliRunner().invoke(build, arguments)
    assert (done.exit_code, said in done.output) == (code, True), done.output


def test_bad_rules_are_named_with_their_place(tmp_path):
    """As `rules check` does."""
    (tmp_path / "a.yaml").write_text(yaml.safe_dump({"rules": [rule({"event": "oom"}, name="Killed")]}))
    done = CliRunner().invoke(build, [str(tmp_path)])
    assert done.exit_code == 2
    assert "a.yaml:" in done.output


def test_writing_is_repeatable(tmp_path):
    """A second build changes nothing."""
    write_files(tmp_path, FILES)
    assert drift(tmp_path, FILES) == []
    assert catalog.RULES_ALERTS.name in "".join(FILES.values())
