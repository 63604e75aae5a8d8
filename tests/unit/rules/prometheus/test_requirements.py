"""The numbers of D5 in Prometheus, each from both sides, and case rule-labels; the shipped rules in promtool.

The tests that `rules build` writes take their numbers from the rules; these take them from the requirements.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from otel_bridge import catalog
from otel_bridge.rules.load import load_rules
from otel_bridge.rules.prometheus.build import compile_rules
from otel_bridge.rules.prometheus.promql import Target

pytestmark = pytest.mark.skipif(shutil.which("promtool") is None, reason="apt-get install prometheus")

ALERTS = Path(__file__).parents[4] / "alerts"
FILES = {path.stem: path for path in sorted((ALERTS / "generated" / "prometheus").glob("*.yaml"))}
RULES = {item.rule.name: item for item in load_rules([ALERTS / "rules"])}
SECONDS = catalog.DERIVED_SPAN_DURATION.prometheus
MINUTE, HOUR, DAY = 60, 3600, 86400


def promtool(path: Path, content: dict[str, Any]) -> None:
    """Run tests; all of them must hold."""
    path.write_text(yaml.safe_dump(content))
    done = subprocess.run(
        ["promtool", "test", "rules", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]


def firing(name: str, at: int, number: int) -> dict[str, Any]:
    """That so many alerts of a rule fire at a second."""
    expected = [{"labels": "{}", "value": number}] if number else []
    expr = f'count(ALERTS{{alertname="{name}", alertstate="firing"}})'
    return {"expr": expr, "eval_time": f"{at}s", "exp_samples": expected}


def case(
    name: str, step: int, series: dict[str, str], checks: list[tuple[int, bool]], what: str = ""
) -> dict[str, Any]:
    """A promtool test: series by name with their values, and whether the rule fires at some seconds."""
    return {
        "name": f"{name} {what}",
        "interval": f"{step}s",
        "input_series": [{"series": one, "values": values} for one, values in series.items()],
        "promql_expr_test": [firing(name, at, int(fires)) for at, fires in checks],
    }


def run(tmp_path: Path, step: int, *cases: dict[str, Any]) -> None:
    """Run cases of one file's rules, none but those that they are about: windows of days take long."""
    about = {one["name"].split()[0] for one in cases}
    groups = []
    for path in FILES.values():
        [group] = yaml.safe_load(path.read_text())["groups"]
        kept, before = [], []
        for one in group["rules"]:
            before.append(one)
            if "alert" in one:
                kept += before if one["alert"] in about else []
                before = []
        groups += [{**group, "rules": kept}] if kept else []
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": groups}))
    content = {"rule_files": ["rules.yaml"], "evaluation_interval": f"{step}s", "tests": list(cases)}
    promtool(tmp_path / "test.yaml", content)


# Burn rates: facts/alertmanager.md has the windows of kubernetes-mixin, for a service level of 99.9 %.

BURNS = [
    ("ErrorBudgetBurn1h", 0.0144, HOUR, 5 * MINUTE, 2 * MINUTE, 60),
    ("ErrorBudgetBurn6h", 0.006, 6 * HOUR, 30 * MINUTE, 15 * MINUTE, 60),
    ("ErrorBudgetBurn1d", 0.003, DAY, 2 * HOUR, HOUR, 240),
    ("ErrorBudgetBurn3d", 0.001, 3 * DAY, 6 * HOUR, 3 * HOUR, 240),
]


def spans(step: int, phases: list[tuple[int, float]]) -> dict[str, str]:
    """A thousand requests a step in phases of (seconds, share that fails), as derived metrics count them."""
    values = {"ERROR": "0", "UNSET": "0"}
    reached = {"ERROR": 0.0, "UNSET": 0.0}
    for seconds, share in phases:
        steps = seconds // step
        for status, part in (("ERROR", share), ("UNSET", 1 - share)):
            grows = 1000 * part
            values[status] += f" {reached[status] + grows:g}+{grows:g}x{steps - 1}"
            reached[status] += grows * steps
    labels = 'service_name="a", span_kind="SPAN_KIND_SERVER", status_code="STATUS_CODE_'
    return {f'{SECONDS}_count{{{labels}{status}"}}': text for status, text in values.items()}


