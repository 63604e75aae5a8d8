"""The engine's spans: vLLM's `llm_request`, the HTTP server's own, or both."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from opentelemetry import baggage, propagate, trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.instrumentation.aiohttp_server import AioHttpServerInstrumentor
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import Span

BODY_ATTRIBUTE = "http.request.body.content"
CAPTURED_HEADERS = "x-model-id"
SYNTHETIC = "user_agent.synthetic.type"
"""Semantic conventions' mark for traffic that no user made; callers send it as W3C baggage."""


class Shape(Enum):
    """Which spans a request leaves."""

    VLLM = "vllm"
    HTTP = "http"
    BOTH = "both"


@dataclass(frozen=True, slots=True)
class Timings:
    """Where one generation's time went, in seconds."""

    e2e: float
    prefill: float
    decode: float
    to_first_token: float | None = None
    """As seen by the server when it streams; otherwise queue and prefill."""

    @property
    def queue(self) -> float:
        """What neither prefill nor decode explains: waiting for a slot, and handing over."""
        return max(0.0, self.e2e - self.prefill - self.decode)

    def attributes(self) -> dict[str, float]:
        """As vLLM names them."""
        first = self.queue + self.prefill if self.to_first_token is None else self.to_first_token
        return {
            "gen_ai.latency.e2e": self.e2e,
            "gen_ai.latency.time_in_queue": self.queue,
            "gen_ai.latency.time_to_first_token": first,
            "gen_ai.latency.time_in_model_prefill": self.prefill,
            "gen_ai.latency.time_in_model_decode": self.decode,
            "gen_ai.latency.time_in_model_inference": self.prefill + self.decode,
        }


class MarkSynthetic(SpanProcessor):
    """Marks the spans of a request that says in its baggage that it is a test."""

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Copy the mark."""
        kind = baggage.get_baggage(SYNTHETIC, parent_context)
        if isinstance(kind, str):
            span.set_attribute(SYNTHETIC, kind)


class Tracing:
    """Records what a server of this shape would.

    Args:
        shape: which spans.
        endpoint: OTLP/gRPC URL that they are sent to.
    """

    def __init__(self, shape: Shape, endpoint: str) -> None:
        self.shape = shape
        self._provider = TracerProvider(resource=Resource.create({"service.name": "engine"}))
        self._provider.add_span_processor(MarkSynthetic())
        exporter = OTLPSpanExporter(endpoint=endpoint, insecure=endpoint.startswith("http:"))
        self._provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=500))
        self._tracer = self._provider.get_tracer("demo.engine")
        if shape is not Shape.VLLM:
            os.environ["OTEL_SEMCONV_STABILITY_OPT_IN"] = "http"
            os.environ["OTEL_INSTRUMENTATION_HTTP_CAPTURE_HEADERS_SERVER_REQUEST"] = CAPTURED_HEADERS
            os.environ["OTEL_PYTHON_AIOHTTP_SERVER_EXCLUDED_URLS"] = "/health,/metrics"
            AioHttpServerInstrumentor().instrument(tracer_provider=self._provider)

    def context(self, headers: Mapping[str, str]) -> Context:
        """The context of a request: the HTTP server's span where there is one, else the caller's."""
        caller = propagate.extract(headers)
        current = trace.get_current_span()
        return trace.set_span_in_context(current, caller) if current.get_span_context().is_valid else caller

    def capture_body(self, text: str) -> None:
        """Put the request's body on the HTTP server's span, as capturing instrumentations do."""
        trace.get_current_span().set_attribute(BODY_ATTRIBUTE, text)

    def llm_request(
        self,
        context: Context,
        request_id: str,
        body: Mapping[str, Any],
        *,
        start_ns: int,
        timings: Timings,
        usage: Mapping[str, int],
    ) -> None:
        """Record one generation as vLLM does: afterwards, without a model, with all its figures."""
        if self.shape is Shape.HTTP:
            return
        attributes: dict[str, str | int | float] = {
            "gen_ai.request.id": request_id,
            "gen_ai.request.n": int(body.get("n") or 1),
            "gen_ai.request.temperature": float(body.get("temperature", 1.0)),
            "gen_ai.request.top_p": float(body.get("top_p", 1.0)),
            **timings.attributes(),
        }
        for name in ("prompt_tokens", "completion_tokens"):
            if name in usage:
                attributes[f"gen_ai.usage.{name}"] = usage[name]
        most = body.get("max_completion_tokens", body.get("max_tokens"))
        if most is not None:
            attributes["gen_ai.request.max_tokens"] = int(most)
        span = self._tracer.start_span(
            "llm_request", context, kind=SpanKind.SERVER, attributes=attributes, start_time=start_ns
        )
        span.end(time.time_ns())

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()
