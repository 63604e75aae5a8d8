"""The record by itself: what goes in comes out, per thread, and nothing else does."""

from __future__ import annotations

import ctypes
import os
import threading

import pytest

from otel_bridge.context import _record

TRACE_ID = 0x0102030405060708090A0B0C0D0E0F10
SPAN_ID = 0x1112131415161718


def test_what_is_published_can_be_read_in_network_order():
    """W3C order, as OTEP 4947 wants it."""
    _record.publish(TRACE_ID, SPAN_ID, 1)
    assert _record.published() == (bytes(range(1, 17)), bytes(range(0x11, 0x19)), 1)
    _record.clear()
    assert _record.published() is None


def test_flags_are_zero_when_not_given_and_one_byte_when_they_are():
    """A byte of the record."""
    _record.publish(TRACE_ID, SPAN_ID)
    assert _record.published()[2] == 0
    _record.publish(TRACE_ID, SPAN_ID, 0x1FF)
    assert _record.published()[2] == 0xFF
    _record.clear()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((1 << 128, SPAN_ID), OverflowError),
        ((TRACE_ID, 1 << 64), OverflowError),
        ((-1, SPAN_ID), OverflowError),
        ((TRACE_ID, -1), OverflowError),
        (("1", SPAN_ID), TypeError),
        ((TRACE_ID, None), TypeError),
        ((TRACE_ID,), TypeError),
        ((TRACE_ID, SPAN_ID, 1, 1), TypeError),
        ((TRACE_ID, SPAN_ID, "1"), TypeError),
    ],
)
def test_what_is_no_id_is_refused_and_changes_nothing(arguments, error):
    """An id that is cut would be another span's."""
    _record.publish(TRACE_ID, SPAN_ID, 1)
    with pytest.raises(error):
        _record.publish(*arguments)
    assert _record.published() == (TRACE_ID.to_bytes(16), SPAN_ID.to_bytes(8), 1)
    _record.clear()


def test_the_largest_ids_fit():
    """All bits set."""
    _record.publish((1 << 128) - 1, (1 << 64) - 1, 0xFF)
    assert _record.published() == (b"\xff" * 16, b"\xff" * 8, 0xFF)
    _record.clear()


def test_each_thread_has_its_own():
    """23 threads, each with other ids, all at once."""
    found = {}
    start = threading.Barrier(23)

    def work(number: int) -> None:
        before = _record.published()
        _record.publish(number, number + 1000, 1)
        start.wait()
        found[number] = before, _record.published()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {
        number: (None, (number.to_bytes(16), (number + 1000).to_bytes(8), 1)) for number in range(1, 24)
    }
    assert _record.published() is None


def test_a_thread_starts_empty_where_one_ended_while_publishing():
    """The C library hands stacks, and with them thread-local memory, to the next thread."""
    seen = []

    def work() -> None:
        seen.append(_record.published())
        _record.publish(TRACE_ID, SPAN_ID, 1)

    for _ in range(1009):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert seen == [None] * 1009


def test_a_child_publishes_what_its_parent_did_at_the_fork():
    """Its context is the parent's, so its record is too; from then on they part."""
    _record.publish(TRACE_ID, SPAN_ID, 1)
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        inherited = _record.published() == (TRACE_ID.to_bytes(16), SPAN_ID.to_bytes(8), 1)
        _record.publish(1, 2, 0)
        os.write(writing, b"y" if inherited and _record.published()[2] == 0 else b"n")
        os._exit(0)
    os.close(writing)
    assert os.read(reading, 1) == b"y"
    os.close(reading)
    os.waitpid(pid, 0)
    assert _record.published() == (TRACE_ID.to_bytes(16), SPAN_ID.to_bytes(8), 1)
    _record.clear()


def test_variable_and_record_share_a_cache_line():
    """The kernel reads both at every switch (struct thread_variable in bpf/common/context.h)."""
    library = ctypes.CDLL(_record.__file__)
    found = []

    def work() -> None:
        _record.publish(TRACE_ID, SPAN_ID)
        variable = ctypes.c_void_p.in_dll(library, "otel_thread_ctx_v1")
        found.append((ctypes.addressof(variable), variable.value))

    for _ in range(3):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    work()
    _record.clear()
    assert [(address % 64, record - address) for address, record in found] == [(0, 16)] * 4
