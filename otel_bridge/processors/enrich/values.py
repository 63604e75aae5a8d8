"""Values on their way from columns to attributes: texts as slices, numbers as arrays, bad ones by reason."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from otel_bridge.batch import doubles
from otel_bridge.columns import JsonType, Parsed, Words, all_of, any_of, first_text, parse_double, parse_int
from otel_bridge.edits import Insert
from otel_bridge.model import ValueType
from otel_bridge.processors.enrich.vocabulary import PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from otel_bridge.batch import Batch
    from otel_bridge.processors.enrich.vocabulary import Unit, ValueKind

    Mask = NDArray[np.bool_]
    Rows = NDArray[np.uint32]

STRING, BOOL, INT, DOUBLE, ARRAY, KVLIST, BYTES, EMPTY = map(
    int,
    (
        ValueType.STRING,
        ValueType.BOOL,
        ValueType.INT,
        ValueType.DOUBLE,
        ValueType.ARRAY,
        ValueType.KVLIST,
        ValueType.BYTES,
        ValueType.EMPTY,
    ),
)
"""`ValueType` as plain integers: NumPy compares with those several times as fast as with enum members."""
WHOLE = 2.0**63
"""Doubles of this size and above have no int64."""

NO_LENGTHS: NDArray[np.uint32] = np.empty(0, "<u4")


@dataclass(slots=True)
class Texts:
    """Strings of spans: slices of `data`.

    Attributes:
        rows: spans, ascending.
        data: the batch's data, or a text of our own.
        offs: where each begins.
        lens: its bytes.
    """

    rows: Rows
    data: bytes
    offs: NDArray[np.uint32]
    lens: NDArray[np.uint32]

    def __getitem__(self, keep: Mask) -> Texts:
        """Those that a mask keeps."""
        return Texts(self.rows[keep], self.data, self.offs[keep], self.lens[keep])

    def write(self, batch: Batch, key: str) -> None:
        """Note them as attributes."""
        if self.data is batch.data:
            batch.set_slices(key, self.rows, self.offs, self.lens)
        elif len(self.rows):
            rows = np.ascontiguousarray(self.rows, "<u4")
            batch.inserts.append(
                Insert("text", key.encode(), rows, np.ascontiguousarray(self.lens), NO_LENGTHS, self.joined())
            )

    def joined(self) -> bytes:
        """The texts back to back."""
        if int(self.lens.sum()) == len(self.data):
            return self.data
        return b"".join(self.pieces())

    def pieces(self) -> Iterator[bytes]:
        """The texts one by one."""
        for off, length in zip(self.offs.tolist(), self.lens.tolist(), strict=True):
            yield self.data[off : off + length]


@dataclass(slots=True)
class Numbers:
    """Numbers of spans: int64, float64 or bool."""

    rows: Rows
    values: NDArray[np.int64] | NDArray[np.float64] | NDArray[np.bool_]

    def __getitem__(self, keep: Mask) -> Numbers:
        """Those that a mask keeps."""
        return Numbers(self.rows[keep], self.values[keep])

    def write(self, batch: Batch, key: str) -> None:
        """Note them as attributes."""
        kind = self.values.dtype.kind
        if kind == "i":
            batch.set_ints(key, self.rows, self.values)  # type: ignore[arg-type]
        elif kind == "f":
            batch.set_doubles(key, self.rows, self.values)  # type: ignore[arg-type]
        else:
            batch.set_bools(key, self.rows, self.values)  # type: ignore[arg-type]


class Bad(NamedTuple):
    """Values that were there and cannot be used."""

    reason: str
    rows: Rows


Found: TypeAlias = "Texts | Numbers | Bad"

REASONS = (
    "wrong_type",
    "not_a_number",
    "not_whole",
    "negative",
    "out_of_range",
    "too_long",
    "malformed",
    "implausible",
)
"""Every `Bad.reason` there is."""

_BOOLEANS = Words(["true", "1", "yes", "on", "false", "0", "no", "off"])
_TRUE_WORDS = 4


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads columns as one type, within bounds.

    Attributes:
        kind: the type.
        minimum: of a number.
        maximum: of a number.
        max_length: of a text, in UTF-8 bytes.
        unit: what a time is in; texts may name their own ("1.2ms"). None: no time.
    """

    kind: ValueKind
    minimum: float | None = None
    maximum: float | None = None
    max_length: int = 1 << 20
    unit: Unit | None = None

    def records(self, batch: Batch, records: NDArray[np.void]) -> Iterator[Found]:
        """Read attributes of one value each."""
        if not len(records):
            return
        types = records["type"]
        first = types[0]
        if len(types) == 1 or all_of(types == first):
            if first == STRING:
                yield from self.texts(_texts_of(batch, records))
                return
            if first == INT and self.kind == "int":
                yield from self.within(Numbers(records["row"], np.ascontiguousarray(records["value"])))
                return
            if first == ARRAY:
                yield from self._first_of_arrays(batch, records)
                return
            if first == DOUBLE and self.kind == "double":
                yield from self._finite(records["row"], doubles(records))
                return
        texts = types == STRING
        if self.kind != "string":
            yield from self._numbers(records[~texts])
        else:
            others = records[~texts & (types != ARRAY) & (types != EMPTY)]
            if len(others):
                yield Bad("wrong_type", others["row"])
        if any_of(texts):
            yield from self.texts(_texts_of(batch, records[texts]))
        yield from self._first_of_arrays(batch, records[types == ARRAY])

    def texts(self, texts: Texts) -> Iterator[Found]:
        """Read texts; empty ones are absent."""
        if not texts.lens.all():
            texts = texts[texts.lens > 0]
        if not len(texts.rows):
            return
        if self.kind == "string":
            fits = texts.lens <= self.max_length
            if all_of(fits):
                yield texts
                return
            yield Bad("too_long", texts.rows[~fits])
            yield texts[fits]
        elif self.kind == "int":
            yield from self.parsed(texts.rows, *parse_int(texts.data, texts.offs, texts.lens))
        elif self.kind == "double":
            values, states = parse_double(texts.data, texts.offs, texts.lens, durations=self.unit is not None)
            yield from self.parsed(texts.rows, values, states)
        else:
            words = _BOOLEANS.lookup(texts.data, texts.offs, texts.lens)
            if any_of(words < 0):
                yield Bad("wrong_type", texts.rows[words < 0])
            known = words >= 0
            yield Numbers(texts.rows[known], words[known] < _TRUE_WORDS)

    def json(self, batch: Batch, rows: Rows, matches: NDArray[np.void]) -> Iterator[Found]:
        """Read values found in JSON; null is absent."""
        types = matches["type"]
        plain = (types == JsonType.STRING) & ~matches["escaped"]
        numbers = (types == JsonType.NUMBER) if self.kind in ("int", "double") else np.zeros(len(types), bool)
        both = plain | numbers
        if any_of(both):
            picked = matches[both]
            yield from self.texts(Texts(rows[both], batch.data, picked["off"], picked["len"]))
        escaped = (types == JsonType.STRING) & matches["escaped"]
        if any_of(escaped):
            yield from self.texts(_unescaped(batch, rows[escaped], matches[escaped]))
        truths = (types == JsonType.TRUE) | (types == JsonType.FALSE)
        if self.kind == "bool" and any_of(truths):
            yield Numbers(rows[truths], types[truths] == JsonType.TRUE)
        elif any_of(truths):
            yield Bad("wrong_type", rows[truths])

    def within(self, numbers: Numbers) -> Iterator[Found]:
        """Numbers within the bounds, and those outside."""
        values = numbers.values
        low, high = self.minimum, self.maximum
        if low is not None and high is not None:
            fits = (values >= low) & (values <= high)
        elif low is not None:
            fits = values >= low
        elif high is not None:
            fits = values <= high
        else:
            yield numbers
            return
        if all_of(fits):
            yield numbers
            return
        negative = (values < 0) & ~fits
        for reason, rows in (
            ("negative", numbers.rows[negative]),
            ("out_of_range", numbers.rows[~fits & ~negative]),
        ):
            if len(rows):
                yield Bad(reason, rows)
        if any_of(fits):
            yield numbers[fits]

    def _numbers(self, records: NDArray[np.void]) -> Iterator[Found]:
        types = records["type"]
        rows = records["row"]
        ints, floats = types == INT, types == DOUBLE
        bools = types == BOOL
        usable = (bools | ints) if self.kind == "bool" else (ints | floats)
        foreign = ~usable & (types != ARRAY) & (types != EMPTY)
        if any_of(foreign):
            yield Bad("wrong_type", rows[foreign])
        if not any_of(usable):
            return
        if self.kind == "bool":
            values = records["value"][usable]
            truth = (values == 0) | (values == 1)
            if not all_of(truth):
                yield Bad("wrong_type", rows[usable][~truth])
            yield Numbers(rows[usable][truth], values[truth] == 1)
        elif self.kind == "double":
            numbers = np.where(floats, doubles(records), records["value"].astype("<f8"))[usable]
            yield from self._finite(rows[usable], numbers)
        elif any_of(ints):
            yield from self.within(Numbers(rows[ints], np.ascontiguousarray(records["value"][ints])))
        if self.kind == "int" and any_of(floats):
            yield from self._whole(rows[floats], doubles(records[floats]))

    def _finite(self, rows: Rows, values: NDArray[np.float64]) -> Iterator[Found]:
        finite = np.isfinite(values)
        if not all_of(finite):
            yield Bad("not_a_number", rows[~finite])
            rows, values = rows[finite], values[finite]
        if self.unit is not None and self.unit != "s":
            values = values / PER_SECOND[self.unit]
        yield from self.within(Numbers(rows, values))

    def _whole(self, rows: Rows, values: NDArray[np.float64]) -> Iterator[Found]:
        whole = np.isfinite(values) & (np.abs(values) < WHOLE)
        whole[whole] &= values[whole] == np.trunc(values[whole])
        if not all_of(whole):
            yield Bad("not_whole", rows[~whole])
        if any_of(whole):
            yield from self.within(Numbers(rows[whole], values[whole].astype("<i8")))

    def parsed(
        self, rows: Rows, values: NDArray[np.int64] | NDArray[np.float64], states: NDArray[np.uint8]
    ) -> Iterator[Found]:
        """Numbers as a kernel read them, with how each went (Parsed)."""
        good = states == Parsed.OK
        if not all_of(good):
            for state, reason in (
                (Parsed.NOT_A_NUMBER, "not_a_number"),
                (Parsed.OUT_OF_RANGE, "out_of_range"),
            ):
                bad = states == state
                if any_of(bad):
                    yield Bad(reason, rows[bad])
            rows, values = rows[good], values[good]
        if len(rows):
            yield from self.within(Numbers(rows, values))

    def _first_of_arrays(self, batch: Batch, records: NDArray[np.void]) -> Iterator[Found]:
        if not len(records):
            return
        rows, found = records["row"], first_text(batch.data, records["off"], records["len"])
        some = found["type"] > 0
        if not all_of(some):
            foreign = ~some & (records["len"] > 0)
            if any_of(foreign):
                yield Bad("wrong_type", rows[foreign])
            rows, found = rows[some], found[some]
        yield from self.texts(Texts(rows, batch.data, found["off"], found["len"]))


