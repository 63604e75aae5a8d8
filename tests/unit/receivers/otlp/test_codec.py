"""Both codecs on named inputs: what a span's columns say, what an edit does, what bad input costs."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_bridge.batch import ATTRIBUTE, SCOPE, SPAN, Plan, PlanBuilder, Want, doubles, numbers
from otel_bridge.errors import MalformedRequestError, StartError
from otel_bridge.model import Reject, Scope, ValueType
from otel_bridge.receivers.otlp.codec import NativeCodec, choose_codec
from otel_bridge.receivers.otlp.reference import ReferenceCodec
from otel_bridge.testing import attributes_of, key_values, spans_of, trace_request
from tests.support.wire_maker import sized, varint

if TYPE_CHECKING:
    from otel_bridge.batch import Batch
    from otel_bridge.contracts import Codec

NOTHING = Plan(())
IDS = sized(1, b"t" * 16) + sized(2, b"s" * 8)


@pytest.fixture(params=["native", "reference"])
def codec(request) -> Codec:
    if request.param == "reference":
        return ReferenceCodec()
    pytest.importorskip("otel_bridge._native.wire", reason="the native codec is not built")
    return NativeCodec()


def wanting(*keys: str, scope: Scope = Scope.SPAN, prefix: bool = False) -> Plan:
    return Plan(tuple(Want(scope, key, prefix) for key in keys))


def of_span(*fields: bytes) -> bytes:
    """A request of one span, its fields as given."""
    return sized(1, sized(2, sized(2, b"".join(fields))))


def attribute(value: bytes, key: bytes = b"k", number: int = 9) -> bytes:
    return sized(number, sized(1, key) + sized(2, value))


def contents(batch: Batch, slot: int = 0) -> list[str]:
    return [batch.text(int(record["off"]), int(record["len"])) for record in batch.column(slot)]


def test_a_span_becomes_a_row(codec):
    """Ids, times, name, state, kind, status, flags, counts."""
    span = {
        "trace_id": b"t" * 16,
        "span_id": b"s" * 8,
        "parent_span_id": b"p" * 8,
        "trace_state": "a=b",
        "name": "chat",
        "kind": 3,
        "start_time_unix_nano": 5,
        "end_time_unix_nano": 3,
        "flags": 257,
        "status": {"code": 2, "message": "no"},
        "events": [{"name": "e"}, {"name": "f"}],
        "links": [{"trace_id": b"l" * 16, "span_id": b"m" * 8}],
    }
    data = trace_request([{"span_id": b"a" * 8}, span], scope="lib")
    batch = codec.scan(data, NOTHING)
    row = batch.spans[1]
    assert row["trace_id"].tobytes() == b"t" * 16
    assert row["span_id"].tobytes() == b"s" * 8
    assert row["parent_id"].tobytes() == b"p" * 8
    assert (row["start"], row["end"], row["kind"], row["status"], row["flags"]) == (5, 3, 3, 2, 257)
    assert (row["events"], row["links"], row["resource"], row["scope"], row["reject"]) == (2, 1, 0, 0, 0)
    assert batch.text(int(row["name_off"]), int(row["name_len"])) == "chat"
    assert batch.text(int(row["state_off"]), int(row["state_len"])) == "a=b"
    scope = batch.scopes[0]
    assert batch.text(int(scope["name_off"]), int(scope["name_len"])) == "lib"
    assert spans_of(of_span(body(batch, 1)))[0].name == "chat"


def body(batch: Batch, row: int) -> bytes:
    span = batch.spans[row]
    return batch.data[span["body"] : span["off"] + span["len"]]


def test_values_of_every_type(codec):
    """The type, and the value or where it lies."""
    attributes = {"s": "é", "b": True, "i": -3, "d": 0.1, "a": [1], "m": {"x": 1}, "r": b"\0\xff", "e": None}
    plan = wanting(*attributes)
    batch = codec.scan(trace_request([{"attributes": attributes}]), plan)
    records = [batch.column(slot)[0] for slot in range(len(attributes))]
    assert [record["type"] for record in records] == [
        ValueType.STRING,
        ValueType.BOOL,
        ValueType.INT,
        ValueType.DOUBLE,
        ValueType.ARRAY,
        ValueType.KVLIST,
        ValueType.BYTES,
        ValueType.EMPTY,
    ]
    assert contents(batch) == ["é"]
    assert numbers(np.array(records[1:4])).tolist() == [1.0, -3.0, 0.1]
    assert doubles(batch.column(3)).tolist() == [0.1]
    raw = records[6]
    assert batch.data[raw["off"] : raw["off"] + raw["len"]] == b"\0\xff"


def test_resources_and_scopes_are_joined_to_their_spans(codec):
    """`by_span` finds a resource's attribute for each of its spans; empty resources take no number."""
    request = ExportTraceServiceRequest()
    for name in ("one", "", "two"):
        resource_spans = request.resource_spans.add()
        if name:
            resource_spans.resource.attributes.extend(key_values({"service.name": name}))
            resource_spans.scope_spans.add()
            scope_spans = resource_spans.scope_spans.add()
            scope_spans.scope.attributes.extend(key_values({"lib": name}))
            for _ in range(2):
                scope_spans.spans.add(trace_id=b"t" * 16, span_id=b"s" * 8)
    plan = Plan((Want(Scope.RESOURCE, "service.name"), Want(Scope.INSTRUMENTATION, "lib")))
    batch = codec.scan(request.SerializeToString(), plan)
    assert batch.resources == 2
    assert len(batch.scopes) == 2
    assert batch.scopes["resource"].tolist() == [0, 1]
    for slot in range(2):
        assert [contents(batch, slot)[index] for index in batch.by_span(slot)] == ["one", "one", "two", "two"]


