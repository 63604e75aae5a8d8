"""What keeping recent traces for /ui adds to the data path: nanoseconds a span, and as a share of the rest.

python -m tests.bench.micro_ui [--no-results]

The rest is scan, the default steps and splice, without transport. Requests of 1,000 spans and of one, each
span of a trace of its own; with three in a hundred failed; and all of one trace that goes on.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time

from otel_bridge.contracts import SystemClock
from otel_bridge.pipeline import build_steps
from otel_bridge.receivers.otlp.codec import NativeCodec
from otel_bridge.settings import ProcessorSettings
from otel_bridge.telemetry import Telemetry
from otel_bridge.testing import trace_request
from otel_bridge.ui.config import UiConfig
from otel_bridge.ui.recent import RecentTraces
from tests.bench import figures
from tests.bench.micro_enrich import http_span

REQUESTS = 200
WARM_UP = 50
CASES = {"large": (1000, 0.0), "large, 3 % failed": (1000, 0.03), "small": (1, 0.0), "one trace": (100, 0.0)}
KEPT = {"large": "ui.ns_per_span", "small": "ui.small_ns_per_span"}


def requests(spans: int, failed: float, chance: random.Random, *, one_trace: bool) -> list[bytes]:
    """Requests with spans of traces of their own, or all of one trace."""
    trace = chance.randbytes(16)

    def span() -> dict[str, object]:
        return http_span("a prompt of some words") | {
            "trace_id": trace if one_trace else chance.randbytes(16),
            "span_id": chance.randbytes(8),
            "status": {"code": 2 if chance.random() < failed else 0},
        }

    return [trace_request([span() for _ in range(spans)]) for _ in range(REQUESTS)]


def cost(codec: NativeCodec, spans: int, data: list[bytes]) -> tuple[float, float]:
    """Of the step and of the rest, ns a span: medians of requests, once all is warm."""
    telemetry, clock = Telemetry(), SystemClock()
    recent = RecentTraces(UiConfig(), telemetry, clock)
    path = build_steps(ProcessorSettings(), telemetry, clock, recent=recent.tap)
    *others, (_, step) = path.processors
    rest, own = [], []
    for request in data:
        begin = time.perf_counter()
        batch = codec.scan(request, path.plan)
        for _, other in others:
            other.process(batch)
        before = time.perf_counter()
        step.process(batch)
        after = time.perf_counter()
        batch.splice()
        own.append(after - before)
        rest.append(time.perf_counter() - begin - own[-1])
    step_cost, rest_cost = (statistics.median(times[WARM_UP:]) / spans * 1e9 for times in (own, rest))
    return step_cost, rest_cost


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.micro_ui", description=__doc__)
    parser.add_argument("--no-results", action="store_true", help="leave results.json as it is")
    options = parser.parse_args()
    codec, chance = NativeCodec(), random.Random(7)
    found: dict[str, float] = {}
    print(f"{'case':20} {'step ns':>8} {'rest ns':>8} {'share':>6}   a span")
    for name, (spans, failed) in CASES.items():
        data = requests(spans, failed, chance, one_trace=name == "one trace")
        step, rest = cost(codec, spans, data)
        print(f"{name:20} {step:8.0f} {rest:8.0f} {step / rest:6.3f}")
        if name in KEPT:
            found[KEPT[name]] = step
            found[KEPT[name].replace("ns_per_span", "share")] = step / rest
    if not options.no_results:
        figures.merge(found)


if __name__ == "__main__":
    main()
