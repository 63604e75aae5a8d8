"""The rule language: what a rule set in alerts/rules/*.yaml may say, as typed objects.

README.md beside this file is the grammar for people; `check` finds what the shape alone cannot tell (unknown
names, wrong units, rules that never fire). Durations are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator
from pydantic_core import core_schema

from otel_bridge.explain import TAG
from otel_bridge.rules.terms import Threshold, ValueTest
from otel_bridge.units import Duration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
    from pydantic_core import CoreSchema

    from otel_bridge.explain import Path

Window = Annotated[Duration, Field(gt=0)]
Tests = dict[str, ValueTest]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


@dataclass(frozen=True, slots=True)
class _Short:
    """Lets a mapping with one key of importance be written as its value alone."""

    key: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._lengthen, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"anyOf": [handler(schema), {"type": "string"}]}

    def _lengthen(self, value: Any) -> Any:
        return value if isinstance(value, dict | BaseModel) else {self.key: value}


# What is computed over a window


class Ratio(_Model):
    """The share of the things in the window that pass `is`, or one counter's increase over another's."""

    is_: Threshold = Field(alias="is", description="What the share is compared with.")
    at_least: int = Field(1, ge=1, description="Fewer things in the window make no share.")
    to: str | None = Field(
        None, description="Metrics only: the counter whose increase the metric's own is divided by."
    )


class Rate(_Model):
    """How many a second, or with `of` the sum of a field a second; of a counter its increase a second."""

    is_: Threshold = Field(alias="is", description="What the rate is compared with, a second.")
    of: str | None = Field(None, description="A field that is added up, in place of counting.")


class Quantile(_Model):
    """A quantile of a field, by nearest rank: the value at place ⌈q·n⌉ of n sorted values."""

    q: float = Field(gt=0, lt=1, description="0.99 for P99.")
    of: str = Field("value", description="The field; a metric's own value by default.")
    is_: Threshold = Field(alias="is", description="What the quantile is compared with.")
    at_least: int = Field(1, ge=1, description="Fewer values in the window make no quantile.")


class Mean(_Model):
    """The mean of a field; of a gauge the mean of its readings."""

    of: str = Field("value", description="The field; a metric's own value by default.")
    is_: Threshold = Field(alias="is", description="What the mean is compared with.")
    at_least: int = Field(1, ge=1, description="Fewer values in the window make no mean.")


class Slope(_Model):
    """How fast a gauge changes, a second, by a straight line through the window's readings."""

    is_: Threshold = Field(alias="is", description="What the slope is compared with, a second.")


class Delta(_Model):
    """How a statistic of the window changed against the time right before it.

    A threshold in percent is a relative change ("< -15%"), any other an absolute one.
    """

    stat: Literal["rate", "mean", "quantile"] = Field(description="What changed.")
    of: str | None = Field(None, description="The field; see `rate`, `mean`, `quantile`.")
    q: float | None = Field(None, gt=0, lt=1, description="For a quantile.")
    is_: Threshold = Field(alias="is", description="What the change is compared with.")
    against: Window = Field(description="How long the time is that the window is compared with.")
    at_least: int = Field(1, ge=1, description="Fewer values in either make no change.")

    @model_validator(mode="after")
    def _complete(self) -> Delta:
        if (self.stat == "quantile") != (self.q is not None):
            raise ValueError("a delta with q if, and only if, its stat is quantile")
        return self


# Conditions


class _Observed(_Model):
    """What the three sources have in common."""

    where: Tests = Field({}, description="Which things count at all, by field.")
    is_: Tests = Field(
        {}, alias="is", description="What must hold of a thing to be a hit, by field; empty: all are hits."
    )
    within: Window | None = Field(None, description="The window; by default that of the enclosing condition.")
    rate: Annotated[Rate, _Short("is")] | None = None
    ratio: Annotated[Ratio, _Short("is")] | None = None
    mean: Mean | None = None
    quantile: Quantile | None = None
    delta: Delta | None = None

    @model_validator(mode="after")
    def _one_aggregate(self) -> Any:
        found = [name for name in AGGREGATES if getattr(self, name, None) is not None]
        if len(found) > 1:
            raise ValueError(f"one of {' and '.join(found)}; two of them are two conditions below all")
        return self


class _Occurrences(_Observed):
    """Things that happen at a moment."""

    count: int | None = Field(None, ge=1, le=1000, description="So many hits in the window, or more.")
    consecutive: int | None = Field(
        None, ge=2, le=1000, description="So many hits in a row in the window, nothing else between them."
    )


