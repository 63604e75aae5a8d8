"""`otel-bridge rules …`: what is printed, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from otel_bridge.cli import main
from tests.support.rules import rule

ROOT = Path(__file__).parents[3]
DEFAULT = str(ROOT / "alerts" / "rules" / "default.yaml")
GOLDEN = str(ROOT / "tests" / "golden" / "vllm-0.32-and-clients.otlp.jsonl")
TRACE = "000102030405060708090a0b0c0d0e0f"
STALL = [
    {"event": "tls_handshake", "time": "2026-01-01T00:00:00Z", "duration": "600ms", "trace_id": TRACE},
    {"event": "tls_handshake", "time": "2026-01-01T00:00:01Z", "duration": "700ms"},
    {"event": "tls_handshake", "time": "2026-01-01T00:00:02Z", "duration": "501ms"},
    {"event": "cuda_alloc", "time": "2026-01-01T00:00:05Z", "error": "ENOMEM", "size": 1 << 30},
]


def run(*arguments: str):
    """The command's result."""
    return CliRunner().invoke(main, ["rules", *arguments])


def recorded(path: Path, records: list[dict[str, object]]) -> str:
    """A recording's file."""
    path.write_text("\n".join(map(json.dumps, records)) + "\n")
    return str(path)


def rule_set(path: Path, *rules: dict[str, object]) -> str:
    """A rule set's file."""
    path.write_text(yaml.safe_dump({"rules": list(rules)}))
    return str(path)


def test_check_says_what_is_good():
    """In words and as JSON."""
    assert run("check", DEFAULT).output == "1 rules in 1 file: good\n"
    assert json.loads(run("check", DEFAULT, "--json").output) == {
        "ok": True,
        "problems": [],
        "rules": ["TlsStallWithGpuAllocationFailure"],
    }


def test_check_ends_with_2_and_every_mistake_at_its_line(tmp_path):
    """As file:line, in words and as JSON."""
    path = rule_set(tmp_path / "bad.yaml", rule({"event": "oom_kil", "within": "5s"}, by=["tid"]))
    found = run("check", path)
    assert found.exit_code == 2
    assert "bad.yaml:" in found.stderr
    assert "expected 'oom_kill'" in found.stderr
    found = run("check", path, "--json")
    assert found.exit_code == 2
    (problem,) = json.loads(found.stdout)["problems"]
    assert problem["place"].endswith("rules.0.when.event")


def test_explain_is_a_sentence():
    """With windows, groups, what follows."""
    found = run("explain", "TlsStallWithGpuAllocationFailure", "-r", DEFAULT)
    assert found.output == (
        "TlsStallWithGpuAllocationFailure (critical) fires when both there are 3 consecutive tls_handshake "
        "events with duration above 500ms, and there is a cuda_alloc event with error ENOMEM, within 5 s. It "
        "goes on for 1 min after that has ended. It trips the breaker of node.\n"
    )


@pytest.mark.parametrize(
    ("when", "told"),
    [
        ({"absent": {"event": "oom_kill", "within": "90s"}}, "no oom_kill event came for 90 s"),
        ({"not": {"span": "any", "within": "1h"}}, "it is not so that there is a span within 1 h"),
        (
            {"any": [{"rule": "Other"}, {"span": "client", "within": "1s"}]},
            "Other fires, or there is a client span",
        ),
        (
            {"sequence": [{"event": "reclaim"}, {"event": "oom_kill", "count": 2}], "within": "250ms"},
            "there is a reclaim event, then there are 2 or more oom_kill events, within 250 ms",
        ),
        (
            {"span": "server", "quantile": {"q": 0.999, "of": "duration", "is": ">= 2s"}, "within": "1d"},
            "P99.9 of duration of server spans is at least 2s over 1 d",
        ),
        (
            {"span": "any", "delta": {"stat": "rate", "is": "< -15%", "against": "10m"}, "within": "1m"},
            "the change of the rate of spans is below -15% over 1 min against the 10 min before",
        ),
    ],
)
def test_every_condition_has_words(tmp_path, when, told):
    """Whatever a rule combines."""
    whole = {"all": [when, {"event": "tls_handshake", "within": "1s"}]}
    path = rule_set(
        tmp_path / "r.yaml",
        rule(whole, engine="prometheus", reason="to try it"),
        rule({"event": "oom_kill", "within": "1s"}, name="Other"),
    )
    found = run("explain", "R", "-r", path)
    assert told in found.output
    assert "Only the prometheus engine evaluates it: to try it." in found.output


def test_explain_of_an_unknown_rule_names_those_there_are():
    """And fails."""
    found = run("explain", "Nobody", "-r", DEFAULT)
    assert found.exit_code == 1
    assert "TlsStallWithGpuAllocationFailure" in found.stderr


