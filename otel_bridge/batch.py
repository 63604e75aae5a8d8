"""The narrow waist of the data path: a request's spans as columns over its bytes, and edits to them.

No span becomes an object. A codec walks the bytes of an ExportTraceServiceRequest once and fills a
`Batch`: one record a span, and for every attribute that some component asked for at start-up
(`PlanBuilder.want`), one record that says where in the bytes its value lies. Processors read columns
and note edits; `Batch.splice` gives the request's bytes back with the edits worked in, everything
nobody touched exactly as it came, unknown fields included.

Rows are numbered as the spans stand in the request. All offsets are bytes from the start of
`Batch.data`.

**What a later step reads.** Edits are no columns: `Batch.column` shows what was sent. Whoever comes after
enrichment and the join (the sampler, rules, derived metrics) reads `Batch.resolved_numbers(slot)` and
`Batch.resolved_texts(slot)`: the value of an attribute on each span as it would leave now, whether it came
with the request or a step before has set, replaced or removed it. The slot is asked for as ever, with
`PlanBuilder.want`; the attribute need not be on any span of the request. Nothing is published for it: the
edits themselves are the source, so what is read and what leaves cannot differ.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from otel_bridge.edits import NUMERIC, TEXTUAL, Edits, Insert, Replacement, Slices, strings_of
from otel_bridge.model import Reject, Scope, ValueType
from otel_bridge.wire import sized_fields

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from otel_bridge.contracts import Codec

SPAN = np.dtype(
    [
        ("trace_id", "V16"),
        ("span_id", "V8"),
        ("parent_id", "V8"),  # all zero: a root
        ("start", "<u8"),  # unix nanoseconds, as sent
        ("end", "<u8"),
        ("off", "<u4"),  # the span's field in its ScopeSpans, tag and length included
        ("len", "<u4"),
        ("body", "<u4"),  # where the Span message itself begins
        ("name_off", "<u4"),
        ("name_len", "<u4"),
        ("state_off", "<u4"),  # W3C tracestate
        ("state_len", "<u4"),
        ("resource", "<u4"),  # index of the resource
        ("scope", "<u4"),  # index into Batch.scopes
        ("flags", "<u4"),
        ("events", "<u4"),  # how many
        ("links", "<u4"),
        ("kind", "u1"),  # model.SpanKind
        ("status", "u1"),  # model.StatusCode
        ("reject", "u1"),  # model.Reject; a span with a reason is never spliced out
        ("_pad", "u1"),
    ]
)
"""One span. 100 bytes, packed; the native codec writes the same layout (`_native/src/records.rs`)."""

ATTRIBUTE = np.dtype(
    [
        ("value", "<i8"),  # INT: the value; BOOL: 0 or 1; DOUBLE: its bits (see `doubles`)
        ("row", "<u4"),  # span row; for RESOURCE the resource's, for INSTRUMENTATION the scope's index
        ("off", "<u4"),  # STRING, BYTES: the content; ARRAY, KVLIST: the message
        ("len", "<u4"),
        ("key_off", "<u4"),  # the key as sent: tells prefix matches apart
        ("key_len", "<u4"),
        ("kv_off", "<u4"),  # the KeyValue field in its parent, tag and length included: what a cut removes
        ("kv_len", "<u4"),
        ("slot", "<u2"),  # which Want it answers
        ("type", "u1"),  # model.ValueType
        ("_pad", "u1"),
    ]
)
"""One attribute somebody asked for. 40 bytes, packed."""

SCOPE = np.dtype([("name_off", "<u4"), ("name_len", "<u4"), ("resource", "<u4")])
"""One instrumentation scope."""


STATUS_MESSAGE = "otel.status_description"
"""A SPAN column of this key holds the status's message too, under the name that OpenTelemetry gives it where
there is no such field: a STRING record without a key (`key_len` 0), whose field is that of the Status."""


@dataclass(frozen=True, slots=True)
class Want:
    """A column somebody asked for: an exact key, or with `prefix` every key that begins so."""

    scope: Scope
    key: str
    prefix: bool = False


@dataclass(frozen=True)
class Plan:
    """All wanted columns; a want's place is its slot.

    Attributes:
        wants: the columns.
        longer_than: attributes of any key and scope whose content is longer than this many bytes are
            wanted too (`Batch.oversized`); 0: none are.
    """

    wants: tuple[Want, ...]
    longer_than: int = 0

    @cached_property
    def slots_of(self) -> dict[bytes, tuple[int, ...]]:
        """The slots of attributes of spans, by their keys in UTF-8."""
        slots: dict[bytes, tuple[int, ...]] = {}
        for slot, want in enumerate(self.wants):
            if want.scope is Scope.SPAN:
                key = want.key.encode()
                slots[key] = (*slots.get(key, ()), slot)
        return slots


class PlanBuilder:
    """Collects the columns that components ask for at start-up; equal wants share a slot."""

    def __init__(self) -> None:
        self._slots: dict[Want, int] = {}
        self._longer_than = 0

    def want(self, key: str, *, scope: Scope = Scope.SPAN, prefix: bool = False) -> int:
        """Ask for a column; the answer is its slot in every `Batch` of the finished plan."""
        return self._slots.setdefault(Want(scope, key, prefix), len(self._slots))

    def want_oversized(self, longer_than: int) -> None:
        """Ask for every attribute whose content is longer than so many bytes; the least asked for counts."""
        self._longer_than = min(self._longer_than or longer_than, longer_than)

    def build(self) -> Plan:
        """Freeze the plan."""
        return Plan(tuple(self._slots), self._longer_than)


_STRING, _BOOL, _INT, _DOUBLE = map(
    int, (ValueType.STRING, ValueType.BOOL, ValueType.INT, ValueType.DOUBLE)
)  # NumPy compares with plain integers several times as fast
_SPAN_EVENTS = 11  # field numbers in OTLP's Span and Span.Event
_EVENT_NAME = 2
_NO_U4: NDArray[np.uint32] = np.empty(0, "<u4")


def doubles(records: NDArray[np.void]) -> NDArray[np.float64]:
    """The values of DOUBLE records."""
    return np.ascontiguousarray(records["value"]).view("<f8")


def numbers(records: NDArray[np.void]) -> NDArray[np.float64]:
    """The values of INT, DOUBLE and BOOL records as doubles; NaN for every other type."""
    kinds = records["type"]
    if (kinds == _INT).all():
        whole: NDArray[np.float64] = records["value"].astype("<f8")
        return whole
    out = np.where(kinds == _DOUBLE, doubles(records), records["value"].astype("<f8"))
    known = (kinds == _INT) | (kinds == _DOUBLE) | (kinds == _BOOL)
    return np.where(known, out, np.nan)


@dataclass(slots=True)
class Batch:
    """A request's spans as columns, and the edits noted so far.

    Attributes:
        data: an ExportTraceServiceRequest, valid UTF-8 in every string (the codec mends what is not).
        plan: the wanted columns.
        codec: who read the bytes, and can splice them.
        spans: dtype SPAN, shape (n,).
        scopes: dtype SCOPE.
        attributes: dtype ATTRIBUTE, grouped by slot, rows ascending within a slot. An exact slot holds a
            row at most once (the first occurrence); prefix slots hold any number.
        starts: `attributes[starts[s]:starts[s + 1]]` is slot s; after all slots comes the group of the
            repeated occurrences of exact keys, and last the oversized attributes (slot 65535), which
            may stand in other groups too.
        present: the slots of wanted columns that anybody has.
        resources: how many resources are numbered: those with spans or wanted attributes.
        inserts: what is added, in order. To change what others have added, put another list in its place.
        mended: how many strings were not UTF-8 and now are.
        dropped: spans that are left out of the spliced bytes.
        held: those of them that leave later (`splice_held`).
    """

    data: bytes
    plan: Plan
    codec: Codec
    spans: NDArray[np.void]
    scopes: NDArray[np.void]
    attributes: NDArray[np.void]
    starts: Sequence[int]
    present: frozenset[int]
    resources: int
    mended: int = 0
    inserts: list[Insert] = field(default_factory=list)
    cuts: list[NDArray[np.void]] = field(default_factory=list)
    replacements: list[Replacement] = field(default_factory=list)
    dropped: NDArray[np.bool_] | None = None
    held: NDArray[np.bool_] | None = None
    _edits: Edits | None = field(default=None, init=False, repr=False, compare=False)
    _rejected: dict[Reject, int] | None = field(default=None, init=False, repr=False, compare=False)

    def __len__(self) -> int:
        """How many spans there are, rejected and dropped ones included."""
        return len(self.spans)

    def column(self, slot: int) -> NDArray[np.void]:
        """The records of one wanted column (dtype ATTRIBUTE); empty when no span has it."""
        return self.attributes[self.starts[slot] : self.starts[slot + 1]]

    def has(self, slot: int) -> bool:
        """Whether any span has the column: cheaper than looking."""
        return self.starts[slot] != self.starts[slot + 1]

    @property
    def duplicates(self) -> NDArray[np.void]:
        """Second and later occurrences of exact keys (`slot` says of which)."""
        wants = len(self.plan.wants)
        return self.attributes[self.starts[wants] : self.starts[wants + 1]]

    @property
    def oversized(self) -> NDArray[np.void]:
        """Attributes of any key and scope whose content is longer than `plan.longer_than`."""
        return self.attributes[self.starts[len(self.plan.wants) + 1] :]

    def by_span(self, slot: int) -> NDArray[np.int64]:
        """For each span the index of its record in `column(slot)`, or -1.

        For RESOURCE and INSTRUMENTATION slots a span's record is that of its resource or scope.
        """
        scope = self.plan.wants[slot].scope
        column = self.column(slot)
        if scope is Scope.RESOURCE:
            of_owner = np.full(self.resources, -1, np.int64)
            of_owner[column["row"]] = np.arange(len(column))
            of_resource: NDArray[np.int64] = of_owner[self.spans["resource"]]
            return of_resource
        if scope is Scope.INSTRUMENTATION:
            of_owner = np.full(len(self.scopes), -1, np.int64)
            of_owner[column["row"]] = np.arange(len(column))
            of_scope: NDArray[np.int64] = of_owner[self.spans["scope"]]
            return of_scope
        index = np.full(len(self.spans), -1, np.int64)
        index[column["row"]] = np.arange(len(column))
        return index

    def event_names(self, records: NDArray[np.void]) -> list[bytes | None]:
        """For each EVENT record the name of its event; None where that cannot be told.

        Not for the hot path: the spans of the records are walked in Python.
        """
        names: list[bytes | None] = [None] * len(records)
        for row in np.unique(records["row"]):
            span = self.spans[row]
            events = _events(self.data, int(span["body"]), int(span["off"]) + int(span["len"]))
            for index in np.flatnonzero(records["row"] == row):
                at = int(records["kv_off"][index])
                names[index] = next((name for start, end, name in events if start <= at < end), None)
        return names

    def text(self, off: int, length: int) -> str:
        """The text of one slice of the data."""
        return self.data[off : off + length].decode()

    # Reading with the edits worked in: what a step sees of those before it.

    def resolved_has(self, slot: int) -> bool:
        """Whether any span may have the attribute, as it would leave now: cheaper than looking."""
        return slot in self.resolved_present()

    def resolved_present(self) -> frozenset[int]:
        """The slots of attributes that any span may have, as it would leave now."""
        return self._current_edits().present if self.inserts else self.present

    def resolved_numbers(self, slot: int) -> NDArray[np.float64]:
        """For each span an attribute as a number, as it would leave now; NaN where it has none.

        INT, DOUBLE and BOOL count; of several values the one noted last. A value that was cut, or replaced
        by redaction, is none. For RESOURCE and INSTRUMENTATION slots a span's value is that of its resource
        or scope; edits concern spans, and resource attributes only where they were cut or replaced.

        Raises:
            ValueError: the slot is of a scope that a span has many of.
        """
        owner = self._owner(slot)
        out = np.full(len(self.spans) if owner is None else owner[1], np.nan)
        records = self._left(self.column(slot))
        if len(records):
            out[records["row"]] = numbers(records)
        if owner is not None:
            return out[owner[0]]
        for insert in self._inserts_of(slot):
            out[insert.rows] = insert.values if insert.kind in NUMERIC else np.nan
        return out

    def resolved_texts(self, slot: int) -> list[Slices]:
        """An attribute's strings, as they would leave now; a span is in one of the pieces at most.

        The same rules as for `resolved_numbers`; attributes of other types are no strings.
        """
        inserts = self._inserts_of(slot)
        if len(inserts) == 1 and not self.has(slot):
            return [strings_of(inserts[0], self.data)] if inserts[0].kind in TEXTUAL else []
        records = self._left(self.column(slot))
        strings = records["type"] == _STRING
        texts = records if strings.all() else records[strings]
        rows, offs, lens = texts["row"], texts["off"], texts["len"]
        if (owner := self._owner(slot)) is not None:
            place = np.full(owner[1], -1)
            place[rows] = np.arange(len(rows))
            index = place[owner[0]]
            rows = np.flatnonzero(index >= 0).astype("<u4")
            offs, lens = offs[index[rows]], lens[index[rows]]
        sent = Slices(rows, self.data, offs, lens)
        if not inserts:
            return [sent] if len(rows) else []
        settled = np.zeros(len(self.spans), np.bool_)
        out = []
        for insert in reversed(inserts):
            if insert.kind in TEXTUAL:
                out.append(strings_of(insert, self.data).free_of(settled))
            settled[insert.rows] = True
        out.append(sent.free_of(settled))
        return [piece for piece in out if len(piece.rows)]

    def sent(self, slot: int) -> NDArray[np.void] | None:
        """The records of a column that leave as they came; None: a step has added values to it.

        What can be read of them is what `resolved_texts` and `resolved_numbers` tell, without the copies.
        """
        return None if self._inserts_of(slot) else self._left(self.column(slot))

    def _owner(self, slot: int) -> tuple[NDArray[np.uint32], int] | None:
        """Each span's resource or scope, and how many there are; None: the attribute is a span's own."""
        scope = self.plan.wants[slot].scope
        if scope is Scope.SPAN:
            return None
        if scope is Scope.RESOURCE:
            return self.spans["resource"], self.resources
        if scope is Scope.INSTRUMENTATION:
            return self.spans["scope"], len(self.scopes)
        raise ValueError(f"a span has many values of a {scope.name} attribute: read Batch.column")

    def _left(self, records: NDArray[np.void]) -> NDArray[np.void]:
        """Those that no edit took away."""
        gone = self._current_edits().gone if self.cuts or self.replacements else None
        return records if gone is None else records[~gone[records["kv_off"]]]

    def _inserts_of(self, slot: int) -> list[Insert]:
        want = self.plan.wants[slot]
        if want.scope is not Scope.SPAN or not self.inserts:
            return []
        return self._current_edits().by_key.get(want.key.encode(), [])

    def _current_edits(self) -> Edits:
        if self._edits is None or not self._edits.are_those_of(self):
            self._edits = Edits.of(self)
        return self._edits

    # Edits. A row may get several; they are appended in the order they are noted.

    def set_ints(self, key: str, rows: NDArray[np.uint32], values: NDArray[np.int64]) -> None:
        """Append an int attribute to each of `rows`."""
        self._insert("int", key, rows, values=np.ascontiguousarray(values, "<i8"))

    def set_doubles(self, key: str, rows: NDArray[np.uint32], values: NDArray[np.float64]) -> None:
        """Append a double attribute to each of `rows`."""
        self._insert("double", key, rows, values=np.ascontiguousarray(values, "<f8"))

    def set_bools(self, key: str, rows: NDArray[np.uint32], values: NDArray[np.bool_]) -> None:
        """Append a bool attribute to each of `rows`."""
        self._insert("bool", key, rows, values=np.ascontiguousarray(values, "u1"))

    def set_slices(
        self, key: str, rows: NDArray[np.uint32], offs: NDArray[np.uint32], lens: NDArray[np.uint32]
    ) -> None:
        """Append a string attribute whose text is a slice of `data`."""
        self._insert(
            "slice",
            key,
            rows,
            values=np.ascontiguousarray(offs, "<u4"),
            lens=np.ascontiguousarray(lens, "<u4"),
        )

    def set_text(self, key: str, rows: NDArray[np.uint32], text: str) -> None:
        """Append the same string attribute to each of `rows`."""
        self._insert("const", key, rows, blob=text.encode())

    def set_texts(self, key: str, rows: NDArray[np.uint32], texts: Sequence[str]) -> None:
        """Append a string attribute of its own to each of `rows`."""
        pieces = [text.encode() for text in texts]
        self._insert("text", key, rows, values=_lengths(pieces), blob=b"".join(pieces))

    def append_fields(self, rows: NDArray[np.uint32], fields: Sequence[bytes]) -> None:
        """Append encoded fields of a Span message (an event, an attribute of any type), tags included."""
        self._insert("raw", "", rows, values=_lengths(fields), blob=b"".join(fields))

    def cut(self, records: NDArray[np.void]) -> None:
        """Remove attributes, named by their records (any scope)."""
        if len(records):
            self.cuts.append(records)

    def cut_column(self, slot: int, rows: NDArray[np.uint32] | None = None) -> None:
        """Remove a wanted attribute, repeated occurrences included, from `rows` (None: wherever it is)."""
        for records in (self.column(slot), self.duplicates[self.duplicates["slot"] == slot]):
            self.cut(records if rows is None else records[np.isin(records["row"], rows)])

    def replace_fields(
        self, offs: NDArray[np.uint32], lens: NDArray[np.uint32], fields: Sequence[bytes]
    ) -> None:
        """Put encoded fields in the place of others, in any scope; a field that is also cut is cut."""
        if len(fields):
            self.replacements.append(
                Replacement(
                    np.ascontiguousarray(offs, "<u4"),
                    np.ascontiguousarray(lens, "<u4"),
                    _lengths(fields),
                    b"".join(fields),
                )
            )

    def drop(self, rows: NDArray[np.uint32]) -> None:
        """Leave whole spans out."""
        if self.dropped is None:
            self.dropped = np.zeros(len(self.spans), np.bool_)
        self.dropped[rows] = True

    def hold(self, rows: NDArray[np.uint32]) -> None:
        """Leave whole spans out for now: `splice_held` gives them."""
        if self.held is None:
            self.held = np.zeros(len(self.spans), np.bool_)
        self.held[rows] = True
        self.drop(rows)

    @property
    def edited(self) -> bool:
        """Whether the spliced bytes differ from `data`."""
        return bool(
            self.inserts or self.cuts or self.replacements or self.dropped is not None or self.rejected
        )

    @property
    def rejected(self) -> dict[Reject, int]:
        """How many spans were refused, by reason."""
        if self._rejected is None:
            codes = self.spans["reject"]
            self._rejected = {}
            if codes.any():
                numbers, counts = np.unique(codes[codes > 0], return_counts=True)
                reasons = zip(numbers.tolist(), counts.tolist(), strict=True)
                self._rejected = {Reject(number): count for number, count in reasons}
        return self._rejected

    @property
    def leaving(self) -> int:
        """How many spans the spliced bytes hold."""
        if self.dropped is None:
            return len(self.spans) - sum(self.rejected.values())
        return len(self.spans) - int(((self.spans["reject"] > 0) | self.dropped).sum())

    def splice(self) -> bytes:
        """The request's bytes with the edits worked in; `data` itself when there are none.

        Resources and scopes that lost all their spans are left out.
        """
        return self.codec.splice(self) if self.edited else self.data

    def splice_held(self) -> bytes:
        """The bytes of the held spans alone, with the edits worked in."""
        return self.splice_only(self.held)

    def splice_only(self, chosen: NDArray[np.bool_] | None) -> bytes:
        """The bytes of some spans alone (None: of all), dropped ones included, with the edits worked in."""
        dropped, self.dropped = self.dropped, None if chosen is None else ~chosen
        try:
            return self.codec.splice(self)
        finally:
            self.dropped = dropped

    def _insert(
        self,
        kind: str,
        key: str,
        rows: NDArray[np.uint32],
        *,
        values: NDArray[np.generic] = _NO_U4,
        lens: NDArray[np.uint32] = _NO_U4,
        blob: bytes = b"",
    ) -> None:
        if len(rows):
            self.inserts.append(
                Insert(kind, key.encode(), np.ascontiguousarray(rows, "<u4"), values, lens, blob)
            )


def _events(data: bytes, start: int, end: int) -> list[tuple[int, int, bytes]]:
    """Where a span's events lie, and their names."""
    found = []
    for number, first, last in sized_fields(data, start, end):
        if number == _SPAN_EVENTS:
            names = [data[a:b] for n, a, b in sized_fields(data, first, last) if n == _EVENT_NAME]
            found.append((first, last, names[-1] if names else b""))
    return found


def _lengths(pieces: Sequence[bytes]) -> NDArray[np.uint32]:
    return np.fromiter(map(len, pieces), "<u4", len(pieces))
