"""OTLP/JSON in: what is accepted, what is refused and how that is told, and that json_format agrees."""

from __future__ import annotations

import base64
import contextlib
import json
import math
import re

import orjson
import pytest
from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_bridge import catalog
from otel_bridge.errors import MalformedRequestError
from otel_bridge.model import Signal
from otel_bridge.receivers.otlp.otlp_json import convert
from otel_bridge.testing import attributes_of, spans_of
from tests.support.otlp_clients import JSON

MESSAGES = {
    Signal.TRACES: ExportTraceServiceRequest,
    Signal.METRICS: ExportMetricsServiceRequest,
    Signal.LOGS: ExportLogsServiceRequest,
}
SPAN = {
    "traceId": "5B8EFFF798038103D269B633813FC60C",
    "spanId": "EEE19B7EC3C1B174",
    "name": "chat",
    "kind": 2,
    "startTimeUnixNano": "1697982593201336000",
    "endTimeUnixNano": 1697982593201347750,
    "attributes": [
        {"key": "gen_ai.usage.input_tokens", "value": {"intValue": "25"}},
        {"key": "gen_ai.usage.output_tokens", "value": {"intValue": 7}},
    ],
    "notOfOtlp": {"anything": [1, None]},
}


def document(span, top="resourceSpans"):
    return {top: [{"scopeSpans": [{"spans": [span]}]}]}


def one_span(span, **options):
    [found] = spans_of(convert(orjson.dumps(document(span, **options)), Signal.TRACES).data)
    return found


def value(any_value):
    """An AnyValue after its way through JSON."""
    return one_span(SPAN | {"attributes": [{"key": "k", "value": any_value}]}).attributes[0].value


def refusal(body, signal=Signal.TRACES):
    with pytest.raises(MalformedRequestError) as caught:
        convert(body if isinstance(body, bytes) else orjson.dumps(body), signal)
    return str(caught.value)


class TestTheCase:
    """The shapes that cost senders all their spans or all their token counts elsewhere."""

    async def test_a_span_as_senders_write_it(self, start):
        running = await start()
        reply = await running.post(json.dumps(document(SPAN)).encode(), "application/json; charset=utf-8")
        assert (reply.status, reply.headers["Content-Type"], reply.body) == (200, JSON, b"{}")
        [span] = running.sink.spans
        assert span.trace_id.hex() == "5b8efff798038103d269b633813fc60c"
        assert span.span_id.hex() == "eee19b7ec3c1b174"
        assert span.kind == 2
        assert span.start_time_unix_nano == 1697982593201336000
        assert span.end_time_unix_nano == 1697982593201347750
        assert attributes_of(span.attributes) == {
            "gen_ai.usage.input_tokens": 25,
            "gen_ai.usage.output_tokens": 7,
        }

    @pytest.mark.parametrize(
        ("field", "text"),
        [
            ("traceId", "W47/95gDgQPSabYzgT/GDA=="),
            ("traceId", "NWI4ZWZmZjc5ODAzODEwM2QyNjliNjMzODEzZmM2MGM="),
            ("spanId", "7uGbfsPBsXQ="),
            ("parentSpanId", "7uGbfsPBsXQ="),
            ("traceId", "5b8efff798038103d269b633813fc60"),
            ("traceId", "5b8efff7 98038103 d269b633 813fc60c"),
            ("traceId", 7),
        ],
    )
    async def test_ids_that_are_not_hex(self, start, field, text):
        running = await start()
        reply = await running.post(orjson.dumps(document(SPAN | {field: text})), JSON)
        assert (reply.status, reply.headers["Content-Type"], reply.error.code) == (400, JSON, 3)
        assert reply.error.message.startswith(
            f"resourceSpans[0].scopeSpans[0].spans[0].{field}: found {text!r}"
        )
        assert running.sink.requests == []

    def test_an_enum_by_name(self):
        assert one_span(SPAN | {"kind": "SPAN_KIND_SERVER"}).kind == 2
        assert "spans[0].kind" in refusal(document(SPAN | {"kind": "SERVER"}))

    def test_names_in_snake_case(self):
        span = {"trace_id": SPAN["traceId"], "start_time_unix_nano": "5", "kind": 2}
        found = one_span(span, top="resource_spans")
        assert (found.trace_id.hex(), found.start_time_unix_nano) == (SPAN["traceId"].lower(), 5)

    async def test_an_id_of_a_wrong_length_is_left_to_the_consumer(self, start):
        """It costs its span, not the request (partial success)."""
        running = await start()
        reply = await running.post(orjson.dumps(document(SPAN | {"traceId": "5b8eff"})), JSON)
        assert reply.status == 200
        assert running.sink.spans[0].trace_id.hex() == "5b8eff"

    async def test_a_document_of_another_signal_is_not_a_silent_success(self, start):
        running = await start()
        reply = await running.post(b'{"resourceLogs": [], "x": 1}', JSON)
        assert reply.status == 200
        partial = json.loads(reply.body)["partialSuccess"]
        assert "rejectedSpans" not in partial
        assert "'resourceSpans'" in partial["errorMessage"]
        assert "'resourceLogs'" in partial["errorMessage"]


