"""What a catalog entry is."""

from __future__ import annotations

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


@dataclass(frozen=True, slots=True)
class Attribute:
    """One span attribute that the bridge reads or writes."""

    key: str
    type: str
    unit: str
    description: str
