"""Kept bytes as a trace that can be drawn, whatever strangers put into them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_bridge import catalog
from otel_bridge.testing import key_values, trace_request
from otel_bridge.ui import traces
from otel_bridge.ui.recent import KeptTrace
from otel_bridge.ui.shown import byte_size, clean, duration, shown_attributes
from otel_bridge.vocabulary import CONTENT

MS = 1_000_000
START = 1_700_000_000_000_000_000
TRACE = b"t" * 16


def span(number: int, parent: int = 0, *, at: int = 0, lasts: int = 10, **fields) -> dict:
    """A span of the test's trace, times in milliseconds."""
    return {
        "trace_id": TRACE,
        "span_id": number.to_bytes(8, "big"),
        "parent_span_id": parent.to_bytes(8, "big") if parent else b"",
        "name": f"span {number}",
        "start_time_unix_nano": START + at * MS,
        "end_time_unix_nano": START + (at + lasts) * MS,
        **fields,
    }


def kept(*requests: bytes) -> KeptTrace:
    return KeptTrace(TRACE, START, pieces=list(requests))


def drawn(*spans: dict) -> traces.Trace:
    found = traces.trace(kept(trace_request(spans, resource={"service.name": "engine"})))
    assert found is not None
    return found


def test_spans_stand_below_their_parents():
    """Depth first, children by their beginning, in whatever order and request they came."""
    first = trace_request([span(4, 2, at=5), span(3, 1, at=3), span(2, 1, at=1, lasts=8)])
    second = trace_request([span(1)])
    rows = traces.trace(kept(first, second)).rows
    assert [(row.name, row.depth) for row in rows] == [
        ("span 1", 0),
        ("span 2", 1),
        ("span 4", 2),
        ("span 3", 1),
    ]
    assert not any(row.orphan for row in rows)


def test_most_time_is_where_no_child_ran():
    """Of spans side by side, one over the other, and one that outlives its parent."""
    name = "span {} of engine"
    nested = drawn(span(1, lasts=100), span(2, 1, at=10, lasts=80), span(3, 2, at=20, lasts=10))
    assert nested.summary.most == f"70 ms (70%) in {name.format(2)}"
    overlapping = drawn(span(1, lasts=100), span(2, 1, at=0, lasts=30), span(3, 1, at=20, lasts=20))
    assert overlapping.summary.most == f"60 ms (60%) in {name.format(1)}"
    later = drawn(span(1, lasts=20), span(2, 1, at=15, lasts=85))
    assert later.summary.most == f"85 ms (85%) in {name.format(2)}"
    assert drawn(span(1)).summary.most == ""
    assert drawn(span(1, lasts=0), span(2, 1, lasts=0)).summary.most == ""


def test_a_span_without_its_parent_stands_alone_and_says_so():
    """The page must not claim that it is a root."""
    rows = drawn(span(1), span(3, 2, at=1)).rows
    assert [(row.name, row.depth, row.orphan) for row in rows] == [("span 1", 0, False), ("span 3", 0, True)]


@pytest.mark.parametrize(
    "spans", [[span(1, 1)], [span(1, 2), span(2, 1)], [span(1, 2), span(2, 3), span(3, 2)]]
)
def test_spans_that_are_their_own_ancestors_are_drawn_once(spans):
    """Ids are a stranger's."""
    assert sorted(row.name for row in drawn(*spans).rows) == sorted(one["name"] for one in spans)


def test_a_span_that_was_sent_twice_counts_once():
    """A sender that was told to come again."""
    request = trace_request([span(1)])
    assert traces.summary(kept(request, request)).spans == 1


def test_spans_of_others_in_the_bytes_are_not_drawn():
    """The page is of one trace."""
    assert len(drawn(span(1), span(2, trace_id=b"o" * 16)).rows) == 1


def test_a_span_says_which_pod_it_was_in():
    """From the service to the pod to what the kernel did there."""
    resource = {"service.name": "engine", "k8s.pod.name": "vllm-0"}
    (row,) = traces.trace(kept(trace_request([span(1)], resource=resource))).rows
    assert (row.service, row.pod) == ("engine", "vllm-0")
    assert drawn(span(1)).rows[0].pod == ""


def test_bars_lie_on_the_axis_of_the_trace():
    """Percent of the time from the first beginning to the last end."""
    root, child = drawn(span(1, lasts=200), span(2, 1, at=50, lasts=100)).rows
    assert (root.left, root.width) == (0.0, 100.0)
    assert (child.left, child.width) == (25.0, 50.0)
    assert (child.at, child.lasted) == ("50 ms", "100 ms")


def test_a_kernel_event_begins_its_duration_before_its_time():
    """The kernel tells of a wait when it is over."""
    event = {
        "name": "kernel.sched.wait",
        "time_unix_nano": START + 80 * MS,
        "attributes": key_values({"kernel.duration": 30 * MS, "kernel.match": "thread", "kernel.tid": 7}),
    }
    own = {
        "name": "cache.miss",
        "time_unix_nano": START + 10 * MS,
        "attributes": key_values({"query": "secret"}),
    }
    (row,) = drawn(span(1, lasts=100, events=[event, own])).rows
    first, second = row.events
    assert (first.name, first.kernel, first.attributes) == ("cache.miss", False, {})
    assert (second.at, second.lasted) == ("50 ms", "30 ms")
    assert (second.left, second.width) == (50.0, 30.0)
    assert second.attributes == {"kernel.duration": "30 ms", "kernel.match": "thread", "kernel.tid": "7"}


