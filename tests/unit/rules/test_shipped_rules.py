"""Every shipped rule that the bridge evaluates fires on its scenario, and not on one that comes close."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from otel_bridge.rules.load import load_rules
from tests.support.rules import MS, Bench

if TYPE_CHECKING:
    from collections.abc import Callable

ALERTS = Path(__file__).parents[3] / "alerts"
RULES = {item.rule.name: item for item in load_rules([ALERTS / "rules"])}
STREAMED = [name for name, item in RULES.items() if item.rule.engine != "prometheus"]
GPU = {"gpu_uuid": "GPU-1"}


def handshakes(bench: Bench, *durations: int, every: float = 1.0) -> None:
    """TLS handshakes of so many milliseconds, one after the other."""
    for number, duration in enumerate(durations, 1):
        bench.at(number * every)
        bench.event("tls_handshake", number * every, duration=duration * MS)


def tls_stall(bench: Bench) -> None:
    handshakes(bench, 501, 650, 700)
    bench.event("cuda_alloc", 6.0, error=2)


def tls_stall_with_a_quick_one_between(bench: Bench) -> None:
    handshakes(bench, 501, 500, 700, 650)
    bench.event("cuda_alloc", 4.5, error=2)


def burst(kind: str, count: int, every: float, **fields: object) -> Callable[[Bench], None]:
    """So many events of a kind, so many seconds apart."""

    def scenario(bench: Bench) -> None:
        for number in range(count):
            bench.at(1 + number * every)
            bench.event(kind, 1 + number * every, **fields)

    return scenario


def gauge(metric: str, /, *values: tuple[float, float], **labels: str) -> Callable[[Bench], None]:
    """A gauge read each second: so high for so many seconds, and so on."""

    def scenario(bench: Bench) -> None:
        at = 0.0
        for value, seconds in values:
            for _ in range(round(seconds)):
                at += 1
                bench.at(at)
                bench.reading(metric, at, value, **labels)

    return scenario


def counter(metric: str, /, *values: float, every: float = 1.0, **labels: str) -> Callable[[Bench], None]:
    """A counter read so often."""

    def scenario(bench: Bench) -> None:
        for number, value in enumerate(values, 1):
            bench.at(number * every)
            bench.reading(metric, number * every, value, **labels)

    return scenario


def failed_span(message: str) -> Callable[[Bench], None]:
    return lambda bench: bench.span(1, error=True, message=message)


def traffic(*phases: tuple[int, int, float, int], every: float = 1.0) -> Callable[[Bench], None]:
    """Phases of (rounds, spans a round, their seconds, their tokens), a round each `every` seconds."""

    def scenario(bench: Bench) -> None:
        at = 0.0
        for rounds, count, seconds, tokens in phases:
            for _ in range(rounds):
                at += every
                bench.at(at)
                attributes = {"gen_ai.usage.output_tokens": tokens}
                bench.spans([{"at": at, "seconds": seconds, "attributes": attributes}] * count)

    return scenario


def saturated(requests: int, utilisation: float) -> Callable[[Bench], None]:
    """Requests a second and utilisation, for 90 seconds."""

    def scenario(bench: Bench) -> None:
        for second in range(1, 91):
            bench.at(second)
            bench.reading("otel_bridge_gpu_utilization_ratio", second, utilisation, **GPU)
            bench.spans([{"at": second}] * requests)

    return scenario


USED = "otel_bridge_gpu_memory_used_ratio"
PREEMPTED = "otel_bridge_gpu_preemption_gap_ratio"
SWING = "otel_bridge_gpu_sawtooth_swing_ratio"
TENANT = GPU | {"tenant_id": "a"}
LOST = {"probe": "tls", "cpu": "0", "reason": "full"}

SCENARIOS: dict[str, tuple[Callable[[Bench], None], Callable[[Bench], None]]] = {
    "TlsStallWithGpuAllocationFailure": (tls_stall, tls_stall_with_a_quick_one_between),
    "OomKill": (burst("oom_kill", 1, 1, comm=b"python"), burst("reclaim", 5, 1, comm=b"python")),
    "TcpRetransmitStorm": (burst("tcp_retransmit", 100, 0.1), burst("tcp_retransmit", 150, 0.102)),
    "RunQueueStarvation": (
        burst("sched_wait", 20, 0.5, run_queue_ns=51 * MS, tgid=7),
        burst("sched_wait", 60, 0.1, run_queue_ns=50 * MS, tgid=7),
    ),
    "NvmeQueueFull": (
        burst("block_io", 10, 1, queue_depth=256, major=259),
        burst("block_io", 30, 0.1, queue_depth=255, major=259),
    ),
    "GpuMemoryCritical": (
        gauge(USED, (0.96, 32), **GPU),
        gauge(USED, (0.96, 29), (0.94, 1), (0.96, 20), **GPU),
    ),
    "CudaOutOfMemory": (
        failed_span("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"),
        failed_span("CUDA error: device-side assert triggered"),
    ),
    "NcclTimeout": (
        failed_span("Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12)"),
        failed_span("NCCL error: unhandled system error"),
    ),
    "GpuXid": (
        counter("otel_bridge_gpu_xid_errors", 0, 0, 1, xid="79", **GPU),
        counter("otel_bridge_gpu_xid_errors", 3, 3, 3, xid="79", **GPU),
    ),
    "GpuTimeSlicePreemption": (
        gauge(PREEMPTED, (0.36, 17), **TENANT),
        gauge(PREEMPTED, (0.36, 14), (0.2, 3), (0.36, 14), **TENANT),
    ),
    "GpuUtilizationSawtooth": (gauge(SWING, (0.4, 62), **GPU), gauge(SWING, (0.4, 55), (0.0, 5), **GPU)),
    "TokenThroughputDrop": (
        traffic((210, 18, 1, 100), (30, 18, 1, 60), every=10),
        traffic((210, 18, 1, 100), (30, 18, 1, 80), every=10),
    ),
    "LatencyWithThroughputDrop": (
        traffic((480, 20, 1, 100), (120, 20, 2.5, 80), every=5),
        traffic((480, 20, 1, 100), (120, 20, 2.0, 80), every=5),
    ),
    "RequestRateAtSaturatedGpu": (saturated(125, 0.95), saturated(125, 0.91)),
    "BridgeItemsDropped": (
        counter("otel_bridge_exporter_dropped_items", 0, 5, exporter="otlp", signal="traces", reason="full"),
        counter("otel_bridge_exporter_dropped_items", 5, 5, exporter="otlp", signal="traces", reason="full"),
    ),
    "BridgeBackPressure": (
        counter("otel_bridge_exporter_enqueue_failed_requests", *range(70), exporter="otlp"),
        counter("otel_bridge_exporter_enqueue_failed_requests", 0, *[1] * 55, exporter="otlp"),
    ),
    "BridgeClockOffset": (
        gauge("otel_bridge_kernel_clock_error_seconds", (0.002, 62)),
        gauge("otel_bridge_kernel_clock_error_seconds", (0.002, 30), (0.0005, 40)),
    ),
    "KernelEventsLost": (
        counter("otel_bridge_kernel_dropped_events", 0, 1, **LOST),
        counter("otel_bridge_kernel_dropped_events", 0, 0, **LOST),
    ),
    "RuleGroupsEvicted": (
        counter("otel_bridge_rules_evicted_groups", 0, 1, rule="R"),
        counter("otel_bridge_rules_evicted_groups", 1, 1, rule="R"),
    ),
    "DerivedSeriesOverflow": (
        counter("otel_bridge_derive_overflow", 0, 9, metric="m"),
        counter("otel_bridge_derive_overflow", 9, 9, metric="m"),
    ),
    "BridgeRulesLate": (
        counter("otel_bridge_rules_ignored_items", 0, 1, reason="late"),
        counter("otel_bridge_rules_ignored_items", 0, 0, reason="late"),
    ),
}


def run(name: str, scenario: Callable[[Bench], None]) -> list[bool]:
    """Whether the rule began (True) or ended (False) to fire, in order."""
    bench = Bench(loaded=[RULES[name]])
    scenario(bench)
    return [firing.active for firing in bench.firings if firing.rule == name]


@pytest.mark.parametrize("name", STREAMED)
def test_it_fires(name):
    """Once, and goes on."""
    fires, _ = SCENARIOS[name]
    assert run(name, fires) == [True]


@pytest.mark.parametrize("name", STREAMED)
def test_it_stays_silent(name):
    """On what comes close."""
    _, silent = SCENARIOS[name]
    assert run(name, silent) == []


def test_it_fires_on_the_driver_and_on_the_span_alike():
    """Either source is enough for a CUDA allocation failure."""
    assert run("CudaOutOfMemory", burst("cuda_alloc", 1, 1, error=-12)) == [True]


@pytest.mark.parametrize("item", RULES.values(), ids=lambda item: item.rule.name)
def test_it_has_a_runbook_entry(item):
    """Under a heading that its annotation links to."""
    headings = re.findall(r"^## (\S+)$", (ALERTS / "runbook.md").read_text(), re.MULTILINE)
    assert item.rule.runbook_entry in headings


def test_every_runbook_entry_is_of_a_rule():
    """An entry without a rule misleads."""
    headings = re.findall(r"^## (\S+)$", (ALERTS / "runbook.md").read_text(), re.MULTILINE)
    assert sorted(headings) == sorted(item.rule.runbook_entry for item in RULES.values())
