"""Targets: each an attribute to be written, and an ordered list of sources."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote_plus

import numpy as np

from otel_bridge import catalog
from otel_bridge.columns import (
    MALFORMED,
    JsonPaths,
    OwnSource,
    OwnSources,
    Words,
    all_of,
    any_of,
    query_int,
    query_param,
)
from otel_bridge.model import Scope, SpanKind
from otel_bridge.processors.enrich import config as settings
from otel_bridge.processors.enrich import vocabulary
from otel_bridge.processors.enrich.prompts import BLOBS, PromptSource
from otel_bridge.processors.enrich.values import (
    BYTES,
    REASONS,
    STRING,
    Bad,
    Numbers,
    Reader,
    Texts,
    joined,
    repeated,
    rows_of,
    where,
)
from otel_bridge.processors.enrich.work import JsonColumn, is_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from otel_bridge.batch import PlanBuilder
    from otel_bridge.columns import Lineage
    from otel_bridge.processors.enrich.config import TargetConfig
    from otel_bridge.processors.enrich.facts import JsonColumns
    from otel_bridge.processors.enrich.values import Found, Mask
    from otel_bridge.processors.enrich.work import Landmarks, Work

QUERIES = ("url.query", "url.full", "http.target", "http.url")
"""Where a query stands; the first is the query alone."""
HEADER_PREFIXES = ("http.request.header.",)
METADATA_PREFIXES = (
    "rpc.grpc.request.metadata.",
    "rpc.request.metadata.",
    "rpc.connect_rpc.request.metadata.",
)


class Source(Protocol):
    """One place where a target's value may stand."""

    @property
    def slots(self) -> Sequence[int]:
        """Without any of these columns there is nothing to be found; none: always asked."""

    def read(self, work: Work, need: Mask) -> Iterable[Found]:
        """The values of spans that need one."""


def keys_of(prefixes: Sequence[str], name: str) -> tuple[str, ...]:
    """The attributes that record a header: lower case, and with underscores as older conventions had it."""
    lower = name.lower()
    spellings = dict.fromkeys((lower, lower.replace("-", "_")))
    return tuple(prefix + spelling for prefix in prefixes for spelling in spellings)


class Keys:
    """Span attributes, the first that has a value wins; current names see through older ones."""

    def __init__(
        self, keys: Sequence[str], reader: Reader, plan: PlanBuilder, facts: dict[str, frozenset[int]]
    ) -> None:
        self._keys = tuple((key, plan.want(key)) for key in keys)
        self._reader = reader
        self.own = OwnSource("attribute", tuple(slot for _, slot in self._keys))
        self.slots = self.own.slots + tuple(slot for key in keys for slot in facts.get(key, ()))
        self.facts = frozenset(key for key in keys if key in facts)

    def read(self, work: Work, need: Mask) -> Iterator[Found]:
        """The values of spans that need one."""
        need = need.copy()
        for key, slot in self._keys:
            known = work.facts.get(key)
            if known is not None:
                values: Iterable[Found] = (
                    found for value in known for found in reread(self._reader, value[need[value.rows]])
                )
            elif slot in work.present:
                records = work.batch.column(slot)
                values = self._reader.records(work.batch, picked(records, need))
            else:
                continue
            for found in values:
                if not isinstance(found, Bad):
                    need[found.rows] = False
                yield found


def reread(reader: Reader, value: Texts | Numbers) -> Iterable[Found]:
    """A value of the vocabulary under a target's type and bounds."""
    if isinstance(value, Texts):
        return reader.texts(value)
    if reader.kind == "string":
        return (Bad("wrong_type", value.rows),) if len(value.rows) else ()
    kind = {"int": "i", "double": "f", "bool": "b"}[reader.kind]
    if value.values.dtype.kind == kind:
        return reader.within(value)
    if kind == "f":
        return reader.within(Numbers(value.rows, value.values.astype("<f8")))
    return (Bad("wrong_type", value.rows),) if len(value.rows) else ()


def picked(records: NDArray[np.void], need: Mask) -> NDArray[np.void]:
    """The records of spans that need a value."""
    return where(records, need[records["row"]])