def test_the_first_of_repeated_keys_is_the_column(codec):
    """Later ones are duplicates, within a span and over its events; prefixes hold them all."""
    data = of_span(IDS, *(attribute(sized(1, text)) for text in (b"first", b"second", b"third")))
    batch = codec.scan(data, Plan((Want(Scope.SPAN, "k"), Want(Scope.SPAN, "k", prefix=True))))
    assert contents(batch) == ["first"]
    assert batch.duplicates["slot"].tolist() == [0, 0]
    assert contents(batch, 1) == ["first", "second", "third"]
    batch.cut_column(0)
    assert not spans_of(batch.splice())[0].attributes
    events = [sized(11, attribute(sized(1, text), number=3)) for text in (b"one", b"two")]
    batch = codec.scan(of_span(IDS, *events), wanting("k", scope=Scope.EVENT))
    assert contents(batch) == ["one"]
    assert len(batch.duplicates) == 1


def test_oversized_attributes_of_any_key_and_scope(codec):
    """Longer than asked for, by bytes; they stand in their own column too."""
    builder = PlanBuilder()
    builder.want("k")
    builder.want_oversized(10)
    event = sized(11, attribute(sized(1, b"x" * 11), b"other", number=3))
    batch = codec.scan(
        of_span(IDS, attribute(sized(1, b"y" * 10)), attribute(sized(7, b"z" * 20)), event), builder.build()
    )
    assert sorted(batch.oversized["len"].tolist()) == [11, 20]
    assert set(batch.oversized["slot"].tolist()) == {65535}
    assert batch.column(0)["len"].tolist() == [10]


def test_nothing_edited_gives_the_same_object(native):
    """Not a copy."""
    data = trace_request([{}])
    assert native.scan(data, NOTHING).splice() is data


@pytest.fixture
def native() -> Codec:
    pytest.importorskip("otel_bridge._native.wire", reason="the native codec is not built")
    return NativeCodec()


