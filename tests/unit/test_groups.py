"""Spans by their labels and by the call they tell of: native against reference, and what each is told."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_bridge import groups, groups_reference
from otel_bridge.batch import ATTRIBUTE, SPAN
from otel_bridge.edits import Slices
from otel_bridge.groups import CLIENT, FIRST_OF_CALL, FIRST_OF_ID, NO_ROLE, SERVER, TELLS, Column, Texts

native = pytest.importorskip("otel_bridge._native.wire", reason="the native crate is not installed")
if not hasattr(native, "Cells"):
    pytest.skip("the installed native crate is older than this source", allow_module_level=True)

COUNTS = TELLS | FIRST_OF_CALL | FIRST_OF_ID


@pytest.fixture(params=["native", "reference"], autouse=True)
def kernels(request, monkeypatch):
    """Both behind the same door."""
    monkeypatch.setattr(groups, "_kernels", native if request.param == "native" else groups_reference)


def column(words):
    """Texts back to back, and their column."""
    pieces = [word.encode() if isinstance(word, str) else word for word in words]
    lens = np.array([len(piece) for piece in pieces], "<u4")
    return b"".join(pieces), Column((np.cumsum(lens) - lens).astype("<u4"), lens)


class Told:
    """Requests told to one memory."""

    def __init__(self, capacity=1000):
        self.calls = groups.Calls(capacity)

    def tell(self, *spans):
        """Each span: name, parent's name, role, service, id; later ones end later. What is said of each."""
        records = np.zeros(len(spans), SPAN)
        for row, (name, parent, *_) in enumerate(spans):
            records[row]["trace_id"] = b"t".ljust(16, b"\0")
            records[row]["span_id"] = name.encode().ljust(8, b"\0")
            records[row]["parent_id"] = parent.encode().ljust(8, b"\0")
            records[row]["start"], records[row]["end"] = 100 - row, 100 + row
        services, names = [span[3] for span in spans], [span[4] for span in spans]
        data, both = column([*services, *names])
        count = len(spans)
        return self.calls.tell(
            records,
            np.array([span[2] for span in spans], "u1"),
            Texts(data, count),
            Column(both.offs[:count], both.lens[:count]),
            Column(both.offs[count:], both.lens[count:]),
        ).tolist()


def test_the_same_labels_are_one_cell():
    """Also where one stands in the request and one in an edit."""
    texts = Texts(b"gateway", 3)
    sent = Slices(np.array([0], "<u4"), b"gateway", np.array([0], "<u4"), np.array([7], "<u4"))
    sent = sent._replace(data=texts.data)
    added = Slices(
        np.array([1, 2], "<u4"), b"gatewayengine", np.array([0, 7], "<u4"), np.array([7, 6], "<u4")
    )
    cells = groups.Cells(1)
    labels = texts.column([sent, added], 100)
    ids = cells.assign(texts, [(4, labels)], np.zeros((3, 1), "u1"))
    assert ids.tolist() == [0, 0, 1]
    assert cells.assign(texts, [(4, labels)], np.array([[0], [1], [0]], "u1")).tolist() == [0, 2, 1]
    assert [cells.labels(number) for number in range(3)] == [
        (b"\0", [(4, b"gateway")]),
        (b"\0", [(4, b"engine")]),
        (b"\1", [(4, b"gateway")]),
    ]
    with pytest.raises(KeyError):
        cells.labels(3)
    cells.clear()
    assert len(cells) == 0
    assert cells.assign(texts, [(4, labels)], np.ones((3, 1), "u1")).tolist() == [0, 0, 1]


def test_labels_that_join_to_one_text_are_two_cells():
    """What is ab and c is not a and bc."""
    data = b"abcabc"
    first = Column(np.array([0, 3], "<u4"), np.array([2, 1], "<u4"))
    second = Column(np.array([2, 4], "<u4"), np.array([1, 2], "<u4"))
    ids = groups.Cells(1).assign(Texts(data, 2), [(0, first), (1, second)], np.zeros((2, 1), "u1"))
    assert ids.tolist() == [0, 1]


def test_a_label_without_texts_may_be_left_out():
    """It is no other cell than one with an empty text; the same text under another label is."""
    texts, empty = Texts(b"a", 1), Column(np.zeros(1, "<u4"), np.zeros(1, "<u4"))
    a, codes = Column(np.zeros(1, "<u4"), np.ones(1, "<u4")), np.zeros((1, 1), "u1")
    cells = groups.Cells(1)
    assert cells.assign(texts, [(0, a), (1, empty)], codes).tolist() == [0]
    assert cells.assign(texts, [(0, a)], codes).tolist() == [0]
    assert cells.assign(texts, [(1, a)], codes).tolist() == [1]