def rows_of(mask: Mask) -> Rows:
    """The rows that a mask picks."""
    return mask.nonzero()[0].astype("<u4")


def where(records: NDArray[np.void], keep: Mask) -> NDArray[np.void]:
    """The records that a mask keeps; themselves when that is all of them, since copying is what costs."""
    return records if all_of(keep) else records[keep]


def _texts_of(batch: Batch, records: NDArray[np.void]) -> Texts:
    return Texts(records["row"], batch.data, records["off"], records["len"])


def _unescaped(batch: Batch, rows: Rows, matches: NDArray[np.void]) -> Texts:
    """JSON strings with escapes in them, decoded one by one: rare in values as short as these."""
    return joined(
        rows,
        [
            decoded(batch.data[off : off + length])
            for off, length in zip(matches["off"].tolist(), matches["len"].tolist(), strict=True)
        ],
    )


def joined(rows: Rows, pieces: Sequence[bytes]) -> Texts:
    """Texts of our own, one a span."""
    lens = np.fromiter(map(len, pieces), "<u4", len(pieces))
    return Texts(rows, b"".join(pieces), (np.cumsum(lens) - lens).astype("<u4"), lens)


def repeated(rows: Rows, text: bytes) -> Texts:
    """One text for many spans."""
    return Texts(rows, text, np.zeros(len(rows), "<u4"), np.full(len(rows), len(text), "<u4"))


def as_texts(numbers: Numbers) -> Texts:
    """Numbers written out."""
    return joined(numbers.rows, [str(value).encode() for value in numbers.values.tolist()])


def decoded(raw: bytes) -> bytes:
    """The UTF-8 that the inside of a JSON string stands for; a lone surrogate becomes U+FFFD."""
    text: str = json.loads(f'"{raw.decode()}"', strict=False)
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()


MOST_DIGITS = 20
"""Of an index in a key; a longer one is no index, and would be costly to read."""


def index_of(digits: str) -> int | None:
    """A number in a key; None when it is none."""
    return int(digits) if digits.isascii() and digits.isdecimal() and len(digits) <= MOST_DIGITS else None