class SpanCondition(_Occurrences):
    """Spans; the time of a span is its end."""

    span: Literal["any", "server", "client", "internal", "producer", "consumer"] = Field(
        description="Of which kind."
    )


class EventCondition(_Occurrences):
    """Kernel and GPU events."""

    event: str = Field(description="Its kind ('tls_handshake', 'cuda_alloc') or a user probe's name.")


class MetricCondition(_Observed):
    """A metric's series: one series that satisfies it is enough; counters are added up."""

    metric: str = Field(description="A name of the catalog, or one that the rule set declares.")
    increase: Annotated[Rate, _Short("is")] | None = Field(
        None, description="How much a counter grew in the window."
    )
    slope: Annotated[Slope, _Short("is")] | None = None
    stale_after: Window = Field(5.0, description="A series without a reading for so long has no value.")


class RuleCondition(_Model):
    """Another rule fires, for the same group or for no group in particular."""

    rule: str = Field(description="Its name.")


class AbsentCondition(_Model):
    """Nothing was a hit for the whole window."""

    absent: Condition = Field(description="A condition over spans, events or a metric.")


class NotCondition(_Model):
    """The condition does not hold."""

    not_: Condition = Field(alias="not")


class _Several(_Model):
    within: Window | None = Field(None, description="The window of all conditions below that have none.")


class AllCondition(_Several):
    """All hold at once; with `within`, everything that made them hold lies in one such window."""

    all: list[Condition] = Field(min_length=1)


class AnyCondition(_Several):
    """At least one holds."""

    any: list[Condition] = Field(min_length=1)


class SequenceCondition(_Several):
    """Steps that were completed one after the other, all of them in the window."""

    sequence: list[Condition] = Field(min_length=2, description="Conditions over spans and events.")


AGGREGATES = ("count", "consecutive", "ratio", "rate", "increase", "mean", "quantile", "slope", "delta")
"""What a condition may compute over its window; without any, one hit in the window is enough, and of a metric
the latest reading decides."""

LEAVES = ("span", "event", "metric", "rule")
NODES = ("all", "any", "not", "sequence", "absent")
_NO_BRANCH = "none"


def _branch(value: Any) -> str:
    """Which kind of condition it is, by the one key that tells."""
    if isinstance(value, BaseModel):
        fields = type(value).model_fields
        names = [fields[name].alias or name for name in fields]
    else:
        names = list(value) if isinstance(value, dict) else []
    found = [name for name in (*NODES, *LEAVES) if name in names]
    return TAG.format(found[0] if len(found) == 1 else _NO_BRANCH)


def _refuse(_: Any) -> Any:
    raise ValueError(f"a mapping with exactly one of {', '.join((*LEAVES, *NODES))}")


class _NoCondition(_Model):
    """Where the kind of a condition cannot be told."""


_Branches: TypeAlias = (
    Annotated[SpanCondition, Tag("<span>")]
    | Annotated[EventCondition, Tag("<event>")]
    | Annotated[MetricCondition, Tag("<metric>")]
    | Annotated[RuleCondition, Tag("<rule>")]
    | Annotated[AllCondition, Tag("<all>")]
    | Annotated[AnyCondition, Tag("<any>")]
    | Annotated[NotCondition, Tag("<not>")]
    | Annotated[SequenceCondition, Tag("<sequence>")]
    | Annotated[AbsentCondition, Tag("<absent>")]
)
Condition = Annotated[
    _Branches | Annotated[_NoCondition, BeforeValidator(_refuse), Tag("<none>")], Discriminator(_branch)
]
"""One condition of a rule."""

Leaf = SpanCondition | EventCondition | MetricCondition
Node = (
    SpanCondition
    | EventCondition
    | MetricCondition
    | RuleCondition
    | AllCondition
    | AnyCondition
    | NotCondition
    | SequenceCondition
    | AbsentCondition
)
"""Every kind of condition, for those who walk a rule."""


# Rules


class GroupKey(_Model):
    """One label of `by`, and where each source has its value.

    Written as a text alone, the name is the same everywhere.
    """

    label: str = Field(description="Its name; in Prometheus with underscores for dots.")
    span: str | None = Field(None, description="Attribute of spans ('resource.' before one of a resource).")
    event: str | None = Field(None, description="Field of events.")
    metric: str | None = Field(None, description="Label of metrics.")

    @property
    def prometheus(self) -> str:
        """The label's name on an alert."""
        return prometheus_name(self.label)

    def key(self, source: str) -> str:
        """What the key is called where it is read.

        Args:
            source: "span", "event" or "metric".
        """
        given: str | None = getattr(self, source)
        if given is not None:
            return given
        return self.prometheus if source == "metric" else self.label