class TestValues:
    @pytest.mark.parametrize("number", [0, 7, -7, 2**53 + 1, 2**63 - 1, -(2**63)])
    def test_integers(self, number):
        assert value({"intValue": number}).int_value == number
        assert value({"intValue": str(number)}).int_value == number

    def test_whole_floats_are_integers(self):
        assert value({"intValue": 25.0}).int_value == 25

    @pytest.mark.parametrize(
        "bad", [2**63, str(-(2**63) - 1), 1.5, "1.5", "", " 5", "1_0", "٣", "9" * 5000, True, [], {}]
    )
    def test_what_is_no_integer(self, bad):
        path = "resourceSpans[0].scopeSpans[0].spans[0].attributes[0].value.intValue"
        body = document(SPAN | {"attributes": [{"key": "k", "value": {"intValue": bad}}]})
        assert refusal(json.dumps(body).encode()).startswith(path + ": found ")

    @pytest.mark.parametrize(
        ("given_", "expected"),
        [(1.5, 1.5), (3, 3.0), ("2.5", 2.5), ("Infinity", math.inf), ("-Infinity", -math.inf), (-0.0, -0.0)],
    )
    def test_doubles(self, given_, expected):
        assert value({"doubleValue": given_}).double_value == expected

    def test_nan(self):
        assert math.isnan(value({"doubleValue": "NaN"}).double_value)
        assert "NaN is written as a string" in refusal(b'{"resourceSpans": [{"x": NaN}]}')

    @pytest.mark.parametrize("bad", ["", "one", True, None.__class__.__name__, []])
    def test_what_is_no_double(self, bad):
        assert "doubleValue" in refusal(document(SPAN | {"attributes": [{"value": {"doubleValue": bad}}]}))

    @pytest.mark.parametrize("data", [b"", b"\xff", b"\xfb\xff", b"\xfb\xff\xfe"])
    def test_bytes(self, data):
        for text in (
            base64.b64encode(data),
            base64.b64encode(data).rstrip(b"="),
            base64.urlsafe_b64encode(data),
        ):
            assert value({"bytesValue": text.decode()}).bytes_value == data

    @pytest.mark.parametrize("bad", ["!", "abcde", "ab cd", "é", 5, []])
    def test_what_is_no_base64(self, bad):
        assert "bytesValue" in refusal(document(SPAN | {"attributes": [{"value": {"bytesValue": bad}}]}))

    def test_a_field_that_is_null_is_left_out(self):
        found = one_span(SPAN | {"parentSpanId": None, "events": None, "status": None})
        assert found.parent_span_id == b""
        assert not found.HasField("status")

    def test_null_in_an_array_is_the_empty_value(self):
        values = value({"arrayValue": {"values": [{"intValue": 1}, None]}}).array_value.values
        assert [item.WhichOneof("value") for item in values] == ["int_value", None]

    @pytest.mark.parametrize(
        ("body", "place"),
        [
            (b"[]", "the body: found an array, expected an object"),
            (b'"x"', "the body: found 'x', expected an object"),
            (b"{", "line 1, column 2"),
            (b"", "not JSON"),
            (b'{"resourceSpans": {}}', "resourceSpans: found an object, expected an array"),
            (b'{"resourceSpans": [[]]}', "resourceSpans[0]: found an array, expected an object"),
            (
                b'{"resourceSpans": [{}, {"resource": 5}]}',
                "resourceSpans[1].resource: found 5, expected an object",
            ),
            (
                b'{"resourceSpans": [{"schemaUrl": 5}]}',
                "resourceSpans[0].schemaUrl: found 5, expected a string",
            ),
        ],
    )
    def test_errors_name_the_place(self, body, place):
        assert place in refusal(body)

    def test_long_values_are_not_repeated_in_errors(self):
        assert len(refusal(document(SPAN | {"kind": "x" * 100_000}))) < 300


