"""One client that publishes its spans: `python -m demo.slow.client --server … --otlp …`.

Makes a request over one kept-alive connection for each line of its input. Prints one JSON object a line:
first its port, then each request's span and duration.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import time
from typing import Any
from urllib.parse import urlsplit

from opentelemetry import propagate, trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

import otel_bridge.context

SERVICE = "client-slow"
SYNTHETIC = "user_agent.synthetic.type"
BODY = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Why was this one slow?"}],
    "max_tokens": 8,
}


def request(connection: http.client.HTTPConnection, path: str, tracer: trace.Tracer) -> dict[str, Any]:
    """One chat completion inside a span of its own."""
    attributes = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "tiny", SYNTHETIC: "test"}
    with tracer.start_as_current_span(
        f"POST {path}", kind=trace.SpanKind.CLIENT, attributes=attributes
    ) as span:
        began = time.perf_counter()
        headers = {"Content-Type": "application/json", "baggage": f"{SYNTHETIC}=test"}
        propagate.inject(headers)
        connection.request("POST", path, json.dumps(BODY), headers)
        answer = connection.getresponse()
        answer.read()
        seconds = time.perf_counter() - began
        span.set_attribute("http.response.status_code", answer.status)
        context = span.get_span_context()
    return {
        "trace_id": trace.format_trace_id(context.trace_id),
        "span_id": trace.format_span_id(context.span_id),
        "status": answer.status,
        "seconds": seconds,
    }


def main() -> None:
    """Serve requests until the input ends."""
    parser = argparse.ArgumentParser(prog="python -m demo.slow.client", description=__doc__)
    parser.add_argument("--server", required=True, help="base URL of the OpenAI API")
    parser.add_argument("--otlp", required=True, help="OTLP/gRPC URL that spans are sent to")
    options = parser.parse_args()
    otel_bridge.context.install()
    provider = TracerProvider(resource=Resource.create({"service.name": SERVICE}))
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(endpoint=options.otlp, insecure=True)))
    tracer = provider.get_tracer("demo.clients")
    server = urlsplit(options.server)
    connection = http.client.HTTPConnection(server.hostname or "127.0.0.1", server.port, timeout=30)
    connection.connect()
    say({"port": connection.sock.getsockname()[1]})
    for _ in sys.stdin:
        say(request(connection, f"{server.path}/chat/completions", tracer))
    connection.close()
    provider.shutdown()


def say(document: dict[str, Any]) -> None:
    """A line for whoever drives this."""
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
