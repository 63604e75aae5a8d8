"""Kernel events that wait for their span, found by trace id and span id; bounded by bytes and age.

Events stay after they were joined, until they are too old: a sender that comes again with the same span
finds them again. They leave as unmatched only when no span took them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from otel_bridge.model import Match

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from otel_bridge.events import KernelEvents

ID_BYTES = 24
"""Trace id and span id, which follow one another in SPAN and in COMMON."""

INDEX_BYTES = 200
"""What an event costs beside its record: its key, and its place in the index."""

_NO_TRACE = bytes(16)


@dataclass(slots=True, eq=False)
class Chunk:
    """Events that came together.

    Attributes:
        probe: where they came from.
        records: begin with COMMON's fields.
        born: monotonic seconds.
        joined: which of them a span has taken.
        foreign: whether another bridge sent them; they are in the stream of logs already.
    """

    probe: str
    records: NDArray[np.void]
    born: float
    joined: NDArray[np.bool_]
    foreign: bool = False

    @property
    def cost(self) -> int:
        """Bytes it stands for."""
        return self.records.nbytes + INDEX_BYTES * len(self.records)


class Place(NamedTuple):
    """One event: its chunk and its row there."""

    chunk: Chunk
    row: int

    @property
    def record(self) -> np.void:
        """The event's record."""
        record: np.void = self.chunk.records[self.row]
        return record


Key = bytes | int
"""Two ids, or a process id."""

Index = dict[Key, list[Place]]


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
        chunk = Chunk(events.probe, events.records, now, np.zeros(len(events), np.bool_), foreign)
        for row, (index, key) in enumerate(self._keys(chunk)):
            index.setdefault(key, []).append(Place(chunk, row))
        self._chunks.append(chunk)
        self.cost += chunk.cost
        self.count += len(events)

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

    def _keys(self, chunk: Chunk) -> Iterator[tuple[Index, Key]]:
        records = chunk.records
        for key, match, tgid in zip(
            ids(records, "trace_id"), records["match"].tolist(), records["tgid"].tolist(), strict=True
        ):
            if key[:16] == _NO_TRACE:
                yield self.by_process, tgid
            elif match == Match.HEADER:
                yield self.by_parent, key
            else:
                yield self.by_span, key

    def _forget(self, chunk: Chunk) -> None:
        self._chunks.popleft()
        self.cost -= chunk.cost
        self.count -= len(chunk.records)
        for index, key in self._keys(chunk):
            places = index.get(key)
            # Chunks leave in the order they came, so those of the oldest stand in front.
            if places and places[0].chunk is chunk:
                kept = next((n for n, place in enumerate(places) if place.chunk is not chunk), len(places))
                if kept == len(places):
                    del index[key]
                else:
                    del places[:kept]
