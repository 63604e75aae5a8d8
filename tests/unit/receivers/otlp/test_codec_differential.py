"""The native codec held to the reference on protobuf: same columns, same refusals, same spliced requests."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_bridge.batch import STATUS_MESSAGE, PlanBuilder
from otel_bridge.errors import MalformedRequestError
from otel_bridge.model import Scope, ValueType
from otel_bridge.receivers.otlp.reference import ReferenceCodec
from tests.support.wire_maker import KEYS, WireMaker, mutated, sized

if TYPE_CHECKING:
    from otel_bridge.batch import Batch, Plan

codec = pytest.importorskip("otel_bridge.receivers.otlp.codec")
pytest.importorskip("otel_bridge._native.wire", reason="the native codec is not built")
NATIVE = codec.NativeCodec()
REFERENCE = ReferenceCodec()

thorough = settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
randoms = st.integers(0, 2**64 - 1).map(Random)


def plan(*, status: bool) -> Plan:
    """Every key in every scope, prefixes that overlap, one key nobody sends, and the status's message."""
    builder = PlanBuilder()
    for scope in Scope:
        for key in KEYS:
            builder.want(key, scope=scope)
        builder.want("gen_ai.prompt.", scope=scope, prefix=True)
        builder.want("gen_ai.", scope=scope, prefix=True)
        builder.want("", scope=scope, prefix=True)
        builder.want("never.sent", scope=scope)
    if status:
        builder.want(STATUS_MESSAGE)
    builder.want_oversized(150)
    return builder.build()


PLAN = plan(status=True)
ODD_PLAN = plan(status=False)
"""Of a message that is sent twice the native codec shows both, so that both can be redacted."""


def read(codec: Any, data: bytes, wanted: Plan) -> Batch | None:
    """The batch; None when the bytes are refused."""
    try:
        return codec.scan(data, wanted)
    except MalformedRequestError:
        return None


def normal(data: bytes) -> bytes:
    """A request as protobuf writes what it read, unknown fields included."""
    return ExportTraceServiceRequest.FromString(data).SerializeToString(deterministic=True)


def values(batch: Batch, group: np.ndarray) -> list[tuple]:
    """What records say, whatever they point into."""
    out = []
    for record in group:
        content = batch.data[record["off"] : record["off"] + record["len"]]
        if record["type"] in {ValueType.ARRAY, ValueType.KVLIST}:
            number = int(record["type"])
            content = normal(sized(1, sized(1, sized(1, sized(2, sized(number, content))))))
        key = batch.data[record["key_off"] : record["key_off"] + record["key_len"]]
        out.append(
            (int(record["row"]), int(record["slot"]), int(record["type"]), int(record["value"]), key, content)
        )
    return out


def assert_same_columns(native: Batch, reference: Batch) -> None:
    """Everything a processor can see."""
    for name in native.spans.dtype.names:
        if name not in {"off", "len", "body", "name_off", "state_off"}:
            assert np.array_equal(native.spans[name], reference.spans[name]), name
    for field in ("name", "state"):
        assert texts(native, native.spans, field) == texts(reference, reference.spans, field)
    assert texts(native, native.scopes, "name") == texts(reference, reference.scopes, "name")
    assert native.scopes["resource"].tolist() == reference.scopes["resource"].tolist()
    assert native.resources == reference.resources
    assert list(native.starts)[:-1] == list(reference.starts)[:-1]
    for slot in range(len(native.plan.wants)):
        assert values(native, native.column(slot)) == values(reference, reference.column(slot))
        rows = native.column(slot)["row"]
        assert np.all(np.diff(rows.astype(int)) >= (0 if native.plan.wants[slot].prefix else 1))
    assert sorted(values(native, native.duplicates)) == sorted(values(reference, reference.duplicates))
    assert sorted(oversized(native)) == sorted(oversized(reference))


def oversized(batch: Batch) -> list[tuple]:
    """Texts that are too long; of messages the reference has the length protobuf would give them."""
    records = batch.oversized
    return values(batch, records[np.isin(records["type"], [ValueType.STRING, ValueType.BYTES])])


def texts(batch: Batch, records: np.ndarray, field: str) -> list[str]:
    return [
        batch.text(int(off), int(length))
        for off, length in zip(records[f"{field}_off"], records[f"{field}_len"], strict=True)
    ]


