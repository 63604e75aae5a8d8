"""Tables of rows that take turns; the kernel's part is played by hand."""

from __future__ import annotations

import numpy as np
import pytest

from otel_bridge.kernel.records import ROWS_A_LOT, ROWS_HEAD, SCHED_ROW
from otel_bridge.kernel.sums import RowTables

ROOM = 4 * ROWS_A_LOT
FDS = (5, 6)


class Slot:
    """Says which table is filled."""

    fd = 0

    def set(self, _key, fd):
        """The kernel waits here until no program uses the other one."""
        self.fd = fd


class Kernel:
    """Both tables, and a program that fills one of them."""

    def __init__(self):
        self.slot = Slot()
        self.memories = tuple(np.zeros(ROOM, SCHED_ROW) for _ in FDS)

    def tables(self):
        """As they are opened by a probe that is loaded."""
        return RowTables(self.slot, FDS, self.memories)

    @property
    def table(self):
        """The one that is filled."""
        return self.memories[FDS.index(self.slot.fd)]

    @property
    def head(self):
        """Of that table."""
        return np.frombuffer(self.table, ROWS_HEAD, 1)[0]

    def lot(self):
        """The first row of a lot that a CPU is given."""
        head = np.frombuffer(self.table, ROWS_HEAD, 1)
        first = int(head["taken"][0])
        head["taken"] += ROWS_A_LOT
        return first

    def fill(self, *spans):
        """A row for each, in a lot of its own."""
        for span in spans:
            place = self.lot()
            if place < len(self.table):
                row = self.table[place]
                row["key"]["tgid"], row["sum"]["first"], row["sum"]["off_cpu_ns"] = span, 1, 10 * span


@pytest.fixture
def kernel():
    """Tables as they are made."""
    return Kernel()


def taken(tables):
    """What is taken now, by span."""
    keys, values = tables.take()
    return dict(zip(keys["tgid"].tolist(), values["off_cpu_ns"].tolist(), strict=True))


def test_what_is_filled_is_taken_once(kernel):
    tables = kernel.tables()
    kernel.fill(1, 2)
    assert taken(tables) == {1: 10, 2: 20}
    assert taken(tables) == {}
    kernel.fill(3)
    assert taken(tables) == {3: 30}
    assert not kernel.memories[0][ROWS_A_LOT:].tobytes().strip(b"\0")


def test_a_turn_never_comes_again(kernel):
    tables = kernel.tables()
    turns = []
    for _ in range(5):
        turns.append(int(kernel.head["turn"]))
        assert kernel.head["taken"] == ROWS_A_LOT
        kernel.fill(1)
        tables.take()
    assert 0 not in turns
    assert len(set(turns)) == 5


def test_what_was_asked_for_beyond_the_end_is_not_there(kernel):
    tables = kernel.tables()
    kernel.fill(*range(1, 9))
    assert kernel.head["taken"] > ROOM
    assert taken(tables) == {1: 10, 2: 20, 3: 30}
    kernel.fill(4)
    assert taken(tables) == {4: 40}


def test_a_probe_that_is_loaded_again_goes_on_where_it_was(kernel):
    tables = kernel.tables()
    tables.take()
    kernel.fill(1)
    before = kernel.slot.fd, int(kernel.head["turn"])
    again = kernel.tables()
    assert (kernel.slot.fd, int(kernel.head["turn"])) == before
    kernel.fill(2)
    assert taken(again) == {1: 10, 2: 20}
