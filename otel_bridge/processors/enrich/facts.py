"""Older and other names turned into current ones, one step a current attribute."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
import orjson
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_bridge.columns import KeyPatterns, Words, all_of, any_of, same_text
from otel_bridge.model import ValueType
from otel_bridge.processors.enrich import vocabulary
from otel_bridge.processors.enrich.values import INT, STRING, Bad, Numbers, Reader, Texts, index_of, where
from otel_bridge.processors.enrich.work import JsonColumn

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from otel_bridge.batch import PlanBuilder
    from otel_bridge.processors.enrich.values import Found, Mask
    from otel_bridge.processors.enrich.vocabulary import Fact, Old, Unit
    from otel_bridge.processors.enrich.work import Landmarks, Work

TYPES = {
    "string": ValueType.STRING,
    "int": ValueType.INT,
    "double": ValueType.DOUBLE,
    "bool": ValueType.BOOL,
}
_TIME_UNITS: tuple[Unit, ...] = ("s", "ms", "us", "ns")
_SAME = 1e-6
"""Relative difference below which two doubles say the same."""


class JsonColumns:
    """The JSON columns of all steps, shared so that each text is walked once."""

    def __init__(self, plan: PlanBuilder) -> None:
        self._plan = plan
        self._columns: dict[str, JsonColumn] = {}

    def want(self, key: str, path: str) -> tuple[JsonColumn, int]:
        """Ask for a path in an attribute's JSON."""
        column = self._columns.setdefault(key, JsonColumn(self._plan.want(key)))
        return column, column.want(path)


class Source:
    """One old attribute, ready to be read."""

    def __init__(self, old: Old, fact: Fact, plan: PlanBuilder, json: JsonColumns) -> None:
        self.old = old
        self.slot = plan.want(old.key)
        self._beside = tuple(plan.want(key) for key in old.beside)
        self._json = json.want(old.key, old.path) if old.path else None
        units: tuple[Unit | None, ...] = _TIME_UNITS if fact.time else (None,)
        self._readers = {unit: Reader(fact.type, fact.minimum, fact.maximum, unit=unit) for unit in units}
        self._unit: Unit | None = old.unit if fact.time else None

    def read(self, work: Work) -> Iterator[Found]:
        """Its values."""
        reader = self._readers[self._unit]
        if self._json is not None:
            column, place = self._json
            rows, matches = work.matches(column)
            yield from reader.json(work.batch, rows, matches[:, place])
            return
        records = self.records(work)
        for system, unit in self.old.systems.items():
            made = work.of_system(system)
            if made is not None:
                theirs = made[records["row"]] & (records["type"] == INT)
                if any_of(theirs):
                    yield from self._readers[unit].records(work.batch, records[theirs])
                    records = records[~theirs]
        if len(records):
            yield from reader.records(work.batch, records)

    def records(self, work: Work) -> NDArray[np.void]:
        """Its attributes, where the key means this."""
        records = work.batch.column(self.slot)
        if self.old.text_only:
            records = records[records["type"] == STRING]
        if self._beside:
            near = np.zeros(work.size, np.bool_)
            for slot in self._beside:
                near[work.batch.column(slot)["row"]] = True
            records = records[near[records["row"]]]
        return records

    @property
    def removable(self) -> bool:
        """Whether nothing else is told by the attribute."""
        return self._json is None


