"""Kernel events find the very span that they hit."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from otel_bridge import catalog
from otel_bridge.batch import PlanBuilder
from otel_bridge.events import COMMON, PROCESS, KernelEvents
from otel_bridge.model import KernelEventKind as Kind
from otel_bridge.model import Match
from otel_bridge.processors.join.config import JoinConfig
from otel_bridge.processors.join.join import Join
from otel_bridge.processors.join.logs import read_events, write_events
from otel_bridge.processors.join.processes import MAX_ENDED, Processes
from otel_bridge.processors.join.store import INDEX_BYTES
from otel_bridge.receivers.otlp.codec import NativeCodec
from otel_bridge.telemetry import Telemetry
from otel_bridge.testing import FakeClock, attributes_of, spans_of, trace_request

if TYPE_CHECKING:
    from collections.abc import Callable

START = 1_700_000_000_000_000_000
SECOND = 1_000_000_000
TRACE = (1).to_bytes(16, "big")
TCP = np.dtype(
    [
        *COMMON.descr,
        ("remote_address", "V16"),
        ("local_address", "V16"),
        ("local_port", "<u2"),
        ("remote_port", "<u2"),
        ("state", "u1"),
        ("protocol", "u1"),
        ("bytes", "<u4"),
        ("smoothed_rtt_us", "<u4"),
        ("segments", "<u4"),
    ]
)
SUM = np.dtype(
    [
        *COMMON.descr,
        ("first", "<u8"),
        ("run_queue_ns", "<u8"),
        ("run_queue_max_ns", "<u8"),
        ("off_cpu_ns", "<u8"),
        ("off_cpu_max_ns", "<u8"),
    ]
)


def span_id(number: int) -> bytes:
    """A span id as testing.trace_request gives it."""
    return number.to_bytes(8, "big")


def retransmits(
    *spans: int,
    at: int = START + SECOND // 2,
    match: Match = Match.SOCKET,
    trace: bytes = TRACE,
    tgid: int = 7,
):
    """One retransmit on each of these spans."""
    records = np.zeros(len(spans), TCP)
    records["kind"], records["match"], records["time"], records["tgid"] = Kind.TCP_RETRANSMIT, match, at, tgid
    records["trace_id"] = trace
    records["remote_address"] = bytes(10) + b"\xff\xff" + bytes((10, 0, 0, 9))
    records["remote_port"] = 8000
    records["segments"] = 1
    for record, span in zip(records, spans, strict=True):
        record["span_id"] = span_id(span)
    return KernelEvents("tcp", records)


class Bench:
    """A join with what it needs around it."""

    def __init__(self, **config) -> None:
        self.telemetry = Telemetry()
        self.clock = FakeClock(START + 10 * SECOND)
        columns = PlanBuilder()
        self.join = Join(JoinConfig(**config), columns, self.telemetry, self.clock)
        self.plan = columns.build()
        self.codec = NativeCodec()

    def pass_through(self, *spans: dict, resource: dict | None = None) -> list:
        """Send spans through, get them back."""
        batch = self.codec.scan(trace_request(spans, resource=resource), self.plan)
        self.join.process(batch)
        return spans_of(batch.splice())

    def outcome(self, outcome: str, probe: str = "tcp") -> float:
        """A count of events."""
        return self.telemetry.value(catalog.JOIN_EVENTS, probe=probe, outcome=outcome)


def test_an_event_lands_on_its_span_and_on_no_other():
    """Two of five spans were hit, one twice; attributes, events and the match say so."""
    bench = Bench()
    bench.join.take(retransmits(2, 4, 2))
    spans = bench.pass_through(*[{}] * 5)
    counts = [attributes_of(span.attributes).get("kernel.tcp.retransmits") for span in spans]
    assert counts == [None, 2, None, 1, None]
    assert attributes_of(spans[1].attributes)["kernel.match"] == "socket"
    (event,) = spans[3].events
    assert event.name == "kernel.tcp.retransmit"
    assert event.time_unix_nano == START + SECOND // 2
    shown = attributes_of(event.attributes)
    assert shown["network.peer.address"] == "10.0.0.9"
    assert shown["network.peer.port"] == 8000
    assert shown["kernel.match"] == "socket"
    assert "network.local.address" not in shown
    assert bench.outcome("socket") == 3


def test_without_events_a_span_is_not_touched():
    """The same bytes object leaves."""
    bench = Bench()
    data = trace_request([{}])
    batch = bench.codec.scan(data, bench.plan)
    bench.join.process(batch)
    assert batch.splice() is data
    bench.join.take(retransmits(9))
    batch = bench.codec.scan(data, bench.plan)
    bench.join.process(batch)
    assert batch.splice() is data


@pytest.mark.parametrize(("at", "joined"), [(-1, False), (0, True), (SECOND, True), (SECOND + 1, False)])
def test_the_span_s_time_decides(at, joined):
    """Case ebpf-context-leak: an event after its span's end is stale, not joined."""
    bench = Bench(slack=0)
    bench.join.take(retransmits(1, at=START + at))
    (span,) = bench.pass_through({})
    assert bool(span.events) is joined
    assert bench.outcome("stale") == (not joined)


