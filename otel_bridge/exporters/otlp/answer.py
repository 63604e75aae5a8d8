"""What came of one try: the destination's answer, read and classified, alike for both transports."""

from __future__ import annotations

from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import orjson
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from otel_bridge.model import Signal

if TYPE_CHECKING:
    from collections.abc import Sequence

_RESPONSES: dict[Signal, tuple[type[Any], str, str]] = {
    Signal.TRACES: (ExportTraceServiceResponse, "rejected_spans", "rejectedSpans"),
    Signal.METRICS: (ExportMetricsServiceResponse, "rejected_data_points", "rejectedDataPoints"),
    Signal.LOGS: (ExportLogsServiceResponse, "rejected_log_records", "rejectedLogRecords"),
}
_TEXT_LIMIT = 500


@dataclass(frozen=True, slots=True)
class Delivered:
    """The destination took the request; it must not be sent again.

    Attributes:
        rejected: items that it refused for good (partial success).
        message: why, or a warning.
        garbled: the answer said success and could not be read otherwise.
    """

    rejected: int = 0
    message: str = ""
    garbled: bool = False


@dataclass(frozen=True, slots=True)
class Failed:
    """The destination did not take the request, or nobody knows whether it did.

    Attributes:
        code: the gRPC status' name, the HTTP status, "timeout" or "connection": a label value.
        message: what it said, fit for a log.
        retryable: whether the same request may be sent again.
        retry_after: seconds to wait that the destination asked for.
        oversize: the request is too large for it.
        limit: its limit in bytes, where it said so.
        doubtful: the request itself may be the cause (it ran into the timeout, or was aborted).
    """

    code: str
    message: str
    retryable: bool
    retry_after: float | None = None
    oversize: bool = False
    limit: int | None = None
    doubtful: bool = False


Answer: TypeAlias = Delivered | Failed


class Sender(Protocol):
    """One destination's transport."""

    codes: Sequence[str]
    """The failure codes that are known beforehand, so that their counters exist at 0."""

    async def start(self) -> None:
        """Prepare; connecting is left to the first request."""

    async def send(self, signal: Signal, payload: bytes) -> Answer:
        """Try once. Every failure is an answer; nothing is raised but cancellation."""

    async def close(self) -> None:
        """Close connections."""


def shorten(text: str) -> str:
    """A text of somebody else's, cut for a log line."""
    return text if len(text) <= _TEXT_LIMIT else text[:_TEXT_LIMIT] + "…"


def read_protobuf(signal: Signal, body: bytes) -> Delivered:
    """Read an Export…ServiceResponse."""
    if not body:
        return Delivered()
    message_type, rejected, _ = _RESPONSES[signal]
    try:
        partial = message_type.FromString(body).partial_success
    except DecodeError:
        return Delivered(garbled=True, message=f"{len(body)} bytes that are no {message_type.__name__}")
    return Delivered(rejected=max(getattr(partial, rejected), 0), message=shorten(partial.error_message))


def read_json(signal: Signal, body: bytes) -> Delivered:
    """Read the same in OTLP/JSON; 64-bit integers may be strings or numbers."""
    try:
        answer = orjson.loads(body) if body else {}
        partial = answer.get("partialSuccess") or {}
        rejected = int(partial.get(_RESPONSES[signal][2]) or 0)
        return Delivered(rejected=max(rejected, 0), message=shorten(str(partial.get("errorMessage") or "")))
    except (ValueError, TypeError, AttributeError):
        return Delivered(garbled=True, message=shorten(body[:_TEXT_LIMIT].decode(errors="replace")))


def retry_info(details: bytes) -> float | None:
    """The wait that a google.rpc.Status message asks for with RetryInfo, seconds."""
    try:
        status = Status.FromString(details)
        for detail in status.details:
            info = RetryInfo()
            if detail.Unpack(info):
                seconds: float = info.retry_delay.seconds + info.retry_delay.nanos / 1e9
                return max(seconds, 0.0)
    except DecodeError:
        return None
    return None


def retry_after(value: str | None, now_ns: int) -> float | None:
    """Seconds from a Retry-After header: a number of seconds, or an HTTP date against the wall clock."""
    if value is None:
        return None
    text = value.strip()
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        at = parsedate_to_datetime(text).timestamp()
    except ValueError:
        return None
    return max(at - now_ns / 1e9, 0.0)