class FactStep:
    """Writes one current attribute where only others say it, and mends its type."""

    def __init__(
        self, fact: Fact, plan: PlanBuilder, landmarks: Landmarks, json: JsonColumns, *, remove: bool
    ) -> None:
        self.fact = fact
        self.slot = plan.want(fact.key)
        self.sources = tuple(Source(old, fact, plan, json) for old in fact.old)
        self._remove = remove
        self._reader = Reader(fact.type, fact.minimum, fact.maximum, unit="s" if fact.time else None)
        self._type = int(TYPES[fact.type])
        landmarks.mark(self.slot)
        for source in self.sources:
            if source.old.marks:
                landmarks.mark(source.slot)

    def run(self, work: Work) -> None:
        """Work on one batch that has one of the columns."""
        sources = [source for source in self.sources if source.slot in work.present]
        if len(sources) == 1 and self.slot not in work.present:
            self._alone(work, sources[0])
            return
        chosen = Chosen(work.size, text=self.fact.type == "string")
        self._current(work, chosen)
        for source in sources:
            self._take(work, chosen, source)
        work.facts[self.fact.key] = chosen.values
        if chosen.conflicts is not None:
            work.conflicts[self.fact.key] += int(chosen.conflicts.sum())

    def _alone(self, work: Work, source: Source) -> None:
        """The usual case: one name in the whole batch, so nothing has to be compared."""
        values = list(self._believed(work, source.read(work)))
        for found in values:
            found.write(work.batch, self.fact.key)
        work.facts[self.fact.key] = values
        if self._remove and source.removable:
            done = np.zeros(work.size, np.bool_)
            for found in values:
                done[found.rows] = True
            records = source.records(work)
            work.removed.append(records[done[records["row"]]])

    def _current(self, work: Work, chosen: Chosen) -> None:
        records = work.batch.column(self.slot)
        if not len(records):
            return
        mistyped = np.zeros(work.size, np.bool_)
        mistyped[records["row"][records["type"] != self._type]] = True
        for found in self._believed(work, self._reader.records(work.batch, records)):
            chosen.take(found)
            wrong = mistyped[found.rows]
            if any_of(wrong):
                self._write(work, found[wrong])

    def _take(self, work: Work, chosen: Chosen, source: Source) -> None:
        done = np.zeros(work.size, np.bool_) if self._remove and source.removable else None
        for found in self._believed(work, source.read(work)):
            fresh = ~chosen.has[found.rows]
            if not all_of(fresh):
                same = chosen.same(work, found, ~fresh)
                if done is not None:
                    done[found.rows[~fresh][same]] = True
                if source.old.conflicts:
                    chosen.disagree(found.rows[~fresh][~same])
            if any_of(fresh):
                new = found if all_of(fresh) else found[fresh]
                chosen.take(new)
                self._write(work, new)
                if done is not None:
                    done[new.rows] = True
        if done is not None:
            records = source.records(work)
            work.removed.append(records[done[records["row"]]])

    def _write(self, work: Work, values: Texts | Numbers) -> None:
        """Write values, and take off what stood under the key: of another type, or empty."""
        values.write(work.batch, self.fact.key)
        records = work.batch.column(self.slot)
        if len(records):
            rewritten = np.zeros(work.size, np.bool_)
            rewritten[values.rows] = True
            work.batch.cut(records[rewritten[records["row"]]])

    def _believed(self, work: Work, values: Iterator[Found]) -> Iterator[Texts | Numbers]:
        for found in values:
            if isinstance(found, Bad):
                work.note(self.fact.key, found)
            elif self.fact.time and isinstance(found, Numbers):
                limits = work.believable_seconds
                if len(found.rows) < work.size:
                    limits = limits[found.rows]
                plausible = (found.values >= 0) & (found.values <= limits)
                if not all_of(plausible):
                    work.note(self.fact.key, Bad("implausible", found.rows[~plausible]))
                    found = found[plausible]  # noqa: PLW2901 (what is left of it)
                yield found
            else:
                yield found


