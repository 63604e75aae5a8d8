"""Tables of sums per span that take turns: while one fills, the other is emptied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from otel_bridge.kernel.records import ROWS_A_LOT, ROWS_HEAD

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_bridge.libbpf.library import Map


class SumTables(Protocol):
    """A probe's sums."""

    def take(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Keys and values of all rows since the last time.

        Raises:
            LibbpfError: the kernel refused.
        """


class HashTables:
    """A row a key (bpf/common/sums.bpf.h).

    Args:
        slot: the map that says which table is filled.
        tables: both; the first is filled.
        room: rows in each.
    """

    def __init__(self, slot: Map, tables: tuple[Map, Map], room: int) -> None:
        self._slot = slot
        self._filling, self._other = tables
        self._room = room
        # What was kept from an earlier load may have had the other one's turn.
        slot.set(0, self._filling.fd)

    def take(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """See `SumTables`."""
        full = self._filling
        # Returns when no program uses the old table any more.
        self._slot.set(0, self._other.fd)
        self._filling, self._other = self._other, full
        return full.take_all(self._room)


class RowTables:
    """Rows one after the other, a thread's for a span (bpf/common/rows.bpf.h); a key may have several.

    Args:
        slot: the map that says which table is filled.
        fds: of both tables.
        memories: their rows, each with a `key` and a `sum` that has a `first`; but a head where the first is.
    """

    def __init__(self, slot: Map, fds: tuple[int, int], memories: tuple[NDArray[Any], NDArray[Any]]) -> None:
        self._slot = slot
        self._fds = fds
        self._memories = memories
        self._heads = [np.frombuffer(memory, ROWS_HEAD, 1)[0] for memory in memories]
        self._filling = int(np.argmax([head["turn"] for head in self._heads]))
        self._turn = int(self._heads[self._filling]["turn"])
        if self._turn:  # they were kept from an earlier load, and are filled on
            self._slot.set(0, self._fds[self._filling])
        else:
            self._fill(0)

    def _fill(self, table: int) -> None:
        """Returns when no program uses the other table any more."""
        head = self._heads[table]
        self._turn += 1
        head["taken"], head["turn"] = ROWS_A_LOT, self._turn
        self._slot.set(0, self._fds[table])
        self._filling = table

    def take(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """See `SumTables`."""
        full = self._filling
        self._fill(1 - full)
        # What is taken beyond the end was asked for and not there.
        filled = self._memories[full][ROWS_A_LOT : int(self._heads[full]["taken"])]
        rows = filled[filled["sum"]["first"] != 0]
        filled.view("u1")[:] = 0
        return rows["key"], rows["sum"]
