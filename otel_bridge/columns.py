"""Vectorised steps over text columns: numbers, query parameters, JSON paths, word lists, span lineage.

A column of texts is `data` with two arrays, offsets and lengths (u4). A slice outside the data reads as
empty. The work is done by the native crate (`_native/src/columns/`) or, where that is not installed, by
`columns_reference`, byte for byte alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from otel_bridge import columns_reference
from otel_bridge.native import kernels

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from otel_bridge.batch import Batch

    U4 = NDArray[np.uint32]
    I8 = NDArray[np.int64]
    U1 = NDArray[np.uint8]

_kernels = kernels(columns_reference)

MATCH = np.dtype([("off", "<u4"), ("len", "<u4"), ("type", "u1"), ("escaped", "?"), ("_pad", "V2")])
"""What was found in a text, a string without its quotes.

`type` is a JsonType; 0: nothing was found. `escaped`: the slice must be decoded to be read. 12 bytes,
packed; the native crate writes the same layout (`Match`).
"""

NO_MATCH = -1
"""`text_bytes`: no path leads to a string."""
MALFORMED = -2
"""`text_bytes`: the text is no JSON, or is cut off, or nests deeper than MAX_DEPTH."""
MAX_DEPTH = 128
"""Objects and arrays inside one another, beyond which JSON is not read."""


class JsonType:
    """What a value is in JSON. Plain integers: NumPy compares with them several times as fast."""

    NONE = 0
    STRING = 1
    NUMBER = 2
    TRUE = 3
    FALSE = 4
    NULL = 5
    OBJECT = 6
    ARRAY = 7


class Parsed:
    """How reading a number from a text went. Plain integers, as those of `JsonType`."""

    ABSENT = 0
    OK = 1
    NOT_A_NUMBER = 2
    OUT_OF_RANGE = 3


def parse_int(data: bytes, offs: U4, lens: U4) -> tuple[I8, U1]:
    """Whole decimal numbers, and how each went (Parsed).

    Blanks around a number are allowed, and a fraction of zeros ("57.0").
    """
    values, states = _kernels.parse_int(data, _u4(offs), _u4(lens))
    return np.frombuffer(values, "<i8"), np.frombuffer(states, "u1")


def parse_double(
    data: bytes, offs: U4, lens: U4, *, durations: bool = False
) -> tuple[NDArray[np.float64], U1]:
    """Finite decimal numbers, and how each went (Parsed).

    Args:
        data: where the texts stand.
        offs: their offsets.
        lens: their lengths.
        durations: also read a unit ("1.2ms", "3s", "450µs", "12ns") and give seconds.
    """
    values, states = _kernels.parse_double(data, _u4(offs), _u4(lens), durations)
    return np.frombuffer(values, "<f8"), np.frombuffer(states, "u1")


def query_param(data: bytes, offs: U4, lens: U4, name: str, *, bare: bool = False) -> NDArray[np.void]:
    """Where the first value of a query parameter stands (MATCH), in URLs or in `bare` queries."""
    return np.frombuffer(_kernels.query_param(data, _u4(offs), _u4(lens), name.encode(), bare), MATCH)


def query_int(data: bytes, offs: U4, lens: U4, name: str, *, bare: bool = False) -> tuple[I8, U1]:
    """`query_param`, decoded and read as `parse_int` reads."""
    values, states = _kernels.query_int(data, _u4(offs), _u4(lens), name.encode(), bare)
    return np.frombuffer(values, "<i8"), np.frombuffer(states, "u1")


def first_text(data: bytes, offs: U4, lens: U4) -> NDArray[np.void]:
    """The first string in each ArrayValue message (MATCH)."""
    return np.frombuffer(_kernels.first_text(data, _u4(offs), _u4(lens)), MATCH)


def same_text(data: bytes, offs: U4, lens: U4, other_offs: U4, other_lens: U4) -> NDArray[np.bool_]:
    """Whether pairs of texts are the same but for ASCII case."""
    same = _kernels.same_text(data, _u4(offs), _u4(lens), _u4(other_offs), _u4(other_lens))
    return np.frombuffer(same, "?")


class JsonPaths:
    """Places in JSON texts, like "messages[*].content[*].text"; "" is the whole text.

    An object on the way whose member "type" is one of `unless_type` contributes nothing to a measure.

    Raises:
        ValueError: a path is not written so.
    """

    def __init__(self, paths: Sequence[str], *, unless_type: Sequence[str] = ()) -> None:
        self.paths = tuple(paths)
        self.compiled = _kernels.JsonPaths(list(paths), list(unless_type))

    def text_bytes(self, data: bytes, offs: U4, lens: U4) -> I8:
        """UTF-8 bytes of all strings at any of the paths, escapes counted as what they stand for.

        A lone surrogate counts as U+FFFD, three bytes. NO_MATCH or MALFORMED where there is no such number.
        """
        return np.frombuffer(self.compiled.text_bytes(data, _u4(offs), _u4(lens)), "<i8")

    def any_value_bytes(self, data: bytes, offs: U4, lens: U4, *, kvlist: bool) -> I8:
        """The same measure over attribute values: KeyValueList messages, or else ArrayValue messages."""
        return np.frombuffer(self.compiled.any_value_bytes(data, _u4(offs), _u4(lens), kvlist), "<i8")

    def find(self, data: bytes, offs: U4, lens: U4) -> NDArray[np.void]:
        """The first value at each path (MATCH), shape (texts, paths).

        What stands before a break counts: captured bodies are often cut off.
        """
        found = np.frombuffer(self.compiled.find(data, _u4(offs), _u4(lens)), MATCH)
        return found.reshape(-1, len(self.paths))


class OwnSource(NamedTuple):
    """How one source of a target is read natively.

    Attributes:
        how: "attribute"; "json_text", `JsonPaths`' measure; "parameter", of a query; "foreign", not at all.
        slots: the columns that it is in.
        name: the parameter's.
        paths: of "json_text".
    """

    how: Literal["attribute", "json_text", "parameter", "foreign"]
    slots: tuple[int, ...]
    name: str = ""
    paths: JsonPaths | None = None

    @property
    def native(self) -> tuple[str, list[int], bytes, object]:
        """As the crate takes it."""
        compiled = self.paths.compiled if self.paths is not None else None
        return self.how, list(self.slots), self.name.encode(), compiled


class Said(NamedTuple):
    """What one source said.

    Attributes:
        place: which.
        rows: of spans, ascending.
        values: whole numbers, or of texts the offsets and lengths in the batch's data.
    """

    place: int
    rows: U4
    values: I8 | tuple[U4, U4]


class OwnSources:
    """A target's sources that stand on spans: what `processors.enrich.targets` does, in one call."""

    def __init__(self, sources: Any) -> None:
        """`sources` are the crate's."""
        self._sources = sources

    @classmethod
    def compiled(
        cls,
        sources: Sequence[tuple[OwnSource, Iterable[int]]],
        *,
        texts: bool,
        low: int,
        high: int,
        longest: int,
    ) -> OwnSources | None:
        """The sources, each with the kinds of spans that it is asked for; None where there is no crate.

        Values are texts of at most `longest` bytes, or whole numbers from `low` to `high`.
        """
        native = getattr(_kernels, "Sources", None)
        if native is None:
            return None
        given = []
        for source, kinds in sources:
            how, slots, name, paths = source.native
            given.append((how, sum(1 << kind for kind in kinds), slots, name, paths))
        return cls(native(texts, low, high, longest, given))

    def read(
        self,
        first: int,
        aside: list[int],
        batch: Batch,
        *,
        kinds: bytes,
        records: bytes,
        need: NDArray[np.bool_],
    ) -> tuple[int, list[Said], list[tuple[int, int]]]:
        """Ask the sources from `first` on, for the spans that `need` a value.

        Args:
            first: place of the source to begin with.
            aside: places of sources that are foreign in this batch.
            batch: where the texts and the columns are.
            kinds: of the spans, a byte each.
            records: the batch's attributes.
            need: which spans need a value.

        Returns:
            The place of the foreign source that is to be asked next, or how many sources there are; what was
            found, each span once; and how many values were bad, by reason (their places in `values.REASONS`).
        """
        at, found, bad = self._sources.read(
            first, aside, batch.data, kinds, records, batch.starts, need.tobytes()
        )
        return at, [_said(*columns) for columns in found], bad


