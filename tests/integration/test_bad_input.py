"""Odd and broken requests through a whole bridge, by each transport: each costs itself, the rest arrives."""

from __future__ import annotations

import gzip
import http.client
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceResponse,
)

from otel_bridge.testing import attributes_of, spans_of, trace_request
from tests.support.processes import Bridge, eventually, running
from tests.support.sinks import SERVICES, GrpcSink
from tests.support.wire_maker import sized

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.proto.trace.v1.trace_pb2 import Span

MIB = 1 << 20
MENDED = "otel_bridge_receiver_mended_strings_total"


@dataclass
class Path:
    """One transport into the bridge, and what comes out behind it."""

    transport: str
    bridge: Bridge
    sink: GrpcSink

    def send(self, data: bytes) -> ExportTracePartialSuccess:
        """Send what must be taken; what the bridge says of it."""
        code, body = self.answer(data)
        assert code in {"OK", "200"}, body
        return ExportTraceServiceResponse.FromString(body).partial_success

    def answer(self, data: bytes) -> tuple[str, bytes]:
        """The answer's code and body (of a refusal by gRPC: its text)."""
        if self.transport == "grpc":
            options = [("grpc.max_send_message_length", -1)]
            with closing(grpc.insecure_channel(f"127.0.0.1:{self.bridge.grpc_port}", options)) as channel:
                try:
                    return "OK", channel.unary_unary(f"/{SERVICES['traces']}/Export")(data, timeout=60)
                except grpc.RpcError as error:
                    return error.code().name, error.details().encode()
        headers = {"Content-Type": "application/x-protobuf", "Content-Encoding": "gzip"}
        with closing(
            http.client.HTTPConnection("127.0.0.1", self.bridge.http_port, timeout=60)
        ) as connection:
            connection.request("POST", "/v1/traces", gzip.compress(data, 1), headers)
            reply = connection.getresponse()
            return str(reply.status), reply.read()

    def arrived(self, count: int) -> list[Span]:
        """The spans that arrived, exactly so many; what was looked at before is forgotten."""
        eventually(f"{count} spans", lambda: len(self.sink.spans()) >= count)
        spans = self.sink.spans()
        assert len(spans) == count
        self.sink.requests.clear()
        return spans


@pytest.fixture(scope="module")
def service(tmp_path_factory) -> Iterator[tuple[Bridge, GrpcSink]]:
    """A bridge and what is behind it."""
    sink = GrpcSink()
    config = {"exporters": {"otlp": {"endpoint": f"127.0.0.1:{sink.port}", "max_request_size": "64MiB"}}}
    with sink, running(Bridge(tmp_path_factory.mktemp("bad-input"), config)) as bridge:
        yield bridge, sink


@pytest.fixture(params=["grpc", "http"])
def path(service, request) -> Iterator[Path]:
    """A way in; afterwards the bridge still does its work, and no bug was met."""
    bridge, sink = service
    sink.requests.clear()
    way = Path(request.param, bridge, sink)
    yield way
    sink.requests.clear()
    assert not way.send(trace_request([{"name": "good"}])).rejected_spans
    assert [span.name for span in way.arrived(1)] == ["good"]
    assert bridge.total("otel_bridge_receiver_failed_requests_total") == 0
    assert bridge.total("otel_bridge_exporter_dropped_items_total") == 0


def nested(levels: int) -> bytes:
    """A request of one span, in an attribute of which kvlists lie in each other."""
    value = sized(1, b"inside")
    for _ in range(levels):
        value = sized(6, sized(1, sized(1, b"k") + sized(2, value)))
    ids = sized(1, b"t" * 16) + sized(2, b"s" * 8)
    return sized(1, sized(2, sized(2, ids + sized(9, sized(1, b"deep") + sized(2, value)))))


def test_ten_thousand_attributes(path):
    attributes = {f"key.{number}": number for number in range(10_000)}
    path.send(trace_request([{"attributes": attributes}]))
    (span,) = path.arrived(1)
    assert attributes_of(span.attributes) == attributes