class Chosen:
    """The value of one attribute on each span, as far as it is known."""

    def __init__(self, size: int, *, text: bool) -> None:
        self.has: Mask = np.zeros(size, np.bool_)
        self.values: list[Texts | Numbers] = []
        self.conflicts: Mask | None = None
        self._size = size
        self._offs = np.zeros(size if text else 0, "<u4")
        self._lens = np.zeros(size if text else 0, "<u4")
        self._numbers: NDArray[np.generic] | None = None

    def take(self, values: Texts | Numbers) -> None:
        """Keep values of spans that have none yet."""
        self.has[values.rows] = True
        self.values.append(values)
        if isinstance(values, Texts):
            self._offs[values.rows] = values.offs
            self._lens[values.rows] = values.lens
        else:
            if self._numbers is None:
                self._numbers = np.zeros(self._size, values.values.dtype)
            self._numbers[values.rows] = values.values

    def same(self, work: Work, values: Texts | Numbers, among: Mask) -> Mask:
        """Which of the values that a mask picks equal those that are kept."""
        rows = values.rows[among]
        if isinstance(values, Texts):
            data = work.batch.data
            if values.data is not data or not all(
                kept.data is data for kept in self.values if isinstance(kept, Texts)
            ):
                # Decoded texts have a place of their own; they are too rare to be compared.
                return np.ones(len(rows), np.bool_)
            return same_text(data, values.offs[among], values.lens[among], self._offs[rows], self._lens[rows])
        assert self._numbers is not None
        kept, given = self._numbers[rows], values.values[among]
        same: Mask = (
            np.isclose(given, kept, rtol=_SAME, atol=0.0) if given.dtype.kind == "f" else given == kept
        )
        return same

    def disagree(self, rows: NDArray[np.uint32]) -> None:
        """Note spans on which another attribute says something else."""
        if len(rows):
            if self.conflicts is None:
                self.conflicts = np.zeros(self._size, np.bool_)
            self.conflicts[rows] = True


class WordStep:
    """A current attribute with well-known values: other spellings become those."""

    def __init__(
        self, fact: Fact, plan: PlanBuilder, landmarks: Landmarks, json: JsonColumns, *, remove: bool
    ) -> None:
        assert fact.words is not None
        self.fact = fact
        self.slot = plan.want(fact.key)
        self.names = tuple(dict.fromkeys(fact.words.values()))
        self._spellings = _Spellings(fact.words, self.names)
        self._well_known = Words(self.names, "verbatim")
        self._remove = remove
        self._reader = Reader("string")
        self._sources = tuple(
            (
                Source(old, fact, plan, json),
                self._spellings if old.words is None else _Spellings(old.words, self.names),
            )
            for old in fact.old
        )
        self.sources = tuple(source for source, _ in self._sources)
        self.open_ended = fact.key == vocabulary.PROVIDER
        landmarks.mark(self.slot)
        for source in self.sources:
            if source.old.marks:
                landmarks.mark(source.slot)

    def run(self, work: Work) -> None:
        """Work on one batch that has one of the columns."""
        known = _KnownWords(work.size)
        self._current(work, known)
        for source, spellings in self._sources:
            if source.slot in work.present:
                self._take(work, source, spellings, known)
        self.infer(work, known.has)
        if any_of(known.conflicts):
            work.conflicts[self.fact.key] += int(known.conflicts.sum())

    def infer(self, work: Work, has: Mask) -> None:
        """Find more values than are written anywhere."""

    def write(self, work: Work, rows: NDArray[np.uint32], names: NDArray[np.int16]) -> None:
        """Write well-known values by their place in `names`."""
        for name in np.unique(names).tolist():
            work.batch.set_text(self.fact.key, rows[names == name], self.names[name])

    def _current(self, work: Work, known: _KnownWords) -> None:
        records = work.batch.column(self.slot)
        if not len(records):
            return
        for found in self._reader.records(work.batch, records):
            if isinstance(found, Texts):
                names = self._spellings.read(found)
                known.take(found.rows, names)
                other = (names != UNKNOWN) & (
                    self._well_known.lookup(found.data, found.offs, found.lens) == UNKNOWN
                )
                if any_of(other):
                    self.write(work, found.rows[other], names[other])
                    self._cut_current(work, found.rows[other])

    def _take(self, work: Work, source: Source, spellings: _Spellings, known: _KnownWords) -> None:
        done = np.zeros(work.size, np.bool_)
        for found in source.read(work):
            if not isinstance(found, Texts):
                continue
            names = spellings.read(found)
            fresh, named = ~known.has[found.rows], names != UNKNOWN
            told = ~fresh & named & (known.names[found.rows] != UNKNOWN)
            differs = told & (known.names[found.rows] != names)
            if source.old.conflicts:
                known.conflicts[found.rows[differs]] = True
            done[found.rows[told & ~differs]] = True
            new = fresh & named
            if any_of(new):
                rows = found.rows[new]
                self.write(work, rows, names[new])
                known.take(rows, names[new])
                done[rows] = True
                self._cut_current(work, rows)
            other = fresh & ~named
            if self.open_ended and any_of(other):
                rest = found[other]
                words = [piece.decode().lower() for piece in rest.pieces()]
                work.batch.set_texts(self.fact.key, rest.rows, words)
                known.take(rest.rows, names[other])
                done[rest.rows] = True
                self._cut_current(work, rest.rows)
        if self._remove and source.removable and source.old.key != vocabulary.SPAN_KIND:
            records = source.records(work)
            work.removed.append(records[done[records["row"]]])

    def _cut_current(self, work: Work, rows: NDArray[np.uint32]) -> None:
        records = work.batch.column(self.slot)
        if len(records):
            work.batch.cut(records[np.isin(records["row"], rows)])


