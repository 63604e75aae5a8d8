"""What rules become in Prometheus, and which it cannot decide."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from otel_bridge import catalog
from otel_bridge.errors import ConfigError
from otel_bridge.rules.prometheus.build import build_files, compile_rules, write_files
from otel_bridge.rules.prometheus.compile import alert_labels
from otel_bridge.rules.prometheus.promql import Target, duration, matcher
from tests.support.rules import load, rule

if TYPE_CHECKING:
    from pathlib import Path

SECONDS = catalog.DERIVED_SPAN_DURATION.prometheus
PROBE, LOST = catalog.KERNEL_PROBE_LOADED.name, catalog.KERNEL_LOST_STATE.name
FAILED = {"span": "server", "is": {"status": "error"}, "within": "5m"}
PROMETHEUS = {"engine": "prometheus", "reason": "of all nodes"}
DECLARED = {
    "metrics": {
        "app_depth": {"kind": "gauge", "unit": "{request}", "labels": ["model_name"]},
        "app_hits_total": {"kind": "counter", "unit": "{token}", "labels": ["model_name"]},
        "app_asked_total": {"kind": "counter", "unit": "{token}", "labels": ["model_name"]},
        "app_wait_seconds": {"kind": "histogram", "unit": "s", "labels": ["model_name"]},
    }
}


def compiled(when: dict[str, Any], target: Target | None = None, **more: Any):
    """One rule, compiled."""
    declared = DECLARED if more.get("engine") == "prometheus" else {}
    [found] = compile_rules(load(rule(when, **more), **declared), target or Target()).values()
    return found


def test_a_share_of_spans():
    """Of the bucket's own counters, for each bridge; it goes on while it is not known, and has series."""
    found = compiled({**FAILED, "ratio": "> 5%"}, name="Errors", by=["service.name"])
    assert not found.streaming_only
    [(name, value)] = found.recorded.items()
    assert name == "otel_bridge_rule:errors:ratio_5m"
    of = f'{SECONDS}_count{{span_kind="SPAN_KIND_SERVER"}}'
    bad = of.replace("}", ', status_code="STATUS_CODE_ERROR"}')
    by = "by (instance, service_name)"
    assert value == (
        f"(sum {by} (increase({bad}[5m])) or 0 * sum {by} (increase({of}[5m])))"
        f" / sum {by} (increase({of}[5m]))"
    )
    assert found.expression == (
        f'{name} > 0.05 or (group {by} (ALERTS{{alertname="Errors", alertstate="firing"}})'
        f" and group {by} ({of}) unless ({name} <= 0.05))"
    )


def test_a_quantile_is_a_share_of_a_bucket():
    """P99 is above 2 s if, and only if, less than 99 % take at most 2 s: nothing is interpolated."""
    when = {"span": "any", "within": "5m", "quantile": {"q": 0.99, "of": "duration", "is": "> 2s"}}
    found = compiled(when)
    [(name, value)] = found.recorded.items()
    assert value == (
        f'sum by (instance) (increase({SECONDS}_bucket{{le="2.0"}}[5m]))'
        f" / sum by (instance) (increase({SECONDS}_count[5m]))"
    )
    assert found.expression.startswith(f"{name} < 0.99 or ")


def test_a_rule_left_to_prometheus_is_of_all_bridges():
    """And may be an estimate, since nobody else decides it."""
    when = {"span": "any", "within": "5m", "quantile": {"q": 0.99, "of": "duration", "is": "> 2.1s"}}
    found = compiled(when, by=["service.name"], **PROMETHEUS)
    [value] = found.recorded.values()
    assert (
        value == f"histogram_quantile(0.99, sum by (service_name, le) (increase({SECONDS}_bucket[5m])))"
        or (value.startswith("(histogram_quantile(0.99, sum by (service_name, le)"))
    )
    assert found.labels == ("service_name",)


def test_a_label_of_another_name_is_brought_to_the_alert():
    """As the rule says it is called there."""
    by = [{"label": "source", "metric": "probe"}]
    found = compiled({"metric": PROBE, "is": {"value": "< 1"}}, by=by)
    assert [*found.recorded.values()] == [
        f'min by (instance, source) (label_replace({PROBE}, "source", "$1", "probe", "(.*)"))'
    ]


def test_a_rule_filters_by_another_one():
    """On the labels that both have; `not` takes groups away."""
    loaded = load(
        rule({**FAILED, "count": 3}, name="Node"),
        rule({"all": [{**FAILED, "count": 2}, {"not": {"rule": "Node"}}]}, name="R", by=["service.name"]),
    )
    found = compile_rules(loaded, Target())["R"]
    assert found.expression == (
        'otel_bridge_rule:r:count_5m >= 2 unless on (instance) ALERTS{alertname="Node", alertstate="firing"}'
    )
    assert found.refers_to == {"Node"}