def test_the_innermost_of_one_service_counts():
    """A framework's span around that of the client library, and an HTTP span between them."""
    framework = ("chain", "", CLIENT, "app", "")
    library = ("chat", "http", CLIENT, "app", "")
    between = ("http", "chain", NO_ROLE, "app", "")
    assert Told().tell(library, between, framework) == [COUNTS, 0, 0]


def test_each_side_and_each_service_counts_for_itself():
    """An application, a gateway that calls on, and an engine."""
    app = ("app", "", CLIENT, "app", "")
    served = ("served", "app", SERVER, "gateway", "")
    calls = ("calls", "served", CLIENT, "gateway", "")
    engine = ("engine", "calls", SERVER, "vllm", "")
    assert Told().tell(engine, calls, served, app) == [COUNTS] * 4


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (0, 2, 1), (2, 0, 1)])
def test_whatever_comes_first_one_counts(order):
    """Requests apart; only where the span between comes last nothing shows that the others are one call."""
    spans = [
        ("chat", "chain", CLIENT, "app", ""),
        ("chain", "outer", CLIENT, "app", ""),
        ("outer", "", CLIENT, "app", ""),
    ]
    told = Told()
    said = [told.tell(spans[at])[0] for at in order]
    assert sum(one == COUNTS for one in said) == (2 if order[-1] == 1 else 1)


def test_two_calls_under_one_span_both_count():
    """An agent's span is no call; and a framework's retry is two."""
    told = Told()
    first, second = ("a", "top", CLIENT, "app", ""), ("b", "top", CLIENT, "app", "")
    top = ("top", "", CLIENT, "app", "")
    assert told.tell(first) == [COUNTS]
    assert told.tell(top) == [0]
    assert told.tell(second) == [COUNTS]


def test_a_request_that_comes_again_counts_no_call_twice():
    """Its sender never heard the answer."""
    told = Told()
    spans = (("a", "", CLIENT, "app", ""), ("b", "", CLIENT, "app", "resp_1"))
    assert told.tell(*spans) == [COUNTS, COUNTS]
    assert told.tell(*spans) == [0, 0]


def test_one_response_is_one_call():
    """Two instrumentations side by side; in one request the later span stands for it, in the next none."""
    told = Told()
    one, other = ("a", "x", CLIENT, "app", "resp_1"), ("b", "x", CLIENT, "app", "resp_1")
    assert told.tell(one, other) == [TELLS | FIRST_OF_ID, TELLS | FIRST_OF_CALL]
    assert told.tell(("c", "x", CLIENT, "app", "resp_1")) == [TELLS]
    assert told.tell(("d", "x", CLIENT, "other", "resp_1")) == [COUNTS]


def test_an_engines_spans_of_one_request():
    """vLLM: two prompts, two choices each: one call, two prompts, four sequences."""
    told = Told()
    spans = [(f"s{at}", "x", SERVER, "vllm", f"cmpl-7-{at // 2}") for at in range(4)]
    assert told.tell(*spans) == [
        TELLS | FIRST_OF_ID,
        TELLS,
        TELLS | FIRST_OF_ID,
        TELLS | FIRST_OF_CALL,
    ]


def test_an_id_of_digits_alone_is_not_cut():
    """A suffix has four digits at most."""
    told = Told()
    spans = [(f"s{at}", "x", SERVER, "vllm", f"chatcmpl-123456{at}") for at in range(2)]
    assert told.tell(*spans) == [COUNTS, COUNTS]


def test_memory_is_bounded():
    """A thousand traces with calls in them; half of the capacity is always remembered."""
    told = Told(capacity=100)
    for number in range(1000):
        told.tell((f"s{number}", f"p{number}", CLIENT, "app", f"r{number}"))
    assert len(told.calls) <= 101
    assert told.tell(("s999", "p999", CLIENT, "app", "r999")) == [0]


WORDS = st.sampled_from([b"", b"a", b"ab", b"r-1", b"r-2", b"r_12345", b"\xff\0"])


