"""Errors become statuses in one place; what nobody foresaw is logged, counted, and told to nobody."""

from __future__ import annotations

import grpc
import orjson
import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from otel_bridge import catalog, errors
from otel_bridge.receivers.otlp import status
from otel_bridge.testing import ConsumerSink, trace_request

REQUEST = trace_request([{}])


@pytest.mark.parametrize(
    ("error", "code", "http_status"),
    [
        (errors.MalformedRequestError("m"), "INVALID_ARGUMENT", 400),
        (errors.PermanentError("m"), "INVALID_ARGUMENT", 400),
        (errors.UnauthenticatedError("m"), "UNAUTHENTICATED", 401),
        (errors.RequestTooLargeError("m"), "RESOURCE_EXHAUSTED", 413),
        (errors.UnsupportedMediaTypeError("m"), "UNIMPLEMENTED", 415),
        (errors.QueueFullError("m"), "UNAVAILABLE", 503),
        (errors.ShuttingDownError("m"), "UNAVAILABLE", 503),
        (errors.RetryableError("m"), "UNAVAILABLE", 503),
        (KeyError("m"), "UNAVAILABLE", 503),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value,
)
def test_the_table(error, code, http_status):
    refusal = status.refusal(error)
    assert (refusal.code.name, refusal.http_status) == (code, http_status)
    assert refusal.message == (status.INTERNAL if isinstance(error, KeyError) else "m")


def test_a_status_says_the_same_in_both_encodings():
    refusal = status.Refusal(grpc.StatusCode.UNAVAILABLE, 503, "full", 2.5)
    assert orjson.loads(refusal.json()) == {
        "code": 14,
        "message": "full",
        "details": [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "2.500s"}],
    }
    assert type(refusal.status()).FromString(refusal.protobuf()) == refusal.status()


@given(st.text(), st.integers(4, 40))
def test_texts_are_cut_at_whole_characters(text, limit):
    cut = status.trim(text, limit)
    assert len(cut.encode()) <= limit
    if len(text.encode()) <= limit:
        assert cut == text
    else:
        assert cut.endswith("…")
        assert text.startswith(cut[:-1])


def test_text_that_is_not_unicode_can_be_told():
    assert status.trim("\udcff") == "?"


async def test_a_bug_is_logged_with_its_traceback_and_then_only_counted(start):
    """One traceback in a while: a bug that hits every request must not fill the disk."""
    running = await start(ConsumerSink(error=ZeroDivisionError("a bug")))
    with structlog.testing.capture_logs() as logs:
        for _ in range(20):
            await running.post(REQUEST)
    [entry] = [entry for entry in logs if entry["log_level"] == "error"]
    assert isinstance(entry["exc_info"], ZeroDivisionError)
    assert running.value(catalog.RECEIVER_FAILED, transport="http") == 20


async def test_refusals_on_purpose_are_not_logged(start):
    running = await start(ConsumerSink(error=errors.QueueFullError("full", retry_after=1)))
    with structlog.testing.capture_logs() as logs:
        await running.post(REQUEST)
    assert logs == []
    assert running.value(catalog.RECEIVER_FAILED, transport="http") == 0