def test_inserts_stand_last_in_the_order_they_were_noted(codec):
    """Each kind, rows in any order, a row twice."""
    batch = codec.scan(trace_request([{"attributes": {"m": "llama"}}, {}, {}]), wanting("m"))
    rows = np.array([2, 0], "<u4")
    batch.set_ints("int", rows, np.array([-1, 2**62]))
    batch.set_doubles("double", rows, np.array([0.5, 1e300]))
    batch.set_bools("bool", rows, np.array([True, False]))
    batch.set_text("const", rows, "é" * 100)
    batch.set_texts("text", rows, ["", "two"])
    column = batch.column(0)
    batch.set_slices("slice", rows[1:], column["off"], column["len"])
    batch.append_fields(np.array([1, 1], "<u4"), [sized(5, b"renamed"), attribute(b"")])
    spans = spans_of(batch.splice())
    common = {"const": "é" * 100}
    assert list(attributes_of(spans[0].attributes).items()) == list(
        {
            "m": "llama",
            "int": 2**62,
            "double": 1e300,
            "bool": False,
            **common,
            "text": "two",
            "slice": "llama",
        }.items()
    )
    assert list(attributes_of(spans[2].attributes).items()) == list(
        {"int": -1, "double": 0.5, "bool": True, **common, "text": ""}.items()
    )
    assert spans[1].name == "renamed"
    assert attributes_of(spans[1].attributes) == {"k": None}


@pytest.mark.parametrize("scope", list(Scope))
def test_cuts_and_replacements_in_every_scope(codec, scope):
    """A cut removes the attribute and wins over a replacement; the neighbours stay."""
    number = {Scope.SPAN: 9, Scope.RESOURCE: 1, Scope.LINK: 4}.get(scope, 3)

    def request(attributes: bytes) -> bytes:
        span = {
            Scope.SPAN: IDS + attributes,
            Scope.EVENT: IDS + sized(11, sized(2, b"e") + attributes),
            Scope.LINK: IDS + sized(13, IDS + attributes),
        }.get(scope, IDS)
        inner = sized(1, attributes) if scope is Scope.INSTRUMENTATION else b""
        outer = sized(1, attributes) if scope is Scope.RESOURCE else b""
        return sized(1, outer + sized(2, inner + sized(2, span)))

    three = b"".join(attribute(sized(1, key), key, number) for key in (b"a", b"b", b"c"))
    batch = codec.scan(request(three), wanting("a", "b", scope=scope))
    changed = attribute(sized(1, b"new" * 50), b"b", number)
    for slot in (0, 1):
        column = batch.column(slot)
        batch.replace_fields(column["kv_off"], column["kv_len"], [changed])
    batch.cut_column(0)
    after = changed + attribute(sized(1, b"c"), b"c", number)
    assert normal(batch.splice()) == normal(request(after))


def normal(data: bytes) -> bytes:
    return ExportTraceServiceRequest.FromString(data).SerializeToString(deterministic=True)


def test_what_loses_all_spans_is_left_out_and_what_came_empty_stays(codec):
    """Scopes and resources alike."""
    empty_scope, one = sized(2, sized(3, b"url")), sized(2, sized(2, IDS))
    data = sized(1, empty_scope + one + one) + sized(1, sized(3, b"empty")) + sized(1, one + empty_scope)
    batch = codec.scan(data, NOTHING)
    batch.drop(np.array([0, 2], "<u4"))
    assert batch.splice() == sized(1, empty_scope + one) + sized(1, sized(3, b"empty"))
    assert batch.leaving == 1
    batch.drop(np.array([1], "<u4"))
    assert batch.splice() == sized(1, sized(3, b"empty"))