@pytest.mark.parametrize("burn", BURNS, ids=lambda burn: burn[0])
def test_burn_rates(tmp_path, burn):
    """Both windows above the factor times 0.1 %: in the long one it matters, in the short one it lasts."""
    name, share, long, short, hold, step = burn
    settled = long + 2 * step
    late = settled + hold + 2 * step
    above, below = share * 1.05, share * 0.95
    run(
        tmp_path,
        step,
        case(name, step, spans(step, [(late, above)]), [(late - step, True)], "above"),
        case(name, step, spans(step, [(late, below)]), [(late - step, False)], "below"),
        # Failures all over the long window, and none any more in the short one.
        case(
            name,
            step,
            spans(step, [(late, above * 2), (short + 2 * step, 0.0)]),
            [(late - step, True), (late + short + step, False)],
            "over",
        ),
        # A short burst that leaves the long window below.
        case(
            name,
            step,
            spans(step, [(settled, 0.0), (short, above * 1.5), (step, 0.0)]),
            [(settled + short - step, False)],
            "burst",
        ),
        # Not before it has held for its time.
        case(
            name, step, spans(step, [(settled, 0.0), (late, 1.0)]), [(settled + hold - step, False)], "soon"
        ),
    )


def counters(**grows: float) -> dict[str, str]:
    """Counters of vLLM, with their growth each 15 s."""
    return {
        f'vllm:{name}_total{{model_name="m", engine="0"}}': f"0+{growth:g}x60"
        for name, growth in grows.items()
    }


def test_a_collapse_of_the_kv_hit_rate(tmp_path):
    """D5: below 85 %, for five minutes; and never on a handful of tokens."""
    cases = [
        case(
            "KvHitRateCollapse",
            15,
            counters(prefix_cache_queries=queries, prefix_cache_hits=queries * share),
            [(300, False), (14 * MINUTE, fires)],
            f"{share} of {queries}",
        )
        for queries, share, fires in (
            (1000, 0.84, True),
            (1000, 0.86, False),
            (1000, 0.0, True),
            (10, 0.5, False),
        )
    ]
    run(tmp_path, 15, *cases)


def test_an_eviction_storm_and_a_full_cache(tmp_path):
    """More than one preemption a second; more than 95 % of the cache for a minute (B8's soft overflow)."""
    usage = 'vllm:kv_cache_usage_perc{model_name="m", engine="0"}'
    run(
        tmp_path,
        15,
        case("KvEvictionStorm", 15, counters(num_preemptions=16), [(5 * MINUTE, True)]),
        case("KvEvictionStorm", 15, counters(num_preemptions=14), [(5 * MINUTE, False)]),
        case("KvCacheSoftOverflow", 15, {usage: "0.951x20"}, [(45, False), (2 * MINUTE, True)]),
        case("KvCacheSoftOverflow", 15, {usage: "0.95x20"}, [(2 * MINUTE, False)]),
    )


def test_spikes_by_deriv_and_slow_decay_by_averages(tmp_path):
    """D5 names the functions; the slope of a queue, and the mean of half an hour against that of six."""
    compiled = compile_rules([*RULES.values()], Target())
    assert "deriv(vllm:num_requests_waiting[2m])" in "".join(compiled["QueueSpike"].recorded.values())
    decay = "".join(compiled["CacheHitRateDecay"].recorded.values())
    rate = "sglang:cache_hit_rate"
    assert f"avg_over_time({rate}[30m])" in decay
    assert f"avg_over_time({rate}[6h] offset 30m)" in decay
    waiting = 'vllm:num_requests_waiting{model_name="m", engine="0"}'
    run(
        tmp_path,
        60,
        case("QueueSpike", 60, {waiting: "0+66x10"}, [(10 * MINUTE, True)], "1.1 a second"),
        case("QueueSpike", 60, {waiting: "0+54x10"}, [(10 * MINUTE, False)], "0.9 a second"),
        *(
            case(
                "CacheHitRateDecay",
                60,
                {f'{rate}{{model_name="m"}}': f"0.8x390 {now}x31"},
                [(421 * MINUTE, fires)],
                str(now),
            )
            # 0.63 of 0.8 is 21 % less, 0.65 is 19 % less.
            for now, fires in ((0.63, True), (0.65, False))
        ),
    )


