"""The files that `otel-bridge rules build` writes: Prometheus rules, PrometheusRules, and promtool tests."""

from __future__ import annotations

from graphlib import TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from otel_bridge.errors import ConfigError, ConfigProblem
from otel_bridge.rules.language import RuleCondition, walk
from otel_bridge.rules.prometheus.compile import alert_annotations, alert_labels, compile_rule, literal
from otel_bridge.rules.prometheus.promql import NotExpressibleError, duration
from otel_bridge.rules.prometheus.samples import Timeline, written

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from otel_bridge.rules.load import LoadedRule
    from otel_bridge.rules.prometheus.compile import CompiledRule
    from otel_bridge.rules.prometheus.promql import Target

HEADER = "# Written by `otel-bridge rules build` from {source}; change that and build again.\n"
RULES, OPERATOR, TESTS = "generated/prometheus", "generated/prometheus-operator", "tests"
"""Folders below the one that is written to."""
MOST_STEPS = 200
"""Evaluations of a test, before it takes longer steps."""
LONGEST_STEP = 240.0
"""Seconds; Prometheus looks back five minutes for a series' present value."""


def compile_rules(rules: Sequence[LoadedRule], target: Target) -> dict[str, CompiledRule]:
    """All rules by name, those that others refer to before those.

    Raises:
        ConfigError: rules left to Prometheus that it cannot decide, all of them.
    """
    by_name = {loaded.rule.name: loaded for loaded in rules}
    graph = {
        name: {node.rule for _, node, _ in walk(loaded.rule) if isinstance(node, RuleCondition)}
        for name, loaded in by_name.items()
    }
    out: dict[str, CompiledRule] = {}
    problems = []
    for name in TopologicalSorter(graph).static_order():
        loaded = by_name[name]
        if graph[name] - out.keys():
            continue  # It refers to a rule that is among the problems.
        try:
            out[name] = compile_rule(loaded, out, target)
        except NotExpressibleError as error:
            place = f"{loaded.file}:{loaded.line} {name}"
            problems.append(
                ConfigProblem(place, f"engine: prometheus, and {error}", "what Prometheus can decide")
            )
    if problems:
        raise ConfigError("rules", problems)
    return out


def build_files(rules: Sequence[LoadedRule], target: Target) -> dict[Path, str]:
    """The text of each file by its path below the folder that is written to.

    Raises:
        ConfigError: see `compile_rules`.
    """
    compiled = compile_rules(rules, target)
    files: dict[str, list[CompiledRule]] = {}
    sources = {loaded.rule.name: loaded.file for loaded in rules}
    for name, one in compiled.items():
        files.setdefault(Path(sources[name]).stem, []).append(one)
    out: dict[Path, str] = {}
    for stem in sorted(files):
        header = HEADER.format(source=f"rules/{stem}.yaml")
        group = _group(stem, files[stem], target)
        out[Path(RULES, f"{stem}.yaml")] = header + _dumped({"groups": [group]})
        out[Path(OPERATOR, f"{stem}.yaml")] = header + _dumped(_prometheus_rule(stem, group))
        by_step: dict[float, list[CompiledRule]] = {}
        for one in files[stem]:
            by_step.setdefault(_test_step(one, compiled, target), []).append(one)
        for step, some in by_step.items():
            suffix = "" if step == target.scrape_interval else f"-every-{duration(step)}"
            tests = _tests(_needed(some, compiled, sources), some, compiled, target, step)
            out[Path(TESTS, f"{stem}{suffix}.yaml")] = header + _dumped(tests)
    return out


def _prometheus_rule(stem: str, group: dict[str, Any]) -> dict[str, Any]:
    name = "otel-bridge-" + stem.replace("_", "-").lower()
    labels = {"app.kubernetes.io/name": "otel-bridge"}
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": name, "labels": labels},
        "spec": {"groups": [group]},
    }


def _group(stem: str, rules: Iterable[CompiledRule], target: Target) -> dict[str, Any]:
    out: list[dict[str, Any]] = []
    for one in rules:
        out += [{"record": name, "expr": expression} for name, expression in one.recorded.items()]
        out.append(_alert(one, target))
    return {"name": f"otel-bridge-{stem}", "interval": duration(target.scrape_interval), "rules": out}


def _alert(one: CompiledRule, target: Target) -> dict[str, Any]:
    times = {
        name: duration(seconds)
        for name, seconds in (("for", one.hold), ("keep_firing_for", one.keep))
        if seconds
    }
    return {
        "alert": one.rule.name,
        "expr": one.expression,
        **times,
        "labels": alert_labels(one.rule),
        "annotations": alert_annotations(one, target),
    }


