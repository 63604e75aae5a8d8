"""Edits to a request: what steps add to its spans, and what they put in place of what was sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_bridge.batch import Batch

TEXTUAL = ("text", "slice", "const")
NUMERIC = ("int", "double", "bool")
"""Kinds of inserts that are strings, and numbers."""


class Insert(NamedTuple):
    """One attribute to append to each of `rows`; `kind` says which payload fields are used.

    Attributes:
        kind: "int", "double", "bool", "text", "slice", "const", or "raw".
        key: the attribute's key in UTF-8; empty for "raw".
        rows: u4 row numbers.
        values: "int": i8; "double": f8; "bool": u1; "slice": u4 offsets into the data; "text" and "raw":
            u4 lengths of the pieces of `blob`.
        lens: "slice": u4 lengths.
        blob: "const": the one text; "text": the texts, one after the other; "raw": encoded fields of a
            Span message, tags included, one piece a row.
    """

    kind: str
    key: bytes
    rows: NDArray[np.uint32]
    values: NDArray[np.generic]
    lens: NDArray[np.uint32]
    blob: bytes


class Replacement(NamedTuple):
    """Other bytes for whole fields of the request, wherever they stand.

    Attributes:
        offs: u4, where each field begins, at its tag; no two overlap.
        lens: u4, its bytes, tag and length included.
        sizes: u4 lengths of the pieces of `blob`.
        blob: what stands there instead: encoded fields of the same message, one after the other.
    """

    offs: NDArray[np.uint32]
    lens: NDArray[np.uint32]
    sizes: NDArray[np.uint32]
    blob: bytes


class Slices(NamedTuple):
    """One string of each of some spans: slices of one text.

    Attributes:
        rows: u4 span rows, each once.
        data: what is sliced: the request, or a text that a step added.
        offs: u4, where each begins in `data`.
        lens: u4, its bytes.
    """

    rows: NDArray[np.uint32]
    data: bytes
    offs: NDArray[np.uint32]
    lens: NDArray[np.uint32]

    def free_of(self, settled: NDArray[np.bool_]) -> Slices:
        """Those of spans that are not settled."""
        free = ~settled[self.rows]
        if free.all():
            return self
        return Slices(self.rows[free], self.data, self.offs[free], self.lens[free])


@dataclass(frozen=True, slots=True)
class Edits:
    """The edits of a request that were noted so far, ready to be looked up.

    Attributes:
        inserts: the list that they were read off.
        size: how long it was then; it only grows, or gives way to another list.
        removals: how many cuts and replacements there are.
        by_key: the inserts by key, in order.
        present: slots of attributes that somebody has, or an insert adds.
        gone: for each byte of the data whether a field that begins there was cut or replaced; None: none.
    """

    inserts: list[Insert]
    size: int
    removals: tuple[int, int]
    by_key: dict[bytes, list[Insert]]
    present: frozenset[int]
    gone: NDArray[np.bool_] | None

    @classmethod
    def of(cls, batch: Batch) -> Edits:
        """Those of a request as they are now."""
        by_key: dict[bytes, list[Insert]] = {}
        for insert in batch.inserts:
            by_key.setdefault(insert.key, []).append(insert)
        gone = None
        if batch.cuts or batch.replacements:
            gone = np.zeros(len(batch.data), np.bool_)
            for records in batch.cuts:
                gone[records["kv_off"]] = True
            for replacement in batch.replacements:
                gone[replacement.offs] = True
        added = (slot for key in by_key for slot in batch.plan.slots_of.get(key, ()))
        removals = (len(batch.cuts), len(batch.replacements))
        return cls(batch.inserts, len(batch.inserts), removals, by_key, batch.present.union(added), gone)

    def are_those_of(self, batch: Batch) -> bool:
        """Whether nothing was noted since."""
        return (
            self.inserts is batch.inserts
            and self.size == len(batch.inserts)
            and self.removals == (len(batch.cuts), len(batch.replacements))
        )


def strings_of(insert: Insert, data: bytes) -> Slices:
    """The strings that a textual insert adds."""
    if insert.kind == "slice":
        return Slices(insert.rows, data, insert.values.astype("<u4", copy=False), insert.lens)
    count = len(insert.rows)
    if insert.kind == "const":
        lens = np.full(count, len(insert.blob), "<u4")
        return Slices(insert.rows, insert.blob, np.zeros(count, "<u4"), lens)
    lens = insert.values.astype("<u4", copy=False)
    return Slices(insert.rows, insert.blob, (np.cumsum(lens) - lens).astype("<u4"), lens)
