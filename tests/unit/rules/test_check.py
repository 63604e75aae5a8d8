"""Bad rule sets: every mistake at its line, with what would be right."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest
import yaml

from otel_bridge.errors import ConfigError
from otel_bridge.kernel.probes import PROBES
from otel_bridge.kernel.records import sum_record
from otel_bridge.rules.load import load_rules, load_texts
from otel_bridge.rules.schema import schema
from otel_bridge.rules.vocabulary import EVENTS, KIND_NUMBERS, probe_of
from tests.support.rules import load, rule

ALERTS = Path(__file__).parents[3] / "alerts"
SPAN = {"span": "server", "within": "5s"}
EVENT = {"event": "tls_handshake", "within": "5s"}


def mistakes(*rules, **declared) -> str:
    """What is said of rules that are refused."""
    with pytest.raises(ConfigError) as caught:
        load(*rules, **declared)
    return str(caught.value)


@pytest.mark.parametrize(
    ("when", "told"),
    [
        # Shape
        ({"span": "server", "event": "oom_kill"}, "exactly one of span, event"),
        ({"span": "sever", "within": "5s"}, "'any', 'server'"),
        ({**SPAN, "wher": {}}, "expected 'where'"),
        ({**SPAN, "count": 0}, "greater than or equal to 1"),
        ({**SPAN, "count": 2, "is": {"status": "error"}, "ratio": "> 5%"}, "count and ratio"),
        ({"all": []}, "at least 1 item"),
        ({**SPAN, "within": "5 parsecs"}, "a duration is seconds"),
        ({**SPAN, "is": {"duration": "> many"}}, "a number with its unit"),
        # Names
        ({"event": "tls_handshak", "within": "5s"}, "expected 'tls_handshake'"),
        ({**EVENT, "is": {"durations": "> 5ms"}}, "expected 'duration'"),
        ({**EVENT, "is": {"error": "ENOMEN"}}, "expected 'ENOMEM'"),
        ({"metric": "otel_bridge_join_waiting_byte"}, "expected 'otel_bridge_join_waiting_bytes'"),
        ({"metric": "otel_bridge_join_events", "where": {"prob": "tls"}}, "expected 'probe'"),
        # Units
        ({**EVENT, "is": {"duration": "> 500"}}, 'a duration with its unit ("500ms")'),
        ({**EVENT, "is": {"duration": "> 5MiB"}}, "a duration with its unit"),
        ({"event": "cuda_alloc", "within": "5s", "is": {"size": "> 500"}}, 'a size with its unit ("64MiB")'),
        ({"metric": "otel_bridge_gpu_memory_used_ratio", "is": {"value": "> 92"}}, 'a percentage ("92%")'),
        ({**SPAN, "is": {"status": "error"}, "ratio": "> 50"}, 'a percentage ("92%")'),
        ({**SPAN, "is": {"gen_ai.usage.output_tokens": "> 5s"}}, "a plain number"),
        ({**SPAN, "rate": "> 5%"}, "a plain number"),
        ({**SPAN, "quantile": {"q": 0.99, "of": "duration", "is": "> 2.1"}}, "a duration with its unit"),
        # What fits what
        ({"span": "server"}, "no window"),
        ({"metric": "otel_bridge_join_waiting_bytes", "within": "5s"}, "latest reading decides"),
        ({"metric": "otel_bridge_join_waiting_bytes", "increase": "> 0", "within": "5s"}, "a counter"),
        ({"metric": "otel_bridge_join_events", "slope": "> 0", "within": "5s"}, "a gauge"),
        ({**SPAN, "ratio": "> 50%"}, "`is`, to tell hits from the rest"),
        ({**SPAN, "consecutive": 3}, "`is`, to tell hits from the rest"),
        ({**SPAN, "mean": {"is": "> 5s"}}, "`of`, with a field"),
        ({**SPAN, "mean": {"of": "name", "is": "> 5"}}, "a field that is a quantity"),
        ({**SPAN, "is": {"status": "error"}, "ratio": "== 50%"}, "one of >, >=, <, <="),
        ({**SPAN, "within": "2h"}, "an hour at most"),
        ({"sequence": [SPAN, EVENT], "within": "5s"}, "the window of the sequence"),
        ({"absent": {**SPAN, "count": 2}}, "no plain occurrence"),
        # Rules that never fire, or always do
        ({**SPAN, "is": {"duration": "< 0s"}}, "can never fire"),
        ({**SPAN, "where": {"status": "ok"}, "is": {"status": "error"}}, "can never fire"),
        ({**SPAN, "where": {"duration": "> 2s"}, "is": {"duration": "< 1s"}}, "can never fire"),
        ({**SPAN, "is": {"status": "error"}, "ratio": "> 100%"}, "can never fire"),
        ({**SPAN, "rate": "< 0/s"}, "can never fire"),
        ({**SPAN, "delta": {"stat": "rate", "is": "< -100%", "against": "5m"}}, "can never fire"),
        ({"all": [SPAN, {"not": SPAN}]}, "can never fire"),
        ({"any": [{**SPAN, "is": {"duration": "< 0s"}}]}, "can never fire"),
        ({"not": SPAN}, "while nothing happens"),
        ({"rule": "R"}, "a circle: R → R"),
        ({"rule": "Nobody"}, "found 'Nobody'"),
    ],
)
def test_a_bad_condition_is_refused(when, told):
    """With what was found and what would be right."""
    assert told in mistakes(rule(when))


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"by": ["trace_id"]}, "does not have"),
        ({"by": ["tid"]}, "without bound"),
        ({"by": ["duration"]}, "without bound"),
        ({"by": ["tgid", "tgid"]}, "twice"),
        ({"by": [{"label": "severity", "event": "tgid"}]}, "one of the bridge's own"),
        ({"summary": "on {host}"}, "found {host}"),
        ({"breaker": "{model}"}, "found {model}"),
        ({"labels": {"a-b": "x"}}, "letters, digits and underscores"),
        ({"engine": "streaming"}, "a reason"),
        ({"reason": "because"}, "a reason"),
        ({"name": "snake_case"}, "pattern"),
        ({"severity": "bad"}, "'critical', 'warning' or 'info'"),
    ],
)
def test_a_bad_rule_is_refused(more, told):
    """What stands beside the condition is checked too."""
    assert told in mistakes(rule(EVENT, **more))


@pytest.mark.parametrize("key", ["gen_ai.response.id", "input.value", "llm.prompts.0.content", "url.full"])
def test_groups_without_bound_are_refused(key):
    """A label with a million values is a mistake, not a load."""
    assert "without bound" in mistakes(rule(SPAN, by=[key]))


def test_all_mistakes_are_told_at_once_each_with_its_line():
    """As file:line, which editors and terminals follow."""
    text = """rules:
  - name: First
    when:
      span: server
      within: 5s
      is: {duration: "> 5"}
    severity: info
    summary: s
  - name: First
    when: {event: oom_kil, within: 1s}
    severity: info
    summary: s
