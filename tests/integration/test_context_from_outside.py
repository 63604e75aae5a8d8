"""What other processes see of the publisher: their threads' records read from outside, while they work."""

from __future__ import annotations

import struct
from contextlib import suppress

import pytest

from otel_bridge.kernel.thread_context import locate
from tests.support.application import application
from tests.support.kernel import eventually
from tests.support.thread_records import Published, ThreadReader, needs_x86_64, stopped

pytest.importorskip("otel_bridge.context._record", reason="the C extension was not built")

THREADS = """
go = threading.Barrier(24)
inside = {}

def work():
    with tracer.start_as_current_span("outer"), tracer.start_as_current_span("inner") as span:
        inside[threading.get_native_id()] = ids(span)
        go.wait()
        go.wait()
    go.wait()
    go.wait()

threads = [threading.Thread(target=work) for _ in range(23)]
for thread in threads:
    thread.start()
go.wait()
say(inside)
sys.stdin.readline()
go.wait()
go.wait()
say("outside")
sys.stdin.readline()
go.wait()
for thread in threads:
    thread.join()
say("over")
sys.stdin.readline()
"""


@needs_x86_64
def test_each_threads_span_is_read_from_outside():
    """23 threads, all inside a span, then all outside, then gone."""
    with application(THREADS) as app:
        inside = {int(tid): Published(*ids) for tid, ids in app.hear().items()}
        with ThreadReader(app.pid) as reader:
            assert len(inside) == 23
            assert reader.all() == inside | {app.pid: None}
            app.tell()
            assert app.hear() == "outside"
            assert reader.all() == dict.fromkeys([*inside, app.pid])
            app.tell()
            assert app.hear() == "over"
            # To Python a thread is over a moment before it is to the kernel.
            eventually("only the main thread is left", lambda: reader.all() == {app.pid: None})


FORK = """
import os

with tracer.start_as_current_span("parent") as span:
    pid = os.fork()
    if pid == 0:
        with tracer.start_as_current_span("child") as child:
            say([os.getpid(), ids(span), ids(child)])
            os.read(0, 1)
        os._exit(0)
    os.waitpid(pid, 0)
"""


@needs_x86_64
def test_a_forked_child_has_a_record_of_its_own():
    """At the same address, in its own memory."""
    with application(FORK) as app:
        child, parent_ids, child_ids = app.hear()
        with ThreadReader(app.pid) as reader:
            assert reader.all() == {app.pid: Published(*parent_ids)}
        with ThreadReader(child) as reader:
            assert reader.all() == {child: Published(*child_ids)}
        app.tell()


SHORT = """
def work():
    with tracer.start_as_current_span("short"):
        pass

before = len(open("/proc/self/maps").readlines())
for _ in range(1009):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
say(len(open("/proc/self/maps").readlines()) - before)
sys.stdin.readline()
"""


@needs_x86_64
def test_a_thousand_short_lived_threads_leave_nothing():
    """No memory, and no record that could be read."""
    with application(SHORT) as app:
        assert app.hear() < 10
        with ThreadReader(app.pid) as reader:
            assert reader.all() == {app.pid: None}


# Trace id and span id go together: n in every byte of both. It rests now and then, as a thread does.
SWITCHING = """
import time

def work():
    numbers = [int.from_bytes(bytes([n]) * 16) for n in range(1, 252)]
    say([threading.get_native_id(), threading.get_ident()])
    while True:
        for number in numbers:
            _record.publish(number, number & (1 << 64) - 1, number & 255)
        time.sleep(0.0001)
        _record.clear()

threading.Thread(target=work, daemon=True).start()
sys.stdin.readline()
"""

READS = 1009


def is_whole(trace_id: bytes, span_id: bytes, flags: int) -> bool:
    """Whether all of it is of one switch."""
    return trace_id + span_id == bytes([flags]) * 24


@needs_x86_64
def test_no_torn_record_is_seen_by_whoever_interrupts_the_thread():
    """What is valid is whole: the promise of the OTEP, and what a BPF program on the thread relies on."""
    whole = invalid = 0
    with application(SWITCHING) as app:
        tid, _ = app.hear()
        with ThreadReader(app.pid) as reader:
            for _ in range(READS):
                published = reader.of(tid)
                if published is None:
                    invalid += 1
                    continue
                ids = published.trace_id.to_bytes(16), published.span_id.to_bytes(8)
                assert is_whole(*ids, published.flags)
                whole += 1
    assert whole > invalid


@needs_x86_64
def test_no_torn_record_is_taken_by_whoever_minds_the_sequence():
    """From another processor, while the thread runs: even and unchanged around the read means whole."""
    whole = discarded = 0
    with application(SWITCHING) as app:
        tid, _ = app.hear()
        with ThreadReader(app.pid) as reader:

            def address_of_record() -> int | None:
                with stopped(tid) as thread_pointer:
                    return reader.record_address(thread_pointer)

            address = eventually("the thread has been at a span", address_of_record)
            for _ in range(30_011):
                before = reader.read(address + 32, 8)
                trace_id, span_id, valid, flags = struct.unpack("<16s8sBB", reader.read(address, 26))
                after = reader.read(address + 32, 8)
                if before != after or before[0] & 1:
                    discarded += 1
                elif valid == 1:
                    assert is_whole(trace_id, span_id, flags)
                    whole += 1
    assert discarded > 0
    assert whole > 0


EXITING = """
import os

def work():
    with tracer.start_as_current_span("a"):
        while True:
            with tracer.start_as_current_span("b"):
                pass

for _ in range(5):
    threading.Thread(target=work, daemon=True).start()
say("busy")
sys.stdin.readline()
"""


def test_a_process_may_be_looked_at_while_it_ends():
    """It is found, or it is gone; nothing else."""
    for _ in range(11):
        with application(EXITING) as app:
            assert app.hear() == "busy"
            assert locate(app.pid) is not None
            app.tell()
            while app.process.poll() is None:
                with suppress(ProcessLookupError):
                    locate(app.pid)
            assert app.process.wait() == 0
