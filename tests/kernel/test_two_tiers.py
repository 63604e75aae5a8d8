"""What the kernel of one node saw ends on a span that left through another, at the gateway's bridge."""

from __future__ import annotations

import time
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from otel_bridge.testing import attributes_of, trace_request
from tests.support.kernel import eventually
from tests.support.sinks import GrpcSink
from tests.support.topologies import export, site

TRACES = 23
WAITS = 7

pytestmark = pytest.mark.collector

NODE = (
    "processors.join.max_age=0.5s",
    "kernel.mode=required",
    # The scheduler's events are those of programs that publish spans: other tests' storms are few of them.
    *(f"kernel.probes.{name}.enabled=false" for name in ("tcp", "block", "memory", "tls", "requests")),
    "kernel.probes.sched.off_cpu_threshold=10ms",
    "kernel.probes.sched.run_queue_threshold=10s",
)

# Three seconds do on a machine of one's own; on a busy one a node's bridge and its Collector take longer. The
# gateway's Collector waits five for an answer.
GATEWAY = ("processors.join.foreign_wait=4.5s",)


def trace_id(number: int) -> bytes:
    """Spread over the load balancer's ring."""
    return (number * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128).to_bytes(16, "big")


def gauge(port: int, name: str) -> float:
    """What a bridge says of itself; 0 when it says nothing yet."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


def hit(worker, number: int) -> dict:
    """Some sleeps under a span; the span as its SDK would export it."""
    start = time.time_ns()
    ids = {"trace_id": trace_id(number).hex(), "span_id": number.to_bytes(8, "big").hex()}
    worker.do({"do": "sleep", "span": number, "seconds": 0.012, "times": WAITS, **ids})
    return {
        "trace_id": trace_id(number),
        "span_id": number.to_bytes(8, "big"),
        "start_time_unix_nano": start,
        "end_time_unix_nano": time.time_ns(),
    }


def test_events_of_one_node_end_on_spans_that_left_through_another(worker, tmp_path):
    """Every event on its span, and on no other: exported at once, or some seconds later."""
    with (
        GrpcSink() as first,
        GrpcSink() as last,
        ThreadPoolExecutor(TRACES) as pool,
        site("gateway", tmp_path / "gateway", first.port, last.port, overrides=GATEWAY) as (one, other),
        site("node-agent", tmp_path / "node", one.otlp, overrides=NODE) as (node,),
    ):

        def waiting() -> float:
            return sum(
                gauge(replica.bridge_metrics, "otel_bridge_join_waiting_events") for replica in (one, other)
            )

        eventually(
            "the node's bridge follows the worker",
            lambda: gauge(node.bridge_metrics, "otel_bridge_kernel_followed_processes"),
        )
        # Spans wait for events only where there ever was one.
        for warm_up in range(1001, 1001 + TRACES):
            hit(worker, warm_up)
        eventually(
            "both gateways have events",
            lambda: all(
                gauge(replica.bridge_metrics, "otel_bridge_join_waiting_events") for replica in (one, other)
            ),
        )
        # Answered when the gateway's bridge has waited for events of spans so young.
        exports = [
            pool.submit(export, other.otlp, trace_request([hit(worker, number)]))
            for number in range(1, 1 + TRACES)
        ]
        late = [hit(worker, number) for number in range(101, 101 + TRACES)]
        # Of each span its waits and their sum, or more where a round of sums ended in between; then the
        # rest.
        eventually("the gateways have events of all spans", lambda: waiting() >= 3 * TRACES * (WAITS + 1))
        time.sleep(2)
        export(other.otlp, trace_request(late))
        for future in exports:
            future.result()

        def arrived() -> bool:
            return len(first.spans()) + len(last.spans()) == 2 * TRACES

        eventually("every span at a backend", arrived)
        by_backend = [sink.spans() for sink in (first, last)]
    assert all(by_backend), "both gateways had a part"
    for span in by_backend[0] + by_backend[1]:
        names = Counter(event.name for event in span.events)
        assert names == {"kernel.sched.wait": WAITS}, span.span_id.hex()
        attributes = attributes_of(span.attributes)
        assert "otel_bridge.trace" not in attributes, "what the load balancer goes by is gone again"
        assert attributes["kernel.match"] == "thread"
        assert attributes["kernel.sched.long_waits"] == WAITS
        # A sleep's timer runs before its thread has left the CPU.
        assert attributes["kernel.sched.off_cpu.time"] >= WAITS * 11_000_000
        assert all(
            span.start_time_unix_nano <= event.time_unix_nano <= span.end_time_unix_nano + 1_000_000
            for event in span.events
        )