def test_ten_mebibytes_in_one_attribute(path):
    text = "я" * (5 * MIB)
    path.send(trace_request([{"attributes": {"text": text}}, {}]))
    first, _ = path.arrived(2)
    assert attributes_of(first.attributes) == {"text": text}


def test_nesting_as_deep_as_decoders_go_passes_and_deeper_costs_its_span(path):
    path.send(nested(30))
    (span,) = path.arrived(1)
    assert span == spans_of(nested(30))[0]
    partial = path.send(trace_request([{"name": "beside"}]) + nested(3000))
    assert partial.rejected_spans == 1
    assert "nested deeper" in partial.error_message
    assert [span.name for span in path.arrived(1)] == ["beside"]


def test_a_million_empty_resources(path):
    partial = path.send(b"\x0a\x00" * 1_000_000)
    assert not partial.rejected_spans
    path.send(b"\x0a\x00" * 1_000_000 + trace_request([{}]))
    path.arrived(1)


@pytest.mark.parametrize(
    ("start", "end"), [(0, 0), (1_700_000_001_000_000_000, 1_700_000_000_000_000_000), (0, 2**64 - 1)]
)
def test_times_of_zero_reversed_or_absurd_stay_as_they_are(path, start, end):
    path.send(trace_request([{"start_time_unix_nano": start, "end_time_unix_nano": end}]))
    (span,) = path.arrived(1)
    assert (span.start_time_unix_nano, span.end_time_unix_nano) == (start, end)


def test_a_repeated_attribute_stays_as_it_is(path):
    once = trace_request([{"attributes": {"k": "first", "l": 2}}])
    (span,) = spans_of(once)
    twice = span.attributes[0]
    twice.value.string_value = "second"
    path.send(sized(1, sized(2, sized(2, span.SerializeToString() + sized(9, twice.SerializeToString())))))
    (arrived,) = path.arrived(1)
    assert [one.key for one in arrived.attributes] == ["k", "l", "k"]


def test_one_text_cut_inside_a_character_costs_two_characters(path):
    """Case otlp-utf8: 100 of 100 spans arrive, two strings are mended, nothing is sent twice."""
    before = path.bridge.total(MENDED)
    whole = trace_request([{"attributes": {"k?": "你?!"}}, *[{"attributes": {"n": n}} for n in range(99)]])
    broken = whole.replace(b"k?", b"k\xff").replace("你?!".encode(), b"\xe4\xbd\xa0\xe5\xa5")
    assert len(broken) == len(whole)
    path.send(broken)
    spans = path.arrived(100)
    assert attributes_of(spans[0].attributes) == {"k\ufffd": "你\ufffd"}
    assert [attributes_of(span.attributes) for span in spans[1:]] == [{"n": n} for n in range(99)]
    assert path.bridge.total(MENDED) - before == 2
    assert path.bridge.total("otel_bridge_exporter_send_failures_total") == 0


@pytest.mark.parametrize(
    ("ids", "reason"),
    [
        ({"trace_id": bytes(16)}, "all-zero trace id"),
        ({"span_id": bytes(8)}, "all-zero span id"),
        ({"trace_id": b"t" * 15}, "trace id that is not 16 bytes"),
        ({"trace_id": b"t" * 24}, "trace id that is not 16 bytes"),
        ({"span_id": b"s" * 9}, "span id that is not 8 bytes"),
        ({"span_id": b""}, "span id that is not 8 bytes"),
        ({"parent_span_id": b"p" * 7}, "parent span id"),
    ],
)
def test_a_bad_id_costs_its_span(path, ids, reason):
    partial = path.send(trace_request([{"name": "a"}, ids, {"name": "b"}]))
    assert partial.rejected_spans == 1
    assert reason in partial.error_message
    assert [span.name for span in path.arrived(2)] == ["a", "b"]


@pytest.mark.parametrize("data", [trace_request([{}] * 3)[:-1], b"\xff" * 100, b"not OTLP at all"])
def test_what_is_no_request_is_refused_with_its_place(path, data):
    code, text = path.answer(data)
    assert code in {"INVALID_ARGUMENT", "400"}
    assert b"byte " in text
    assert path.sink.requests == []
