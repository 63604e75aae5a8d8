"""A rule as Prometheus rules: recorded values, and an alert over them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from otel_bridge import catalog
from otel_bridge.rules.language import (
    AbsentCondition,
    AllCondition,
    AnyCondition,
    EventCondition,
    MetricCondition,
    NotCondition,
    RuleCondition,
    SequenceCondition,
    SpanCondition,
    children,
)
from otel_bridge.rules.prometheus.leaves import Grouping
from otel_bridge.rules.prometheus.metrics import MetricLeaf
from otel_bridge.rules.prometheus.promql import INVERSE, NotExpressibleError, Target, number, quoted
from otel_bridge.rules.prometheus.samples import STEADY, Sampled, SeriesSample, pairs
from otel_bridge.rules.prometheus.spans import SpanLeaf

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_bridge.rules.language import Node, Rule
    from otel_bridge.rules.load import LoadedRule
    from otel_bridge.rules.prometheus.leaves import CompiledLeaf

FIRING = 'alertstate="firing"'


@dataclass(frozen=True, slots=True)
class CompiledRule:
    """A rule, compiled.

    Attributes:
        rule: itself.
        recorded: PromQL by the name under which it is recorded, in order.
        expression: what the alert fires on.
        streaming_only: why Prometheus cannot decide it, so that it follows the bridge's own alerts; empty:
            it decides by itself.
        labels: the labels of its groups, of which alerts have one each.
        refers_to: rules whose alerts it looks at.
        covers: seconds that it looks back.
        hot: samples on which it fires.
        cold: samples on which it does not.
    """

    rule: Rule
    recorded: Mapping[str, str]
    expression: str
    streaming_only: str
    labels: tuple[str, ...]
    refers_to: frozenset[str]
    covers: float
    hot: tuple[Sampled, ...]
    cold: tuple[Sampled, ...]

    @property
    def hold(self) -> float:
        """Seconds that it must hold before the alert fires; of a followed one the bridge has waited."""
        return 0.0 if self.streaming_only else self.rule.for_

    @property
    def keep(self) -> float:
        """Seconds that the alert fires on after it held last; likewise."""
        return 0.0 if self.streaming_only else self.rule.keep_firing_for


def compile_rule(loaded: LoadedRule, others: Mapping[str, CompiledRule], target: Target) -> CompiledRule:
    """Compile a rule; what Prometheus cannot decide follows the bridge's own alerts.

    Args:
        loaded: the rule.
        others: rules compiled before, those among them that it refers to.
        target: what to compile for.

    Raises:
        NotExpressibleError: it is left to Prometheus, which cannot decide it.
    """
    rule = loaded.rule
    if rule.engine == "streaming":
        return follow(rule, rule.reason, target)
    try:
        return _Compiler(loaded, others, target).run()
    except NotExpressibleError as error:
        if rule.engine == "prometheus":
            raise
        return follow(rule, str(error), target)


def follow(rule: Rule, reason: str, target: Target) -> CompiledRule:
    """An alert that fires while the bridge says that the rule does."""
    labels = (*target.keep, *(key.prometheus for key in rule.by))
    name = catalog.RULES_ALERTS.name
    grouped = ", ".join(labels)
    example = {label: f"{label}-1" for label in labels}
    firing, other = (
        (SeriesSample(name, pairs({**example, "alertname": alert}), 1.0, ((STEADY, 0.0),)),)
        for alert in (rule.name, rule.name + "Not")
    )
    return CompiledRule(
        rule=rule,
        recorded={},
        expression=f"max by ({grouped}) ({name}{{alertname={quoted(rule.name)}}}) > 0",
        streaming_only=reason,
        labels=labels,
        refers_to=frozenset(),
        covers=0.0,
        hot=firing,
        cold=other,
    )


def recorded_name(rule: str, operation: str, number_of: int) -> str:
    """The name of a recorded value: level, rule, operation."""
    snake = re.sub(r"(?<!^)(?=[A-Z])", "_", rule).lower()
    return f"otel_bridge_rule:{snake}{f'_{number_of}' if number_of else ''}:{operation}"


@dataclass
class _Leaf:
    name: str
    compiled: CompiledLeaf


@dataclass
class _Compiler:
    loaded: LoadedRule
    others: Mapping[str, CompiledRule]
    target: Target
    leaves: list[_Leaf] = field(default_factory=list)

    def run(self) -> CompiledRule:
        rule = self.loaded.rule
        self._groups = Grouping(rule, self.target)
        self._refers_to: set[str] = set()
        self._by_node: dict[int, _Leaf] = {}
        when: Node = rule.when  # type: ignore[assignment]
        self._prepare(when, None)
        expression = self._going_on(when, self._truth(when, negated=False))
        return CompiledRule(
            rule=rule,
            recorded={leaf.name: leaf.compiled.value for leaf in self.leaves},
            expression=expression,
            streaming_only="",
            labels=self._groups.labels,
            refers_to=frozenset(self._refers_to),
            covers=max((leaf.compiled.covers for leaf in self.leaves), default=0.0),
            hot=self._samples(when, wanted=True),
            cold=self._samples(when, wanted=False),
        )

    def _prepare(self, node: Node, around: float | None) -> None:
        """Compile the conditions that have values of their own, in order."""
        window: float | None = getattr(node, "within", None) or around
        rule, vocabulary = self.loaded.rule, self.loaded.vocabulary
        interpolate = rule.engine == "prometheus"
        if isinstance(node, EventCondition):
            raise NotExpressibleError(f"no metric has the single {node.event} events with their fields")
        if isinstance(node, SequenceCondition):
            raise NotExpressibleError("counters do not keep what followed what")
        if isinstance(node, AbsentCondition):
            raise NotExpressibleError("a series that is missing does not say that somebody watched")
        if isinstance(node, SpanCondition):
            compiled = SpanLeaf(
                node, window or 0.0, self._groups, self.target, interpolate=interpolate
            ).compile()
        elif isinstance(node, MetricCondition):
            compiled = MetricLeaf(
                node, window or 0.0, self._groups, vocabulary, self.target, interpolate=interpolate
            ).compile()
        else:
            for child in children(node):
                self._prepare(child, window)
            return
        known = next((leaf for leaf in self.leaves if leaf.compiled.value == compiled.value), None)
        if known is None:
            same = sum(leaf.compiled.operation == compiled.operation for leaf in self.leaves)
            known = _Leaf(recorded_name(rule.name, compiled.operation, same), compiled)
            self.leaves.append(known)
        self._by_node[id(node)] = _Leaf(known.name, compiled)

    # Truth

    def _truth(self, node: Node, *, negated: bool) -> str:
        """PromQL with an element for each group in which the condition is known to hold, or not to."""
        if isinstance(node, NotCondition):
            return self._truth(node.not_, negated=not negated)  # type: ignore[arg-type]
        if isinstance(node, RuleCondition):
            if negated:
                raise NotExpressibleError(
                    f"'not' of the rule {node.rule} where nothing else tells the groups"
                )
            return self._alerts(node, as_filter=False)
        if isinstance(node, AllCondition | AnyCondition):
            both = isinstance(node, AllCondition) is not negated
            parts = children(node)
            return (
                self._conjunction(parts, negated=negated)
                if both
                else self._disjunction(parts, negated=negated)
            )
        leaf = self._by_node[id(node)]
        operator = leaf.compiled.operator
        shown = INVERSE[operator] if negated else operator
        return f"{leaf.name} {shown} {number(leaf.compiled.threshold)}"

    def _disjunction(self, nodes: list[Node], *, negated: bool) -> str:
        return " or ".join(_braced(self._truth(node, negated=negated)) for node in nodes)

    def _conjunction(self, nodes: list[Node], *, negated: bool) -> str:
        """Conditions with values first; then those that are rules, as filters on the groups."""
        values, filters = [], []
        for node in nodes:
            turned, inner = negated, node
            while isinstance(inner, NotCondition):
                turned, inner = not turned, inner.not_  # type: ignore[assignment]
            if isinstance(inner, RuleCondition):
                filters.append((inner, turned))
            else:
                values.append(_braced(self._truth(inner, negated=turned)))
        if not values:
            first = next((one for one in filters if not one[1]), None)
            if first is None:
                raise NotExpressibleError("'not' of rules where nothing else tells the groups")
            filters.remove(first)
            values.append(self._alerts(first[0], as_filter=False))
        text = " and ".join(values)
        for other, turned in filters:
            word = "unless" if turned else "and"
            text += f" {word} on ({', '.join(self._shared(other))}) {self._alerts(other, as_filter=True)}"
        return text

    def _shared(self, node: RuleCondition) -> list[str]:
        other = self.others[node.rule]
        return [label for label in self._groups.labels if label in other.labels]

    def _alerts(self, node: RuleCondition, *, as_filter: bool) -> str:
        self._refers_to.add(node.rule)
        firing = f"ALERTS{{alertname={quoted(node.rule)}, {FIRING}}}"
        if as_filter:
            return firing
        if len(self._shared(node)) < len(self._groups.labels):
            raise NotExpressibleError(f"the rule {node.rule} does not tell the groups of this one")
        return f"group by ({', '.join(self._groups.labels)}) ({firing})"

    def _going_on(self, when: Node, truth: str) -> str:
        """An alert whose condition is not known any more goes on firing, as long as its group has series."""
        present = list(dict.fromkeys(leaf.compiled.present for leaf in self.leaves if leaf.compiled.present))
        if not present:
            return truth
        alerts = f"ALERTS{{alertname={quoted(self.loaded.rule.name)}, {FIRING}}}"
        fires = f"group by ({', '.join(self._groups.labels)}) ({alerts})"
        series = present[0] if len(present) == 1 else f"({' or '.join(present)})"
        return f"{truth} or ({fires} and {series} unless ({self._truth(when, negated=True)}))"

    # Samples

    def _samples(self, node: Node, *, wanted: bool) -> tuple[Sampled, ...]:
        if isinstance(node, NotCondition):
            return self._samples(node.not_, wanted=not wanted)  # type: ignore[arg-type]
        if isinstance(node, RuleCondition):
            other = self.others[node.rule]
            return other.hot if wanted else other.cold
        if isinstance(node, AllCondition | AnyCondition):
            several = isinstance(node, AllCondition) is wanted
            parts = children(node)
            alike: tuple[Sampled, ...] = sum((self._samples(part, wanted=wanted) for part in parts), ())
            if several:
                return alike
            # One condition is enough to tell; the others then stand against it, where they can.
            first, *rest = parts
            one = self._samples(first, wanted=wanted)
            against: tuple[Sampled, ...] = sum((self._samples(part, wanted=not wanted) for part in rest), ())
            return alike if _metrics(one) & _metrics(against) else one + against
        leaf = self._by_node[id(node)].compiled
        return leaf.true if wanted else leaf.false


def _braced(expression: str) -> str:
    return f"({expression})" if re.search(r" (and|or|unless) ", expression) else expression


def _metrics(samples: tuple[Sampled, ...]) -> set[str]:
    return {sample.metric if isinstance(sample, SeriesSample) else "" for sample in samples}


def alert_labels(rule: Rule) -> dict[str, str]:
    """The labels that all alerts of a rule have."""
    return {"severity": rule.severity, **{name: literal(text) for name, text in rule.labels.items()}}


def literal(text: str) -> str:
    """A text that Prometheus, to which labels and annotations are templates, shows as it is."""
    return text.replace("{", '{{ "{" }}')


def alert_annotations(compiled: CompiledRule, target: Target) -> dict[str, str]:
    """For people; the values of labels as Prometheus fills them in."""
    rule = compiled.rule
    names = {key.label: key.prometheus for key in rule.by}
    parts = re.split(r"\{([^{}]*)\}", rule.summary)
    summary = [
        f"{{{{ $labels.{names[part]} }}}}" if place % 2 else literal(part) for place, part in enumerate(parts)
    ]
    out = {
        "summary": "".join(summary),
        "runbook_url": f"{target.runbook_url}#{rule.runbook_entry.lower()}",
    }
    if compiled.streaming_only:
        counter = f"{catalog.RULES_FIRINGS.name}_total{{rule={quoted(rule.name)}}}"
        out["streaming_only"] = (
            f"decided by the bridge alone: {compiled.streaming_only}; counted by {counter}"
        )
    return out