class TestText:
    """Text that is not Unicode costs a character, not the request."""

    def test_bytes_cut_inside_a_character(self):
        body = (
            json.dumps(document(SPAN | {"name": "NAME"})).encode().replace(b"NAME", b"\xe4\xbd\xa0\xe5\xa5")
        )
        converted = convert(body, Signal.TRACES)
        assert spans_of(converted.data)[0].name == "你\ufffd"
        assert converted.mended == 1

    @pytest.mark.parametrize(
        ("escaped", "expected"),
        [(rb"cut \ud83d", "cut \ufffd"), (rb"\udca9 cut", "\ufffd cut"), (rb"\ud83d\ude00", "😀")],
    )
    def test_an_escaped_surrogate_pair_cut_in_two(self, escaped, expected):
        body = json.dumps(document(SPAN | {"name": "NAME"})).encode().replace(b"NAME", escaped)
        converted = convert(body, Signal.TRACES)
        assert spans_of(converted.data)[0].name == expected
        assert converted.mended == ("\ufffd" in expected)

    async def test_mended_strings_are_counted(self, start):
        running = await start()
        spans = [SPAN | {"name": "NAME"}, SPAN, SPAN | {"name": "NAME"}]
        body = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}).encode()
        assert (await running.post(body.replace(b"NAME", b"\xff"), JSON)).status == 200
        assert [span.name for span in running.sink.spans] == ["\ufffd", "chat", "\ufffd"]
        assert running.value(catalog.RECEIVER_MENDED_STRINGS) == 2


class TestDepth:
    """Nesting is bounded, and within the bound it is the consumer's to judge."""

    @staticmethod
    def nested(depth):
        opening, closing = '{"kvlistValue":{"values":[{"key":"k","value":', "}]}}"
        value = opening * depth + '{"intValue":1}' + closing * depth
        body = json.dumps(document(SPAN | {"attributes": [{"key": "k", "value": "VALUE"}]}))
        return body.replace('"VALUE"', value).encode()

    def test_deeper_than_protobuf_parsers_go_is_passed_on(self):
        assert convert(self.nested(100), Signal.TRACES).data.count(b"\x0a\x01k") == 101

    @pytest.mark.parametrize("body", [b"[" * 100_000, b'{"resourceSpans":' * 50_000, b"[" * 990 + b"]" * 990])
    def test_absurd_nesting_is_refused(self, body):
        assert refusal(body)

    @pytest.mark.parametrize("depth", [240, 250, 5000])
    def test_nesting_beyond_the_stack_is_refused(self, depth):
        assert "nested too deeply" in refusal(self.nested(depth))


# Against json_format, on random messages