def test_the_clocks_error_is_allowed_for():
    """Half a millisecond outside, with a millisecond of slack."""
    bench = Bench(slack=0.001)
    bench.join.take(retransmits(1, at=START + SECOND + 500_000))
    assert len(bench.pass_through({})[0].events) == 1


def test_another_trace_with_the_same_span_id_gets_nothing():
    """Both ids must be the span's."""
    bench = Bench()
    bench.join.take(retransmits(1, trace=(2).to_bytes(16, "big")))
    assert not bench.pass_through({})[0].events


def test_sums_add_up_and_maxima_do_not():
    """Two rounds of one span's sums; zeros are left out."""
    bench = Bench()
    for number in (1, 2):
        records = np.zeros(1, SUM)
        records["kind"], records["match"], records["trace_id"] = Kind.SCHED_SUM, Match.THREAD, TRACE
        records["span_id"], records["first"] = span_id(1), START + number
        records["time"] = START + 10 * number
        records["run_queue_ns"], records["run_queue_max_ns"] = 100 * number, 10 * number
        bench.join.take(KernelEvents("sched", records))
    (span,) = bench.pass_through({})
    assert attributes_of(span.attributes) == {
        "kernel.sched.run_queue.time": 300,
        "kernel.sched.run_queue.max": 20,
        "kernel.match": "thread",
    }
    assert not span.events


def test_stalls_say_how_long_and_full_queues_of_which_protocol():
    """A peer that did not read, twice, and a datagram that found no room."""
    bench = Bench()
    stalls, lost = retransmits(1, 1), retransmits(1)
    stalls.records["kind"], stalls.records["duration"] = Kind.TCP_ZERO_WINDOW, (30, 70)
    lost.records["kind"], lost.records["protocol"] = Kind.RECEIVE_QUEUE_FULL, 17
    bench.join.take(stalls)
    bench.join.take(lost)
    (span,) = bench.pass_through({})
    attributes = attributes_of(span.attributes)
    assert attributes["kernel.tcp.zero_windows"] == 2
    assert attributes["kernel.tcp.zero_window.time"] == 100
    assert attributes["kernel.receive_queue_full"] == 1
    assert [event.name for event in span.events] == 2 * ["kernel.tcp.zero_window"] + [
        "kernel.receive_queue_full"
    ]
    assert attributes_of(span.events[2].attributes)["network.transport"] == "udp"


def test_a_storm_on_one_span_is_counted_and_not_written_out():
    """23 retransmits, 5 written: the number is right, and what was left out is said."""
    bench = Bench(max_events=5)
    bench.join.take(retransmits(*[1] * 23))
    (span,) = bench.pass_through({})
    attributes = attributes_of(span.attributes)
    assert (attributes["kernel.tcp.retransmits"], attributes["kernel.events.dropped"], len(span.events)) == (
        23,
        18,
        5,
    )


def test_a_header_match_goes_to_the_server_span_below_the_caller():
    """The caller is named; the SERVER span under it was hit, its CLIENT sibling was not."""
    bench = Bench()
    bench.join.take(retransmits(100, match=Match.HEADER))
    spans = bench.pass_through(
        {"parent_span_id": span_id(100), "kind": 3},
        {"parent_span_id": span_id(100)},
        {"parent_span_id": span_id(7)},
    )
    assert [len(span.events) for span in spans] == [0, 1, 0]
    assert attributes_of(spans[1].attributes)["kernel.match"] == "header"


