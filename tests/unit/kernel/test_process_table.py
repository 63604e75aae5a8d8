"""Which bytes and which layouts the programs find."""

from __future__ import annotations

import numpy as np
import pytest

from otel_bridge.errors import BridgeError
from otel_bridge.kernel.process_table import ProcessTable
from otel_bridge.kernel.records import PROCESSES, Known
from otel_bridge.kernel.thread_context import ThreadContextLayout

LAYOUTS = Known.LAYOUTS - Known.FIRST_LAYOUT


def at(offset: int, path: str = "/lib/other.so") -> ThreadContextLayout:
    """A layout like no other offset's."""
    return ThreadContextLayout(offset, 0, 8, 16, path)


@pytest.fixture
def known():
    """The table's bytes."""
    return np.zeros(PROCESSES, np.uint8)


@pytest.fixture
def layouts():
    """By number, what was written."""
    return {}


@pytest.fixture
def table(known, layouts):
    """A table; whoever writes a layout sees that no process has its number yet."""

    def write(number, layout):
        assert number not in known
        layouts[number] = layout

    return ProcessTable(known, write)


def test_processes_alike_share_a_layout(table, known, layouts):
    """Only the way counts, and whether changes are counted there, not which file it was found in."""
    table.follow(7, at(-64))
    table.follow(PROCESSES - 1, at(-64, "/lib/another.so"))
    table.follow(9, at(-128))
    assert layouts == {4: (-64, 0, 8, 16, False), 5: (-128, 0, 8, 16, False)}
    assert {int(pid): int(known[pid]) for pid in np.flatnonzero(known)} == {7: 4, 9: 5, PROCESSES - 1: 4}


def test_a_process_that_is_no_longer_followed_is_unknown(table, known):
    """Others stay."""
    table.follow(7, at(-64))
    table.follow(8, at(-64))
    table.discard(7)
    assert known[7] == 0
    assert known[8] == Known.FIRST_LAYOUT


def test_what_the_programs_have_noted_gives_way(table, known):
    """A process that was seen to be silent, and publishes by now."""
    known[7] = Known.SILENT_REQUESTS | Known.SILENT_TLS
    table.follow(7, at(-64))
    assert known[7] == Known.FIRST_LAYOUT


def test_a_layout_that_no_process_has_makes_room(table, known, layouts):
    """Also not a child, which the kernel entered without telling us first."""
    for number in range(LAYOUTS):
        table.follow(100 + number, at(-number))
    kept = int(known[100])
    known[5000] = kept
    for number in range(LAYOUTS):
        table.discard(100 + number)
    table.follow(7, at(-1000))
    assert known[7] != kept
    assert layouts[kept][0] == 0
    assert layouts[int(known[7])][0] == -1000


def test_more_layouts_than_numbers_are_refused(table, known):
    """With the reason; who has a layout that is known is followed all the same."""
    for number in range(LAYOUTS):
        table.follow(100 + number, at(-number))
    with pytest.raises(BridgeError, match="252 such places are in use"):
        table.follow(7, at(-1000))
    assert known[7] == 0
    table.follow(7, at(-3))
    assert known[7] == known[103]
