"""What the codec costs a span, beside protobuf's own decoding and encoding in the same run.

    python -m tests.bench.micro_codec

Nanoseconds of CPU a span, the best of several rounds taken in turns: scanning with a plan of 80 keys and 10
prefixes, scanning and splicing three attributes into every span, the same by the reference codec, what upb
takes to decode and encode the request, and a mere copy of its bytes. Memory is kept as in the service.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_bridge.batch import PlanBuilder
from otel_bridge.memory import keep_freed_memory
from otel_bridge.model import Scope
from otel_bridge.receivers.otlp.codec import NativeCodec
from otel_bridge.receivers.otlp.reference import ReferenceCodec
from otel_bridge.testing import trace_request
from tests.bench import figures
from tests.bench.workloads import genai, small

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from otel_bridge.batch import Plan
    from otel_bridge.contracts import Codec

ROUNDS = 15
ROUND_SECONDS = 0.05
MODEL = "http.request.header.x-model-id"
SENT = (
    MODEL,
    "http.request.method",
    "url.path",
    "url.query",
    "http.response.status_code",
    "server.address",
    "http.request.body",
    "server.port",
)
"""Keys of the workloads' spans that the plan has."""
PREFIXES = (
    "gen_ai.prompt.",
    "gen_ai.completion.",
    "llm.prompts.",
    "llm.input_messages.",
    "http.request.header.",
)


def plan() -> Plan:
    """80 keys and 10 prefixes; a span of the workloads has eight of the keys, one of them under a prefix."""
    builder = PlanBuilder()
    for key in SENT:
        builder.want(key)
    for number in range(36):
        builder.want(f"gen_ai.attribute.{number}")
        builder.want(f"llm.attribute_{number}")
    for prefix in PREFIXES:
        builder.want(prefix, prefix=True)
        builder.want("x." + prefix, prefix=True)
    builder.want("service.name", scope=Scope.RESOURCE)
    return builder.build()


def steps(codec: Codec, data: bytes) -> Mapping[str, Callable[[], object]]:
    """What is measured, by name."""
    wanted = plan()
    model = [want.key for want in wanted.wants].index(MODEL)
    count = len(codec.scan(data, wanted))
    rows = np.arange(count, dtype="<u4")
    lengths = np.arange(count, dtype="<i8") + 1000

    def scan_and_splice() -> bytes:
        batch = codec.scan(data, wanted)
        column = batch.column(model)
        batch.set_slices("llm.model.id", column["row"], column["off"], column["len"])
        batch.set_ints("llm.prompt.len", rows, lengths)
        batch.set_ints("llm.inference.batch_size", rows, lengths)
        return batch.splice()

    return {"scan": lambda: codec.scan(data, wanted), "scan_splice": scan_and_splice}


def known(data: bytes) -> Mapping[str, Callable[[], object]]:
    """What it is measured against."""
    return {
        "upb": lambda: ExportTraceServiceRequest.FromString(data).SerializeToString(),
        "copy": lambda: bytes(memoryview(data)),
    }


def best(measured: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Seconds a call, the least of all rounds; rounds of different steps alternate."""
    found = dict.fromkeys(measured, float("inf"))
    for _ in range(ROUNDS):
        for name, step in measured.items():
            calls, start = 0, time.process_time()
            while (spent := time.process_time() - start) < ROUND_SECONDS:
                step()
                calls += 1
            found[name] = min(found[name], spent / max(calls, 1))
    return found


def main() -> None:
    """Measure, print, and keep the figures."""
    keep_freed_memory()
    native, reference = NativeCodec(), ReferenceCodec()
    one = trace_request([{"attributes": {MODEL: "m", "url.query": "n=1"}}])
    results = {}
    for name, data in (("small", small().requests[0]), ("genai", genai().requests[0]), ("single", one)):
        spans = len(native.scan(data, plan()))
        by_reference = {"reference scan_splice": steps(reference, data)["scan_splice"]}
        found = best({**steps(native, data), **by_reference, **known(data)})
        print(f"{name}: {spans:,} spans of {len(data) / spans:,.0f} bytes; ns of CPU a span")
        for step, seconds in found.items():
            print(f"  {step:22} {seconds / spans * 1e9:>9,.0f}   upb {found['upb'] / seconds:.2f} times")
        for step in ("scan", "scan_splice"):
            results[f"codec.{name}.{step}_ns"] = found[step] / spans * 1e9
        results[f"codec.{name}.upb_ratio"] = found["upb"] / found["scan_splice"]
    figures.merge(results)


if __name__ == "__main__":
    main()