def test_unknown_fields_survive_edits(native):
    """In every message around an edit, in their place."""
    extra = sized(99, b"?") + varint(98 << 3) + varint(7)
    data = (
        sized(1, extra + sized(2, extra + sized(2, IDS + extra + attribute(sized(1, b"v")) + extra) + extra))
        + extra
    )
    batch = native.scan(data, wanting("k"))
    batch.cut_column(0)
    batch.set_text("n", np.array([0], "<u4"), "w")
    added = attribute(sized(1, b"w"), b"n")
    assert (
        batch.splice()
        == sized(1, extra + sized(2, extra + sized(2, IDS + extra + extra + added) + extra)) + extra
    )


def test_edits_that_do_not_fit_are_refused(native):
    """A row that is not there, a field that is not there, values that do not match their rows."""
    batch = native.scan(trace_request([{}]), NOTHING)
    batch.set_ints("k", np.array([1], "<u4"), np.array([1]))
    with pytest.raises(ValueError, match="row 1 of 1"):
        batch.splice()
    batch.inserts.clear()
    batch.set_ints("k", np.array([0], "<u4"), np.array([1, 2]))
    with pytest.raises(ValueError, match="do not fit its 1 rows"):
        batch.splice()
    batch.inserts.clear()
    batch.replace_fields(np.array([1], "<u4"), np.array([1], "<u4"), [b""])
    with pytest.raises(ValueError, match="at byte 1"):
        batch.splice()
    batch.replacements.clear()
    batch.set_slices("k", np.array([0], "<u4"), np.array([2**31], "<u4"), np.array([9], "<u4"))
    with pytest.raises(ValueError, match="a slice of 9 bytes"):
        batch.splice()


def test_truncated_at_every_byte(codec):
    """Refused, with the place in the text; never anything else."""
    data = trace_request([{"attributes": {"k": {"a": ["b", 1, 0.5]}}, "events": [{"name": "e"}]}])
    assert len(codec.scan(data, NOTHING)) == 1
    for end in range(1, len(data)):
        with pytest.raises(MalformedRequestError, match="not an ExportTraceServiceRequest"):
            codec.scan(data[:end], NOTHING)
    assert len(codec.scan(b"", NOTHING)) == 0


def test_a_fault_names_its_byte_and_field(native):
    """What stands in a log line must lead to the sender's mistake."""
    data = of_span(IDS, sized(9, sized(1, b"k") + sized(2, b"\x0a\x05ab")))
    place = data.index(b"\x05ab")
    with pytest.raises(MalformedRequestError) as caught:
        native.scan(data, NOTHING)
    assert str(caught.value) == (
        f"not an ExportTraceServiceRequest: byte {place} in "
        "resource_spans.scope_spans.spans.attributes.value.string_value: the bytes end inside a field"
    )


@pytest.mark.parametrize(
    "data", [b"not protobuf", b'{"resourceSpans":[]}', b"\x0b", b"\x0c", b"\x0f", b"\0\0", b"\x80" * 20]
)
def test_garbage_is_refused(codec, data):
    """Text, JSON, groups without an end, wire types and tags that do not exist."""
    with pytest.raises(MalformedRequestError):
        codec.scan(data, NOTHING)


def test_text_that_is_not_utf8_is_mended(codec):
    """cases.md otlp-utf8: a value cut inside a character, and a key with 0xff; 100 of 100 spans stay."""
    spans = [sized(2, IDS + sized(5, b"n%d" % number)) for number in range(98)]
    spans.append(sized(2, IDS + attribute(sized(1, b"\xe4\xbd\xa0\xe5\xa5"))))
    spans.append(sized(2, IDS + attribute(sized(1, b"v"), b"bad\xff")))
    batch = codec.scan(sized(1, sized(2, b"".join(spans))), wanting("k", "bad\ufffd"))
    assert batch.mended == 2
    assert not batch.edited
    assert contents(batch) == ["你\ufffd"]
    assert contents(batch, 1) == ["v"]
    out = spans_of(batch.splice())
    assert len(out) == 100
    assert attributes_of(out[98].attributes) == {"k": "你\ufffd"}
    assert attributes_of(out[99].attributes) == {"bad\ufffd": "v"}


