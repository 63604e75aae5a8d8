"""A query is made of the catalog, or not at all."""

from __future__ import annotations

import pytest

from dashboards.queries import promql
from otel_bridge import catalog
from tests.support.processes import ROOT

VLLM_METRICS = ROOT / "tests" / "testdata" / "dashboards" / "vllm-0.32-metrics.prom"


def test_names_are_prometheus_names():
    """Counters end in _total, units are in derived names, histograms have parts."""
    assert promql.name(catalog.RULES_FIRINGS) == "otel_bridge_rules_firings_total"
    assert promql.name(catalog.GPU_UP) == "otel_bridge_gpu_up"
    assert promql.name(catalog.DERIVED_SERVER_FIRST_TOKEN, "bucket") == (
        "gen_ai_server_time_to_first_token_seconds_bucket"
    )
    assert promql.name(catalog.TRITON_SUCCESS) == "nv_inference_request_success"


def test_what_the_catalog_lacks_fails_the_build():
    """A name that is no entry, a part that its kind lacks, a label that it lacks."""
    with pytest.raises(TypeError, match="expected an entry of the catalog"):
        promql.name("otel_bridge_rules_firings")
    with pytest.raises(ValueError, match="is a gauge; found part 'bucket'"):
        promql.name(catalog.GPU_UP, "bucket")
    with pytest.raises(ValueError, match="is a histogram; found part ''"):
        promql.name(catalog.RULES_DECISION)
    with pytest.raises(ValueError, match="has no label 'reason'; it has instance, job, rule"):
        promql.rate(catalog.RULES_FIRINGS, by=("reason",))
    with pytest.raises(ValueError, match="has no label 'ruel'"):
        promql.select(catalog.RULES_FIRINGS, ruel='="x"')
    with pytest.raises(AttributeError):
        _ = catalog.RULES_FIRNGS


def test_a_quantile_keeps_le():
    """Buckets are added up by their bound and what else is asked for."""
    assert promql.quantile(0.95, catalog.CONTROL_REACTION, ("step",), scope=()) == (
        "histogram_quantile(0.95, sum by (le, step) "
        "(rate(otel_bridge_control_reaction_seconds_bucket[$__rate_interval])))"
    )


def test_vllm_has_the_metrics_that_are_asked_for():
    """By name, kind and label, in what vLLM 0.32 really exposed."""
    text = VLLM_METRICS.read_text()
    kinds = {line.split()[2]: line.split()[3] for line in text.splitlines() if line.startswith("# TYPE")}
    found = [one for key, one in vars(catalog).items() if key.startswith("VLLM_")]
    assert len(found) > 10
    for metric in found:
        family = f"{metric.name}_total" if metric.kind is catalog.Kind.COUNTER else metric.name
        assert kinds[family] == metric.kind.value
        sample = next(line for line in text.splitlines() if line.startswith(family) and "{" in line)
        assert all(f'{label}="' in sample for label in metric.labels), sample


def test_zero_stands_in_for_what_never_happened_alone():
    """Beside a series it would be a line of its own."""
    expr = promql.or_zero(promql.rate(catalog.RULES_FIRINGS, by=("rule",), scope=()))
    assert expr.endswith(" or on () vector(0)")
