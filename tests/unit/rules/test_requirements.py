"""The numbers of D2 and D5 of the requirements, each from both sides, in the streaming engine.

Written from the requirements, not from the rules: a threshold that is changed in alerts/rules fails here.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_bridge import catalog
from otel_bridge.rules.load import load_rules
from tests.support.rules import MS, Bench

ROOT = Path(__file__).parents[3]
LOADED = load_rules([ROOT / "alerts" / "rules"])
RULES = {item.rule.name: item for item in LOADED}
ENOMEM, EINVAL, CUDA_OUT_OF_MEMORY = -12, -22, 2
MICROSECOND = 1e-6


def fired(name: str, feed) -> bool:
    """Whether a shipped rule fires on what it is fed."""
    bench = Bench(loaded=[RULES[name]])
    feed(bench)
    return any(firing.active for firing in bench.firings)


def composite(handshakes, allocation):
    """Handshakes (second, milliseconds) and one allocation (second, error), in the order of their times."""

    def feed(bench: Bench) -> None:
        items = [(at, "tls_handshake", {"duration": round(lasted * MS)}) for at, lasted in handshakes]
        if allocation is not None:
            items.append((allocation[0], "cuda_alloc", {"error": allocation[1]}))
        for at, kind, fields in sorted(items, key=lambda item: item[0]):
            bench.at(at)
            bench.event(kind, at, **fields)

    return feed


THREE = [(1.0, 501), (2.0, 501), (3.0, 501)]


@pytest.mark.parametrize(
    ("handshakes", "allocation", "fires"),
    [
        (THREE, (4.0, ENOMEM), True),
        (THREE, (4.0, CUDA_OUT_OF_MEMORY), True),
        # The order is of no matter: all of it in 5 s, to the nanosecond.
        (THREE, (0.0, ENOMEM), True),
        (THREE, (6.0, ENOMEM), True),
        (THREE, (6.000000001, ENOMEM), False),
        ([(1.0, 501), (3.5, 501), (6.000000001, 501)], (5.0, ENOMEM), False),
        # Three in a row.
        (THREE[:2], (4.0, ENOMEM), False),
        ([*THREE[:2], (2.5, 10), THREE[2]], (4.0, ENOMEM), False),
        ([(0.5, 10), *THREE, (3.5, 10)], (4.0, ENOMEM), True),
        # Over 500 ms.
        ([(1.0, 500), (2.0, 500), (3.0, 500)], (4.0, ENOMEM), False),
        ([(at, 500.000001) for at, _ in THREE], (4.0, ENOMEM), True),
        # An allocation that failed for lack of memory.
        (THREE, None, False),
        (THREE, (4.0, 0), False),
        (THREE, (4.0, EINVAL), False),
        ([], (4.0, ENOMEM), False),
    ],
)
def test_the_default_composite(handshakes, allocation, fires):
    """D2: three consecutive TLS handshakes over 500 ms and one GPU allocation failure within 5 s."""
    assert fired("TlsStallWithGpuAllocationFailure", composite(handshakes, allocation)) is fires


def test_the_default_composite_trips_the_breaker_of_the_node():
    """And is critical."""
    rule = RULES["TlsStallWithGpuAllocationFailure"].rule
    assert (rule.severity, rule.breaker, rule.by) == ("critical", "node", [])


def spread(second: float, number: int) -> list[float]:
    """So many moments of the second that ends then, evenly."""
    return [second - 1 + (one + 0.5) / number for one in range(number)]


@pytest.mark.parametrize(
    ("requests", "utilisation", "fires"),
    [(120, 0.92, True), (119, 0.92, False), (120, 0.9199, False), (400, 0.5, False), (10, 1.0, False)],
)
def test_requests_at_a_saturated_gpu(requests, utilisation, fires):
    """D5: RPS >= 120 with GPU >= 92 %."""

    def feed(bench: Bench) -> None:
        for second in range(1, 91):
            bench.at(second)
            bench.reading(catalog.GPU_UTILIZATION_RATIO.name, second, utilisation, gpu_uuid="GPU-1")
            bench.spans([{"at": at} for at in spread(second, requests)])

    assert fired("RequestRateAtSaturatedGpu", feed) is fires


def phases(before: tuple[list[float], int], after: tuple[list[float], int], seconds: int = 600):
    """Each second a span for each of some durations, with so many tokens: for 40 minutes, and then."""

    def feed(bench: Bench) -> None:
        at = 0
        for (durations, tokens), length in ((before, 2400), (after, seconds)):
            attributes = {"gen_ai.usage.output_tokens": tokens}
            for _ in range(length):
                at += 1
                bench.at(at)
                bench.spans(
                    [
                        {"at": moment, "seconds": lasted, "attributes": attributes}
                        for moment, lasted in zip(spread(at, len(durations)), durations, strict=True)
                    ]
                )

    return feed


@pytest.mark.parametrize(
    ("seconds", "tokens", "fires"),
    [
        (2.1 + MICROSECOND, 845, True),
        (2.1, 845, False),
        (2.1 + MICROSECOND, 855, False),
        (2.1 + MICROSECOND, 1000, False),
    ],
)
def test_latency_with_a_drop_of_throughput(seconds, tokens, fires):
    """D5: P99 > 2.1 s with tokens/s down 15 %, which the sliding window tells to half a point."""
    feed = phases(([1.0] * 4, 1000), ([seconds] * 4, tokens))
    assert fired("LatencyWithThroughputDrop", feed) is fires


@pytest.mark.parametrize(("slow", "fires"), [(1, False), (2, True)])
def test_latency_is_that_of_the_slowest_hundredth(slow, fires):
    """One request of a hundred is not P99, two are."""
    feed = phases(([1.0] * 4, 1000), ([1.0] * (100 - slow) + [3.0] * slow, 1), 120)
    assert fired("LatencyWithThroughputDrop", feed) is fires


def test_metrics_of_others_are_named_as_prometheus_has_them():
    """A counter's `_total` included: without it the rule asks for a series that no engine serves."""
    known = {
        f"{one.name}_total" if one.kind is catalog.Kind.COUNTER and one.total else one.name: one
        for one in vars(catalog).values()
        if isinstance(one, catalog.ForeignMetric)
    }
    scraped = (ROOT / "tests" / "testdata" / "dashboards" / "vllm-0.32-metrics.prom").read_text()
    looked_at = set()
    for item in LOADED:
        for name, series in item.vocabulary.metrics.items():
            if series.own:
                continue
            looked_at.add(name)
            assert name in known
            assert (series.kind, series.unit) == (known[name].kind, known[name].unit)
            if name.startswith("vllm:"):
                assert f"\n{name}{{" in scraped, name
    assert len(looked_at) == 6
