"""Sampling and the consistency check alone: nanoseconds a span.

python -m tests.bench.micro_sample [--no-results]

What the step itself costs, columns in and edits out; "with splice" adds writing what is left. Requests have
100 traces with 10 spans each, no trace is in two of them, and three in a hundred failed.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from otel_bridge.batch import PlanBuilder
from otel_bridge.processors.consistency.config import ConsistencyConfig
from otel_bridge.processors.consistency.consistency import Consistency
from otel_bridge.processors.sample.config import SampleConfig
from otel_bridge.processors.sample.sample import Sample
from otel_bridge.receivers.otlp.codec import NativeCodec
from otel_bridge.telemetry import Telemetry
from otel_bridge.testing import FakeClock, trace_request
from tests.bench import figures
from tests.bench.micro_enrich import http_span
from tests.support.sampling import Sampling

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_bridge.batch import Batch, Plan

ROUNDS = 15
SPANS = 1000
SPANS_A_TRACE = 10

CASES: dict[str, dict[str, Any]] = {
    "head": {"keep": None},
    "head, 3 environments": {
        "keep": None,
        "environments": {"production": {"baseline": 0.02}, "staging": {"baseline": 1.0}},
    },
    "waiting": {"hold": "memory"},
}


def requests(count: int, seed: int) -> list[bytes]:
    """Some requests, none like another."""
    chance = random.Random(seed)
    out = []
    for _ in range(count):
        spans: list[dict[str, object]] = []
        for _ in range(SPANS // SPANS_A_TRACE):
            trace, told = chance.randbytes(16), chance.random() < 0.03
            spans += [span(chance, trace, number, told=told) for number in range(SPANS_A_TRACE)]
        out.append(trace_request(spans))
    return out


def span(chance: random.Random, trace: bytes, number: int, *, told: bool) -> dict[str, object]:
    """The first of a trace is its root and may have failed."""
    inner: dict[str, object] = {"kind": 1, "parent_span_id": b"\x01" * 8}
    root: dict[str, object] = {"kind": 2, "status": {"code": 2 if told else 0}}
    ids = {"trace_id": trace, "span_id": chance.randbytes(8)}
    return http_span("a prompt of some words") | ids | (inner if number else root)


def best(work: Callable[[Batch], object], codec: NativeCodec, plan: Plan, data: list[bytes]) -> float:
    """Nanoseconds a span in the fastest of some rounds, each on batches that are new to the step."""
    times = []
    for request in data:
        batch = codec.scan(request, plan)
        before = time.perf_counter()
        work(batch)
        times.append(time.perf_counter() - before)
    return min(times) / SPANS * 1e9


def step_costs(codec: NativeCodec, name: str, config: dict[str, Any]) -> tuple[float, float]:
    """The step alone, and with splicing what is left, both without the scan."""
    plan = PlanBuilder()
    sample = Sample(SampleConfig.model_validate({"enabled": True, **config}), plan, Telemetry(), FakeClock())
    compiled = plan.build()

    def with_splice(batch: Batch) -> None:
        sample.process(batch)
        if batch.held is not None:
            batch.splice_held()
        if batch.leaving:
            batch.splice()

    alone = best(sample.process, codec, compiled, requests(ROUNDS, 1))
    return alone, best(with_splice, codec, compiled, requests(ROUNDS, 2))


def checking_cost(codec: NativeCodec, share: float) -> float:
    """The consistency check."""
    plan = PlanBuilder()
    check = Consistency(ConsistencyConfig(share=share), plan, Telemetry(), FakeClock())
    return best(check.process, codec, plan.build(), requests(ROUNDS, 3))


async def pipeline_cost(directory: Path | None, **sample: Any) -> float:
    """From scan to acknowledgement and verdict, all of it."""
    sampling = Sampling(directory, **sample)
    await sampling.pipeline.start()
    data = requests(ROUNDS, 4)
    # The first one makes files and caches.
    await sampling.pipeline.consume_traces(requests(1, 5)[0])
    before = time.process_time()
    for request in data:
        await sampling.pipeline.consume_traces(request)
    sampling.pipeline.hurry()
    await sampling.pipeline._hold.release()
    spent = time.process_time() - before
    await sampling.pipeline.stop(1.0)
    return spent / (SPANS * len(data)) * 1e9


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.micro_sample", description=__doc__)
    parser.add_argument("--no-results", action="store_true", help="leave results.json as it is")
    options = parser.parse_args()
    codec = NativeCodec()
    found: dict[str, float] = {}
    print(f"{'case':28} {'step ns':>8} {'with splice ns':>15}   a span")
    for name, config in CASES.items():
        alone, spliced = step_costs(codec, name, config)
        print(f"{name:28} {alone:8.0f} {spliced:15.0f}")
        if name in ("head", "waiting"):
            found["sample.ns_per_span" if name == "head" else "sample.waiting_ns_per_span"] = alone
    for share in (0.1, 1.0):
        cost = checking_cost(codec, share)
        print(f"{f'consistency, share {share}':28} {cost:8.0f}")
        found[f"consistency.ns_per_span.share_{share:g}"] = cost
    print("\nthrough the pipeline, CPU time of the process, ns a span")
    for name, sample in (
        ("off", {"enabled": False}),
        ("head", {"keep": None}),
        ("memory", {"hold": "memory"}),
        ("disk", {}),
    ):
        place = Path(tempfile.mkdtemp(prefix="sample-bench-"))
        try:
            cost = min(asyncio.run(pipeline_cost(place / str(n), **sample)) for n in range(3))
        finally:
            shutil.rmtree(place)
        print(f"{name:28} {cost:8.0f}")
        found[f"sample.pipeline_ns_per_span.{name}"] = cost
    if not options.no_results:
        figures.merge(found)


if __name__ == "__main__":
    main()