def test_replay_prints_when_rules_fire(tmp_path):
    """With the traces that made them, and when they end."""
    path = recorded(tmp_path / "stall.jsonl", STALL)
    found = run("replay", path, "-r", DEFAULT, "--then", "5m")
    assert found.output.splitlines() == [
        "2026-01-01T00:00:05.000+00:00  fires     TlsStallWithGpuAllocationFailure  {severity=critical}  "
        + TRACE,
        "2026-01-01T00:01:05.000+00:00  resolved  TlsStallWithGpuAllocationFailure  {severity=critical}",
        "4 records, 1 firings",
    ]


def test_replay_as_json(tmp_path):
    """Exact times, for scripts."""
    path = recorded(tmp_path / "stall.jsonl", STALL)
    (firing,) = json.loads(run("replay", path, "-r", DEFAULT, "--json").output)["firings"]
    assert firing["time_unix_nano"] == 1_767_225_605_000_000_000
    assert firing["evidence"] == [TRACE]
    assert firing["target"] == "node"


def test_replay_takes_every_source_and_late_arrivals(tmp_path):
    """Spans, readings, losses; what arrives later than it happened."""
    rules = rule_set(
        tmp_path / "r.yaml",
        rule(
            {
                "all": [
                    {"span": "server", "is": {"status": "error", "x.model": "llama"}, "within": "10s"},
                    {"event": "reclaim", "is": {"comm": "pytho*"}, "within": "10s"},
                    {"metric": "otel_bridge_gpu_memory_used_ratio", "is": {"value": "> 95%"}},
                ]
            },
        ),
    )
    path = recorded(
        tmp_path / "mixed.jsonl",
        [
            {
                "metric": "otel_bridge_gpu_memory_used_ratio",
                "time": 1000,
                "value": 0.97,
                "labels": {"gpu_uuid": "a"},
            },
            {"lost": "memory", "time": 1000.5, "count": 7},
            {"event": "reclaim", "time": 1001, "comm": "python"},
            {
                "span": "chat",
                "time": 1000.2,
                "arrives": 1003,
                "duration": "2s",
                "status": "error",
                "attributes": {"x.model": "llama"},
                "resource": {"service.name": "a"},
            },
        ],
    )
    (firing,) = json.loads(run("replay", path, "-r", rules, "--json").output)["firings"]
    assert firing["time_unix_nano"] == 1001 * 10**9
    assert "7 of probe memory" in firing["annotations"]["incomplete"]


def test_replay_takes_otlp_json_lines(tmp_path):
    """As the Collector's file exporter writes them."""
    rules = rule_set(tmp_path / "r.yaml", rule({"span": "any", "is": {"status": "error"}, "within": "1m"}))
    found = json.loads(run("replay", GOLDEN, "-r", rules, "--json").output)
    assert found["records"] == 8
    assert found["firings"]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("[]", "a record is a JSON object"),
        ("{", "line 2: Expecting property name"),
        ('{"event": "oom_kill"}', "no 'time'"),
        ('{"event": "oom", "time": 1}', "an unknown event 'oom'"),
        ('{"event": "oom_kill", "time": 1, "size": 1}', "a field 'size', which oom_kill does not have"),
        ('{"event": "oom_kill", "time": "2026-01-01T00:00:00"}', "no time zone"),
        ('{"span": "a", "time": 1, "status": "bad"}', "'bad' where one of unset, ok, error stands"),
        ('{"time": 1}', "one of span, event, metric, lost, resourceSpans"),
        ('{"resourceSpans": 5}', "resourceSpans"),
    ],
)
def test_a_line_that_is_no_record_is_named(tmp_path, line, told):
    """By its number and what is wrong with it."""
    path = tmp_path / "bad.jsonl"
    path.write_text(json.dumps(STALL[0]) + "\n" + line + "\n")
    found = run("replay", str(path), "-r", DEFAULT)
    assert found.exit_code == 1
    assert "line 2" in found.stderr
    assert told in found.stderr


def test_events_are_listed_with_units():
    """What rules may ask of them."""
    assert "tls_handshake: duration (ns), error ({error})" in run("events").output


def test_the_whole_configuration_is_checked_with_its_rules(tmp_path):
    """`otel-bridge check` must not call a configuration good whose rules stop the start."""
    bad = rule_set(tmp_path / "bad.yaml", rule({"event": "oom_kil", "within": "5s"}))
    found = CliRunner().invoke(main, ["check", "--set", f"rules.files=[{bad}]"])
    assert found.exit_code == 2
    assert "expected 'oom_kill'" in found.stderr
