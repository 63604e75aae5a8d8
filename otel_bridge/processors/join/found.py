"""Which events are a batch's spans', before it is known whether they lie within the spans' time."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from otel_bridge.model import Match
    from otel_bridge.processors.join.store import Chunk, Group


class Touched(NamedTuple):
    """Events of one chunk that may be those of spans of a batch.

    Attributes:
        chunk: theirs.
        rows: the span of each, as a row of the batch.
        events: their rows in the chunk.
        match: how their spans were found; None where each says it itself.
    """

    chunk: Chunk
    rows: NDArray[np.intp]
    events: NDArray[np.intp]
    match: Match | None


class Found:
    """Gathered span by span, handed on chunk by chunk: each chunk's events are looked at together."""

    def __init__(self) -> None:
        self._groups: dict[int, tuple[Chunk, list[int], list[NDArray[np.intp]]]] = {}
        self._single: dict[tuple[int, Match | None], tuple[Chunk, list[int], list[int]]] = {}

    def add(self, row: int, group: Group) -> None:
        """A span's row, and events of its ids."""
        _, rows, events = self._groups.setdefault(id(group.chunk), (group.chunk, [], []))
        rows.append(row)
        events.append(group.rows)

    def add_one(self, row: int, chunk: Chunk, event: int, match: Match | None) -> None:
        """A span's row, and an event of a chunk; `match` where the event does not say it itself."""
        _, rows, events = self._single.setdefault((id(chunk), match), (chunk, [], []))
        rows.append(row)
        events.append(event)

    def by_chunk(self) -> Iterator[Touched]:
        """All of it."""
        for chunk, rows, groups in self._groups.values():
            lengths = [len(group) for group in groups]
            yield Touched(chunk, np.repeat(np.array(rows, np.intp), lengths), np.concatenate(groups), None)
        for (_, match), (chunk, rows, events) in self._single.items():
            yield Touched(chunk, np.array(rows, np.intp), np.array(events, np.intp), match)
