"""House rules (CONTRIBUTING.md) that a program can check."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import otel_bridge
from otel_bridge import catalog

PACKAGE = Path(otel_bridge.__file__).parent
SOURCES = sorted(PACKAGE.rglob("*.py"))
METRICS = [value for value in vars(catalog).values() if isinstance(value, catalog.Metric)]
DERIVED = [value for value in vars(catalog).values() if isinstance(value, catalog.DerivedMetric)]
COMPONENTS = sorted(
    path
    for group in ("receivers", "processors", "exporters", "connectors")
    for path in (PACKAGE / group).glob("*/")
    if (path / "__init__.py").exists()
)


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_a_metric_is_named_and_explained(metric):
    """Prometheus conventions, a unit, one sentence."""
    assert re.fullmatch(r"otel_bridge_[a-z0-9_]+", metric.name)
    assert not metric.name.endswith("_total"), "Prometheus adds it to counters"
    assert metric.unit
    assert metric.description.endswith(".")
    if metric.kind is catalog.Kind.HISTOGRAM:
        assert metric.buckets == tuple(sorted(set(metric.buckets)))
        assert metric.buckets


@pytest.mark.parametrize("metric", DERIVED, ids=lambda metric: metric.name)
def test_a_derived_metric_is_named_and_explained(metric):
    """As the semantic conventions name metrics; Prometheus's name has the unit."""
    assert re.fullmatch(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+", metric.name)
    assert re.fullmatch(r"[a-z][a-z0-9_]*", metric.prometheus)
    assert not metric.prometheus.startswith("otel_bridge_")
    assert not metric.prometheus.endswith("_total")
    assert metric.unit != "s" or metric.prometheus.endswith("_seconds")
    assert metric.unit != "By" or metric.prometheus.endswith("_bytes")
    assert metric.description.endswith(".")
    assert metric.labels[0] == catalog.SERVICE_NAME.key
    assert metric.buckets == tuple(sorted(set(metric.buckets)))
    assert bool(metric.buckets) == (metric.kind is catalog.Kind.HISTOGRAM)


def test_every_derived_metric_is_observed():
    """None is in the catalog alone; calls are read off the durations."""
    assert set(DERIVED) == {*catalog.DERIVED, catalog.DERIVED_SPAN_CALLS}


def test_metric_names_are_unique():
    """One name, one entry."""
    names = [metric.name for metric in METRICS] + [metric.prometheus for metric in DERIVED]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_metric_names_stand_only_in_the_catalog(path):
    """A metric that is renamed must break the build, not a dashboard."""
    if path.parent.name == "catalog":
        return
    names = {metric.name for metric in METRICS} | {metric.prometheus for metric in DERIVED}
    texts = {
        node.value
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert not texts & names


@pytest.mark.parametrize("path", COMPONENTS, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_component_has_its_file_set(path):
    """Config, implementation, README."""
    assert (path / "config.py").exists()
    assert (path / "README.md").exists()


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_file_has_one_subject(path):
    """Over 600 lines there are two subjects in it."""
    assert len(path.read_text().splitlines()) <= 600


def test_errors_get_their_status_in_one_place():
    """No other file of the receiver names a gRPC status code of a refusal."""
    receiver = PACKAGE / "receivers" / "otlp"
    for path in receiver.glob("*.py"):
        if path.name != "status.py":
            assert "StatusCode.INVALID_ARGUMENT" not in path.read_text(), path.name
