"""Spans and kernel events as columns that rules ask; whatever several rules ask is made once a batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import lru_cache
from ipaddress import IPv6Address
from typing import TYPE_CHECKING, Any

import numpy as np

from otel_bridge.batch import STATUS_MESSAGE
from otel_bridge.columns import Words, any_of
from otel_bridge.edits import Slices
from otel_bridge.model import SpanKind
from otel_bridge.rules.vocabulary import DURATION, KIND_NUMBERS, attribute_of

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from otel_bridge.batch import Batch, PlanBuilder
    from otel_bridge.events import KernelEvents

Key = tuple[str, ...]
"""The values of a rule's `by`, in its order; empty texts for what is missing."""


class _View(ABC):
    """What several rules ask of one batch.

    Attributes:
        times: when each item happened, unix nanoseconds.
        usable: which items came neither too late nor from the future.
        newest: the latest time of those; 0 when there are none.
        now: when the batch was taken in.
        masks: made so far, by what they test.
        pairs: which items count and which are hits, by the condition's number.
    """

    def __init__(self, times: NDArray[np.int64]) -> None:
        self.times = times
        self.usable = np.ones(len(times), np.bool_)
        self.newest = 0
        self.now = 0
        self.masks: dict[object, NDArray[np.bool_]] = {}
        self.pairs: dict[int, tuple[NDArray[np.bool_], NDArray[np.bool_]]] = {}
        self._groups: dict[tuple[str, ...], tuple[list[Key], NDArray[np.intp]]] = {}

    def __len__(self) -> int:
        """How many items there are."""
        return len(self.times)

    def admit(self, now: int, *, lateness: int, ahead: int) -> tuple[int, int]:
        """Note which items may be used; returns how many came too late, and how many from the future."""
        self.now = now
        late, future = self.times < now - lateness, self.times > now + ahead
        self.usable = ~(late | future)
        if self.usable.any():
            self.newest = int(self.times[self.usable].max())
        return int(np.count_nonzero(late)), int(np.count_nonzero(future))

    def groups(self, names: tuple[str, ...]) -> tuple[list[Key], NDArray[np.intp]]:
        """The distinct groups of all items, and for each item the index of its group."""
        found = self._groups.get(names)
        if found is None:
            found = self._groups[names] = _combined([self.codes(name) for name in names], len(self))
        return found

    @abstractmethod
    def codes(self, name: str) -> Codes:
        """A field as label values; empty where an item has none."""


Codes = tuple[list[str], "NDArray[np.intp]"]
"""Distinct values, and for each item the index of its own."""


def _combined(columns: list[Codes], count: int) -> tuple[list[Key], NDArray[np.intp]]:
    if not columns:
        return [()], np.zeros(count, np.intp)
    values, inverse = columns[0]
    keys: list[Key] = [(value,) for value in values]
    for values, places in columns[1:]:
        both, inverse = np.unique(inverse * len(values) + places, return_inverse=True)
        keys = [
            (*keys[left], values[right])
            for left, right in zip(*(part.tolist() for part in np.divmod(both, len(values))), strict=True)
        ]
    return keys, inverse


class _Coding:
    """Puts label values of some items in place of nothing, each distinct one looked at once."""

    def __init__(self, count: int) -> None:
        self._of: dict[str, int] = {}
        self._inverse = np.full(count, -1, np.intp)

    def put(self, rows: Any, values: NDArray[Any], show: Callable[[int], str]) -> None:
        """Items (`rows`) that have one; equal `values` are the same text, which `show` tells at one place."""
        if not len(values):
            return
        if any_of(values != values[0]):
            _, first, places = np.unique(values, return_index=True, return_inverse=True)
            self._inverse[rows] = np.array([self._code(show(at)) for at in first.tolist()], np.intp)[places]
        else:
            self._inverse[rows] = self._code(show(0))

    def done(self) -> Codes:
        """All values, with the empty one where there is none."""
        missing = self._inverse < 0
        if any_of(missing):
            self._inverse[missing] = self._code("")
        return list(self._of), self._inverse

    def _code(self, text: str) -> int:
        return self._of.setdefault(text, len(self._of))