UNKNOWN = -1


class _KnownWords:
    """Which spans have a value, its place among the well-known ones, and where names disagree."""

    def __init__(self, size: int) -> None:
        self.has: Mask = np.zeros(size, np.bool_)
        self.names = np.full(size, UNKNOWN, np.int16)
        self.conflicts: Mask = np.zeros(size, np.bool_)

    def take(self, rows: NDArray[np.uint32], names: NDArray[np.int16]) -> None:
        """Note values."""
        self.has[rows] = True
        self.names[rows] = names


class _Spellings:
    """From texts to places in a list of well-known values."""

    def __init__(
        self,
        words: Mapping[str, str],
        names: tuple[str, ...],
        mode: Literal["exact", "prefix", "path_end"] = "exact",
    ) -> None:
        self._words = Words(tuple(words), mode)
        self._places = np.array([*(names.index(name) for name in words.values()), UNKNOWN], np.int16)

    def read(self, texts: Texts) -> NDArray[np.int16]:
        """For each text its place, or UNKNOWN."""
        # -1 picks the last entry, which is UNKNOWN.
        return self._places[self._words.lookup(texts.data, texts.offs, texts.lens)]


class OperationStep(WordStep):
    """The operation, also told by what kind of span it is, by a request's id, or by its endpoint."""

    def __init__(
        self, fact: Fact, plan: PlanBuilder, landmarks: Landmarks, json: JsonColumns, *, remove: bool
    ) -> None:
        super().__init__(fact, plan, landmarks, json, remove=remove)
        self._landmarks = landmarks
        self._prompts = plan.want("llm.prompts.", prefix=True)
        self._request_id = plan.want(vocabulary.REQUEST_ID)
        landmarks.mark(self._request_id)
        self._calls = Words(("LLM",))
        self._prefixes = _Spellings(vocabulary.REQUEST_ID_PREFIXES, self.names, "prefix")
        self._endpoints = _Spellings(vocabulary.ENDPOINTS, self.names, "path_end")
        self.hints = (landmarks.span_kind, self._request_id, *landmarks.targets)
        self._written = (self.slot, *(source.slot for source in self.sources))

    def run(self, work: Work) -> None:
        """Work on one batch; paths and URLs of plain HTTP spans tell no operation."""
        if work.any(self._written) or work.has_marks:
            super().run(work)

    def infer(self, work: Work, has: Mask) -> None:
        """Tell it by the span's other attributes."""
        if not work.has_marks:
            return
        self._by_span_kind(work, has)
        self._by_spelling(work, has, self._request_id, self._prefixes)
        for slot in self._landmarks.targets:
            self._by_spelling(work, has, slot, self._endpoints)

    def _by_span_kind(self, work: Work, has: Mask) -> None:
        if self._landmarks.span_kind not in work.present:
            return
        records = work.batch.column(self._landmarks.span_kind)
        called = self._calls.lookup(work.batch.data, records["off"], records["len"]) == 0
        rows = records["row"][called]
        rows = rows[~has[rows]]
        if len(rows):
            completes = np.zeros(work.size, np.bool_)
            completes[work.batch.column(self._prompts)["row"]] = True
            places = [self.names.index(name) for name in ("chat", "text_completion")]
            self.write(work, rows, np.array(places, np.int16)[completes[rows].astype(np.intp)])
            has[rows] = True

    def _by_spelling(self, work: Work, has: Mask, slot: int, spellings: _Spellings) -> None:
        if slot not in work.present:
            return
        records = work.batch.column(slot)
        # An HTTP span to an inference API is not itself the model's call, else each would be counted twice.
        records = where(records, (work.marked & ~has)[records["row"]])
        if len(records):
            rows = records["row"]
            names = spellings.read(Texts(rows, work.batch.data, records["off"], records["len"]))
            known = names != UNKNOWN
            self.write(work, rows[known], names[known])
            has[rows[known]] = True