CONSECUTIVE = {**FAILED, "consecutive": 3}


@pytest.mark.parametrize(
    ("when", "why"),
    [
        ({"event": "oom_kill", "within": "5m"}, "no metric has the single oom_kill events"),
        (CONSECUTIVE, "which span followed which"),
        ({"sequence": [{"span": "any"}, {"span": "server"}], "within": "5m"}, "what followed what"),
        ({"absent": {"span": "server", "within": "5m"}}, "does not say that somebody watched"),
        ({**FAILED, "within": "30s"}, "a window of 30s is shorter than 4 scrapes (1m)"),
        (
            {"span": "any", "is": {"duration": "> 3s"}, "within": "5m"},
            f"lies between the bounds 2 s and 5 s of {SECONDS}",
        ),
        ({"span": "any", "is": {"duration": ">= 2s"}, "within": "5m"}, "buckets tell '>' and '<='"),
        ({"span": "any", "is": {"tenant.id": "a"}, "within": "5m"}, "has no label for tenant.id"),
        (
            {"span": "any", "rate": {"of": "gen_ai.usage.output_tokens", "is": "> 5"}, "within": "5m"},
            "keeps durations, not gen_ai.usage.output_tokens",
        ),
        (
            {
                "span": "any",
                "is": {"duration": "> 2s"},
                "mean": {"of": "duration", "is": "> 3s"},
                "within": "5m",
            },
            "a mean of spans of some durations only",
        ),
        ({"metric": PROBE, "quantile": {"q": 0.5, "is": "< 1"}, "within": "5m"}, "few that were scraped"),
        (
            {"metric": PROBE, "mean": {"is": "< 1", "at_least": 100}, "within": "5m"},
            "100 readings in 5m, of which Prometheus sees 20",
        ),
        ({"any": [{**FAILED, "count": 2}, CONSECUTIVE]}, "which span followed which"),
    ],
)
def test_what_it_cannot_decide_follows_the_bridge(when, why):
    """With the reason, and the counter, in the annotations."""
    found = compiled(when, name="R")
    assert why in found.streaming_only
    assert found.expression == f'max by (instance) ({catalog.RULES_ALERTS.name}{{alertname="R"}}) > 0'
    assert not found.recorded
    assert (found.hold, found.keep) == (0, 0)


def test_a_dimension_of_derived_metrics_is_a_label():
    """When the build is told of it."""
    when = {"span": "any", "where": {"tenant.id": ["a", "b*"]}, "count": 3, "within": "5m"}
    found = compiled(when, Target(dimensions=("tenant.id",)))
    assert 'tenant_id=~"a|b.*"' in next(iter(found.recorded.values()))


def test_what_neither_can_decide_is_a_mistake():
    """Each with its place."""
    loaded = load(
        rule({**CONSECUTIVE}, name="One", **PROMETHEUS), rule({**CONSECUTIVE}, name="Two", **PROMETHEUS)
    )
    with pytest.raises(ConfigError) as caught:
        compile_rules(loaded, Target())
    assert [problem.path for problem in caught.value.problems] == ["test.yaml:2 One", "test.yaml:13 Two"]