class Body:
    """A value in a captured JSON body."""

    def __init__(
        self, attributes: Sequence[str], paths: Sequence[str], reader: Reader, json: JsonColumns
    ) -> None:
        self._columns: tuple[tuple[JsonColumn, list[int]], ...] = tuple(
            (json.want(key, paths[0])[0], [json.want(key, path)[1] for path in paths]) for key in attributes
        )
        self._reader = reader
        self.slots = tuple(column.slot for column, _ in self._columns)

    def read(self, work: Work, need: Mask) -> Iterator[Found]:
        """The values of spans that need one."""
        need = need.copy()
        for column, places in self._columns:
            if column.slot not in work.present:
                continue
            rows, matches = work.matches(column)
            for place in places:
                keep = need[rows]
                for found in self._reader.json(work.batch, rows[keep], matches[keep, place]):
                    if not isinstance(found, Bad):
                        need[found.rows] = False
                    yield found


class BodyText:
    """The length of text in a captured JSON body."""

    def __init__(
        self, attributes: Sequence[str], paths: Sequence[str], reader: Reader, plan: PlanBuilder
    ) -> None:
        self.slots = tuple(plan.want(key) for key in attributes)
        self._paths = JsonPaths(paths, unless_type=BLOBS)
        self._reader = reader
        self.own = OwnSource("json_text", self.slots, paths=self._paths) if reader.kind == "int" else None

    def read(self, work: Work, need: Mask) -> Iterator[Found]:
        """The lengths of spans that need one."""
        need = need.copy()
        batch = work.batch
        for slot in self.slots:
            if slot not in work.present:
                continue
            records = picked(batch.column(slot), need)
            textual = (records["type"] == STRING) | (records["type"] == BYTES)
            records = where(records, textual & is_json(batch, records))
            lengths = self._paths.text_bytes(batch.data, records["off"], records["len"])
            malformed = lengths == MALFORMED
            if any_of(malformed):
                yield Bad("malformed", records["row"][malformed])
            found = lengths >= 0
            numbers = Numbers(records["row"], lengths)
            for length in self._reader.within(numbers if all_of(found) else numbers[found]):
                if not isinstance(length, Bad):
                    need[length.rows] = False
                yield length


class Prompt:
    """The length of the prompt in any vocabulary."""

    def __init__(self, source: PromptSource, reader: Reader) -> None:
        self._source = source
        self._reader = reader
        self.slots = source.slots

    def read(self, work: Work, need: Mask) -> Iterator[Found]:
        """The lengths of spans that need one."""
        for found in self._source.read(work, need):
            yield from (found,) if isinstance(found, Bad) else self._reader.within(found)


class Query:
    """A query parameter."""

    def __init__(self, name: str, reader: Reader, plan: PlanBuilder) -> None:
        self._name = name
        self._reader = reader
        self._slots = tuple((plan.want(key), key == "url.query") for key in QUERIES)
        self.slots = tuple(slot for slot, _ in self._slots)
        self.own = OwnSource("parameter", self.slots, name=name) if reader.kind == "int" else None

    def read(self, work: Work, need: Mask) -> Iterator[Found]:
        """The values of spans that need one."""
        need = need.copy()
        for slot, bare in self._slots:
            if slot not in work.present:
                continue
            records = picked(work.batch.column(slot), need)
            records = records if all_of(records["type"] == STRING) else records[records["type"] == STRING]
            for found in self._of(work, records, bare=bare):
                if not isinstance(found, Bad):
                    need[found.rows] = False
                yield found

    def _of(self, work: Work, records: NDArray[np.void], *, bare: bool) -> Iterator[Found]:
        data, offs, lens = work.batch.data, records["off"], records["len"]
        if self._reader.kind == "int":
            yield from self._reader.parsed(
                records["row"], *query_int(data, offs, lens, self._name, bare=bare)
            )
            return
        matches = query_param(data, offs, lens, self._name, bare=bare)
        plain = (matches["type"] > 0) & ~matches["escaped"]
        yield from self._reader.texts(
            Texts(records["row"][plain], data, matches["off"][plain], matches["len"][plain])
        )
        escaped = matches["escaped"]
        if any_of(escaped):
            raws = matches[escaped][["off", "len"]].tolist()
            pieces = [unquote_plus(work.batch.text(off, length)).encode() for off, length in raws]
            yield from self._reader.texts(joined(records["row"][escaped], pieces))


