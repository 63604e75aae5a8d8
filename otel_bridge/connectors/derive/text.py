"""Derived metrics as a scrape gets them: Prometheus's text, or OpenMetrics with exemplars.

prometheus-client makes an object and sorts and escapes the labels for every sample. A series of a histogram
has twenty with the same labels, and a scrape has hundreds of thousands: that took it seconds. So they are
written here, a series at a time, in the bytes that the library would write (`test_text.py` holds them to it).
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, cast

from prometheus_client.utils import floatToGoString

from otel_bridge import catalog
from otel_bridge.catalog import Kind, prometheus_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from otel_bridge.catalog import DerivedMetric
    from otel_bridge.connectors.derive.derive import Metrics
    from otel_bridge.connectors.derive.series import Exemplar, Point
    from otel_bridge.contracts import Clock

_OVERFLOW = {prometheus_name(catalog.METRIC_OVERFLOW.key): "true"}
_BOUND = "le"
_EXACT_AS_IT_IS = 1_000_000
"""From here on Prometheus writes numbers with an exponent."""

_exponent = cast("Callable[[float], str]", floatToGoString)

_Labels = tuple[tuple[str, str], ...]
"""By name, in order: the name, and what is written of it, `name="value"`."""


class DerivedText:
    """Writes all derived metrics.

    Args:
        source: the metrics of now; a reload may put others in their place. None: there are none.
        clock: tells how long a series has been shown.
    """

    def __init__(self, source: Callable[[], Metrics | None], clock: Clock) -> None:
        self._source = source
        self._clock = clock

    def write(self, *, openmetrics: bool) -> str:
        """Every metric that has series; this shows a new one its zero.

        Args:
            openmetrics: with exemplars, and without the end mark.
        """
        metrics = self._source()
        return "" if metrics is None else "".join(self._lines(metrics, openmetrics=openmetrics))

    def _lines(self, metrics: Metrics, *, openmetrics: bool) -> Iterator[str]:
        for metric, points in metrics.points(metrics.scraped, self._clock.monotonic()):
            names = tuple(prometheus_name(key) for key in metrics.labels[metric])
            labelled = [(_labels(names, one), one) for one in points]
            if metric is catalog.DERIVED_SPAN_DURATION:
                calls = ((labels, one.count, None) for labels, one in labelled)
                yield from _counter(catalog.DERIVED_SPAN_CALLS, calls, openmetrics=openmetrics)
            if metric.kind is Kind.COUNTER:
                sums = ((labels, one.sum, one.exemplars[0]) for labels, one in labelled)
                yield from _counter(metric, sums, openmetrics=openmetrics)
            else:
                yield from _histogram(metric, labelled, openmetrics=openmetrics)


def _labels(names: tuple[str, ...], point: Point) -> _Labels:
    """As Prometheus has them: an empty one is none."""
    if point.labels is None:
        found = _OVERFLOW
    else:
        found = {name: value for name, value in zip(names, point.labels, strict=True) if value}
    return tuple((name, f'{name}="{_escaped(found[name])}"') for name in sorted(found))


def _counter(
    metric: DerivedMetric, series: Iterable[tuple[_Labels, float, Exemplar | None]], *, openmetrics: bool
) -> Iterator[str]:
    name = f"{metric.prometheus}_total"
    yield _head(metric, metric.prometheus if openmetrics else name, openmetrics=openmetrics)
    for labels, value, exemplar in series:
        shown = _exemplar(exemplar) if openmetrics else ""
        yield f"{name}{_braced(labels)} {_number(value)}{shown}\n"


def _histogram(
    metric: DerivedMetric, series: Iterable[tuple[_Labels, Point]], *, openmetrics: bool
) -> Iterator[str]:
    name = metric.prometheus
    bounds = [f'{_BOUND}="{bound}"' for bound in (*map(_exponent, metric.buckets), "+Inf")]
    yield _head(metric, name, openmetrics=openmetrics)
    for labels, point in series:
        before = "".join(f"{written}," for label, written in labels if label < _BOUND)
        after = "".join(f",{written}" for label, written in labels if label > _BOUND)
        start, end = f"{name}_bucket{{{before}", f"{after}}} "
        upto = map(_number, accumulate(point.counts))
        if openmetrics:
            exemplars = map(_exemplar, point.exemplars)
            yield "".join(
                f"{start}{bound}{end}{count}{exemplar}\n"
                for bound, count, exemplar in zip(bounds, upto, exemplars, strict=True)
            )
        else:
            yield "".join(f"{start}{bound}{end}{count}\n" for bound, count in zip(bounds, upto, strict=True))
        braced = _braced(labels)
        yield f"{name}_count{braced} {_number(point.count)}\n{name}_sum{braced} {_number(point.sum)}\n"


def _head(metric: DerivedMetric, name: str, *, openmetrics: bool) -> str:
    about = metric.description.replace("\\", r"\\").replace("\n", r"\n")
    if openmetrics:
        about = about.replace('"', r"\"")
    return f"# HELP {name} {about}\n# TYPE {name} {metric.kind.value}\n"


def _braced(labels: _Labels) -> str:
    return f"{{{','.join(written for _, written in labels)}}}" if labels else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    if type(value) is int and value < _EXACT_AS_IT_IS:
        return f"{value}.0"
    return _exponent(value)


def _exemplar(exemplar: Exemplar | None) -> str:
    if exemplar is None:
        return ""
    span, trace = exemplar.span_id.hex(), exemplar.trace_id.hex()
    value, time = _exponent(exemplar.value), exemplar.time / 1e9
    return f' # {{span_id="{span}",trace_id="{trace}"}} {value} {time}'