def _said(place: int, rows: bytes, values: bytes, lens: bytes | None) -> Said:
    if lens is None:
        return Said(place, np.frombuffer(rows, "<u4"), np.frombuffer(values, "<i8"))
    return Said(place, np.frombuffer(rows, "<u4"), (np.frombuffer(values, "<u4"), np.frombuffer(lens, "<u4")))


class Words:
    """A list of words, found without regard to ASCII case.

    Args:
        words: at most 32,767.
        mode: "exact"; "verbatim": exact, and case counts; "prefix": texts that begin with the word;
            "path_end": URLs or paths that end with it, query, fragment and closing slashes aside.
    """

    def __init__(
        self, words: Sequence[str], mode: Literal["verbatim", "exact", "prefix", "path_end"] = "exact"
    ) -> None:
        self.words = tuple(words)
        self._compiled = _kernels.Words([word.encode() for word in words], mode)

    def lookup(self, data: bytes, offs: U4, lens: U4) -> NDArray[np.int16]:
        """For each text the place of the first word that fits, or -1."""
        return np.frombuffer(self._compiled.lookup(data, _u4(offs), _u4(lens)), "<i2")


class KeyPatterns:
    """Keys with numbers in them, written with # for each: "llm.prompts.#.prompt.text"."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._compiled = _kernels.KeyPatterns([pattern.encode() for pattern in patterns])

    def lookup(self, data: bytes, offs: U4, lens: U4) -> NDArray[np.int16]:
        """For each key the place of the first pattern that fits, or -1."""
        return np.frombuffer(self._compiled.lookup(data, _u4(offs), _u4(lens)), "<i2")


class Lineage:
    """Values of recent spans by span id and by response id, the oldest forgotten first.

    Args:
        capacity: how many spans, and how many ids, are kept at most; at least half as many are.
    """

    def __init__(self, capacity: int) -> None:
        self._memory = _kernels.Lineage(capacity)

    def __len__(self) -> int:
        """How many spans are kept."""
        return len(self._memory)

    def remember(self, spans: NDArray[np.void], data: bytes, offs: U4, lens: U4) -> None:
        """Keep spans (batch.SPAN records) with their values; an empty value is none."""
        self._memory.remember(
            spans["trace_id"].tobytes(),
            spans["span_id"].tobytes(),
            spans["parent_id"].tobytes(),
            data,
            _u4(offs),
            _u4(lens),
        )

    def remember_ids(self, data: bytes, id_offs: U4, id_lens: U4, offs: U4, lens: U4) -> None:
        """Keep values under ids; empty ones are passed over."""
        self._memory.remember_ids(data, _u4(id_offs), _u4(id_lens), _u4(offs), _u4(lens))

    def ancestors(self, spans: NDArray[np.void], rows: U4, hops: int) -> tuple[bytes, NDArray[np.void]]:
        """The value of the nearest ancestor that has one, at most `hops` up, for some of the spans.

        Returns:
            The texts, and where each stands in them (MATCH).
        """
        texts, records = self._memory.ancestors(
            spans["trace_id"][rows].tobytes(), spans["parent_id"][rows].tobytes(), hops
        )
        return texts, np.frombuffer(records, MATCH)

    def counterparts(self, data: bytes, offs: U4, lens: U4) -> tuple[bytes, NDArray[np.void]]:
        """The value kept under each id, or under the id without a number that follows "-" or "_"."""
        texts, records = self._memory.counterparts(data, _u4(offs), _u4(lens))
        return texts, np.frombuffer(records, MATCH)


def _u4(column: U4) -> bytes:
    return (column if column.dtype == "<u4" else column.astype("<u4")).tobytes()


def any_of(mask: NDArray[np.bool_]) -> bool:
    """Whether any is true: `any` takes three times as long on a few spans."""
    return bool(mask.size and mask[mask.argmax()])


def all_of(mask: NDArray[np.bool_]) -> bool:
    """Whether all are true: `all` takes three times as long on a few spans."""
    return not mask.size or bool(mask[mask.argmin()])