def test_the_list_says_what_the_kernel_saw():
    """Times of 1 % and more, counts, other times, over all spans; maxima are in the sums already."""
    first = {
        "kernel.tcp.retransmits": 2,
        "kernel.sched.run_queue.time": 5 * MS,
        "kernel.sched.run_queue.max": 4 * MS,
    }
    second = {"kernel.tcp.retransmits": 1, "kernel.block.time": 7 * MS, "kernel.tcp.connect.time": 60_000}
    about = drawn(span(1, attributes=first), span(2, 1, attributes=second)).summary
    assert about.causes == ["block 7 ms", "sched.run_queue 5 ms", "tcp.retransmits 3", "tcp.connect 60 µs"]


def test_many_spans_and_events_are_drawn_in_part():
    """The page says how many are not; events of the kernel come before others."""
    events = [{"name": f"own {n}", "time_unix_nano": START} for n in range(traces.MOST_EVENTS)]
    events.append({"name": "kernel.tcp.retransmit", "time_unix_nano": START})
    found = drawn(span(1, events=events), *(span(n, 1, at=1) for n in range(2, traces.MOST_SPANS + 11)))
    assert len(found.rows) == traces.MOST_SPANS
    assert found.hidden == 10
    assert found.rows[0].hidden_events == 1
    assert len(found.rows[0].kernel_events) == 1


@pytest.mark.parametrize("key", [one.key for one in CONTENT], ids=str)
def test_prompts_and_answers_are_never_shown(key):
    """Whatever redaction was set to, under every name that is known to hold them."""
    names = (key, key + "0.message.content") if key.endswith(".") else (key,)
    for name in names:
        assert shown_attributes(key_values({name: "secret"})) == {}
        assert shown_attributes(key_values({name: 7})) == {}


def test_text_of_names_that_nobody_knows_is_not_shown():
    """It may hold anything; numbers do not."""
    items = key_values(
        {"my.question": "secret", "my.count": 3, "url.query": "q=secret", "my.list": ["secret"]}
    )
    assert shown_attributes(items) == {"my.count": "3"}


def test_the_bridges_own_text_is_shown():
    """Each text that the join writes, stack traces over several lines."""
    stack = "futex_wait+0x1 (libc.so)\nmain+0x2 (engine)"
    items = {"kernel.match": "thread", catalog.CODE_STACKTRACE.key: stack, "network.peer.address": "10.0.0.1"}
    assert shown_attributes(key_values(items)) == items


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\u202eb", "a\ufffdb"),
        ("a\x00\x1b[31mb\n", "a\ufffd\ufffd[31mb\ufffd"),
        ("x" * 500, "x" * 119 + "…"),
        ("Grüße", "Grüße"),
    ],
)
def test_texts_stand_on_one_line(text, shown):
    """Neither terminal codes nor marks that turn the writing around."""
    assert clean(text, 120) == shown


@pytest.mark.parametrize(
    ("nanoseconds", "said"),
    [
        (0, "0 s"),
        (999, "999 ns"),
        (1_500, "1.5 µs"),
        (12_345_678, "12.3 ms"),
        (-5 * MS, "-5 ms"),
        (90 * 10**9, "90 s"),
    ],
)
def test_times_are_said_as_people_do(nanoseconds, said):
    assert duration(nanoseconds) == said


def test_sizes_are_said_as_people_do():
    assert [byte_size(n) for n in (0, 1023, 2048, 5 << 20, 3 << 40)] == [
        "0 B",
        "1023 B",
        "2 KiB",
        "5 MiB",
        "3072 GiB",
    ]


U64 = st.integers(0, 2**64 - 1)
ATTRIBUTES = st.dictionaries(
    st.text(max_size=8)
    | st.sampled_from(["kernel.duration", "kernel.match", "service.name", "kernel.block.time"]),
    st.text(max_size=20)
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats()
    | st.booleans()
    | st.lists(st.text()),
    max_size=4,
)
EVENTS = st.builds(
    lambda name, time, attributes: {
        "name": name,
        "time_unix_nano": time,
        "attributes": key_values(attributes),
    },
    st.text(max_size=8) | st.just("kernel.x"),
    U64,
    ATTRIBUTES,
)


@given(
    st.lists(
        st.builds(
            lambda number, parent, begin, end, name, kind, attributes, events: {
                **span(number, parent),
                "start_time_unix_nano": begin,
                "end_time_unix_nano": end,
                "name": name,
                "kind": kind,
                "attributes": attributes,
                "events": events,
            },
            st.integers(1, 5),
            st.integers(0, 5),
            U64,
            U64,
            st.text(max_size=20),
            st.integers(0, 99),
            ATTRIBUTES,
            st.lists(EVENTS, max_size=3),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_nothing_a_stranger_sends_is_too_strange_to_draw(spans):
    """Every span once, every bar on the axis."""
    rows = traces.trace(kept(trace_request(spans))).rows
    assert {row.span_id for row in rows} == {one["span_id"].hex() for one in spans}
    assert len({row.span_id for row in rows}) == len(rows)
    for row in rows:
        for one in (row, *row.events):
            assert 0 <= one.left <= 100
            assert 0 < one.width <= 100
            assert one.left + one.width <= 100.01