RANGES = {
    FieldDescriptor.TYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_SINT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.TYPE_FIXED32: (0, 2**32 - 1),
    FieldDescriptor.TYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_SFIXED64: (-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.TYPE_FIXED64: (0, 2**64 - 1),
}
DOUBLES = (0.0, -0.0, 1.5, -1e300, 5e-324, math.inf, -math.inf, math.nan)
TEXTS = ("", "k", 'é😀\x00"\\', "x" * 127, "x" * 128, "你" * 6000)


def scalar(field, random):
    if field.type in RANGES:
        low, high = RANGES[field.type]
        return random.choice(
            (low, high, min(max(0, low), high), random.randint(low, high), random.randint(0, 300))
        )
    if field.type == FieldDescriptor.TYPE_ENUM:
        return random.choice(field.enum_type.values).number
    if field.type == FieldDescriptor.TYPE_DOUBLE:
        return random.choice((*DOUBLES, random.uniform(-1e9, 1e9)))
    return {
        FieldDescriptor.TYPE_BOOL: lambda: random.random() < 0.5,
        FieldDescriptor.TYPE_STRING: lambda: random.choice(TEXTS),
        FieldDescriptor.TYPE_BYTES: lambda: random.randbytes(random.choice((0, 1, 8, 16, 200))),
    }[field.type]()


def random_fields(descriptor, random, depth=0):
    """Random arguments for a message's constructor, at most one field of each oneof."""
    out = {}
    taken = set()
    for field in random.sample(list(descriptor.fields), len(descriptor.fields)):
        oneof = field.containing_oneof.name if field.containing_oneof else field.name
        # The upper levels are always there, or most messages would be empty.
        wanted = random.random() < 0.6 / (1 + depth / 6) or (depth < 3 and field.is_repeated)
        if oneof in taken or not wanted:
            continue
        taken.add(oneof)
        count = random.randint(1 if depth < 3 else 0, 2) if field.is_repeated else 1
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            items = [random_fields(field.message_type, random, depth + 1) for _ in range(count)]
        else:
            items = [scalar(field, random) for _ in range(count)]
        out[field.name] = items if field.is_repeated else items[0]
    return out


def hexed(value):
    """Protobuf's JSON as OTLP writes it: ids in hex."""
    if isinstance(value, list):
        return [hexed(item) for item in value]
    if isinstance(value, dict):
        return {
            name: base64.b64decode(item).hex()
            if re.search("(trace|span)_?id$", name, re.IGNORECASE)
            else hexed(item)
            for name, item in value.items()
        }
    return value


def canonical(message) -> bytes:
    return message.SerializeToString(deterministic=True)


@pytest.mark.parametrize("signal", list(Signal))
@pytest.mark.parametrize("snake", [False, True], ids=["camel", "snake"])
@pytest.mark.parametrize("numbers", [False, True], ids=["enum-names", "enum-numbers"])
def test_reads_what_json_format_writes(signal, snake, numbers):
    """Whatever a message holds comes through unchanged."""
    kind = MESSAGES[signal]

    @settings(max_examples=60, deadline=None)
    @given(st.randoms(use_true_random=True))
    def check(random):
        message = kind(**random_fields(kind.DESCRIPTOR, random))
        as_dict = json_format.MessageToDict(
            message, preserving_proto_field_name=snake, use_integers_for_enums=numbers
        )
        converted = convert(json.dumps(hexed(as_dict)).encode(), signal)
        assert canonical(kind.FromString(converted.data)) == canonical(message)
        assert converted.mended == 0

    check()


@settings(max_examples=300, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["resourceSpans", "scopeSpans", "spans", "traceId", "kind", "name", "attributes", "value"]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=20,
    )
)
def test_any_json_is_converted_or_refused(value):
    """What comes out parses; nothing but a refusal is raised."""
    try:
        converted = convert(json.dumps(value, allow_nan=True).encode(), Signal.TRACES)
    except MalformedRequestError:
        return
    ExportTraceServiceRequest.FromString(converted.data)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_converted_or_refused(body):
    """Nothing but a refusal is raised."""
    with contextlib.suppress(MalformedRequestError):
        convert(body, Signal.TRACES)