def process(tgid: int, own_pid: int, container: str = "", kind: Kind = Kind.PROCESS_EXEC):
    """A process that began."""
    records = np.zeros(1, PROCESS)
    records["kind"], records["tgid"], records["namespace_pid"] = kind, tgid, own_pid
    records["container"] = container.encode()
    return KernelEvents("process", records)


def of_process(tgid: int):
    """A retransmit of which only the process is known."""
    return retransmits(0, trace=bytes(16), match=Match.NONE, tgid=tgid)


def test_of_several_spans_that_a_caller_called_a_header_match_takes_the_one_that_was_open():
    """A caller without client spans is the parent of all; two open at once cannot be told apart."""
    caller = {"parent_span_id": span_id(100)}
    later = {"start_time_unix_nano": START + 2 * SECOND, "end_time_unix_nano": START + 3 * SECOND}
    bench = Bench()
    bench.join.take(retransmits(100, match=Match.HEADER, at=START + 2 * SECOND + SECOND // 2))
    spans = bench.pass_through(caller, {**caller, **later})
    assert [len(span.events) for span in spans] == [0, 1]

    again = Bench()
    again.join.take(retransmits(100, match=Match.HEADER))
    assert not any(span.events for span in again.pass_through(caller, caller))
    assert again.outcome("stale") == 0

    stale = Bench()
    stale.join.take(retransmits(100, match=Match.HEADER, at=START + 9 * SECOND))
    assert not any(span.events for span in stale.pass_through(caller, {**caller, **later}))
    assert stale.outcome("stale") == 1


def test_a_header_match_is_never_joined_with_the_span_of_another_process():
    """Two services called at once by one span, both seen by this bridge."""
    caller = {"parent_span_id": span_id(100)}
    bench = Bench()
    bench.join.take(process(4711, 4711))
    bench.join.take(process(4712, 4712))
    bench.join.take(retransmits(100, match=Match.HEADER, tgid=4711))
    (other,) = bench.pass_through(caller, resource={"process.pid": 4712})
    assert not other.events
    (own,) = bench.pass_through(caller, resource={"process.pid": 4711})
    assert attributes_of(own.attributes)["kernel.match"] == "header"


def test_by_process_only_when_one_entry_span_was_open():
    """The last resort is used where it is not a coin toss, and says what it is."""
    bench = Bench()
    bench.join.take(process(4711, 4711))
    bench.join.take(of_process(4711))
    late = {"start_time_unix_nano": START + 2 * SECOND, "end_time_unix_nano": START + 3 * SECOND}
    spans = bench.pass_through({}, late, {"kind": 1}, resource={"process.pid": 4711})
    assert [len(span.events) for span in spans] == [1, 0, 0]
    assert attributes_of(spans[0].attributes)["kernel.match"] == "process"

    again = Bench()
    again.join.take(process(4711, 4711))
    again.join.take(of_process(4711))
    assert not any(span.events for span in again.pass_through({}, {}, resource={"process.pid": 4711}))
    assert not any(span.events for span in again.pass_through({}, resource={"process.pid": 4712}))


A, B = "a" * 64, "b" * 64


@pytest.mark.parametrize(
    ("resource", "joined"),
    [
        ({"process.pid": 1, "container.id": A}, 101),
        ({"process.pid": 1, "container.id": B}, 202),
        ({"process.pid": 1, "container.id": B[:12]}, 202),
        ({"process.pid": 1, "container.id": "c" * 64}, 1),  # the one whose container is not known
        ({"process.pid": 1}, None),  # three call themselves so
        ({"process.pid": 17}, 303),  # one does
        ({"process.pid": 101}, None),  # the kernel calls one so, nobody itself
        ({"process.pid": 17, "container.id": "c" * 64}, None),  # that one is in another container
        ({"process.pid": "1"}, None),
        ({}, None),
    ],
)
def test_a_process_is_known_across_pid_namespaces(resource, joined):
    """By its number and container as it says them itself; where that names several, by nothing."""
    for tgid in (1, 101, 202, 303):
        bench = Bench()
        for known in (process(1, 1), process(101, 1, A), process(202, 1, B), process(303, 17, A)):
            bench.join.take(known)
        bench.join.take(of_process(tgid))
        (span,) = bench.pass_through({}, resource=resource)
        assert bool(span.events) == (tgid == joined)


async def test_a_process_that_ended_is_known_until_its_spans_are_overdue():
    """They are exported late; and its number may come back."""
    bench = Bench(max_age=60)
    bench.join.take(process(7, 7))
    bench.join.take(process(7, 0, kind=Kind.PROCESS_EXIT))
    bench.join.take(of_process(7))
    assert bench.pass_through({}, resource={"process.pid": 7})[0].events
    await bench.clock.advance(61)
    bench.join.sweep()
    bench.join.take(of_process(7))
    assert not bench.pass_through({}, resource={"process.pid": 7})[0].events


def test_a_process_s_number_says_nothing_on_another_machine():
    """Events without a span that another bridge sent are joined with none."""
    bench = Bench()
    bench.join.take(process(7, 7))
    bench.join.take_logs(write_events([("tcp", of_process(7).records)]))
    assert not bench.pass_through({}, resource={"process.pid": 7})[0].events


def test_many_short_lived_processes_are_forgotten():
    """However many end, a bounded number is remembered."""
    processes = Processes()
    for tgid in range(1, 3 * MAX_ENDED):
        processes.put(process(tgid, tgid).records)
        processes.put(process(tgid, 0, kind=Kind.PROCESS_EXIT).records)
    processes.absorb(0.0, 60.0)
    assert sum(processes.named(tgid, "") is not None for tgid in range(1, 3 * MAX_ENDED)) == MAX_ENDED


def test_a_retried_span_gets_its_events_again():
    """A sender that was refused comes again; the events were not used up."""
    bench = Bench()
    bench.join.take(retransmits(1))
    assert [len(bench.pass_through({})[0].events) for _ in range(2)] == [1, 1]
    assert bench.outcome("socket") == 1


async def test_what_found_no_span_leaves_as_log_records_and_joins_elsewhere():
    """Two tiers: this bridge sees the event, another one the span."""
    here, there = Bench(max_age=60), Bench()
    here.join.take(retransmits(1, 5))
    here.pass_through({})
    assert here.join.sweep() is None
    await here.clock.advance(61)
    data = here.join.sweep()
    assert here.outcome("expired") == 1
    (record,) = ExportLogsServiceRequest.FromString(data).resource_logs[0].scope_logs[0].log_records
    assert (record.trace_id, record.span_id) == (TRACE, span_id(5))
    assert record.event_name == "kernel.tcp.retransmit"
    there.join.take_logs(data)
    assert len(there.pass_through({"span_id": span_id(5)})[0].events) == 1
    assert here.join.sweep() is None


async def test_at_a_gateway_young_spans_wait_for_the_nodes():
    """Until they are so old, and only where events of other bridges ever came."""
    bench = Bench(foreign_wait=3)
    young = trace_request([{"end_time_unix_nano": bench.clock.time_ns() - SECOND}])
    batch = bench.codec.scan(young, bench.plan)
    await bench.join.settle(batch, lambda: 0)
    bench.join.take_logs(write_events([("tcp", retransmits(1).records)]))
    settling = asyncio.create_task(bench.join.settle(batch, lambda: 0))
    await bench.clock.advance(1.9)
    assert not settling.done()
    await bench.clock.advance(0.2)
    await settling
    await bench.join.settle(bench.codec.scan(trace_request([{}]), bench.plan), lambda: 0)


async def test_what_names_no_span_is_not_sent_on():
    """Nobody could join it: every connection of every program of the machine would leave as a log record."""
    bench = Bench(max_age=60)
    bench.join.take(of_process(7))
    bench.join.sweep()
    await bench.clock.advance(61)
    assert bench.join.sweep() is None
    assert bench.outcome("expired") == 1


def test_two_bridges_on_one_span_add_up():
    """The gateway adds to what the node's bridge noted, and leaves no attribute twice."""
    bench = Bench()
    bench.join.take(retransmits(1, 1))
    (span,) = bench.pass_through({"attributes": {"kernel.tcp.retransmits": 3, "x": 1}})
    assert [a.key for a in span.attributes].count("kernel.tcp.retransmits") == 1
    assert attributes_of(span.attributes)["kernel.tcp.retransmits"] == 5


def test_memory_is_bounded_whatever_comes():
    """More than fits: the oldest leave and are counted; nothing is lost uncounted."""
    one = retransmits(1).records.nbytes + INDEX_BYTES
    bench = Bench(max_bytes=one * 100)
    for number in range(1, 1001):
        bench.join.take(retransmits(number))
        if number % 50 == 0:
            bench.join.sweep()
    held = bench.telemetry.value(catalog.JOIN_WAITING_EVENTS)
    assert held <= 100
    assert bench.telemetry.value(catalog.JOIN_WAITING_BYTES) <= one * 100
    assert held + bench.outcome("evicted") == 1000


def test_a_reader_ahead_of_the_pipeline_is_bounded_too():
    """Nobody sweeps, the reader goes on: what does not fit is counted."""
    bench = Bench(max_bytes=retransmits(1).records.nbytes * 10)
    for number in range(1, 24):
        bench.join.take(retransmits(number))
    bench.join.sweep()
    assert bench.outcome("evicted") == 23 - bench.telemetry.value(catalog.JOIN_WAITING_EVENTS)


async def settled_after(
    bench: Bench, *spans: dict, complete_until: Callable[[int], int] = lambda _: 0
) -> float:
    """Seconds that a request of these spans is held."""
    batch = bench.codec.scan(trace_request(spans), bench.plan)
    task = asyncio.create_task(bench.join.settle(batch, complete_until))
    began = bench.clock.monotonic()
    await asyncio.sleep(0)
    while not task.done():
        await bench.clock.advance(0.01)
    return bench.clock.monotonic() - began


async def test_young_spans_wait_for_the_kernels_events():
    """Only while there are events of this machine, and never longer than the setting."""
    bench = Bench(wait=0.25)
    now = bench.clock.time_ns()
    young = {"end_time_unix_nano": now - 50_000_000}
    assert await settled_after(bench, young, {}) == 0
    bench.join.take_logs(write_events([("tcp", retransmits(1).records)]))
    assert await settled_after(bench, young, {}) == 0
    bench.join.take(retransmits(1))
    assert await settled_after(bench, {}) == 0
    assert await settled_after(bench, young, {}) == pytest.approx(0.2)
    assert await settled_after(bench, {"end_time_unix_nano": now + 3600 * SECOND}) == pytest.approx(0.25)


async def test_young_spans_wait_no_longer_than_until_their_events_are_here():
    """The round of reading after the youngest span's end is what counts, however late it comes."""
    bench = Bench(wait=2.0)
    bench.join.take(retransmits(1))
    end = bench.clock.time_ns()
    rounds = {0.0: end - 1, 0.6: end}

    def complete_until(wanted: int) -> int:
        assert wanted == end
        since = (bench.clock.time_ns() - end) / 1e9
        return max(until for at, until in rounds.items() if at <= since + 1e-6)

    held = await settled_after(bench, {"end_time_unix_nano": end}, complete_until=complete_until)
    assert held == pytest.approx(0.6, abs=0.05)


@given(st.binary(max_size=200), st.integers(0, 400))
def test_logs_from_outside_never_hurt(junk, at):
    """Whatever stands in a log request with our scope name, reading it raises nothing."""
    data = write_events([("tcp", retransmits(1, 2).records)])
    broken = data[:at] + junk + data[at + len(junk) :]
    for candidate in (junk, broken):
        for events in read_events(candidate):
            assert events.records.dtype.descr[: len(COMMON.descr)] == COMMON.descr


def test_every_field_survives_the_way_through_a_log():
    """Byte for byte."""
    sent = retransmits(1, 2, 3)
    (back,) = read_events(write_events([("tcp", sent.records)]))
    assert back.probe == "tcp"
    assert back.records.tobytes() == sent.records.tobytes()
    assert back.records.dtype == sent.records.dtype


def test_what_waits_at_the_end_leaves_as_logs():
    """A bridge that stops hands on the events whose span has not come yet."""
    bench = Bench()
    bench.join.take(retransmits(1, 2))
    bench.pass_through({})
    (left,) = read_events(bench.join.sweep(everything=True))
    assert bytes(left.records[0]["span_id"]) == span_id(2)
    assert len(left) == 1


def test_a_user_probe_s_event_shows_the_fields_it_was_given():
    """Named after the function's probe; negative numbers stay negative, padding is left out."""
    records = np.zeros(1, np.dtype([*COMMON.descr, ("evicted", "<i8"), ("_pad", "<u4")]))
    records["kind"], records["match"], records["trace_id"] = Kind.USER, Match.HAND_OVER, TRACE
    records["span_id"], records["time"], records["evicted"] = span_id(1), START + 5, -3
    bench = Bench()
    bench.join.take(KernelEvents("kv_cache_evict", records))
    (span,) = bench.pass_through({})
    (event,) = span.events
    assert event.name == "kernel.user.kv_cache_evict"
    shown = attributes_of(event.attributes)
    assert shown == {"kernel.match": "hand_over", "kernel.user.evicted": -3}
    assert attributes_of(span.attributes)["kernel.user.events"] == 1


def test_a_user_probe_s_fields_are_numbers_whatever_they_are_called():
    """Names that the bridge's own probes use otherwise change nothing; too large a number is the largest."""
    dtype = np.dtype([*COMMON.descr, ("fd", "<i4"), ("version", "<u4"), ("hash", "<u8")])
    records = np.zeros(1, dtype)
    records["kind"], records["match"], records["trace_id"] = Kind.USER, Match.THREAD, TRACE
    records["span_id"], records["time"] = span_id(1), START + 5
    records["fd"], records["version"], records["hash"] = -1, 0x0304, (1 << 64) - 1
    bench = Bench()
    bench.join.take(KernelEvents("call", records))
    (event,) = bench.pass_through({})[0].events
    shown = attributes_of(event.attributes)
    del shown["kernel.match"]
    assert shown == {
        "kernel.user.fd": -1,
        "kernel.user.version": 0x0304,
        "kernel.user.hash": (1 << 63) - 1,
    }


def test_the_first_events_of_each_span_are_written_however_they_came():
    """23 on each of two spans, mixed, in two batches of the reader: five each are written, the oldest."""
    bench = Bench(max_events=5)
    for first in (0, 12):
        numbers = [number for number in range(first, min(first + 12, 23)) for _ in (1, 2)]
        events = retransmits(*[1, 2] * (len(numbers) // 2))
        events.records["local_port"] = [number + 1 for number in numbers]
        bench.join.take(events)
    for span in bench.pass_through({}, {}):
        attributes = attributes_of(span.attributes)
        assert (attributes["kernel.tcp.retransmits"], attributes["kernel.events.dropped"]) == (23, 18)
        ports = [attributes_of(event.attributes)["network.local.port"] for event in span.events]
        assert ports == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("kinds", [[Kind.TCP_RETRANSMIT, Kind.TCP_RESET_SENT], [Kind.TCP_CONNECT, 61]])
def test_kinds_that_came_together_are_told_apart(kinds):
    """Each has its own name; what concerns no span adds nothing."""
    bench = Bench()
    events = retransmits(1, 1)
    events.records["kind"] = kinds
    bench.join.take(events)
    (span,) = bench.pass_through({})
    names = {
        Kind.TCP_RETRANSMIT: "retransmit",
        Kind.TCP_RESET_SENT: "reset_sent",
        Kind.TCP_CONNECT: "connect",
    }
    assert [event.name for event in span.events] == [f"kernel.tcp.{names[k]}" for k in kinds if k in names]


def test_a_record_that_lacks_a_field_says_less():
    """From a bridge of another version."""
    bench = Bench()
    lacking = np.zeros(1, COMMON)
    lacking["kind"], lacking["match"] = Kind.TCP_RETRANSMIT, Match.SOCKET
    lacking["trace_id"], lacking["span_id"], lacking["time"] = TRACE, span_id(1), START + 5
    bench.join.take_logs(write_events([("tcp", lacking)]))
    (span,) = bench.pass_through({})
    assert [event.name for event in span.events] == ["kernel.tcp.retransmit"]
    assert "kernel.tcp.retransmits" not in attributes_of(span.attributes)