def durations(*phases: tuple[int, float], each: int = 1000) -> dict[str, str]:
    """Spans a minute in the buckets of derived metrics; phases of (minutes, all their seconds)."""
    out = {}
    bounds = [*(f"{bound:.12g}" for bound in catalog.DERIVED_SPAN_DURATION.buckets), "+Inf"]
    for bound in bounds:
        text, reached = "0", 0
        for minutes, lasted in phases:
            grows = each if lasted <= float(bound) else 0
            text += f" {reached + grows}+{grows}x{minutes - 1}"
            reached += grows * minutes
        labels = f'service_name="a", span_kind="SPAN_KIND_SERVER", le="{bound}"'
        out[f"{SECONDS}_bucket{{{labels}}}"] = text
        if bound == "+Inf":
            out[f'{SECONDS}_count{{service_name="a", span_kind="SPAN_KIND_SERVER"}}'] = text
    return out


def test_a_surge_of_p99(tmp_path):
    """D5: from 1 s to 2 s is one; from 1 s to 1.4 s (40 %) is none, nor are a few slow ones at night."""
    run(
        tmp_path,
        60,
        case(
            "LatencyP99Surge", 60, durations((40, 0.9), (6, 1.9)), [(40 * MINUTE, False), (45 * MINUTE, True)]
        ),
        case("LatencyP99Surge", 60, durations((40, 0.9), (6, 1.3)), [(45 * MINUTE, False)]),
        case("LatencyP99Surge", 60, durations((40, 0.9), (6, 1.9), each=19), [(45 * MINUTE, False)]),
        case("LatencyP99Surge", 60, durations((40, 0.9), (6, 1.9), each=21), [(45 * MINUTE, True)]),
    )


# Case rule-labels (a)

STEPS = 24
COMPARISON = re.compile(r"(otel_bridge_rule:\S+) (>=|>|<=|<) (-?[0-9.e-]+)")


def changing(name: str) -> dict[str, str]:
    """What an alert's expression looks at, with a value that is another at each step and always fires."""
    compiled = compile_rules([*RULES.values()], Target())[name]
    labels = ", ".join(f'{label}="x"' for label in compiled.labels)
    if compiled.streaming_only:
        series = f'{catalog.RULES_ALERTS.name}{{alertname="{name}"{", " if labels else ""}{labels}}}'
        return {series: f"91+1x{STEPS}"}
    out = {}
    for recorded, operator, threshold in COMPARISON.findall(compiled.expression):
        first = (
            max(91.0, float(threshold) + 91) if operator in (">", ">=") else min(-91.0, float(threshold) - 91)
        )
        out.setdefault(f"{recorded}{{{labels}}}", f"{first:g}{'+' if first > 0 else '-'}1x{STEPS}")
    assert {one.partition("{")[0] for one in out} == set(compiled.recorded)
    return out


def test_a_value_that_changes_is_one_alert(tmp_path):
    """Each generated alert with `for: 1m`: it fires once, is one alert all the time, and begins once."""
    groups = []
    for path in FILES.values():
        [group] = yaml.safe_load(path.read_text())["groups"]
        alerts = [{**one, "for": "1m"} for one in group["rules"] if "alert" in one]
        groups.append({**group, "rules": alerts})
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": groups}))
    end = STEPS * 15
    tests = []
    for name in RULES:
        ever = f'count(last_over_time(ALERTS{{alertname="{name}", alertstate="firing"}}[1h]))'
        begins = f'sum(changes(ALERTS_FOR_STATE{{alertname="{name}"}}[1h]))'
        one = case(name, 15, changing(name), [(45, False), *((at, True) for at in range(60, end + 1, 15))])
        one["promql_expr_test"] += [
            {"expr": ever, "eval_time": f"{end}s", "exp_samples": [{"labels": "{}", "value": 1}]},
            {"expr": begins, "eval_time": f"{end}s", "exp_samples": [{"labels": "{}", "value": 0}]},
        ]
        tests.append(one)
    assert len(tests) == sum(len(group["rules"]) for group in groups)
    content = {"rule_files": ["rules.yaml"], "evaluation_interval": "15s", "tests": tests}
    promtool(tmp_path / "test.yaml", content)