class ResourceKeys:
    """Resource attributes of LLM requests."""

    def __init__(self, keys: Sequence[str], reader: Reader, plan: PlanBuilder) -> None:
        self.slots = tuple(plan.want(key, scope=Scope.RESOURCE) for key in keys)
        self._reader = reader

    def read(self, work: Work, need: Mask) -> Iterator[Found]:
        """The values of spans that need one."""
        need = need & work.llm
        for slot in self.slots:
            if slot in work.present and any_of(need):
                for found in self._reader.records(work.batch, of_spans(work, slot, need)):
                    if not isinstance(found, Bad):
                        need[found.rows] = False
                    yield found


def of_spans(work: Work, slot: int, need: Mask) -> NDArray[np.void]:
    """A resource's attribute as if each of its spans had it."""
    index = work.batch.by_span(slot)
    rows = rows_of(need & (index >= 0))
    records: NDArray[np.void] = work.batch.column(slot)[index[rows]].copy()
    records["row"] = rows
    return records


class StaticMap:
    """A fixed value by a resource attribute, for LLM requests; names are compared without regard to case."""

    def __init__(self, by: str, values: dict[str, str], reader: Reader, plan: PlanBuilder) -> None:
        self.slots = (plan.want(by, scope=Scope.RESOURCE),)
        self._words = Words(tuple(values))
        self._values = tuple(value.encode() for value in values.values())
        self._reader = reader

    def read(self, work: Work, need: Mask) -> Iterator[Found]:
        """The values of spans that need one."""
        records = of_spans(work, self.slots[0], need & work.llm)
        places = self._words.lookup(work.batch.data, records["off"], records["len"])
        for place in np.unique(places[places >= 0]).tolist():
            yield from self._reader.texts(repeated(records["row"][places == place], self._values[place]))


class Default:
    """A fixed value, for LLM requests."""

    slots: Sequence[int] = ()

    def __init__(self, value: str | float, reader: Reader) -> None:
        self._value = value
        self._reader = reader

    def read(self, work: Work, need: Mask) -> Iterator[Found]:
        """The value, for spans that need one."""
        rows = rows_of(need & work.llm)
        if isinstance(self._value, str):
            yield from self._reader.texts(repeated(rows, self._value.encode()))
        else:
            dtype = {"int": "<i8", "double": "<f8", "bool": "?"}[self._reader.kind]
            yield Numbers(rows, np.full(len(rows), self._value, dtype))


class Parent:
    """The value of the nearest ancestor that has one, for LLM requests."""

    slots: Sequence[int] = ()

    def __init__(self, hops: int, reader: Reader) -> None:
        self._hops = hops
        self._reader = reader

    def inherit(self, work: Work, need: Mask, lineage: Lineage) -> Iterator[Found]:
        """The values of spans that need one."""
        rows = rows_of(need & work.llm)
        if len(rows):
            texts, found = lineage.ancestors(work.batch.spans, rows, self._hops)
            yield from inherited(self._reader, rows, texts, found)


class Paired:
    """The value of the span whose response id is this span's request id, for LLM requests."""

    def __init__(self, reader: Reader, plan: PlanBuilder) -> None:
        self.slots = (plan.want(vocabulary.REQUEST_ID),)
        self._reader = reader

    def inherit(self, work: Work, need: Mask, lineage: Lineage) -> Iterator[Found]:
        """The values of spans that need one."""
        records = picked(work.batch.column(self.slots[0]), need)
        records = where(records, records["type"] == STRING)
        texts, found = lineage.counterparts(work.batch.data, records["off"], records["len"])
        yield from inherited(self._reader, records["row"], texts, found)


def inherited(
    reader: Reader, rows: NDArray[np.uint32], texts: bytes, found: NDArray[np.void]
) -> Iterable[Found]:
    """What other spans said."""
    some = found["type"] > 0
    return reader.texts(Texts(rows[some], texts, found["off"][some], found["len"][some]))


class Step:
    """A source in its place in a target's list."""

    def __init__(self, name: str, source: Source | Parent | Paired, kinds: frozenset[int]) -> None:
        self.name = name
        self.source = source
        self.kinds = kinds
        self.natively = getattr(source, "own", None)
        """How the native crate reads it; None: it does not."""
        self.facts: frozenset[str] = getattr(source, "facts", frozenset())

    @property
    def own(self) -> bool:
        """Whether the value stands on the span itself; others count for LLM requests only."""
        return self.name in OWN


