"""PromQL made of catalog entries: a metric, a part or a label that does not exist fails the build."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from otel_bridge.catalog import K8S_POD_NAME, DerivedMetric, ForeignMetric, Kind, Metric, prometheus_name

if TYPE_CHECKING:
    from collections.abc import Iterable

AnyMetric = Metric | DerivedMetric | ForeignMetric

TARGET_LABELS = ("job", "instance")
"""What Prometheus adds to every sample."""
DIMENSIONS = (K8S_POD_NAME.key,)
"""Labels that metrics made of spans have where `connectors.derive.dimensions` says so."""
SCOPE = ('job=~"$job"', 'instance=~"$instance"')
"""Selects what the dashboard's variables say; all of it in the dashboards of the bridge."""


@dataclass(frozen=True, slots=True)
class Query:
    """One question of a panel.

    Attributes:
        expr: PromQL with Grafana's variables.
        legend: template of a series' name.
        instant: only the value now, for tables.
        exemplars: ask for the traces behind the values; for histograms.
    """

    expr: str
    legend: str = "__auto"
    instant: bool = False
    exemplars: bool = False


def name(metric: AnyMetric, part: str = "") -> str:
    """The name of a metric's samples; of a histogram, `part` is bucket, sum or count.

    Raises:
        ValueError: the kind of metric has no such part.
    """
    if not isinstance(metric, AnyMetric):
        raise TypeError(f"found {metric!r}; expected an entry of the catalog")
    base = metric.prometheus if isinstance(metric, DerivedMetric) else metric.name
    if (metric.kind is Kind.HISTOGRAM) != (part in {"bucket", "sum", "count"}):
        raise ValueError(f"{base} is a {metric.kind.value}; found part {part!r}")
    if part:
        return f"{base}_{part}"
    unsuffixed = isinstance(metric, ForeignMetric) and not metric.total
    return f"{base}_total" if metric.kind is Kind.COUNTER and not unsuffixed else base


def label(metric: AnyMetric, key: str) -> str:
    """A label as Prometheus shows it.

    Raises:
        ValueError: the metric has no such label.
    """
    known = {prometheus_name(one) for one in metric.labels} | {*TARGET_LABELS}
    if metric.kind is Kind.HISTOGRAM:
        known.add("le")
    if isinstance(metric, DerivedMetric):
        known.update(map(prometheus_name, DIMENSIONS))
    found = prometheus_name(key)
    if found not in known:
        raise ValueError(f"{metric.name} has no label {key!r}; it has {', '.join(sorted(known))}")
    return found


def select(metric: AnyMetric, part: str = "", scope: Iterable[str] = SCOPE, **where: str) -> str:
    """A selector.

    Args:
        metric: of the catalog.
        part: of a histogram.
        scope: matchers that every query of the dashboard has.
        where: label and matcher, `code='!~"2.."'`; a dot in a label's name is written `_`.
    """
    matchers = [*scope, *(f"{label(metric, key)}{matcher}" for key, matcher in where.items())]
    return f"{name(metric, part)}{{{', '.join(matchers)}}}" if matchers else name(metric, part)


def summed(metric: AnyMetric, by: Iterable[str] = (), scope: Iterable[str] = SCOPE, **where: str) -> str:
    """A gauge, added up."""
    return f"sum{_by(metric, by)} ({select(metric, scope=scope, **where)})"


def highest(metric: AnyMetric, by: Iterable[str] = (), scope: Iterable[str] = SCOPE, **where: str) -> str:
    """A gauge, the largest."""
    return f"max{_by(metric, by)} ({select(metric, scope=scope, **where)})"


def rate(
    metric: AnyMetric,
    part: str = "",
    by: Iterable[str] = (),
    scope: Iterable[str] = SCOPE,
    window: str = "$__rate_interval",
    **where: str,
) -> str:
    """A counter's increase a second, added up."""
    return f"sum{_by(metric, by)} (rate({select(metric, part, scope, **where)}[{window}]))"


def increase(
    metric: AnyMetric,
    by: Iterable[str] = (),
    scope: Iterable[str] = SCOPE,
    window: str = "$__rate_interval",
    **where: str,
) -> str:
    """A counter's increase, added up."""
    return f"sum{_by(metric, by)} (increase({select(metric, scope=scope, **where)}[{window}]))"


def quantile(
    q: float,
    metric: AnyMetric,
    by: Iterable[str] = (),
    scope: Iterable[str] = SCOPE,
    **where: str,
) -> str:
    """A quantile of a histogram."""
    return f"histogram_quantile({q:g}, {rate(metric, 'bucket', ('le', *by), scope, **where)})"


def mean(metric: AnyMetric, by: Iterable[str] = (), scope: Iterable[str] = SCOPE, **where: str) -> str:
    """The mean of a histogram's observations."""
    by = tuple(by)
    return f"{rate(metric, 'sum', by, scope, **where)} / {rate(metric, 'count', by, scope, **where)}"


def or_zero(expr: str) -> str:
    """Zero where there is no series yet: failures that have not happened have none.

    `on ()` keeps the zero away as soon as there is one.
    """
    return f"{expr} or on () vector(0)"


def _by(metric: AnyMetric, keys: Iterable[str]) -> str:
    labels = [label(metric, key) for key in keys]
    return f" by ({', '.join(labels)})" if labels else ""