class SpanColumns:
    """The columns that rules want of spans, asked for at start-up."""

    def __init__(self, columns: PlanBuilder) -> None:
        self._columns = columns
        self.slots: dict[str, int] = {}

    def want(self, name: str) -> None:
        """Ask for a field by its name in rules; fields that every span has need no asking."""
        if name in ("duration", "status", "name"):
            return
        if name == "status_message":
            self.slots[name] = self._columns.want(STATUS_MESSAGE)
            return
        scope, key = attribute_of(name)
        self.slots[name] = self._columns.want(key, scope=scope)


class SpanView(_View):
    """Spans of a request, as they would leave now."""

    def __init__(self, batch: Batch, slots: Mapping[str, int]) -> None:
        super().__init__(batch.spans["end"].astype(np.int64))
        self._batch = batch
        self._slots = slots
        self._numbers: dict[str, NDArray[np.float64]] = {}
        self.good = batch.spans["reject"] == 0

    def of_kind(self, kind: str) -> NDArray[np.bool_]:
        """Where a span is of a kind, and was not refused."""
        found = self.masks.get(kind)
        if found is None:
            found = self.good
            if kind != "any":
                found = found & (self._batch.spans["kind"] == SpanKind[kind.upper()])
            self.masks[kind] = found
        return found

    def numbers(self, name: str) -> NDArray[np.float64]:
        """A field as numbers, in its own unit; NaN where an item has none."""
        found = self._numbers.get(name)
        if found is None:
            found = self._numbers[name] = self._read_numbers(name)
        return found

    def _read_numbers(self, name: str) -> NDArray[np.float64]:
        spans = self._batch.spans
        if name == DURATION:
            # Signed, since a span may end before it starts by a clock that was set meanwhile.
            lasted = spans["end"].astype(np.int64) - spans["start"].astype(np.int64)
            return np.maximum(lasted, 0).astype(np.float64)
        if name == "status":
            return spans["status"].astype(np.float64)
        if name == "name":
            return np.full(len(spans), np.nan)
        return self._batch.resolved_numbers(self._slots[name])

    def _texts(self, name: str) -> list[Slices]:
        batch = self._batch
        if name == "name":
            rows = np.arange(len(batch), dtype="<u4")
            return [Slices(rows, batch.data, batch.spans["name_off"], batch.spans["name_len"])]
        return batch.resolved_texts(self._slots[name]) if name in self._slots else []

    def text_mask(
        self, name: str, words: Words | None, pattern: re.Pattern[bytes] | None
    ) -> NDArray[np.bool_]:
        """Where a field is one of the words, or fits the pattern; without both, where it is there."""
        out = np.zeros(len(self), np.bool_)
        for piece in self._texts(name):
            if words is None and pattern is None:
                out[piece.rows] = True
            if words is not None:
                out[piece.rows] |= words.lookup(piece.data, piece.offs, piece.lens) >= 0
            if pattern is not None:
                out[piece.rows] |= [pattern.fullmatch(text) is not None for text in _cut(piece)]
        return out

    def codes(self, name: str) -> Codes:
        """A field as label values; empty where an item has none."""
        coding = _Coding(len(self))
        values = self.numbers(name)
        numeric = ~np.isnan(values)
        if any_of(numeric):
            known = values[numeric]
            coding.put(numeric, known, lambda at: _shown(float(known[at])))
        for piece in self._texts(name):
            # One slice is one text; those of a resource are the same slice for all its spans.
            slices = piece.offs.astype(np.uint64) << np.uint64(32) | piece.lens
            coding.put(piece.rows, slices, lambda at, piece=piece: _decoded(_cut_one(piece, at)))  # type: ignore[misc]
        return coding.done()

    def trace_id(self, row: int) -> bytes:
        """A span's trace id."""
        return bytes(self._batch.spans["trace_id"][row])


