"""The requests of the data path's benchmark, encoded beforehand, and what each span must leave with."""

from __future__ import annotations

import json
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_bridge.testing import attributes_of, key_values

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MAGIC = bytes.fromhex("b3a7c15edd42f00d")
"""Every trace id begins with it, so that a sink counts spans without decoding them."""
MODELS = ("llama-3.1-8b-instruct", "qwen2.5-7b-instruct", "mistral-7b-v0.3", "gemma-2-9b-it")
TARGETS = ("llm.model.id", "llm.prompt.len", "llm.inference.batch_size")
_TEXT = (
    "the model answers a question about traces spans latency tokens and the queue in front of it while "
    "kernel events show where time went and why one request of many was slower than all of its neighbours"
)
_AGE_NS = 60 * 10**9
"""Spans ended so long ago: a bridge that waits for kernel events has nothing to wait for."""


@dataclass(frozen=True)
class Workload:
    """Requests to send over and over.

    Attributes:
        name: how figures call it.
        spans: in each request.
        requests: encoded ExportTraceServiceRequests.
        span_bytes: mean size of a span on the wire.
    """

    name: str
    spans: int
    requests: tuple[bytes, ...]

    @property
    def span_bytes(self) -> float:
        """Mean bytes of a span on the wire, with its share of the request."""
        return sum(map(len, self.requests)) / len(self.requests) / self.spans


def small() -> Workload:
    """1,000 SERVER spans a request, each 10 attributes and 535 bytes, a JSON body of 90 bytes among them."""
    return _workload("small", 1_000, 8, _small_body)


def genai() -> Workload:
    """10 SERVER spans a request with a JSON body of 100 KB in each."""
    return _workload("genai", 10, 8, _large_body)


def wrong(data: bytes) -> list[str]:
    """What is not as it must be in a request that came out: each span's three attributes, names and types."""
    request = ExportTraceServiceRequest.FromString(data)
    found = []
    for resource in request.resource_spans:
        for scope in resource.scope_spans:
            for span in scope.spans:
                attributes = attributes_of(span.attributes)
                want = _expected(attributes)
                have = {key: attributes.get(key) for key in TARGETS}
                if have != want or any(type(have[key]) is not type(want[key]) for key in TARGETS):
                    found.append(f"span {span.span_id.hex()}: {have}, not {want}")
                if sum(one.key in TARGETS for one in span.attributes) != len(TARGETS):
                    found.append(f"span {span.span_id.hex()}: an attribute is there twice")
    return found


def _expected(attributes: dict) -> dict:
    body = json.loads(attributes["http.request.body"])
    query = dict(part.split("=") for part in attributes["url.query"].split("&"))
    return {
        "llm.model.id": attributes["http.request.header.x-model-id"],
        "llm.prompt.len": len(body["messages"][0]["content"].encode()),
        "llm.inference.batch_size": int(query.get("batch_size", 1)),
    }


def _workload(name: str, spans: int, variants: int, body: Callable[[random.Random], str]) -> Workload:
    rng = random.Random(20_250)
    return Workload(name, spans, tuple(_request(spans, rng, body) for _ in range(variants)))


def _request(spans: int, rng: random.Random, body: Callable[[random.Random], str]) -> bytes:
    request = ExportTraceServiceRequest()
    resource_spans = request.resource_spans.add()
    resource_spans.resource.attributes.extend(
        key_values(
            {"service.name": "inference-gateway", "service.version": "1.4.2", "host.name": "gpu-node-17"}
        )
    )
    scope_spans = resource_spans.scope_spans.add()
    scope_spans.scope.name = "opentelemetry.instrumentation.asgi"
    base = time.time_ns() - _AGE_NS
    for number in range(spans):
        start = base - number * 1_000_000
        span = scope_spans.spans.add(
            trace_id=MAGIC + rng.randbytes(8),
            span_id=rng.randbytes(8),
            parent_span_id=rng.randbytes(8),
            name="POST /v1/chat/completions",
            kind=2,
            start_time_unix_nano=start,
            end_time_unix_nano=start + rng.randrange(10**7, 10**9),
        )
        # Half of the spans leave the batch size to the default.
        query = f"batch_size={rng.randrange(1, 64)}&stream=true" if number % 2 else "stream=true&n=1"
        span.attributes.extend(
            key_values(
                {
                    "http.request.method": "POST",
                    "url.path": "/v1/chat/completions",
                    "url.query": query,
                    "http.response.status_code": 200,
                    "http.request.header.x-model-id": rng.choice(MODELS),
                    "http.request.body": body(rng),
                    "server.address": "inference.eu-1.example.com",
                    "server.port": 8443,
                    "client.address": f"10.0.{rng.randrange(256)}.{rng.randrange(256)}",
                    "network.protocol.version": "1.1",
                }
            )
        )
    return request.SerializeToString()


def _small_body(rng: random.Random) -> str:
    return _chat(rng, 20 + rng.randrange(12))


def _large_body(rng: random.Random) -> str:
    return _chat(rng, 100_000)


def _chat(rng: random.Random, size: int) -> str:
    return json.dumps({"model": "default", "messages": [{"role": "user", "content": _prose(rng, size)}]})


def _prose(rng: random.Random, size: int) -> str:
    """ASCII, so that characters and bytes count alike, with the escapes that JSON makes of line ends."""
    words: Sequence[str] = rng.choices(_TEXT.split(), k=size // 4 + 1)
    lines = "\n".join(" ".join(words[at : at + 12]) for at in range(0, len(words), 12))
    return lines[:size]
