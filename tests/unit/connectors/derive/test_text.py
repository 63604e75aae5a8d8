"""What is written for scrapes is what prometheus-client writes of the same metrics, byte by byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from otel_bridge import catalog
from otel_bridge.connectors.derive.series import Exemplar, Point
from otel_bridge.connectors.derive.text import DerivedText
from otel_bridge.testing import FakeClock
from tests.support.derived_families import DerivedCollector
from tests.support.deriving import NOW

METRICS = [
    value
    for value in vars(catalog).values()
    if isinstance(value, catalog.DerivedMetric) and value is not catalog.DERIVED_SPAN_CALLS
]
NAMES = ("service.name", "gen_ai.request.model", "l", "le.z", "le2", "zone", "le", "service_name")

odd = st.sampled_from(["", 'a"b', "a\\n", "a\nb", "é", "{},="])
texts = odd | st.text(st.characters(codec="utf-8"), max_size=8)
counts = st.integers(0, 20) | st.integers(999_990, 1_000_010) | st.integers(10**15, 10**18)
values = st.floats(0, 1e300) | st.sampled_from([0.0, 0.1, 999999.0, 1e6, 1234567.5, 1e16, 1e-7, float("inf")])
exemplars = st.none() | st.builds(
    Exemplar,
    value=values,
    time=st.integers(0, 2**61),
    trace_id=st.binary(min_size=16, max_size=16),
    span_id=st.binary(min_size=8, max_size=8),
)


def points(metric, names):
    """Series of a metric."""
    buckets = len(metric.buckets) + 1
    return st.lists(
        st.builds(
            Point,
            labels=st.none() | st.tuples(*(texts for _ in names)),
            start=st.just(0),
            counts=st.lists(counts, min_size=buckets, max_size=buckets),
            sum=values | counts,
            exemplars=st.lists(exemplars, min_size=buckets, max_size=buckets),
        ),
        max_size=3,
    )


class Metrics:
    """One metric and its series, as the connector gives them."""

    scraped = None

    def __init__(self, metric, names, series):
        self.labels = {metric: names}
        self._of = [(metric, series)]

    def points(self, _reader, _now):
        """All there is."""
        return iter(self._of)


@pytest.mark.parametrize("openmetrics", [False, True])
@given(st.data())
def test_the_library_s_own_bytes(openmetrics, data):
    """Whatever is in labels, values and exemplars."""
    metric = data.draw(st.sampled_from(METRICS))
    names = tuple(data.draw(st.lists(st.sampled_from(NAMES), max_size=4, unique=True)))
    metrics = Metrics(metric, names, data.draw(points(metric, names)))
    clock = FakeClock(NOW)
    registry = CollectorRegistry()
    registry.register(DerivedCollector(lambda: metrics, clock))
    library = (generate_openmetrics if openmetrics else generate_latest)(registry).decode()
    ours = DerivedText(lambda: metrics, clock).write(openmetrics=openmetrics)
    assert ours + ("# EOF\n" if openmetrics else "") == library


def test_without_metrics_there_is_nothing_to_write():
    """A service whose connector is off."""
    assert DerivedText(lambda: None, FakeClock(NOW)).write(openmetrics=True) == ""
