"""What a destination said, read."""

from __future__ import annotations

import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from otel_bridge.exporters.otlp.answer import (
    Delivered,
    read_json,
    read_protobuf,
    retry_after,
    retry_info,
)
from otel_bridge.model import Signal


def test_an_empty_answer_is_full_success():
    assert read_protobuf(Signal.TRACES, b"") == Delivered()
    assert read_json(Signal.TRACES, b"") == Delivered()
    assert read_json(Signal.TRACES, b"{}") == Delivered()


@pytest.mark.parametrize(
    ("signal", "message_type", "field"),
    [
        (Signal.TRACES, ExportTraceServiceResponse, "rejected_spans"),
        (Signal.METRICS, ExportMetricsServiceResponse, "rejected_data_points"),
        (Signal.LOGS, ExportLogsServiceResponse, "rejected_log_records"),
    ],
)
def test_partial_success_of_each_signal(signal, message_type, field):
    message = message_type()
    setattr(message.partial_success, field, 3)
    message.partial_success.error_message = "quota"
    assert read_protobuf(signal, message.SerializeToString()) == Delivered(3, "quota")


@pytest.mark.parametrize("rejected", ["3", 3])
@pytest.mark.parametrize(
    ("signal", "field"),
    [
        (Signal.TRACES, "rejectedSpans"),
        (Signal.METRICS, "rejectedDataPoints"),
        (Signal.LOGS, "rejectedLogRecords"),
    ],
)
def test_partial_success_in_json_with_the_number_as_a_string_or_not(signal, field, rejected):
    """cases.md otlp-partial (c)."""
    number = f'"{rejected}"' if isinstance(rejected, str) else str(rejected)
    body = f'{{"partialSuccess":{{"{field}":{number},"errorMessage":"quota"}}}}'.encode()
    assert read_json(signal, body) == Delivered(3, "quota")


def test_a_warning_rejects_nothing():
    message = ExportTraceServiceResponse()
    message.partial_success.error_message = "old field"
    assert read_protobuf(Signal.TRACES, message.SerializeToString()) == Delivered(0, "old field")


@pytest.mark.parametrize(
    "body",
    [
        b"<html>",
        b"[]",
        b"3",
        b'{"partialSuccess":[1]}',
        b'{"partialSuccess":{"rejectedSpans":"x"}}',
        b"\xff\xfe",
    ],
)
def test_success_with_nonsense_in_json_counts_as_sent(body):
    answer = read_json(Signal.TRACES, body)
    assert answer.garbled
    assert answer.rejected == 0


def test_success_with_nonsense_in_protobuf_counts_as_sent():
    answer = read_protobuf(Signal.TRACES, b"<html>not found</html>")
    assert answer.garbled
    assert "ExportTraceServiceResponse" in answer.message


def test_a_negative_number_rejects_nothing():
    message = ExportTraceServiceResponse()
    message.partial_success.rejected_spans = -5
    assert read_protobuf(Signal.TRACES, message.SerializeToString()).rejected == 0


def test_a_long_message_is_cut():
    message = ExportTraceServiceResponse()
    message.partial_success.error_message = "x" * 10_000
    assert len(read_protobuf(Signal.TRACES, message.SerializeToString()).message) < 600


def test_retry_info_is_found_among_other_details():
    details = [AnyMessage(), AnyMessage()]
    details[0].Pack(ErrorInfo(reason="QUOTA"))
    details[1].Pack(RetryInfo(retry_delay=Duration(seconds=7, nanos=500_000_000)))
    assert retry_info(Status(code=14, details=details).SerializeToString()) == 7.5


@pytest.mark.parametrize("details", [b"", b"\xff\xff", Status(code=14).SerializeToString()])
def test_no_retry_info(details):
    assert retry_info(details) is None


NOW_NS = 1_792_000_000_000_000_000  # Wed, 14 Oct 2026 17:46:40 GMT


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("120", 120.0),
        (" 0 ", 0.0),
        ("Wed, 14 Oct 2026 17:47:10 GMT", 30.0),
        ("Wednesday, 14-Oct-26 17:47:10 GMT", 30.0),
        ("Wed, 14 Oct 2026 17:00:00 GMT", 0.0),
        ("soon", None),
        ("-5", None),
        ("", None),
        (None, None),
        ("99999999999999999999", 1e20),
    ],
)
def test_retry_after_in_both_notations(value, seconds):
    assert retry_after(value, NOW_NS) == seconds
