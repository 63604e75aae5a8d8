"""Series that make a condition hold, or not: the input of generated promtool tests."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client.utils import floatToGoString

from otel_bridge import catalog
from otel_bridge.rules.prometheus.promql import NotExpressibleError, number, quoted
from otel_bridge.rules.terms import OPERATORS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

STEADY = 0.0
"""As the length of a phase: as long as the test lasts."""

FACTORS = (1.0, 0.5, 1.5, 0.25, 2.0, 0.0, 4.0, 10.0, 100.0)
"""What a value is multiplied with until it passes a test, or fails it."""


@dataclass(frozen=True, slots=True)
class SpanSample:
    """Spans of one kind that come evenly.

    Attributes:
        labels: of the derived metrics.
        seconds: how long each lasts.
        phases: (length, spans a step) one after the other; the last goes on. A length in seconds, or
            negative: until so many seconds before the condition is to hold.
    """

    labels: tuple[tuple[str, str], ...]
    seconds: float
    phases: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class SeriesSample:
    """One series of a metric.

    Attributes:
        metric: its name.
        labels: its labels.
        start: its first value.
        phases: (length, growth a step), as of spans.
        jump: (when, as a phase's negative length; by how much) it changes at once.
    """

    metric: str
    labels: tuple[tuple[str, str], ...]
    start: float
    phases: tuple[tuple[float, float], ...]
    jump: tuple[float, float] = (0.0, 0.0)


Sampled = SpanSample | SeriesSample


def pairs(labels: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Labels in a fixed order."""
    return tuple(sorted(labels.items()))


def passing(
    candidates: Iterable[float], operator: str, threshold: float, measure: Callable[[float], float]
) -> tuple[float, float]:
    """Of some candidates one whose measure passes a test, and one whose measure does not.

    Raises:
        NotExpressibleError: all pass, or none does: the test tells nothing apart.
    """
    tested = [(OPERATORS[operator](measure(value), threshold), value) for value in candidates]
    good = next((value for passes, value in tested if passes), None)
    bad = next((value for passes, value in tested if not passes), None)
    if good is None or bad is None:
        raise NotExpressibleError(f"'{operator} {threshold:g}' tells no two values apart")
    return good, bad


def factors(threshold: float) -> tuple[float, ...]:
    """What a value may be multiplied with to change by more, or by less, than a threshold of its own size."""
    near = (1 + threshold * 1.1, 1 + threshold * 0.9)
    return (*FACTORS, *(factor for factor in near if factor > 0))


def around(threshold: float) -> tuple[float, ...]:
    """Values below, at and above a threshold."""
    distance = max(abs(threshold) * 0.05, 0.001)
    return (threshold + distance, threshold, threshold - distance)


@dataclass(frozen=True, slots=True)
class Timeline:
    """When a test's samples are taken.

    Attributes:
        step: seconds between two.
        scrape: seconds of what the samples call a step.
        settled: seconds after which every window is full: from then on the condition holds, or not.
        length: seconds that the series last.
    """

    step: float
    scrape: float
    settled: float
    length: float

    def grown(self, phases: tuple[tuple[float, float], ...]) -> list[float]:
        """A counter's values."""
        ends: list[tuple[float, float]] = []
        end = 0.0
        for length, growth in phases:
            end = self.settled + length if length < 0 else end + length
            ends.append((end, growth))
        values, value = [], 0.0
        for index in range(round(self.length / self.step) + 1):
            values.append(value)
            growth = next((growth for end, growth in ends if index * self.step < end), ends[-1][1])
            value += growth * self.step / self.scrape
        return values


def written(samples: Iterable[Sampled], timeline: Timeline, texts: str) -> list[dict[str, str]]:
    """The samples as promtool's `input_series`.

    Args:
        samples: of all conditions; spans with the same labels are added up.
        timeline: when.
        texts: the rule's expressions; of a histogram only the buckets that they name are written, or all
            where they take quantiles.
    """
    series: dict[str, list[float]] = {}
    for sample in dict.fromkeys(samples):
        if isinstance(sample, SpanSample):
            rows = _of_spans(sample, timeline, texts)
        else:
            rows = iter([(_named(sample.metric, sample.labels), _of_series(sample, timeline))])
        for name, values in rows:
            kept = series.get(name)
            series[name] = [a + b for a, b in zip(kept, values, strict=True)] if kept else values
    return [{"series": name, "values": _shortened(values)} for name, values in sorted(series.items())]


def _of_series(sample: SeriesSample, timeline: Timeline) -> list[float]:
    when, amount = sample.jump
    first = (timeline.settled + when) / timeline.step
    return [
        sample.start + value + (amount if index >= first else 0.0)
        for index, value in enumerate(timeline.grown(sample.phases))
    ]


def _of_spans(sample: SpanSample, timeline: Timeline, texts: str) -> Iterator[tuple[str, list[float]]]:
    metric = catalog.DERIVED_SPAN_DURATION
    name, bounds = metric.prometheus, [*map(_written, metric.buckets), "+Inf"]
    counts = timeline.grown(sample.phases)
    first = bisect_left(metric.buckets, sample.seconds)
    for place, bound in enumerate(bounds):
        if "histogram_quantile" in texts or f'le="{bound}"' in texts:
            labels = (*sample.labels, ("le", bound))
            yield _named(f"{name}_bucket", labels), counts if place >= first else [0.0] * len(counts)
    yield _named(f"{name}_count", sample.labels), counts
    yield _named(f"{name}_sum", sample.labels), [count * sample.seconds for count in counts]


def _written(bound: float) -> str:
    # As connectors.derive shows its buckets.
    return str(floatToGoString(bound))  # type: ignore[no-untyped-call]


def at_most(bound: float) -> str:
    """The matcher of a bucket."""
    return f'le="{_written(bound)}"'


def _named(metric: str, labels: Iterable[tuple[str, str]]) -> str:
    shown = ", ".join(f"{name}={quoted(value)}" for name, value in labels if value)
    return f"{metric}{{{shown}}}" if shown else metric


def _shortened(values: list[float]) -> str:
    """Values in promtool's notation: "0+15x40" for 41 values from 0 in steps of 15."""
    parts: list[str] = []
    at = 0
    while at < len(values):
        end = at + 1
        growth = values[end] - values[at] if end < len(values) else 0.0
        while end + 1 < len(values) and abs(values[end + 1] - values[end] - growth) < 1e-9:  # noqa: PLR2004 (rounding)
            end += 1
        end = min(end, len(values) - 1)
        sign = "-" if growth < 0 else "+"
        parts.append(f"{number(values[at])}{sign}{number(abs(growth))}x{end - at}")
        at = end + 1
    return " ".join(parts)
