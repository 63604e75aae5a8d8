"""Kernel events that wait for their span, found by trace id and span id; bounded by bytes and age.

Events stay after they were joined, until they are too old: a sender that comes again with the same span
finds them again. They leave as unmatched only when no span took them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from otel_bridge.model import Match

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from otel_bridge.events import KernelEvents

ID_BYTES = 24
"""Trace id and span id, which follow one another in SPAN and in COMMON."""

ROW_BYTES = 9
"""What an event costs beside its record: its row in the index, and whether it was joined."""

INDEX_BYTES = 450
"""What the events of one key in one chunk cost beside that: the key, and its entry in the index."""


@dataclass(slots=True, eq=False)
class Chunk:
    """Events that came together.

    Attributes:
        probe: where they came from.
        records: begin with COMMON's fields.
        born: monotonic seconds.
        joined: which of them a span has taken.
        foreign: whether another bridge sent them; they are in the stream of logs already.
        cost: bytes it stands for.
        keys: under which keys its events are found, by index.
    """

    probe: str
    records: NDArray[np.void]
    born: float
    joined: NDArray[np.bool_]
    foreign: bool = False
    cost: int = 0
    keys: list[tuple[Index, Key]] = field(default_factory=list)


class Group(NamedTuple):
    """The events of one key that came together: their chunk and their rows there, oldest first."""

    chunk: Chunk
    rows: NDArray[np.intp]


Key = bytes | int
"""Two ids, or a process id."""

Index = dict[Key, list[Group]]


def ids(rows: NDArray[np.void], first: str) -> list[bytes]:
    """The 24 bytes from the field `first` on, of each row."""
    fields = rows.dtype.fields
    if fields is None:
        raise TypeError("rows of a structured array")
    rows = np.ascontiguousarray(rows)
    view = np.ndarray(
        len(rows), f"V{ID_BYTES}", buffer=rows, offset=fields[first][1], strides=(rows.dtype.itemsize,)
    )
    keys: list[bytes] = view.tolist()
    return keys


def _words(records: NDArray[np.void]) -> NDArray[np.uint64]:
    """Trace id and span id of each record as three words, shape (n, 3): quick to compare, of no other use."""
    fields = records.dtype.fields
    if fields is None:
        raise TypeError("rows of a structured array")
    records = np.ascontiguousarray(records)
    return np.ndarray(
        (len(records), 3),
        "<u8",
        buffer=records,
        offset=fields["trace_id"][1],
        strides=(records.dtype.itemsize, 8),
    )


class Waiting:
    """The store.

    Attributes:
        by_span: events whose own span is known.
        by_parent: events whose span's parent is known (`Match.HEADER`).
        by_process: events of which only the process is known.
        cost: bytes held.
        count: events held.
    """

    def __init__(self, max_bytes: int, max_age: float) -> None:
        self.by_span: Index = {}
        self.by_parent: Index = {}
        self.by_process: Index = {}
        self.cost = 0
        self.count = 0
        self._max_bytes = max_bytes
        self._max_age = max_age
        self._chunks: deque[Chunk] = deque()

    def add(self, events: KernelEvents, now: float, *, foreign: bool) -> None:
        """Take some events in."""
        records = events.records
        chunk = Chunk(events.probe, records, now, np.zeros(len(records), np.bool_), foreign)
        words = _words(records)
        traceless = (words[:, 0] | words[:, 1]) == 0
        parents = ~traceless & (records["match"] == Match.HEADER)
        for index, chosen in (
            (self.by_span, ~(traceless | parents)),
            (self.by_parent, parents),
        ):
            self._enter(chunk, index, np.flatnonzero(chosen), words)
        self._enter(chunk, self.by_process, np.flatnonzero(traceless), records["tgid"].reshape(-1, 1))
        chunk.cost = records.nbytes + ROW_BYTES * len(records) + INDEX_BYTES * len(chunk.keys)
        self._chunks.append(chunk)
        self.cost += chunk.cost
        self.count += len(records)

    @staticmethod
    def _enter(chunk: Chunk, index: Index, rows: NDArray[np.intp], words: NDArray[Any]) -> None:
        """Put rows of a chunk into an index, those of one key together."""
        if not len(rows):
            return
        order = rows[np.argsort(words[rows, -1], kind="stable")]
        ordered = words[order]
        changes = np.flatnonzero((ordered[1:] != ordered[:-1]).any(axis=1)) + 1
        starts = [0, *changes.tolist(), len(order)]
        firsts = order[starts[:-1]]
        if words.shape[1] > 1:
            keys: list[Any] = ids(chunk.records[firsts], "trace_id")
        else:
            keys = words[firsts, 0].tolist()
        for key, start, end in zip(keys, starts[:-1], starts[1:], strict=True):
            index.setdefault(key, []).append(Group(chunk, order[start:end]))
            chunk.keys.append((index, key))

    def limit(self, max_bytes: int, max_age: float) -> None:
        """Hold as much and as long as this from now on."""
        self._max_bytes = max_bytes
        self._max_age = max_age

    def overdue(self, now: float) -> Iterator[tuple[Chunk, str]]:
        """Let go of what is too old or too much; yields what left, and how: "expired" or "evicted"."""
        while self._chunks:
            chunk = self._chunks[0]
            if now - chunk.born > self._max_age:
                reason = "expired"
            elif self.cost > self._max_bytes:
                reason = "evicted"
            else:
                return
            self._forget(chunk)
            yield chunk, reason

    def _forget(self, chunk: Chunk) -> None:
        self._chunks.popleft()
        self.cost -= chunk.cost
        self.count -= len(chunk.records)
        for index, key in chunk.keys:
            groups = index.get(key)
            # Chunks leave in the order they came, so those of the oldest stand in front.
            if groups and groups[0].chunk is chunk:
                del groups[0]
                if not groups:
                    del index[key]
