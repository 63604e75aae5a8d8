"""Enrichment alone: microseconds a span, against a plain Python loop that finds the same three values.

python -m tests.bench.micro_enrich
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from otel_bridge.batch import PlanBuilder
from otel_bridge.processors.enrich.config import EnrichConfig
from otel_bridge.processors.enrich.enrich import Enrich
from otel_bridge.receivers.otlp.codec import NativeCodec
from otel_bridge.telemetry import Telemetry
from otel_bridge.testing import attributes_of, spans_of, trace_request

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from otel_bridge.testing import Value

ROUNDS = 7


def http_span(prompt: str) -> dict[str, object]:
    """A SERVER span with a header, a JSON body and a query."""
    body = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": prompt}], "max_tokens": 12})
    return {
        "name": "POST /v1/chat/completions",
        "attributes": {
            "http.request.method": "POST",
            "url.path": "/v1/chat/completions",
            "url.query": "user=7&batch_size=8",
            "http.request.header.x-model-id": ["tiny"],
            "http.request.body": body,
            "http.response.status_code": 200,
            "server.address": "10.0.0.7",
            "server.port": 8000,
        },
    }


def engine_span(number: int) -> dict[str, object]:
    """A span as vLLM writes it."""
    return {
        "name": "llm_request",
        "attributes": {
            "gen_ai.latency.time_to_first_token": 0.0107,
            "gen_ai.latency.e2e": 0.0443,
            "gen_ai.latency.time_in_queue": 3.2e-05,
            "gen_ai.usage.prompt_tokens": 83,
            "gen_ai.usage.completion_tokens": 12,
            "gen_ai.latency.time_in_model_prefill": 0.0069,
            "gen_ai.latency.time_in_model_decode": 0.0346,
            "gen_ai.latency.time_in_model_inference": 0.0415,
            "gen_ai.request.id": f"chatcmpl-{number:016x}",
            "gen_ai.request.top_p": 0.9,
            "gen_ai.request.max_tokens": 12,
            "gen_ai.request.temperature": 0.3,
            "gen_ai.request.n": 1,
        },
    }


def database_span() -> dict[str, object]:
    """A span that has nothing to do with a model."""
    return {
        "kind": 3,
        "attributes": {
            "db.system.name": "postgresql",
            "db.query.text": "SELECT 1",
            "server.address": "10.0.0.9",
            "server.port": 5432,
        },
    }


def loop(data: bytes) -> list[tuple[str, int, int]]:
    """The same three values, span by span, on decoded messages."""
    out = []
    for span in spans_of(data):
        attributes: Mapping[str, Value] = attributes_of(span.attributes)
        headers = attributes.get("http.request.header.x-model-id")
        body = json.loads(str(attributes["http.request.body"]))
        text = "".join(message["content"] for message in body["messages"])
        size = int(parse_qs(str(attributes["url.query"])).get("batch_size", ["1"])[0])
        out.append((str(headers[0]) if isinstance(headers, list) else "", len(text.encode()), size))
    return out


def best(work: Callable[[], object], spans: int) -> float:
    """Microseconds a span in the fastest of some rounds."""
    times = []
    for _ in range(ROUNDS):
        before = time.perf_counter()
        work()
        times.append(time.perf_counter() - before)
    return min(times) / spans * 1e6


def main() -> None:
    """Measure and print."""
    codec, plan = NativeCodec(), PlanBuilder()
    enrich = Enrich(EnrichConfig(), plan, Telemetry(), convert_messages=False)
    compiled = plan.build()
    cases = {
        "http, small": trace_request([http_span("a prompt of some words")] * 1000),
        "http, 100 KB": trace_request([http_span("x" * 100_000)] * 100),
        "vLLM": trace_request([engine_span(number) for number in range(1000)]),
        "database": trace_request([database_span()] * 1000),
        "http, one span": trace_request([http_span("a prompt of some words")]),
        "vLLM, one span": trace_request([engine_span(1)]),
        "database, one span": trace_request([database_span()]),
    }
    print(f"{len(compiled.wants)} columns wanted")
    print(f"{'case':20} {'spans':>5} {'scan µs':>8} {'enrich µs':>10} {'loop µs':>9} {'ratio':>6}   a span")
    for name, data in cases.items():
        spans = len(spans_of(data))
        scan = best(lambda data=data: codec.scan(data, compiled), spans)
        enriched = best(lambda data=data: enrich.process(codec.scan(data, compiled)), spans) - scan
        line = f"{name:20} {spans:5} {scan:8.2f} {enriched:10.2f}"
        if name.startswith("http"):
            plain = best(lambda data=data: loop(data), spans)
            line += f" {plain:9.2f} {plain / enriched:6.1f}"
        print(line)


if __name__ == "__main__":
    main()