"""
    with pytest.raises(ConfigError) as caught:
        load_texts({"a.yaml": text, "b.yaml": "rules: [{name: X}]", "c.yaml": "rules: [\n  x: > 5\n"})
    places = [problem.path for problem in caught.value.problems]
    assert "a.yaml:6 rules.0.when.is.duration" in places
    assert "a.yaml:10 rules.1.when.event" in places
    assert "a.yaml:9 rules.1.name" in places
    assert {"b.yaml:1 rules.0.when", "b.yaml:1 rules.0.severity", "b.yaml:1 rules.0.summary"} <= set(places)
    assert any(place.startswith("c.yaml:") for place in places)


def test_a_circle_over_two_files_is_found():
    """Rules of different files may refer to each other."""
    texts = {
        f"{name}.yaml": yaml.safe_dump({"rules": [rule({"rule": other}, name=name)]})
        for name, other in (("A", "B"), ("B", "A"))
    }
    with pytest.raises(ConfigError, match="a circle: "):
        load_texts(texts)


@pytest.mark.parametrize("name", ["missing.yaml", "latin1.yaml"])
def test_a_file_that_cannot_be_read_is_told(tmp_path, name):
    """By its name."""
    (tmp_path / "latin1.yaml").write_bytes(b"rules: \xe4")
    with pytest.raises(ConfigError, match=name):
        load_rules([tmp_path / name])


def test_foreign_metrics_are_prometheus_own():
    """The bridge has no reading of them."""
    declared = {"metrics": {"vllm:x": {"kind": "gauge", "unit": "1"}}}
    when = {"metric": "vllm:x", "is": {"value": "> 5%"}}
    assert "does not read" in mistakes(rule(when), **declared)
    (item,) = load(rule(when, engine="prometheus", reason="not read"), **declared)
    assert item.vocabulary.metrics["vllm:x"].unit == "1"


def test_declared_names_have_their_units():
    """Attributes and user probes that only the rule set knows."""
    attributes = {"attributes": {"my.latency": "ms"}}
    load(rule({**SPAN, "is": {"my.latency": "> 2s"}}), **attributes)
    assert "a duration" in mistakes(rule({**SPAN, "is": {"my.latency": "> 2"}}), **attributes)
    load(
        rule({"event": "my_probe", "within": "1s", "is": {"size": "> 5kB"}}),
        events={"my_probe": {"size": "By"}},
    )


def test_the_committed_schema_is_that_of_the_language():
    """`otel-bridge rules schema > alerts/rules.schema.json`."""
    assert (ALERTS / "rules.schema.json").read_text() == schema()


@pytest.mark.parametrize("path", sorted((ALERTS / "rules").glob("*.yaml")), ids=lambda path: path.name)
def test_shipped_rules_pass_the_schema(path):
    """Editors must not complain of what the bridge takes."""
    jsonschema.validate(yaml.safe_load(path.read_text()), yaml.safe_load(schema()))


def test_event_fields_are_those_of_the_kernel_records():
    """A field that is renamed in the kernel side must break the build, not a rule."""
    records = {}
    for probe in PROBES:
        kinds = {int(kind): probe.record for kind in probe.kinds}
        if probe.sums is not None:
            kinds[int(probe.sums.kind)] = sum_record(probe.sums.key, probe.sums.value)
        for number, dtype in kinds.items():
            records[number] = (probe.name, dtype)
    for kind, fields in EVENTS.items():
        if kind in KIND_NUMBERS:
            probe, dtype = records[KIND_NUMBERS[kind]]
            assert probe_of(kind) == probe
            assert set(fields) <= set(dtype.names), kind
