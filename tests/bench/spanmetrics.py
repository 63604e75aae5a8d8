"""What derived metrics add to the bridge, against what the spanmetrics connector adds to the Collector.

    python -m tests.bench.spanmetrics

Subjects do the data path's work on the same requests, in turns: each with metrics and without. Both have the
same metrics (calls and durations), dimensions (service, name, kind, status, model, HTTP method and status),
buckets and exemplars. What is compared is the difference that they make, CPU a span, the median of rounds:
with few series, and with 10,000. What the bridge's other metrics of these spans cost (HTTP, batch sizes,
prompts), and what serving them takes, is measured apart.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_bridge import catalog
from tests.bench import figures, subjects, workloads
from tests.bench.load import Load
from tests.bench.sink import Sink
from tests.support.processes import running

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.bench.workloads import Workload
    from tests.support.processes import Process

_WARM_UP = 2.0
_DRAIN = 60.0
_SERIES = 10_000
_DIMENSIONS = ("http.request.method", "http.response.status_code")
_MODEL = "http.request.header.x-model-id"
_OPENMETRICS = {"Accept": "application/openmetrics-text;version=1.0.0"}

_SAME = (catalog.DERIVED_SPAN_CALLS.name, catalog.DERIVED_SPAN_DURATION.name)
BRIDGE_ALL = {"dimensions": list(_DIMENSIONS), "max_series": 2 * _SERIES}
BRIDGE = {
    **BRIDGE_ALL,
    "exclude": [metric.name for metric in catalog.DERIVED if metric.name not in _SAME],
}
COLLECTOR = {
    "histogram": {
        "unit": "s",
        "explicit": {"buckets": [f"{bound:g}s" for bound in catalog.DERIVED_SPAN_DURATION.buckets]},
    },
    "dimensions": [{"name": name} for name in (*_DIMENSIONS, _MODEL)],
    "exemplars": {"enabled": True},
    "metrics_flush_interval": "15s",
}


def many() -> Workload:
    """The small workload with as many span names as make 10,000 series with its models."""
    small = workloads.small()
    names = _SERIES // len(workloads.MODELS)
    number = 0
    requests = []
    for data in (small.requests * 2)[:16]:
        request = ExportTraceServiceRequest.FromString(data)
        for span in request.resource_spans[0].scope_spans[0].spans:
            span.name = f"POST /v1/tenants/{number % names}/chat/completions"
            number += 1
        requests.append(request.SerializeToString())
    return replace(small, name="many", requests=tuple(requests))


def measure(workload: Workload, rounds: int, seconds: float) -> dict[str, float]:
    """CPU a span that metrics add to each, their ratio, memory, and one scrape."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        load = stack.enter_context(Load("grpc", workload))
        sink = stack.enter_context(Sink("grpc"))

        def start(name: str) -> Process:
            if name.startswith("bridge"):
                derive = {"bridge with metrics": BRIDGE, "bridge with all": BRIDGE_ALL}.get(name)
                return subjects.bridge(directory / name, "grpc", sink.port, derive=derive)
            spanmetrics = COLLECTOR if name.endswith("metrics") else None
            return subjects.Collector(directory / name, "grpc", sink.port, spanmetrics=spanmetrics)

        names = ("bridge", "bridge with metrics", "bridge with all", "collector", "collector with metrics")
        processes = {name: stack.enter_context(running(start(name))) for name in names}
        costs: dict[str, list[float]] = {name: [] for name in names}
        for name, span in turns(names, rounds, seconds):
            before = subjects.cpu_seconds(processes[name])
            expected = load.run(processes[name].grpc_port, span).requests * workload.spans
            arrived(name, sink, expected)
            if span == seconds:
                costs[name].append(1e6 * (subjects.cpu_seconds(processes[name]) - before) / expected)

        def added(more: str, less: str) -> float:
            return median(a - b for a, b in zip(costs[more], costs[less], strict=True))

        ours = added("bridge with metrics", "bridge")
        theirs = added("collector with metrics", "collector")
        mib = {name: subjects.peak_rss(process) / 2**20 for name, process in processes.items()}
        scraped, took = scrape(processes["bridge with metrics"])
        return {
            "us_a_span": ours,
            "spanmetrics_us_a_span": theirs,
            "ratio_to_spanmetrics": ours / theirs,
            "all_us_a_span": added("bridge with all", "bridge"),
            "rss_mib": mib["bridge with metrics"] - mib["bridge"],
            "spanmetrics_rss_mib": mib["collector with metrics"] - mib["collector"],
            "series": scraped,
            "scrape_ms": took,
        }


def turns(names: tuple[str, ...], rounds: int, seconds: float) -> Iterator[tuple[str, float]]:
    """A round each to warm up, then one of each after the other, backwards every second time."""
    for number, length in enumerate((_WARM_UP, *[seconds] * rounds)):
        for name in names if number % 2 else names[::-1]:
            yield name, length


def arrived(name: str, sink: Sink, expected: int) -> None:
    """Wait until every span is there, and begin to count anew.

    Raises:
        SystemExit: one was lost.
    """
    end = time.monotonic() + _DRAIN
    while (found := sink.count()) < expected and time.monotonic() < end:
        time.sleep(0.05)
    if found != expected:
        raise SystemExit(f"{name}: {expected} spans were sent and {found} arrived")
    sink.samples()


def scrape(bridge: Process) -> tuple[int, float]:
    """Series of calls that are served, and the CPU of serving all metrics once, in ms."""
    request = urllib.request.Request(f"http://127.0.0.1:{bridge.metrics_port}/metrics", headers=_OPENMETRICS)
    before = subjects.cpu_seconds(bridge)
    with urllib.request.urlopen(request, timeout=120) as answer:
        text = answer.read().decode()
    name = re.escape(f"{catalog.DERIVED_SPAN_CALLS.prometheus}_total")
    return len(re.findall(rf"^{name}{{", text, re.MULTILINE)), 1e3 * (subjects.cpu_seconds(bridge) - before)


def main() -> None:
    """Measure both workloads, print, keep the figures."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.spanmetrics", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9, help="of each subject (default 9)")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each round (default 3)")
    parser.add_argument("--no-results", action="store_true", help="leave results.json as it is")
    options = parser.parse_args()
    found = {}
    for workload, suffix in ((workloads.small(), ""), (many(), ".10k")):
        for name, value in measure(workload, options.rounds, options.seconds).items():
            found[f"derive.{name}{suffix}"] = value
            print(f"{f'derive.{name}{suffix}':40} {value:10.3g}", flush=True)
    if not options.no_results:
        figures.merge(found)


if __name__ == "__main__":
    main()
