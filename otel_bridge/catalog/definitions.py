"""What a catalog entry is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """How a metric behaves."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric family.

    Attributes:
        name: as Prometheus shows it, without a counter's `_total`.
        kind: counter, gauge or histogram.
        unit: UCUM ("s", "By", "{span}").
        description: one sentence.
        labels: label names, all of bounded cardinality.
        buckets: upper bounds of a histogram, in `unit`.
    """

    name: str
    kind: Kind
    unit: str
    description: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


_PROMETHEUS_UNITS = {"s": "_seconds", "By": "_bytes"}


@dataclass(frozen=True, slots=True)
class DerivedMetric:
    """A metric made of the spans that pass: not the bridge's own, so its name is that of the conventions.

    Attributes:
        name: OpenTelemetry's, as it is pushed.
        kind: counter or histogram.
        unit: UCUM.
        description: one sentence.
        labels: attribute keys; all of bounded number, by a cap on series if not by nature.
        buckets: upper bounds of a histogram, in `unit`.
    """

    name: str
    kind: Kind
    unit: str
    description: str
    labels: tuple[str, ...]
    buckets: tuple[float, ...] = ()

    @property
    def prometheus(self) -> str:
        """As Prometheus shows it, without a counter's `_total`: the unit is part of the name."""
        name = prometheus_name(self.name)
        unit = _PROMETHEUS_UNITS.get(self.unit, "")
        return name if name.endswith(unit) else name + unit


def prometheus_name(key: str) -> str:
    """A metric's or an attribute's name as Prometheus shows it."""
    return re.sub(r"[^a-zA-Z0-9_]", "_", key)


@dataclass(frozen=True, slots=True)
class Attribute:
    """One span attribute that the bridge reads or writes."""

    key: str
    type: str
    unit: str
    description: str
