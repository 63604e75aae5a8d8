"""What a sender is told of a request that was taken."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from otel_bridge.model import Signal
from otel_bridge.receivers.otlp.status import trim

if TYPE_CHECKING:
    from otel_bridge.contracts import Outcome

_RESPONSES = {
    Signal.TRACES: (ExportTraceServiceResponse, "rejected_spans", "rejectedSpans"),
    Signal.METRICS: (ExportMetricsServiceResponse, "rejected_data_points", "rejectedDataPoints"),
    Signal.LOGS: (ExportLogsServiceResponse, "rejected_log_records", "rejectedLogRecords"),
}


def protobuf(signal: Signal, outcome: Outcome) -> bytes:
    """The Export*ServiceResponse; without anything to say it is empty, `partial_success` unset."""
    if not outcome.rejected and not outcome.message:
        return b""
    response, rejected, _ = _RESPONSES[signal]
    partial = {rejected: outcome.rejected, "error_message": trim(outcome.message)}
    data: bytes = response(partial_success=partial).SerializeToString()
    return data


def json(signal: Signal, outcome: Outcome) -> bytes:
    """The same in protobuf's JSON: 64-bit numbers are strings, what is zero or empty is left out."""
    if not outcome.rejected and not outcome.message:
        return b"{}"
    partial = {}
    if outcome.rejected:
        partial[_RESPONSES[signal][2]] = str(outcome.rejected)
    if outcome.message:
        partial["errorMessage"] = trim(outcome.message)
    return orjson.dumps({"partialSuccess": partial})