@pytest.mark.parametrize(
    ("fields", "reject"),
    [
        (sized(1, b"t" * 15) + sized(2, b"s" * 8), Reject.TRACE_ID_LENGTH),
        (sized(2, b"s" * 8), Reject.TRACE_ID_LENGTH),
        (sized(1, bytes(16)) + sized(2, b"s" * 8), Reject.TRACE_ID_ZERO),
        (sized(1, b"t" * 16) + sized(2, b"s" * 16), Reject.SPAN_ID_LENGTH),
        (sized(1, b"t" * 16) + sized(2, bytes(8)), Reject.SPAN_ID_ZERO),
        (IDS + sized(4, b"p" * 4), Reject.PARENT_ID_LENGTH),
        (IDS + sized(13, sized(1, b"l" * 3)), Reject.LINK_ID_LENGTH),
        (IDS + sized(4, bytes(8)), Reject.NONE),
        (IDS + sized(4, b""), Reject.NONE),
        (IDS + sized(13, b""), Reject.NONE),
        (sized(1, b"x") + IDS, Reject.NONE),
    ],
)
def test_a_bad_id_costs_its_span_alone(codec, fields, reject):
    """The others go on; a parent of zeros is a root, and of a repeated id the last counts."""
    data = sized(1, sized(2, sized(2, fields) + sized(2, IDS)))
    batch = codec.scan(data, NOTHING)
    assert batch.spans["reject"].tolist() == [reject, 0]
    assert batch.rejected == ({reject: 1} if reject else {})
    assert len(spans_of(batch.splice())) == (1 if reject else 2)
    assert not any(batch.spans["parent_id"][0].tobytes())


def nested(levels: int, kind: int = 6) -> bytes:
    """An AnyValue with so many lists in each other; made from the inside out."""
    parts, size = [], 0
    for _ in range(levels):
        headers = b""
        for number in (1, kind) if kind == 5 else (2, 1, kind):
            header = varint(number << 3 | 2) + varint(size + len(headers))
            headers = header + headers
        parts.append(headers)
        size += len(headers)
    return b"".join(reversed(parts))


@pytest.mark.parametrize("kind", [5, 6])
@pytest.mark.parametrize("levels", [60, 10_000, 100_000])
def test_deep_nesting_costs_its_span_alone(codec, kind, levels):
    """Nothing overflows, also on a small stack; in a resource the whole request is refused."""
    deep = attribute(nested(levels, kind))
    data = sized(1, sized(2, sized(2, IDS + deep) + sized(2, IDS)))
    caught: list[BaseException] = []
    rejects: list[list[int]] = []

    def scan() -> None:
        try:
            rejects.append(codec.scan(data, wanting("k")).spans["reject"].tolist())
        except BaseException as error:  # noqa: BLE001 (handed to the test)
            caught.append(error)

    threading.stack_size(256 * 1024)
    try:
        thread = threading.Thread(target=scan)
        thread.start()
        thread.join()
    finally:
        threading.stack_size(0)
    assert not caught
    assert rejects == [[Reject.TOO_DEEP, 0]]
    with pytest.raises(MalformedRequestError):
        codec.scan(sized(1, sized(1, attribute(nested(levels, kind), number=1))), NOTHING)


def test_as_deep_as_decoders_go(codec):
    """47 arrays in each other are the last that protobuf's limit of 100 messages takes."""
    fine, deep = (of_span(IDS, attribute(nested(levels, 5))) for levels in (47, 48))
    assert spans_of(fine)
    assert codec.scan(fine, NOTHING).spans["reject"].tolist() == [0]
    assert codec.scan(deep, NOTHING).spans["reject"].tolist() == [Reject.TOO_DEEP]


