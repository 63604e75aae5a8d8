"""What the join bench's verdict rests on: it sees what is missing and what is on a wrong span."""

from __future__ import annotations

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_bridge.testing import key_values
from tests.bench.join.causes import Caused, Kind
from tests.bench.join.ledger import Ledger

LOSSY = 9000
MILLISECOND = 1_000_000


def span(number: int, *events: dict, **attributes) -> Span:
    """A span as the bridge sends it; attributes and events' attributes with _ for . in their names."""
    made = Span(span_id=bytes([number]) * 8, name="job", attributes=keyed(attributes))
    for event in events:
        fields = dict(event)
        name, time = fields.pop("name"), fields.pop("time", 0)
        made.events.add(name=name, time_unix_nano=time, attributes=key_values(fields))
    return made


def keyed(attributes: dict) -> list:
    """Attributes of a span, with the match that joined spans have."""
    return key_values({"kernel.match": "thread"} | attributes)


def caused(kind: Kind, number: int, **what) -> Caused:
    """What a request says it caused under a span."""
    return Caused(kind, span_id=(bytes([number]) * 8).hex(), **what)


def judge(kind: Kind, causes: list[Caused], spans: list[Span], reclaims=()) -> tuple[int, int, int]:
    """Caused, right and wrong of a kind."""
    tally = Ledger(causes, spans, reclaims, LOSSY).judge()[kind]
    return tally.caused, tally.right, tally.wrong


def retransmit(port: int, segments: int = 1, peer: int = LOSSY) -> dict:
    """One such span event."""
    return {
        "name": "kernel.tcp.retransmit",
        "kernel.match": "socket",
        "kernel.tcp.segments": segments,
        "network.local.port": port,
        "network.peer.port": peer,
    }


def wait(tid: int, time: int, asleep: int = 80 * MILLISECOND) -> dict:
    """One such span event."""
    return {
        "name": "kernel.sched.wait",
        "kernel.match": "thread",
        "kernel.tid": tid,
        "kernel.sched.off_cpu.time": asleep,
        "time": time,
    }


def test_retransmits_are_counted_in_segments_by_port():
    """Those of a port of its own are right up to what was caused; all others of the lossy peer are wrong."""
    causes = [caused(Kind.RETRANSMIT, 1, count=5, ports=[100])]
    assert judge(Kind.RETRANSMIT, causes, [span(1, retransmit(100, 3), retransmit(100, 2))]) == (5, 5, 0)
    assert judge(Kind.RETRANSMIT, causes, [span(1, retransmit(100, 7))]) == (5, 5, 2)
    assert judge(Kind.RETRANSMIT, causes, [span(1, retransmit(101, 2))]) == (5, 0, 2)
    assert judge(Kind.RETRANSMIT, causes, [span(1), span(2, retransmit(100))]) == (5, 0, 1)
    assert judge(Kind.RETRANSMIT, causes, [span(1, retransmit(101, peer=1))]) == (5, 0, 0)


def test_a_span_that_never_came_has_nothing_right():
    """And is counted."""
    causes = [caused(Kind.HANDSHAKE, 1, count=2)]
    ledger = Ledger(causes, [], (), LOSSY)
    assert ledger.judge()[Kind.HANDSHAKE].unmatched == 2
    assert ledger.lost_spans == 1


def test_a_sleep_is_its_who_was_at_work_on_the_thread():
    """On the other span it is wrong; other waits of the same thread are nobody's."""
    first = caused(Kind.SLEEP, 1, tid=7, count=1, moments=[(100, 200)])
    second = caused(Kind.SLEEP, 2, tid=7, count=1, moments=[(300, 400)])
    causes = [first, second]
    assert judge(Kind.SLEEP, causes, [span(1, wait(7, 200)), span(2, wait(7, 400))]) == (2, 2, 0)
    assert judge(Kind.SLEEP, causes, [span(1, wait(7, 200), wait(7, 400)), span(2)]) == (2, 1, 1)
    assert judge(Kind.SLEEP, causes, [span(1, wait(7, 250), wait(8, 150))]) == (2, 0, 0)
    again = wait(7, 199, asleep=MILLISECOND)
    assert judge(Kind.SLEEP, causes, [span(1, wait(7, 150), again), span(2)]) == (2, 1, 0)


def test_reclaims_are_counted_by_the_kernels_own_trace():
    """By thread and moment; what lies outside concerns nobody."""
    causes = [caused(Kind.RECLAIM, 1, tid=7, moments=[(100, 200)])]
    event = {"name": "kernel.memory.reclaim", "kernel.match": "thread", "kernel.tid": 7, "time": 150}
    reclaims = [(7, 150), (7, 160), (7, 300), (8, 150)]
    assert judge(Kind.RECLAIM, causes, [span(1, event)], reclaims) == (2, 1, 0)
    assert judge(Kind.RECLAIM, causes, [span(1), span(2, event)], reclaims) == (2, 0, 1)


@pytest.mark.parametrize(
    ("requests", "size", "right", "wrong"), [(3, 12, 3, 0), (2, 8, 2, 0), (4, 16, 3, 1), (3, 13, 0, 3)]
)
def test_disk_reads_must_fit_in_number_and_size(requests, size, right, wrong):
    """A read of another size is not one of these."""
    causes = [caused(Kind.READ, 1, count=3, amount=12)]
    found = span(1, **{"kernel.block.requests": requests, "kernel.block.bytes": size})
    assert judge(Kind.READ, causes, [found]) == (3, right, wrong)


def test_disk_reads_of_a_span_that_made_none_are_wrong():
    """Whatever their size."""
    found = span(2, **{"kernel.block.requests": 1, "kernel.block.bytes": 4096})
    assert judge(Kind.READ, [caused(Kind.HANDSHAKE, 1)], [found]) == (0, 0, 1)


@pytest.mark.parametrize(
    ("waited", "right", "wrong"), [(50, 1, 0), (40, 1, 0), (60, 1, 0), (20, 0, 0), (90, 0, 1)]
)
def test_a_wait_for_the_cpu_lies_between_two_accounts(waited, right, wrong):
    """From 40 to 60 ms here, give or take 5 ms."""
    causes = [caused(Kind.HOG, 1, amount=40 * MILLISECOND, most=60 * MILLISECOND)]
    found = span(1, **{"kernel.sched.run_queue.time": waited * MILLISECOND})
    assert judge(Kind.HOG, causes, [found]) == (1, right, wrong)