class FinishReasonsStep:
    """The finish reasons as a list of strings, from single ones or from those of the choices."""

    def __init__(self, plan: PlanBuilder, landmarks: Landmarks, *, remove: bool) -> None:
        self.slot = plan.want(vocabulary.FINISH_REASONS)
        self.slots = tuple(plan.want(key) for key in vocabulary.OLD_FINISH_REASONS)
        self.choices = plan.want("gen_ai.completion.", prefix=True)
        self._pattern = KeyPatterns(("gen_ai.completion.#.finish_reason",))
        self._common = Words(vocabulary.COMMON_FINISH_REASONS, "verbatim")
        self._encoded = tuple(_finish_reasons([name]) for name in vocabulary.COMMON_FINISH_REASONS)
        self._remove = remove
        for slot in (self.slot, *self.slots, self.choices):
            landmarks.mark(slot)

    def run(self, work: Work) -> None:
        """Work on one batch that has one of the columns."""
        batch = work.batch
        has = np.zeros(work.size, np.bool_)
        current = batch.column(self.slot)
        has[current["row"][(current["type"] != STRING) & (current["len"] > 0)]] = True
        self._choices(work, has)
        mistyped = current[current["type"] == STRING]
        for records in (mistyped, *(batch.column(slot) for slot in self.slots)):
            fresh = records[(records["type"] == STRING) & (records["len"] > 0) & ~has[records["row"]]]
            if len(fresh):
                self._single(work, fresh)
                has[fresh["row"]] = True
                if self._remove and records is not mistyped:
                    work.removed.append(fresh)
        if len(mistyped):
            batch.cut(mistyped)

    def _single(self, work: Work, records: NDArray[np.void]) -> None:
        common = self._common.lookup(work.batch.data, records["off"], records["len"])
        for place in np.unique(common).tolist():
            some = records[common == place]
            if place == UNKNOWN:
                texts = (work.batch.text(off, length) for off, length in some[["off", "len"]].tolist())
                fields = [_finish_reasons(_listed(text)) for text in texts]
            else:
                fields = [self._encoded[place]] * len(some)
            work.batch.append_fields(some["row"], fields)

    def _choices(self, work: Work, has: Mask) -> None:
        """Flattened choices, put in the order of their numbers."""
        records = work.batch.column(self.choices)
        if not len(records):
            return
        data = work.batch.data
        wanted = (
            (self._pattern.lookup(data, records["key_off"], records["key_len"]) == 0)
            & (records["type"] == STRING)
            & ~has[records["row"]]
        )
        reasons: dict[int, dict[int, str]] = {}
        columns = ["row", "key_off", "key_len", "off", "len"]
        for row, key_off, key_len, off, length in records[wanted][columns].tolist():
            number = index_of(data[key_off : key_off + key_len].split(b".")[2].decode())
            if number is not None:
                reasons.setdefault(row, {})[number] = work.batch.text(off, length)
        if reasons:
            rows = np.fromiter(reasons, "<u4", len(reasons))
            work.batch.append_fields(
                rows, [_finish_reasons([found[n] for n in sorted(found)]) for found in reasons.values()]
            )
            has[rows] = True


def _listed(text: str) -> list[str]:
    """A list written as JSON, or a single reason."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return [text]
    return [str(item) for item in value] if isinstance(value, list) else [text]


def _finish_reasons(reasons: list[str]) -> bytes:
    """The attribute as a field of a Span message."""
    attribute = KeyValue(key=vocabulary.FINISH_REASONS)
    attribute.value.array_value.values.extend(AnyValue(string_value=reason) for reason in reasons)
    return Span(attributes=[attribute]).SerializeToString()
