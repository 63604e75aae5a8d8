"""The one place where an error becomes a status: gRPC's code, HTTP's number, and the body that says why."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc
import orjson
from google.protobuf.json_format import MessageToDict
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from otel_bridge.errors import (
    BridgeError,
    MalformedRequestError,
    PermanentError,
    RequestTooLargeError,
    RetryableError,
    UnauthenticatedError,
    UnsupportedMediaTypeError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

MESSAGE_LIMIT = 1024
"""Bytes of text in an answer. In gRPC it travels twice, in headers of 8 KiB at most."""

SPREAD = 3.0
"""A sender told to wait is told between this and once the wait, so that senders do not come back together."""

INTERNAL = "the bridge failed on this request; its log says why"


@dataclass(frozen=True, slots=True)
class Refusal:
    """How a request that was not taken is answered.

    Attributes:
        code: for gRPC, and in the body.
        http_status: for HTTP.
        message: for a person.
        retry_after: seconds to wait before the next try, already spread; None says nothing about it.
    """

    code: grpc.StatusCode
    http_status: int
    message: str
    retry_after: float | None = None

    def status(self) -> Status:
        """The google.rpc.Status that says the same."""
        number: int = self.code.value[0]
        status = Status(code=number, message=self.message)
        if self.retry_after is not None:
            info = RetryInfo()
            info.retry_delay.FromNanoseconds(round(self.retry_after * 1e9))
            status.details.add().Pack(info)
        return status

    def protobuf(self) -> bytes:
        """`status()` in protobuf."""
        data: bytes = self.status().SerializeToString()
        return data

    def json(self) -> bytes:
        """`status()` in protobuf's JSON."""
        return orjson.dumps(MessageToDict(self.status()))

    def retry_after_header(self, draw: Callable[[], float] = random.random) -> str | None:
        """HTTP's Retry-After: whole seconds, at least one; rounding is by chance, to keep the spread."""
        if self.retry_after is None:
            return None
        whole = math.floor(self.retry_after)
        return str(max(1, whole + (draw() < self.retry_after - whole)))


_STATUS: tuple[tuple[type[BridgeError], grpc.StatusCode, int], ...] = (
    (MalformedRequestError, grpc.StatusCode.INVALID_ARGUMENT, 400),
    (UnauthenticatedError, grpc.StatusCode.UNAUTHENTICATED, 401),
    (RequestTooLargeError, grpc.StatusCode.RESOURCE_EXHAUSTED, 413),
    (UnsupportedMediaTypeError, grpc.StatusCode.UNIMPLEMENTED, 415),
    (PermanentError, grpc.StatusCode.INVALID_ARGUMENT, 400),
    # 503 also for a full queue: senders older than the rule that 429 is retryable drop on it.
    (RetryableError, grpc.StatusCode.UNAVAILABLE, 503),
)

CODES = sorted({code.name for _, code, _ in _STATUS})
HTTP_STATUSES = sorted({str(status) for _, _, status in _STATUS})


def refusal(error: Exception, *, draw: Callable[[], float] = random.random) -> Refusal:
    """How an error is answered; what nobody foresaw is retryable, and tells the sender nothing of its cause.

    Args:
        error: why the request was not taken.
        draw: a number from 0 to 1.
    """
    retry_after = error.retry_after if isinstance(error, RetryableError) else None
    if retry_after is not None:
        retry_after *= 1 + (SPREAD - 1) * draw()
    for kind, code, http_status in _STATUS:
        if isinstance(error, kind):
            return Refusal(code, http_status, trim(str(error)), retry_after)
    return Refusal(grpc.StatusCode.UNAVAILABLE, 503, INTERNAL)


def not_found(path: str) -> Refusal:
    """No such path over HTTP."""
    known = "/v1/traces, /v1/metrics and /v1/logs"
    return Refusal(grpc.StatusCode.NOT_FOUND, 404, trim(f"nothing is served at {path}; OTLP is at {known}"))


def method_not_allowed(method: str) -> Refusal:
    """No such method over HTTP."""
    return Refusal(grpc.StatusCode.UNIMPLEMENTED, 405, trim(f"OTLP is sent with POST, not with {method}"))


def bad_http(reason: str) -> Refusal:
    """Bytes that are not HTTP."""
    return Refusal(grpc.StatusCode.INVALID_ARGUMENT, 400, trim(f"not an HTTP request: {reason}"))


def trim(text: str, limit: int = MESSAGE_LIMIT) -> str:
    """The text as protobuf takes it: Unicode, and cut at a whole character to `limit` bytes of UTF-8."""
    data = text.encode("utf-8", "replace")
    if len(data) > limit:
        return data[: limit - len("…".encode())].decode("utf-8", "ignore") + "…"
    return data.decode()
