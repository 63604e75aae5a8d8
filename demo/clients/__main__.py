"""One client: `python -m demo.clients openinference --server http://127.0.0.1:8000/v1 --otlp http://…:4317`.

Prints one JSON object a line: each exchange as it ends, and in the end what was sent in all.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import openai
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from demo.clients.instrumentations import INSTRUMENTATIONS, model_header, traceparent_hooks
from demo.clients.traffic import EXCHANGES, MODEL, Exchange

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import ReadableSpan, Span

SYNTHETIC = ("user_agent.synthetic.type", "test")
"""Semantic conventions' mark for traffic that no user made."""


@dataclass(frozen=True)
class Report:
    """How one exchange went.

    Attributes:
        exchange: its name.
        trace_id: 32 hex digits.
        ok: it ended as it was meant to, a refusal included.
        prompt_bytes: UTF-8 bytes of prompt text in each request, in order.
        outcome: for people.
    """

    exchange: str
    trace_id: str
    ok: bool
    prompt_bytes: list[int]
    outcome: str


class MarkAndCount(SpanProcessor):
    """Marks each span as test traffic, and counts what will be exported."""

    def __init__(self) -> None:
        self.ended = 0

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:  # noqa: ARG002
        """Mark."""
        span.set_attribute(*SYNTHETIC)

    def on_end(self, span: ReadableSpan) -> None:  # noqa: ARG002
        """Count."""
        self.ended += 1


def perform(exchange: Exchange, client: openai.OpenAI, tracer: trace.Tracer) -> Report:
    """Do it inside a span of the application."""
    with tracer.start_as_current_span(f"app: {exchange.name}") as span:
        trace_id = trace.format_trace_id(span.get_span_context().trace_id)
        try:
            sizes = exchange.run(client)
        except openai.APIError as error:
            meant = exchange.refused is not None and isinstance(error, exchange.refused)
            return Report(exchange.name, trace_id, meant, [], type(error).__name__)
    answered = exchange.refused is None
    return Report(exchange.name, trace_id, answered, sizes, "answered" if answered else "not refused")


def main() -> int:
    """Run every exchange; 1 when one did not go as it was meant to."""
    parser = argparse.ArgumentParser(prog="python -m demo.clients", description=__doc__.splitlines()[0])
    parser.add_argument("client", choices=INSTRUMENTATIONS)
    parser.add_argument("--server", required=True, help="base URL of the OpenAI API")
    parser.add_argument("--otlp", required=True, help="OTLP/gRPC URL that spans are sent to")
    options = parser.parse_args()

    counter = MarkAndCount()
    provider = TracerProvider(resource=Resource.create({"service.name": f"client-{options.client}"}))
    provider.add_span_processor(counter)
    exporter = OTLPSpanExporter(endpoint=options.otlp, insecure=options.otlp.startswith("http:"))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    INSTRUMENTATIONS[options.client](provider)

    client = openai.OpenAI(
        base_url=options.server,
        api_key="none",
        max_retries=0,
        default_headers={"baggage": "=".join(SYNTHETIC), **model_header(options.client, MODEL)},
    )
    for event, hooks in traceparent_hooks(options.client).items():
        client._client.event_hooks[event].extend(hooks)  # noqa: SLF001 - passing a client of our own would replace its defaults
    tracer = provider.get_tracer("demo.clients")
    reports = []
    for exchange in EXCHANGES:
        reports.append(perform(exchange, client, tracer))
        emit(asdict(reports[-1]))
    provider.shutdown()
    emit({"spans": counter.ended})
    return 0 if all(report.ok for report in reports) else 1


def emit(document: dict[str, object]) -> None:
    """One line, at once."""
    print(json.dumps(document, ensure_ascii=False), flush=True)  # noqa: T201 - the parent process reads it


if __name__ == "__main__":
    sys.exit(main())
