"""What a later step reads of a batch: the attributes as they would leave, edits worked in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_bridge.batch import PlanBuilder
from otel_bridge.model import Scope, Signal
from otel_bridge.pipeline import build_steps
from otel_bridge.receivers.otlp.codec import choose_codec
from otel_bridge.receivers.otlp.otlp_json import convert
from otel_bridge.settings import ProcessorSettings
from otel_bridge.telemetry import Telemetry
from otel_bridge.testing import FakeClock, attributes_of, spans_of, trace_request

GOLDEN = Path(__file__).parent.parent / "golden" / "vllm-0.32-and-clients.otlp.jsonl"
ROWS = np.array([0, 2], "<u4")


@pytest.fixture(params=["native", "reference"])
def codec(request):
    """Either codec."""
    return choose_codec(request.param)[0]


def scanned(codec, spans, *, key="k", scope=Scope.SPAN, resource=None):
    """A batch with one wanted column, and its slot."""
    plan = PlanBuilder()
    slot = plan.want(key, scope=scope)
    return codec.scan(trace_request(spans, resource=resource), plan.build()), slot


def texts(batch, slot):
    """Strings by row."""
    return {
        row: piece.data[off : off + length].decode()
        for piece in batch.resolved_texts(slot)
        for row, off, length in zip(
            piece.rows.tolist(), piece.offs.tolist(), piece.lens.tolist(), strict=True
        )
    }


def numbers(batch, slot):
    """Numbers by row."""
    return {
        row: value for row, value in enumerate(batch.resolved_numbers(slot).tolist()) if not np.isnan(value)
    }


def test_what_was_sent_is_what_is_read(codec):
    """Each type as numbers or as texts, nothing as both."""
    batch, slot = scanned(
        codec, [{"attributes": {"k": value}} for value in ("a", 7, 0.5, True, [1], b"b")] + [{}]
    )
    assert texts(batch, slot) == {0: "a"}
    assert numbers(batch, slot) == {1: 7, 2: 0.5, 3: 1}


def test_a_key_that_no_span_came_with(codec):
    """Only edits have it."""
    batch, slot = scanned(codec, [{}, {}, {}])
    assert (texts(batch, slot), numbers(batch, slot)) == ({}, {})
    batch.set_ints("k", ROWS, np.array([3, 4]))
    assert numbers(batch, slot) == {0: 3, 2: 4}
    assert texts(batch, slot) == {}


@pytest.mark.parametrize("how", ["text", "texts", "slices"])
def test_strings_of_every_kind_of_edit(codec, how):
    """One for all, one each, and slices of the request."""
    batch, slot = scanned(codec, [{"name": "ab"}, {"attributes": {"k": "sent"}}, {"name": "cde"}])
    names = batch.spans[ROWS]
    if how == "text":
        batch.set_text("k", ROWS, "same")
    elif how == "texts":
        batch.set_texts("k", ROWS, ["ü", "日本"])
    else:
        batch.set_slices("k", ROWS, names["name_off"], names["name_len"])
    first, last = {"text": ("same", "same"), "texts": ("ü", "日本"), "slices": ("ab", "cde")}[how]
    assert texts(batch, slot) == {0: first, 1: "sent", 2: last}


def test_the_value_noted_last_wins_over_others_of_any_type(codec):
    """A number over a text, a text over a number, an edit over what was sent."""
    batch, slot = scanned(codec, [{"attributes": {"k": "sent"}}, {"attributes": {"k": 1}}, {}])
    batch.set_ints("k", np.array([0], "<u4"), np.array([5]))
    batch.set_text("k", np.array([1, 2], "<u4"), "first")
    batch.set_text("k", np.array([2], "<u4"), "second")
    assert texts(batch, slot) == {1: "first", 2: "second"}
    assert numbers(batch, slot) == {0: 5}


def test_what_was_cut_or_replaced_is_no_value(codec):
    """Neither in the view taken before nor in one after."""
    spans = [{"attributes": {"k": "secret"}}, {"attributes": {"k": 7}}, {"attributes": {"k": "kept"}}]
    batch, slot = scanned(codec, spans)
    assert texts(batch, slot) == {0: "secret", 2: "kept"}
    record = batch.column(slot)[:1]
    batch.replace_fields(record["kv_off"], record["kv_len"], [b""])
    batch.cut_column(slot, np.array([1], "<u4"))
    assert texts(batch, slot) == {2: "kept"}
    assert numbers(batch, slot) == {}


def test_other_edits_in_the_place_of_some_are_noticed(codec):
    """Redaction changes what earlier steps have added."""
    batch, slot = scanned(codec, [{}, {}, {}])
    batch.set_text("k", ROWS, "a@example.com")
    assert texts(batch, slot)[0] == "a@example.com"
    batch.inserts = [batch.inserts[0]._replace(blob=b"***")]
    assert texts(batch, slot) == {0: "***", 2: "***"}


def test_a_resources_value_is_that_of_each_of_its_spans(codec):
    """And an edit of spans under the same key does not touch it."""
    batch, slot = scanned(
        codec, [{}, {}, {}], key="service.name", scope=Scope.RESOURCE, resource={"service.name": "vllm"}
    )
    batch.set_text("service.name", ROWS, "other")
    assert texts(batch, slot) == {0: "vllm", 1: "vllm", 2: "vllm"}
    batch.cut(batch.column(slot))
    assert texts(batch, slot) == {}


def test_events_have_many_values(codec):
    """A span has not one of them."""
    batch, slot = scanned(codec, [{}], scope=Scope.EVENT)
    with pytest.raises(ValueError, match="many values of a EVENT attribute"):
        batch.resolved_numbers(slot)


VALUES = st.one_of(st.text(max_size=3), st.integers(-5, 5), st.booleans(), st.none())


@given(st.lists(VALUES, min_size=1, max_size=6), st.lists(st.tuples(st.integers(0, 5), VALUES), max_size=6))
def test_any_edits_read_as_they_leave(sent, edits):
    """Property: cut and set again, as steps do, a span's value is the last one."""
    codec = choose_codec("auto")[0]
    batch, slot = scanned(codec, [{"attributes": {} if v is None else {"k": v}} for v in sent])
    expected = dict(enumerate(sent))
    for at, value in edits:
        rows = np.array([at % len(sent)], "<u4")
        batch.cut_column(slot, rows)
        batch.inserts = [one for one in batch.inserts if one.rows[0] != rows[0]]
        if isinstance(value, str):
            batch.set_text("k", rows, value)
        elif isinstance(value, bool):
            batch.set_bools("k", rows, np.array([value]))
        elif value is not None:
            batch.set_ints("k", rows, np.array([value]))
        expected[int(rows[0])] = value
    leaving = [attributes_of(span.attributes).get("k") for span in spans_of(batch.splice())]
    read = {**numbers(batch, slot), **texts(batch, slot)}
    assert [read.get(row) for row in range(len(sent))] == leaving == list(expected.values())


def test_a_recordings_attributes_read_as_they_leave(codec):
    """Through every step in its default configuration: each short attribute that leaves is what was read."""
    steps = build_steps(ProcessorSettings(), Telemetry(), FakeClock())
    compared = 0
    for line in GOLDEN.read_bytes().splitlines():
        batch = codec.scan(convert(line, Signal.TRACES).data, steps.plan)
        for _, processor in steps.processors:
            processor.process(batch)
        leaving = [attributes_of(span.attributes) for span in spans_of(batch.splice())]
        for slot, want in enumerate(batch.plan.wants):
            if want.scope is not Scope.SPAN or want.prefix:
                continue
            read = {**numbers(batch, slot), **texts(batch, slot)}
            for row, attributes in enumerate(leaving):
                value = attributes.get(want.key)
                if isinstance(value, str | int | float) and row in read:
                    assert read[row] == value
                    compared += 1
                elif isinstance(value, int | float):
                    pytest.fail(f"{want.key}: {value} leaves and was not read")
    assert compared > 500