def _cut(piece: Slices) -> list[bytes]:
    data = piece.data
    return [
        data[off : off + size] for off, size in zip(piece.offs.tolist(), piece.lens.tolist(), strict=True)
    ]


def _cut_one(piece: Slices, at: int) -> bytes:
    off = int(piece.offs[at])
    return piece.data[off : off + int(piece.lens[at])]


@lru_cache(maxsize=4096)
def _decoded(text: bytes) -> str:
    return text[:MAX_LABEL_BYTES].decode(errors="replace")


MAX_LABEL_BYTES = 256
"""Longer label values are cut: they are names, and everybody downstream has a limit."""


def _shown(value: float) -> str:
    return str(int(value)) if value.is_integer() else repr(value)


class EventView(_View):
    """Kernel events of one probe."""

    def __init__(self, events: KernelEvents) -> None:
        super().__init__(events.records["time"].astype(np.int64))
        self._probe = events.probe
        self._records = events.records
        self._fields = frozenset(events.records.dtype.names or ())
        self._numbers: dict[str, NDArray[np.float64]] = {}

    def of_kind(self, event: str) -> NDArray[np.bool_]:
        """Where an event is of a kind."""
        found = self.masks.get(event)
        if found is None:
            number = KIND_NUMBERS.get(event)
            if number is not None:
                found = self._records["kind"] == number
            else:
                found = np.full(len(self), self._probe == event)
            self.masks[event] = found
        return found

    def numbers(self, name: str) -> NDArray[np.float64]:
        """A field as numbers, in its own unit; NaN where an item has none."""
        found = self._numbers.get(name)
        if found is None:
            column = self._records[name] if name in self._fields else None
            numeric = column is not None and column.dtype.kind in "iu"
            found = column.astype(np.float64) if numeric else np.full(len(self), np.nan)  # type: ignore[union-attr]
            self._numbers[name] = found
        return found

    def text_mask(
        self, name: str, words: Words | None, pattern: re.Pattern[bytes] | None
    ) -> NDArray[np.bool_]:
        """Where a field is one of the words, or fits the pattern; without both, where it is there."""
        texts = self._texts(name)
        if words is None and pattern is None:
            return np.array([bool(text) for text in texts], np.bool_)
        wanted = frozenset(words.words) if words is not None else frozenset()
        return np.array(
            [
                text.decode(errors="replace") in wanted
                or (pattern is not None and pattern.fullmatch(text) is not None)
                for text in texts
            ],
            np.bool_,
        )

    def _texts(self, name: str) -> list[bytes]:
        if name not in self._fields:
            return [b""] * len(self)
        column = self._records[name]
        if column.dtype.kind == "V":
            return [_address(bytes(item)) for item in column]
        return [bytes(item) for item in column]

    def codes(self, name: str) -> Codes:
        """A field as label values; empty where an item has none."""
        coding = _Coding(len(self))
        if name in self._fields:
            column = self._records[name]
            if column.dtype.kind in "iu":
                coding.put(slice(None), column, lambda at: str(int(column[at])))
            else:
                texts = self._texts(name)
                places = {text: at for at, text in enumerate(dict.fromkeys(texts))}
                numbers = np.array([places[text] for text in texts], np.intp)
                coding.put(slice(None), numbers, lambda at: texts[at].decode(errors="replace"))
        return coding.done()

    def trace_id(self, row: int) -> bytes:
        """The trace id of an event; empty when its span was not found."""
        found = bytes(self._records["trace_id"][row])
        return found if any(found) else b""


def _address(packed: bytes) -> bytes:
    if not any(packed):
        return b""
    address = IPv6Address(packed)
    return str(address.ipv4_mapped or address).encode()