def test_ten_thousand_attributes(codec):
    """All found by prefix, one by key."""
    attributes = {f"key.{number}": number for number in range(10_000)}
    plan = Plan((Want(Scope.SPAN, "key.9999"), Want(Scope.SPAN, "key.", prefix=True)))
    batch = codec.scan(trace_request([{"attributes": attributes}]), plan)
    assert batch.column(0)["value"].tolist() == [9999]
    assert batch.column(1)["value"].tolist() == list(range(10_000))
    batch.cut(batch.column(1)[1::2])
    assert len(spans_of(batch.splice())[0].attributes) == 5000


def test_ten_mebibytes_in_one_attribute(codec):
    """Found and copied whole."""
    text = "你好" * (10 * 2**20 // 6)
    batch = codec.scan(trace_request([{"attributes": {"k": text}}]), wanting("k"))
    column = batch.column(0)
    assert contents(batch) == [text]
    batch.set_slices("copy", column["row"], column["off"], column["len"])
    assert attributes_of(spans_of(batch.splice())[0].attributes)["copy"] == text


def test_a_million_empty_resources_are_not_numbered(native):
    """Neither they nor empty scopes get a record, while a span behind them does (memory: `scan.rs`)."""
    data = sized(1, sized(2, b"")) * 1_000_000 + of_span(IDS)
    batch = native.scan(data, wanting("service.name", scope=Scope.RESOURCE))
    assert (len(batch), batch.resources, len(batch.scopes)) == (1, 1, 1)
    batch.drop(np.array([0], "<u4"))
    assert batch.splice() == data[: -len(of_span(IDS))]


def test_a_list_in_two_parts_is_one(codec):
    """Protobuf merges repeated values; a text between them begins anew."""
    one, two = (sized(5, sized(1, sized(1, text))) for text in (b"one", b"two"))
    for value, expected in (
        (one + two, ["one", "two"]),
        (one + sized(1, b"text") + two, ["two"]),
    ):
        batch = codec.scan(of_span(IDS, attribute(value)), wanting("k"))
        record = batch.column(0)[0]
        content = batch.data[record["off"] : record["off"] + record["len"]]
        again = spans_of(of_span(IDS, attribute(sized(5, content))))[0]
        assert attributes_of(again.attributes) == {"k": expected}
        assert attributes_of(spans_of(batch.splice())[0].attributes) == {"k": expected}
    parted = sized(9, sized(1, b"k") + sized(2, one) + sized(99, b"?") + sized(2, two))
    batch = codec.scan(of_span(IDS, parted), wanting("k"))
    assert normal(batch.splice()) == normal(of_span(IDS, parted))


def test_records_have_the_layout_of_both_sides(native):
    """`_native/src/records.rs` asserts the same."""
    from otel_bridge._native import wire

    assert (SPAN.itemsize, SCOPE.itemsize, ATTRIBUTE.itemsize) == (100, 12, 40) == wire.RECORD_SIZES


def test_the_codec_is_chosen_with_a_reason(monkeypatch):
    """By name, by what is there; asked for and missing is an error that says what to do."""
    pytest.importorskip("otel_bridge._native.wire", reason="the native codec is not built")
    assert [choose_codec(prefer)[0].name for prefer in ("auto", "native", "reference")] == [
        "native",
        "native",
        "reference",
    ]
    monkeypatch.setitem(sys.modules, "otel_bridge._native.wire", None)
    monkeypatch.delattr("otel_bridge._native.wire", raising=False)
    chosen, reason = choose_codec("auto")
    assert chosen.name == "reference"
    assert "cannot be loaded" in reason
    with pytest.raises(StartError, match=r"service\.codec is native"):
        choose_codec("native")


def test_many_plans_are_kept_apart(native):
    """Compiled plans are found again by identity, however many come by."""
    data = trace_request([{"attributes": {f"k{number}": number for number in range(20)}}])
    for _ in range(2):
        for number in range(20):
            assert native.scan(data, wanting(f"k{number}")).column(0)["value"].tolist() == [number]