OWN = frozenset({"span_attribute", "request_header", "grpc_metadata", "body", "messages", "query"})
EVIDENCE = OWN - {"query"}
"""Sources that no other request than one to a model has."""
SOURCE_NAMES = (
    *sorted(OWN),
    "resource",
    "paired_span",
    "parent_span",
    "static_map",
    "default",
)
"""As they stand in metrics and in explanations."""


class Target:
    """One attribute to be written."""

    def __init__(self, key: str, given: TargetConfig, steps: Sequence[Step], plan: PlanBuilder) -> None:
        self.key = key
        self.explanation = catalog.ENRICH_SOURCE_TEMPLATE.format(target=key)
        self.reader = reader_of(given)
        self.inherits = any(isinstance(step.source, Parent | Paired) for step in steps)
        self.slot = plan.want(key)
        self._overwrite = given.overwrite
        first = next((at for at, step in enumerate(steps) if not step.own), len(steps))
        self.first, self.last = tuple(steps[:first]), tuple(steps[first:])
        self._facts = frozenset(key for step in self.first for key in step.facts)
        self.natively = self._compiled()

    def _compiled(self) -> OwnSources | None:
        """The first sources for the crate; None where it is not installed, or does not read the type."""
        reader = self.reader
        low, high = whole_bound(reader.minimum, LEAST), whole_bound(reader.maximum, MOST)
        if reader.kind not in ("string", "int") or low is None or high is None:
            return None
        sources = [
            (step.natively or OwnSource("foreign", tuple(step.source.slots)), step.kinds)
            for step in self.first
        ]
        return OwnSources.compiled(
            sources, texts=reader.kind == "string", low=low, high=high, longest=reader.max_length
        )

    def aside(self, work: Work) -> list[int]:
        """Places of first sources whose attributes have older names in this batch."""
        if self._facts.isdisjoint(work.facts):
            return []
        return [at for at, step in enumerate(self.first) if not step.facts.isdisjoint(work.facts)]

    def search(self, work: Work) -> Search:
        """Begin on a batch."""
        return Search(self, work, overwrite=self._overwrite)


LEAST, MOST = -(1 << 63), (1 << 63) - 1
_EXACT = 1 << 53


def whole_bound(bound: float | None, default: int) -> int | None:
    """A bound of whole numbers as such; None: comparing with it is not the same."""
    if bound is None:
        return default
    return int(bound) if abs(bound) < _EXACT and int(bound) == bound else None


_INHERITING = (Parent, Paired)


class Search:
    """One target in one batch."""

    def __init__(self, target: Target, work: Work, *, overwrite: bool) -> None:
        self.target = target
        self.need = np.ones(work.size, np.bool_)
        self._missing = work.size
        self.resolved: dict[str, int] = {}
        self.values: list[Texts | Numbers] = []
        self._work = work
        self._present = target.slot in work.present
        if self._present and not overwrite:
            for found in target.reader.records(work.batch, work.batch.column(target.slot)):
                if not isinstance(found, Bad):
                    self._found(found)

    def ask_first(self, *, explain: bool) -> None:
        """Go through the sources on the span itself: natively, but for those that need more than a column."""
        target, work = self.target, self._work
        sources = target.natively
        if sources is None:
            self.ask(target.first, explain, None)
            return
        batch, steps, aside = work.batch, target.first, target.aside(work)
        at = 0
        while self._missing and at < len(steps):
            at, found, bad = sources.read(
                at, aside, batch, kinds=work.kinds, records=work.records, need=self.need
            )
            for said in found:
                values = (
                    Texts(said.rows, batch.data, *said.values)
                    if isinstance(said.values, tuple)
                    else Numbers(said.rows, said.values)
                )
                self._keep(steps[said.place], values, explain=explain)
            for reason, count in bad:
                work.bad[target.key, REASONS[reason]] += count
            self.ask(steps[at : at + 1], explain, None)
            at += 1

    def ask(self, steps: Iterable[Step], explain: bool, lineage: Lineage | None) -> None:  # noqa: FBT001 (positional in one place)
        """Go through sources until no span needs a value."""
        work = self._work
        for step in steps:
            if not self._missing:
                return
            source = step.source
            if source.slots and not work.any(source.slots):
                continue
            need = self.need & work.of_kind(step.kinds)
            if not any_of(need):
                continue
            values: Iterable[Found]
            if isinstance(source, _INHERITING):
                assert lineage is not None
                values = source.inherit(work, need, lineage)
            else:
                values = source.read(work, need)
            for found in values:
                if isinstance(found, Bad):
                    work.note(self.target.key, found)
                elif len(found.rows):
                    self._take(step, found, explain=explain)

    def _take(self, step: Step, found: Texts | Numbers, *, explain: bool) -> None:
        fresh = self.need[found.rows]
        if not all_of(fresh):
            found = found[fresh]
        self._keep(step, found, explain=explain)

    def _keep(self, step: Step, found: Texts | Numbers, *, explain: bool) -> None:
        """Write values of spans that needed one."""
        batch = self._work.batch
        self._found(found)
        if self._present:
            records = batch.column(self.target.slot)
            batch.cut(records[np.isin(records["row"], found.rows)])
        found.write(batch, self.target.key)
        if step.name in EVIDENCE:
            self._work.add_evidence(found.rows)
        if explain:
            batch.set_text(self.target.explanation, found.rows, step.name)
        self.resolved[step.name] = self.resolved.get(step.name, 0) + len(found.rows)

    def _found(self, values: Texts | Numbers) -> None:
        """Of spans that needed one, each once."""
        self.need[values.rows] = False
        self._missing -= len(values.rows)
        self.values.append(values)