class Rule(_Model):
    """One rule: an alert in Alertmanager's terms, for each group of `by`."""

    name: str = Field(pattern=r"^[A-Z][A-Za-z0-9]*$", description="The alert's name, like GpuOutOfMemory.")
    when: Condition = Field(description="What it fires on.")
    by: list[Annotated[GroupKey, _Short("label")]] = Field(
        [], description="Labels that make groups of their own; one alert a group."
    )
    max_groups: int = Field(1000, ge=1, le=100_000, description="Groups beyond push out the idlest.")
    for_: Duration = Field(0.0, alias="for", description="How long it must hold before it fires.")
    keep_firing_for: Duration = Field(0.0, description="How long it fires on after it held last.")
    severity: Literal["critical", "warning", "info"] = Field(description="How it is routed.")
    summary: str = Field(min_length=1, description="One line; {label} stands for a label of `by`.")
    runbook: str = Field("", description="Heading in alerts/runbook.md; by default the rule's name.")
    breaker: str = Field("", description="The breaker's target that it trips; {label} as in the summary.")
    labels: dict[str, str] = Field({}, description="Labels that every alert of the rule gets.")
    engine: Literal["both", "streaming", "prometheus"] = Field(
        "both", description="Who evaluates it; other than both only with a reason."
    )
    reason: str = Field("", description="Why it is left to one engine.")

    @property
    def runbook_entry(self) -> str:
        """The heading of its entry in the runbook."""
        return self.runbook or self.name

    @model_validator(mode="after")
    def _engine_has_reason(self) -> Rule:
        if (self.engine == "both") != (not self.reason):
            raise ValueError("a reason where the rule is left to one engine, and only there")
        return self


class DeclaredMetric(_Model):
    """A metric of somebody else's."""

    kind: Literal["counter", "gauge", "histogram"]
    unit: str = Field(description="In UCUM: s, ms, By, 1 (a ratio), %, {request}.")
    labels: list[str] = Field([], description="Those that rules may use.")


class RuleSet(_Model):
    """One file."""

    rules: list[Rule] = Field(min_length=1)
    metrics: dict[str, DeclaredMetric] = Field(
        {}, description="Metrics that are not the bridge's own, named as Prometheus has them."
    )
    attributes: dict[str, str] = Field({}, description="Units of span attributes that the catalog lacks.")
    events: dict[str, dict[str, str]] = Field({}, description="User probes: their fields' units, by name.")


for _model in (AbsentCondition, NotCondition, AllCondition, AnyCondition, SequenceCondition, Rule, RuleSet):
    _model.model_rebuild()


_NODE_MODELS: dict[str, type[_Model]] = {
    "all": AllCondition,
    "any": AnyCondition,
    "not": NotCondition,
    "sequence": SequenceCondition,
    "absent": AbsentCondition,
}


def prometheus_name(label: str) -> str:
    """A label's name as Prometheus allows it."""
    return "".join(char if char.isascii() and (char.isalnum() or char == "_") else "_" for char in label)


def children(node: Node) -> list[Node]:
    """The conditions below one; none below a leaf."""
    if isinstance(node, AllCondition):
        return list(node.all)  # type: ignore[arg-type]
    if isinstance(node, AnyCondition):
        return list(node.any)  # type: ignore[arg-type]
    if isinstance(node, SequenceCondition):
        return list(node.sequence)  # type: ignore[arg-type]
    if isinstance(node, NotCondition):
        return [node.not_]  # type: ignore[list-item]
    return [node.absent] if isinstance(node, AbsentCondition) else []  # type: ignore[list-item]


def walk(rule: Rule) -> Iterator[tuple[Path, Node, float | None]]:
    """Every condition of a rule: its place in the rule, itself, and its window in seconds (None: none)."""
    yield from _walk(("when",), rule.when, None)  # type: ignore[arg-type]


def _walk(path: Path, node: Node, around: float | None) -> Iterator[tuple[Path, Node, float | None]]:
    window = getattr(node, "within", None) or around
    yield path, node, window
    below = children(node)
    key = next((name for name in NODES if isinstance(node, _NODE_MODELS[name])), "")
    for index, child in enumerate(below):
        places = (key, str(index)) if isinstance(node, _Several) else (key,)
        yield from _walk((*path, *places), child, window)


def aggregate(leaf: Leaf) -> tuple[str, Any]:
    """What a condition computes: the key and its value; ("", None) where it computes nothing."""
    return next(
        ((name, value) for name in AGGREGATES if (value := getattr(leaf, name, None)) is not None), ("", None)
    )