CASES: list[dict[str, Any]] = [
    rule({**FAILED, "count": 5}, by=["service.name"], summary="{service.name}", **{"for": "1m"}),
    rule(
        {
            "span": "any",
            "is": {"duration": "<= 100ms"},
            "ratio": {"is": "< 30%", "at_least": 20},
            "within": "5m",
        }
    ),
    rule({"span": "any", "quantile": {"q": 0.999, "of": "duration", "is": "<= 1s"}, "within": "5m"}),
    rule({"span": "any", "mean": {"of": "duration", "is": "> 700ms", "at_least": 3}, "within": "5m"}),
    rule({"span": "any", "where": {"name": "GET /*"}, "rate": ">= 120/s", "within": "1m"}),
    rule({"span": "any", "rate": {"of": "duration", "is": "> 3s"}, "within": "1m"}),
    rule(
        {
            "span": "any",
            "delta": {"stat": "rate", "is": "< -15%", "against": "10m", "at_least": 20},
            "within": "1m",
        }
    ),
    rule({"span": "any", "delta": {"stat": "rate", "is": "> 5/s", "against": "10m"}, "within": "1m"}),
    rule(
        {
            "span": "any",
            "delta": {"stat": "mean", "of": "duration", "is": "> 50%", "against": "10m"},
            "within": "5m",
        }
    ),
    rule(
        {
            "span": "any",
            "delta": {"stat": "quantile", "q": 0.95, "of": "duration", "is": "> 50%", "against": "10m"},
            "within": "5m",
        },
        **PROMETHEUS,
    ),
    rule({"metric": LOST, "increase": "> 0", "within": "5m"}, by=["probe"]),
    rule({"metric": PROBE, "where": {"probe": ["tcp", "t*"]}, "is": {"value": 0}}),
    rule({"metric": PROBE, "where": {"probe": "!= tcp"}, "is": {"value": "!= 0"}}),
    rule({"metric": "app_depth", "is": {"value": "> 90"}}, by=["model_name"], **PROMETHEUS, **{"for": "1m"}),
    rule({"metric": "app_depth", "slope": "> 0.5/s", "within": "5m"}, **PROMETHEUS),
    rule({"metric": "app_depth", "mean": {"is": "> 20", "at_least": 3}, "within": "5m"}, **PROMETHEUS),
    rule({"metric": "app_depth", "quantile": {"q": 0.5, "is": "> 20"}, "within": "5m"}, **PROMETHEUS),
    rule(
        {"metric": "app_depth", "delta": {"stat": "mean", "is": "< -20%", "against": "30m"}, "within": "5m"},
        **PROMETHEUS,
    ),
    rule(
        {
            "metric": "app_hits_total",
            "delta": {"stat": "rate", "is": "> 5", "against": "30m"},
            "within": "5m",
        },
        **PROMETHEUS,
    ),
    rule(
        {
            "metric": "app_hits_total",
            "ratio": {"to": "app_asked_total", "is": "< 85%", "at_least": 100},
            "within": "15m",
        },
        by=[{"label": "model", "metric": "model_name"}],
        **PROMETHEUS,
    ),
    rule({"metric": "app_wait_seconds", "quantile": {"q": 0.95, "is": "> 1s"}, "within": "5m"}, **PROMETHEUS),
    rule({"metric": "app_wait_seconds", "rate": "> 5/s", "within": "5m"}, **PROMETHEUS),
    rule({"any": [{**FAILED, "ratio": "> 50%"}, {"metric": LOST, "rate": "> 1/s", "within": "5m"}]}),
    rule({"all": [{**FAILED, "ratio": "> 50%"}, {"not": {"metric": LOST, "rate": "> 1/s", "within": "5m"}}]}),
    rule({"event": "oom_kill", "within": "5m"}, by=["comm"], summary="{comm}"),
    rule({**FAILED, "ratio": "> 1%", "within": "6h"}, **PROMETHEUS),
    rule({"span": "any", "mean": {"of": "duration", "is": "> 0s"}, "within": "5m"}),
    rule(
        {
            "span": "any",
            "delta": {"stat": "mean", "of": "duration", "is": "< -95%", "against": "10m"},
            "within": "5m",
        }
    ),
    rule(
        {**FAILED, "count": 2},
        by=["service.name"],
        summary="{{service.name}} of {service.name}",
        labels={"team": "{{ $value }}"},
    ),
]


def test_generated_tests_fire_and_stay_silent(tmp_path: Path):
    """The real promtool takes rules of every kind of condition, and each test of them holds."""
    if shutil.which("promtool") is None:
        pytest.skip("needs promtool: apt-get install prometheus")
    loaded = load(*({**case, "name": f"R{number}"} for number, case in enumerate(CASES)), **DECLARED)
    files = build_files(loaded, Target())
    write_files(tmp_path, files)
    for command, folder in (("check", "generated/prometheus"), ("test", "tests")):
        paths = sorted((tmp_path / folder).glob("*.yaml"))
        assert paths
        done = subprocess.run(
            ["promtool", command, "rules", *paths], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_no_template_gets_into_a_label():
    """What looks like one is shown as it stands: a value there would be another alert each time."""
    [found] = compile_rules(
        load(rule({**FAILED, "count": 2}, labels={"team": "{{ $value }}"})), Target()
    ).values()
    assert alert_labels(found.rule)["team"] == '{{ "{" }}{{ "{" }} $value }}'


@pytest.mark.parametrize(
    ("seconds", "text"), [(60, "1m"), (90, "90s"), (0.25, "250ms"), (86400, "1d"), (5400, "90m"), (0, "0ms")]
)
def test_durations(seconds, text):
    """In one unit."""
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("values", "negated", "expected"),
    [
        (("a",), False, ('x="a"',)),
        (('say "hi"\\',), False, ('x="say \\"hi\\"\\\\"',)),
        (("a", "b"), False, ('x=~"a|b"',)),
        (("GET /v1.*",), False, ('x=~"GET /v1\\\\..*"',)),
        (("a",), True, ('x!="a"', 'x!=""')),
    ],
)
def test_matchers(values, negated, expected):
    """Texts are quoted, signs of patterns escaped."""
    assert matcher("x", values, negated=negated) == expected
