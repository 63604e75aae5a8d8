"""Dashboards stand on the catalog alone, so that a metric that is renamed breaks the build, not a panel."""

from __future__ import annotations

import ast
import re

import pytest

from otel_bridge import catalog
from tests.support.processes import ROOT

SOURCES = sorted((ROOT / "dashboards").rglob("*.py"))
ALLOWED = {"otel_bridge.catalog"}


def _imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.module == "otel_bridge":
                yield from (f"otel_bridge.{alias.name}" for alias in node.names)
            else:
                yield node.module


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_dashboards_import_the_catalog_only(path):
    """Nothing else of the bridge."""
    ours = {name for name in _imported(path) if name.split(".")[0] == "otel_bridge"}
    assert ours <= ALLOWED


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_dashboard_writes_a_metric_name(path):
    """Names come from the catalog, where they stand once."""
    texts = [
        node.value
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    names = [
        one.prometheus if isinstance(one, catalog.DerivedMetric) else one.name
        for one in vars(catalog).values()
        if isinstance(one, catalog.Metric | catalog.DerivedMetric | catalog.ForeignMetric)
    ]
    whole = re.compile(rf"\b({'|'.join(map(re.escape, names))})\b")
    assert [text for text in texts if whole.search(text)] == []
    assert len(names) > 150


def test_the_bridge_runs_without_the_dashboards_sources():
    """What makes dashboards is not installed with the bridge."""
    for path in (ROOT / "otel_bridge").rglob("*.py"):
        assert not [
            name for name in _imported(path) if name and name.split(".")[0] in {"dashboards", "grafanalib"}
        ], path
