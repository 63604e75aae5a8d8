"""The command line: readable for people, parseable with --json, exit codes that scripts can rely on."""

from __future__ import annotations

import json

import pytest
import yaml
from click.testing import CliRunner

from otel_bridge.cli import main
from otel_bridge.settings import load


@pytest.fixture
def run(monkeypatch):
    """Run a command line; the result has `exit_code`, `stdout`, `stderr`."""
    monkeypatch.delenv("OTEL_BRIDGE_CONFIG", raising=False)
    return lambda *arguments: CliRunner().invoke(main, arguments)


def test_help_teaches(run):
    """What it is, where it listens without a configuration, and what to type first."""
    shown = run("--help").stdout
    for word in ("127.0.0.1:4317", "print-config", "check", "run", "doctor"):
        assert word in shown


def test_check_reports_every_problem_and_exits_2(run, tmp_path):
    """In words, and as JSON with one object a problem."""
    path = tmp_path / "bridge.yaml"
    path.write_text("recievers: {}\nservice: {codec: fast}\n")
    told = run("check", "-c", str(path))
    assert told.exit_code == 2
    assert "2 problems" in told.stderr
    assert "'receivers'" in told.stderr
    answer = json.loads(run("check", "-c", str(path), "--json").stdout)
    assert answer["ok"] is False
    assert {problem["path"] for problem in answer["problems"]} == {"recievers", "service.codec"}


def test_check_is_content_with_the_defaults(run):
    """Exit 0."""
    result = run("check")
    assert (result.exit_code, "good" in result.stdout) == (0, True)
    assert json.loads(run("check", "--json").stdout)["ok"] is True


def test_print_config_prints_what_can_be_loaded(run, tmp_path):
    """YAML and JSON say the same; an override shows."""
    shown = run("print-config", "--set", "service.drain_timeout=3s").stdout
    path = tmp_path / "bridge.yaml"
    path.write_text(shown)
    assert load(path, environment={}).service.drain_timeout == 3
    assert yaml.safe_load(shown) == json.loads(
        run("print-config", "--json", "--set", "service.drain_timeout=3s").stdout
    )


def test_the_schema_is_json(run):
    """For editors."""
    assert "receivers" in json.loads(run("print-config", "--schema").stdout)["properties"]


def test_run_with_a_bad_configuration_exits_2(run):
    """Before anything is started."""
    result = run("run", "--set", "service.codec=fast")
    assert result.exit_code == 2
    assert "service.codec" in result.stderr


def test_doctor_names_each_probe(run):
    """As JSON, with a verdict each, and the exit code says whether all can work."""
    result = run("doctor", "--json")
    report = json.loads(result.stdout)
    assert {"tcp", "tls", "sched", "block", "memory"} <= {finding["subject"] for finding in report["probes"]}
    assert result.exit_code == (0 if report["ready"] else 1)
    for finding in report["probes"]:
        assert finding["verdict"] != "missing" or finding["mend"]


def test_doctor_is_readable(run):
    """Tables, whatever the terminal."""
    assert "What the probes stand on" in run("doctor").stdout