@given(st.lists(st.tuples(WORDS, WORDS, st.integers(0, 2)), max_size=8), st.integers(1, 2))
def test_cells_native_and_reference_agree(rows, requests):
    """On any texts."""
    ours, theirs = native.Cells(), groups_reference.Cells()
    for _ in range(requests):
        first, a = column([row[0] for row in rows])
        added, b = column([row[1] for row in rows])
        b = Column(b.offs + np.uint32(len(first)), b.lens)
        given = (first, added, [(3, *a.bytes()), (7, *b.bytes())], bytes(row[2] for row in rows), 1)
        assert ours.assign(*given) == theirs.assign(*given)
        assert len(ours) == len(theirs)
        for number in range(len(ours)):
            assert ours.labels(number, 1) == theirs.labels(number, 1)


NAMES = st.sampled_from([b"\0" * 8, *(letter * 8 for letter in (b"a", b"b", b"c", b"d", b"e"))])
SPANS = st.lists(
    st.tuples(
        st.sampled_from([b"t" * 16, b"u" * 16]),
        NAMES,
        NAMES,
        st.integers(0, 3),
        st.integers(0, 3),
        st.integers(0, 2),
        st.sampled_from([b"app", b"vllm"]),
        WORDS,
    ),
    max_size=8,
)


@settings(max_examples=300)
@given(st.lists(SPANS, max_size=5), st.integers(1, 40))
def test_calls_native_and_reference_agree(requests, capacity):
    """On any spans, times and parents that make no sense included."""
    ours, theirs = native.Calls(capacity), groups_reference.Calls(capacity)
    for spans in requests:
        data, services = column([span[6] for span in spans])
        added, ids = column([span[7] for span in spans])
        ids = Column(ids.offs + np.uint32(len(data)), ids.lens)
        given = (
            *(b"".join(span[at] for span in spans) for at in range(3)),
            *(np.array([span[at] for span in spans], "<u8").tobytes() for at in (3, 4)),
            bytes(span[5] for span in spans),
            data,
            added,
            services.bytes(),
            ids.bytes(),
        )
        assert ours.tell(*given) == theirs.tell(*given)
        assert len(ours) == len(theirs)


def test_nonsense_from_python_is_read_as_empty():
    """Offsets beyond the texts, columns that are too short."""
    beyond = (np.array([9, 2], "<u4").tobytes(), np.array([5, 9], "<u4").tobytes())
    for kernel in (native, groups_reference):
        cells = kernel.Cells()
        assert cells.assign(b"abc", b"de", [(0, *beyond)], b"\0\0", 1) == bytes(8)
        assert cells.labels(0, 1) == (b"\0", [])


RECORDS = st.lists(
    st.tuples(
        st.integers(0, 6),
        st.sampled_from([0, 1, 2, 3, 4, 5, 6, 7]),
        st.integers(-(2**63), 2**63 - 1),
        st.integers(0, 2**32 - 1),
        st.integers(0, 2**32 - 1),
    ),
    max_size=12,
)


def records_of(given):
    """Attribute records of rows, types, values, offsets and lengths."""
    records = np.zeros(len(given), ATTRIBUTE)
    for at, (row, kind, value, off, length) in enumerate(given):
        records[at]["row"], records[at]["type"], records[at]["value"] = row, kind, value
        records[at]["off"], records[at]["len"] = off, length
    return records


def test_what_was_sent_is_spread_over_rows():
    """Strings cut, numbers as doubles; the last of a row counts, one beyond the rows does not."""
    half = int(np.array([0.5], "<f8").view("<i8")[0])
    found = Texts.sent(
        records_of(
            [(0, 1, 0, 7, 300), (2, 3, 200, 0, 0), (3, 4, half, 0, 0), (0, 3, 5, 0, 0), (9, 1, 0, 1, 1)]
        ),
        4,
        256,
    )
    assert found.texts.lens.tolist() == [0, 0, 0, 0]
    np.testing.assert_equal(found.numbers, [5, np.nan, 200, 0.5])
    only = Texts.sent(records_of([(1, 1, 0, 7, 300)]), 2, 256)
    assert (only.texts.offs.tolist(), only.texts.lens.tolist(), only.numbers) == ([0, 7], [0, 256], None)
    assert only.of(np.array([1, 1, 0])).texts.lens.tolist() == [256, 256, 0]
    assert Texts.sent(records_of([(0, 2, 1, 0, 0)]), 1, 256) is None


@given(given_records=RECORDS)
@settings(max_examples=200)
def test_native_and_reference_spread_alike(given_records):
    """Whatever the records hold."""
    records = records_of(given_records).tobytes()
    assert native.sent_values(records, 5, 100) == groups_reference.sent_values(records, 5, 100)
