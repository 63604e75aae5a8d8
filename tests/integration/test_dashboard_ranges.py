"""cases.md graf-rate: panels have data at every range, scraped each minute or each 15 s.

A day of the catalog's metrics is put into a real Prometheus; Grafana's choice of step and rate interval is
reckoned as its data source does.
"""

from __future__ import annotations

import itertools
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from dashboards.build import documents
from dashboards.layout import SCRAPE_INTERVALS
from otel_bridge import catalog
from otel_bridge.catalog import Kind, prometheus_name
from otel_bridge.units import parse_duration
from tests.support.grafana import FALLBACK, filled, panels, step, variables
from tests.support.processes import needs_command, running
from tests.support.prometheus import Prometheus

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

HOUR = 3600
RANGES = (HOUR // 4, HOUR, 3 * HOUR, 24 * HOUR)
PIXELS = 1000
"""Of a wide panel: a point each, at most."""
DOCUMENTS = documents()
LABELS = {
    "span_kind": ("SPAN_KIND_SERVER",),
    "status_code": ("STATUS_CODE_ERROR",),
    "gen_ai_token_type": ("output",),
    "kind": ("tcp_retransmit", "tcp_zero_window", "tls_handshake", "sched_wait", "reclaim"),
}
"""What queries select by; any other label's value is its name."""
OPEN = 2
"""The state of a breaker that a panel counts."""


def _series() -> Iterator[tuple[str, float]]:
    """Every sample's name with labels, and how much it grows a second (0: a gauge)."""
    # Prometheus's own, of a rule that fires.
    yield 'ALERTS{alertname="ErrorBudgetBurn1h",alertstate="firing"}', 0.0
    for metric in vars(catalog).values():
        if isinstance(metric, catalog.Metric | catalog.DerivedMetric | catalog.ForeignMetric):
            name = metric.prometheus if isinstance(metric, catalog.DerivedMetric) else metric.name
            keys = [prometheus_name(key) for key in metric.labels]
            for values in itertools.product(*(LABELS.get(key, (key,)) for key in keys)):
                labels = ",".join(f'{key}="{value}"' for key, value in zip(keys, values, strict=True))
                yield from _samples(metric, name, labels)


def _samples(
    metric: catalog.Metric | catalog.DerivedMetric | catalog.ForeignMetric, name: str, labels: str
) -> Iterator[tuple[str, float]]:
    """Those of one set of labels."""
    if metric.kind is Kind.HISTOGRAM:
        for bound in ("0.1", "2.0", "+Inf"):
            inside = ",".join(part for part in (labels, f'le="{bound}"') if part)
            yield f"{name}_bucket{{{inside}}}", 1.0
        yield f"{name}_sum{{{labels}}}", 0.05
        yield f"{name}_count{{{labels}}}", 1.0
    elif metric.kind is Kind.COUNTER:
        unsuffixed = isinstance(metric, catalog.ForeignMetric) and not metric.total
        yield f"{name}{'' if unsuffixed else '_total'}{{{labels}}}", 1.0
    else:
        yield f"{name}{{{labels}}}", 0.0


@pytest.fixture(scope="module", params=[60, 15], ids=lambda interval: f"scraped each {interval} s")
def history(request, tmp_path_factory) -> Iterator[tuple[Prometheus, int]]:
    """A Prometheus that has scraped for a day, and how often, in seconds."""
    interval = request.param
    directory = tmp_path_factory.mktemp("history")
    promtool = needs_command("promtool", "prometheus")
    end = int(time.time())
    asked = " ".join(
        target["expr"]
        for document in DOCUMENTS.values()
        for panel in panels(document)
        for target in panel["targets"]
    )
    source = directory / "history.txt"
    with source.open("w") as file:
        for sample, growth in _series():
            if f"{sample.partition('{')[0]}{{" in asked:
                for at in range(end - RANGES[-1] - 600, end, interval):
                    file.write(f"{sample} {OPEN + growth * (at % 10**6)} {at}\n")
        file.write("# EOF\n")
    command = [promtool, "tsdb", "create-blocks-from", "openmetrics", "--quiet", source, directory / "data"]
    subprocess.run(command, check=True, capture_output=True)
    with running(Prometheus(directory, {})) as server:
        yield server, interval


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
def test_every_range_has_data(history, name):
    """At no range is a rate taken over fewer than two samples, with the variable as it is or may be set."""
    server, interval = history
    document = DOCUMENTS[name]
    values = {
        name: one["current"]["value"] if one["type"] == "custom" else ".*"
        for name, one in variables(document).items()
    }
    lacking = []
    for chosen, seconds in itertools.product((SCRAPE_INTERVALS[0], f"{interval}s"), RANGES):
        least = parse_duration(chosen)
        every = step(seconds, PIXELS, least)
        for panel in panels(document):
            for target in panel["targets"]:
                expr = filled(target["expr"], values, step=every, scrape_interval=least)
                expr = expr.replace(FALLBACK, "")
                drawn = len(server.line(expr, every, over=seconds * 0.9))
                # A series has no gaps: as many points as steps, but for those before its first rate.
                if drawn < 0.9 * (seconds * 0.9 / every) - 2:
                    lacking.append(f"{panel['title']} / {target['refId']}: {drawn} in {seconds} s, {chosen}")
    assert lacking == []


def test_less_than_the_scrape_interval_would_show(history):
    """The test can fail: four times 15 s holds one sample of a target that is scraped each minute."""
    server, interval = history
    expr = filled("rate(traces_span_metrics_calls_total[$__rate_interval])", {}, step=15, scrape_interval=15)
    assert bool(server.line(expr, 15, over=HOUR // 4)) is (interval == 15)