def edit(random: Random, batch: Batch) -> set[int]:
    """Random edits, the same for the same random state and columns; the rows that were touched."""
    touched: set[int] = set()
    count = len(batch)
    if count:
        for _ in range(random.randrange(4)):
            rows = np.array([random.randrange(count) for _ in range(random.randrange(2 * count))], "<u4")
            touched.update(rows.tolist())
            insert(random, batch, rows)
        if random.random() < 0.4:
            batch.drop(np.array([row for row in range(count) if random.random() < 0.4], "<u4"))
    for slot, want in enumerate(batch.plan.wants):
        column = batch.column(slot)
        if not len(column) or random.random() < 0.7:
            continue
        chosen = column[[random.random() < 0.5 for _ in column]]
        if random.random() < 0.5:
            batch.cut(chosen)
        else:
            number = {Scope.SPAN: 9, Scope.RESOURCE: 1, Scope.LINK: 4}.get(want.scope, 3)
            new = sized(number, sized(1, b"new") + sized(2, sized(1, b"x" * random.randrange(200))))
            if want.key == STATUS_MESSAGE:
                new = sized(2, b"new")
            batch.replace_fields(chosen["kv_off"], chosen["kv_len"], [new] * len(chosen))
        if want.scope in {Scope.SPAN, Scope.EVENT, Scope.LINK}:
            touched.update(chosen["row"].tolist())
    return touched


def insert(random: Random, batch: Batch, rows: np.ndarray) -> None:
    size = len(rows)
    key = random.choice(["k", "kéy", "k" * 200])
    match random.randrange(7):
        case 0:
            batch.set_ints(key, rows, np.array([random.randrange(-(2**63), 2**63) for _ in rows], "<i8"))
        case 1:
            batch.set_doubles(key, rows, np.array([random.random() for _ in rows]))
        case 2:
            batch.set_bools(key, rows, np.array([random.random() < 0.5 for _ in rows], bool))
        case 3:
            batch.set_text(key, rows, "té" * random.randrange(200))
        case 4:
            batch.set_texts(key, rows, ["é" * random.randrange(100) for _ in rows])
        case 5:
            event = sized(11, sized(2, b"added" * random.randrange(30)))
            batch.append_fields(rows, [random.choice([event, b"", event + sized(77, b"?")]) for _ in rows])
        case _:
            found = batch.attributes[batch.attributes["type"] == ValueType.STRING]
            if len(found):
                picked = found[np.arange(size) % len(found)]
                # Group order is not part of the contract, so the slices come from one column.
                column = next(
                    (c for c in map(batch.column, range(len(batch.plan.wants))) if np.any(c["type"] == 1)),
                    picked[:0],
                )
                column = column[column["type"] == ValueType.STRING]
                if len(column):
                    picked = column[np.arange(size) % len(column)]
                    batch.set_slices(key, rows, picked["off"], picked["len"])


@thorough
@given(randoms, st.booleans(), st.booleans())
def test_same_columns(random, odd, bad_text):
    """Valid requests, odd ones, and such with broken text."""
    data = WireMaker(random, odd=odd, bad_text=bad_text).request()
    wanted = ODD_PLAN if odd else PLAN
    native, reference = read(NATIVE, data, wanted), read(REFERENCE, data, wanted)
    assert native is not None
    assert reference is not None
    assert_same_columns(native, reference)
    # A string that a later one of the same field replaces is mended, but not seen by the reference.
    assert native.mended == reference.mended or (odd and native.mended > reference.mended)
    assert normal(native.data) == normal(reference.tree.data)
    if not native.mended and not native.rejected:
        assert normal(native.splice()) == normal(data)


@thorough
@given(randoms, st.booleans())
def test_same_verdict_on_broken_requests(random, odd):
    """Flipped bits, cuts and joins: refused by both or read alike by both."""
    maker = WireMaker(random, odd=odd)
    data = mutated(random, maker.request(), maker.request())
    native, reference = read(NATIVE, data, ODD_PLAN), read(REFERENCE, data, ODD_PLAN)
    assert (native is None) == (reference is None)
    if native is not None:
        assert_same_columns(native, reference)
        assert native.mended >= reference.mended
        assert normal(native.data) == normal(reference.tree.data)


@thorough
@given(randoms, st.booleans(), st.booleans())
def test_same_edits_same_request(random, odd, bad_text):
    """Any edits, noted on both: what leaves decodes to the same message, untouched spans to the byte."""
    data = WireMaker(random, odd=odd, bad_text=bad_text).request()
    wanted = ODD_PLAN if odd else PLAN
    native, reference = read(NATIVE, data, wanted), read(REFERENCE, data, wanted)
    state = random.getstate()
    touched = edit(random, native)
    random.setstate(state)
    assert edit(random, reference) == touched
    assert native.edited == reference.edited
    assert native.leaving == reference.leaving
    spliced = native.splice()
    assert normal(spliced) == normal(reference.splice())
    if not native.edited:
        assert spliced is native.data
    again = read(NATIVE, spliced, wanted)
    assert len(again) == native.leaving
    gone = native.spans["reject"] > 0
    if native.dropped is not None:
        gone = gone | native.dropped
    for row, (before, after) in enumerate(zip(native.spans[~gone], again.spans, strict=True)):
        if int(np.flatnonzero(~gone)[row]) not in touched:
            assert field(native, before) == field(again, after)


def field(batch: Batch, span: np.void) -> bytes:
    return batch.data[span["off"] : span["off"] + span["len"]]