def reader_of(given: TargetConfig) -> Reader:
    """How a target reads."""
    return Reader(given.type, given.minimum, given.maximum, given.max_length)


def kinds_of(names: Sequence[str]) -> frozenset[int]:
    """Span kinds as numbers."""
    return frozenset(int(SpanKind[name.upper()]) for name in names)


class Compiler:
    """Turns configured sources into steps over columns."""

    def __init__(
        self,
        plan: PlanBuilder,
        landmarks: Landmarks,
        json: JsonColumns,
        body_attributes: Sequence[str],
        facts: dict[str, frozenset[int]],
    ) -> None:
        self._plan = plan
        self._landmarks = landmarks
        self._json = json
        self._bodies = body_attributes
        self._facts = facts
        self._prompt: PromptSource | None = None

    def target(self, key: str, given: TargetConfig) -> Target:
        """A target, ready to work."""
        steps = [self._step(source, given) for source in given.sources]
        return Target(key, given, steps, self._plan)

    def _step(self, source: settings.Source, given: TargetConfig) -> Step:
        name, make = self._made(source, reader_of(given))
        return Step(name, make(), kinds_of(source.kinds or given.kinds))

    def _made(  # noqa: C901, PLR0911 (one line a source)
        self, source: settings.Source, reader: Reader
    ) -> tuple[str, Callable[[], Source | Parent | Paired]]:
        plan = self._plan
        match source:
            case settings.AttributeSource(attribute=keys):
                return "span_attribute", lambda: Keys(keys, reader, plan, self._facts)
            case settings.HeaderSource(header=name):
                return "request_header", lambda: Keys(keys_of(HEADER_PREFIXES, name), reader, plan, {})
            case settings.MetadataSource(grpc_metadata=name):
                return "grpc_metadata", lambda: Keys(keys_of(METADATA_PREFIXES, name), reader, plan, {})
            case settings.BodySource(body=paths):
                return "body", lambda: Body(self._bodies, paths, reader, self._json)
            case settings.BodyTextSource(body_text=paths):
                return "body", lambda: BodyText(self._bodies, paths, reader, plan)
            case settings.MessagesSource():
                return "messages", lambda: Prompt(self._prompts(), reader)
            case settings.QuerySource(query=name):
                return "query", lambda: Query(name, reader, plan)
            case settings.ResourceSource(resource=keys):
                return "resource", lambda: ResourceKeys(keys, reader, plan)
            case settings.PairedSource():
                return "paired_span", lambda: Paired(reader, plan)
            case settings.ParentSource(parent_span=hops):
                return "parent_span", lambda: Parent(hops, reader)
            case settings.StaticSource(static_map=values, by=by):
                return "static_map", lambda: StaticMap(by, values, reader, plan)
            case settings.DefaultSource(default=value):
                return "default", lambda: Default(value, reader)

    def _prompts(self) -> PromptSource:
        if self._prompt is None:
            self._prompt = PromptSource(self._plan, self._landmarks)
        return self._prompt