# Tests


def _needed(
    rules: Iterable[CompiledRule], compiled: Mapping[str, CompiledRule], sources: Mapping[str, str]
) -> list[str]:
    """The rule sets that some rules are in, and those that they refer to."""
    involved = [other for one in rules for other in (one, *_referred(one, compiled))]
    return sorted({Path(sources[one.rule.name]).stem for one in involved})


def _test_step(one: CompiledRule, compiled: Mapping[str, CompiledRule], target: Target) -> float:
    """Seconds between two evaluations of a test: more than in production where days are looked at."""
    scrape = target.scrape_interval
    covers = sum(rule.covers for rule in (one, *_referred(one, compiled)))
    return max(scrape, min(_up(covers / MOST_STEPS, scrape), LONGEST_STEP // scrape * scrape))


def _tests(
    files: Iterable[str],
    rules: Iterable[CompiledRule],
    compiled: Mapping[str, CompiledRule],
    target: Target,
    step: float,
) -> dict[str, Any]:
    return {
        "rule_files": [f"../{RULES}/{stem}.yaml" for stem in files],
        "evaluation_interval": duration(step),
        "tests": [
            _test(one, compiled, target, step, fires=fires) for one in rules for fires in (True, False)
        ],
    }


def _test(
    one: CompiledRule, compiled: Mapping[str, CompiledRule], target: Target, step: float, *, fires: bool
) -> dict[str, Any]:
    involved = [one, *_referred(one, compiled)]
    texts = " ".join(text for rule in involved for text in (*rule.recorded.values(), rule.expression))
    settled = _up(sum(rule.covers for rule in involved) + step, step)
    hold = _up(sum(rule.hold for rule in involved), step)
    timeline = Timeline(step, target.scrape_interval, settled, settled + hold + 2 * step)
    at = duration(settled + hold + step)
    alerts = [{"exp_labels": _example_labels(one), "exp_annotations": _example_annotations(one, target)}]
    checks = [{"eval_time": at, "alertname": one.rule.name, "exp_alerts": alerts if fires else []}]
    if fires and one.hold:
        checks.insert(0, {"eval_time": "0s", "alertname": one.rule.name, "exp_alerts": []})
    return {
        "name": f"{one.rule.name} {'fires' if fires else 'stays silent'}",
        "interval": duration(step),
        "input_series": written(one.hot if fires else one.cold, timeline, texts),
        "alert_rule_test": checks,
    }


def _referred(one: CompiledRule, compiled: Mapping[str, CompiledRule]) -> list[CompiledRule]:
    out: list[CompiledRule] = []
    for name in sorted(one.refers_to):
        out += [compiled[name], *_referred(compiled[name], compiled)]
    return out


def _example_labels(one: CompiledRule) -> dict[str, str]:
    examples = dict(one.hot[0].labels) if one.hot else {}
    groups = {label: examples.get(label, f"{label}-1") for label in one.labels}
    return {"severity": one.rule.severity, **one.rule.labels, **groups}


def _example_annotations(one: CompiledRule, target: Target) -> dict[str, str]:
    out = alert_annotations(one, target)
    for label, value in _example_labels(one).items():
        out["summary"] = out["summary"].replace(f"{{{{ $labels.{label} }}}}", value)
    out["summary"] = out["summary"].replace(literal("{"), "{")
    return out


def _up(seconds: float, step: float) -> float:
    return -(-seconds // step) * step


class _Dumper(yaml.SafeDumper):
    """Long expressions on one line, lists indented as people write them."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: FBT001, FBT002 (PyYAML's)
        del indentless
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        """Write everything out: `&id001` is no help to a reader."""
        del data
        return True


def _dumped(content: dict[str, Any]) -> str:
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, width=1_000_000, allow_unicode=True)


def write_files(folder: Path, files: Mapping[Path, str]) -> None:
    """Write all files below a folder; ours from before that are none of them are removed."""
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    for path in leftovers(folder, files):
        path.unlink()


def leftovers(folder: Path, files: Mapping[Path, str]) -> list[Path]:
    """Files that an earlier build wrote and this one would not."""
    begin = HEADER.partition("{")[0]
    kept = {folder / path for path in files}
    found = (path for part in (RULES, OPERATOR, TESTS) for path in sorted((folder / part).glob("*.yaml")))
    return [path for path in found if path not in kept and path.read_text("utf-8").startswith(begin)]


def drift(folder: Path, files: Mapping[Path, str]) -> list[Path]:
    """Files that are not what a build would write."""
    changed = [folder / path for path, text in files.items() if _text(folder / path) != text]
    return [*changed, *leftovers(folder, files)]


def _text(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None
