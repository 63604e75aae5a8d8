"""Readings: gauges and counters at a moment, from outside the path of a span (GPU, host, bridge)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Reading:
    """One value.

    Attributes:
        metric: its name in the catalog, as Prometheus shows it.
        labels: by name; bounded cardinality.
        value: in the metric's unit. What could not be read is left out, never 0.
        time: unix nanoseconds.
    """

    metric: str
    labels: Mapping[str, str]
    value: float
    time: int


class ReadingSink(Protocol):
    """Where readings are handed over."""

    def take_readings(self, readings: Sequence[Reading]) -> None:
        """Take some; may be called from any thread; must neither block nor raise."""
