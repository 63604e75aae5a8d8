"""One batch under work: what is on it, looked up once."""

from __future__ import annotations

from collections import defaultdict
from functools import cache, cached_property
from typing import TYPE_CHECKING

import numpy as np

from otel_bridge.columns import JsonPaths, Words
from otel_bridge.processors.enrich import vocabulary
from otel_bridge.processors.enrich.values import BYTES, STRING, where

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from otel_bridge.batch import Batch, PlanBuilder
    from otel_bridge.processors.enrich.values import Bad, Mask, Numbers, Rows, Texts

LONGEST_SECONDS = 86_400.0
"""The longest believed time in a span whose own times cannot be trusted."""
TOLERANCE = 1.01
"""Engines and tracers read different clocks."""
TOLERANCE_SECONDS = 0.001

OPEN_BRACKETS = b"{["


class JsonColumn:
    """The values at several paths in a column of JSON texts, found in one walk."""

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self._paths: list[str] = []
        self._compiled: JsonPaths | None = None

    def want(self, path: str) -> int:
        """Ask for a path at start-up; the answer is its place."""
        if path not in self._paths:
            self._paths.append(path)
            self._compiled = None
        return self._paths.index(path)

    def find(self, batch: Batch) -> tuple[Rows, NDArray[np.void]]:
        """The rows that have JSON, and as many rows of matches, a column a path."""
        if self._compiled is None:
            self._compiled = JsonPaths(self._paths)
        records = batch.column(self.slot)
        records = where(records, readable(batch, records) & is_json(batch, records))
        return records["row"], self._compiled.find(batch.data, records["off"], records["len"])


def readable(batch: Batch, records: NDArray[np.void]) -> Mask:
    """Which values are UTF-8: strings, and bytes that happen to be."""
    types = records["type"]
    texts: Mask = types == STRING
    if not texts.all():
        for at in np.flatnonzero(types == BYTES).tolist():
            off, length = records[at]["off"], records[at]["len"]
            try:
                batch.text(off, length)
            except UnicodeDecodeError:
                continue
            texts[at] = True
    return texts


def is_json(batch: Batch, records: NDArray[np.void]) -> Mask:
    """Which texts begin as JSON objects and arrays do."""
    first = np.frombuffer(batch.data, "u1")[np.where(records["len"] > 0, records["off"], 0)]
    begins: Mask = (first == OPEN_BRACKETS[0]) | (first == OPEN_BRACKETS[1])
    return begins & (records["len"] > 0)


class Landmarks:
    """Columns that tell what kind of request a span is; asked for once, used by several steps."""

    def __init__(self, plan: PlanBuilder) -> None:
        self.span_kind = plan.want(vocabulary.SPAN_KIND)
        self.systems = (plan.want(vocabulary.SYSTEM), plan.want(vocabulary.PROVIDER))
        self.targets = tuple(plan.want(key) for key in vocabulary.HTTP_TARGETS)
        self.endpoints = Words(tuple(vocabulary.ENDPOINTS), "path_end")
        self.llm_kinds = Words(vocabulary.LLM_SPAN_KINDS)
        self.marks: set[int] = set()
        """Columns that only calls of a model have."""

    def mark(self, slot: int) -> None:
        """A column that only calls of a model have."""
        self.marks.add(slot)


class Work:
    """A batch, with what several steps want to know of it."""

    def __init__(self, batch: Batch, landmarks: Landmarks) -> None:
        self.batch = batch
        self.size = len(batch)
        self.facts: dict[str, list[Texts | Numbers]] = {}
        """Values of current attributes, where an older name was turned into them."""
        self.bad: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.conflicts: defaultdict[str, int] = defaultdict(int)
        self.removed: list[NDArray[np.void]] = []
        self._landmarks = landmarks
        self.present = batch.present
        self._kinds: dict[frozenset[int], Mask] = {}
        self._matches: dict[int, tuple[Rows, NDArray[np.void]]] = {}
        self._systems: dict[str, Mask] = {}
        self._evidence: list[Rows] = []
        self._marked: Mask | None = None
        self._llm: Mask | None = None
        self._seconds: NDArray[np.float64] | None = None

    @cached_property
    def kinds(self) -> bytes:
        """The kinds of the spans, a byte each."""
        kinds: bytes = self.batch.spans["kind"].tobytes()
        return kinds

    @cached_property
    def records(self) -> bytes:
        """The attributes as the native crate takes them."""
        return self.batch.attributes.tobytes()

    def any(self, slots: Sequence[int]) -> bool:
        """Whether any of the columns is there."""
        return not self.present.isdisjoint(slots)

    def of_kind(self, kinds: frozenset[int]) -> Mask:
        """Which spans are of one of the kinds."""
        mask = self._kinds.get(kinds)
        if mask is None:
            mask = self._kinds[kinds] = np.frombuffer(self.kinds.translate(_table(kinds)), np.bool_)
        return mask

    def matches(self, column: JsonColumn) -> tuple[Rows, NDArray[np.void]]:
        """What was found in a JSON column."""
        found = self._matches.get(column.slot)
        if found is None:
            found = self._matches[column.slot] = column.find(self.batch)
        return found

    def of_system(self, system: str) -> Mask | None:
        """Which spans say that a system made them; None: no span does."""
        if not self.any(self._landmarks.systems):
            return None
        mask = self._systems.get(system)
        if mask is None:
            mask = self._systems[system] = np.zeros(self.size, np.bool_)
            words = Words((system,))
            for slot in self._landmarks.systems:
                records = self.batch.column(slot)
                named = words.lookup(self.batch.data, records["off"], records["len"]) == 0
                mask[records["row"][named]] = True
        return mask

    @property
    def believable_seconds(self) -> NDArray[np.float64]:
        """For each span the longest time that can have passed in it."""
        if self._seconds is None:
            start, end = self.batch.spans["start"], self.batch.spans["end"]
            sane = (start > 0) & (end > start)
            spent = np.where(sane, end - start, 0).astype("<f8") / 1e9
            self._seconds = np.where(sane, spent * TOLERANCE + TOLERANCE_SECONDS, LONGEST_SECONDS)
        return self._seconds

    @property
    def has_marks(self) -> bool:
        """Whether any span can be marked at all."""
        marks = self._landmarks
        return marks.span_kind in self.present or not self.present.isdisjoint(marks.marks)

    @property
    def marked(self) -> Mask:
        """Which spans are calls of a model, by a GenAI attribute or by OpenInference's kind."""
        if self._marked is None:
            batch, marks = self.batch, self._landmarks
            self._marked = np.zeros(self.size, np.bool_)
            for slot in marks.marks & self.present:
                self._marked[batch.column(slot)["row"]] = True
                if self._marked.all():
                    return self._marked
            if marks.span_kind in self.present:
                records = batch.column(marks.span_kind)
                called = marks.llm_kinds.lookup(batch.data, records["off"], records["len"]) >= 0
                self._marked[records["row"][called]] = True
        return self._marked

    @property
    def llm(self) -> Mask:
        """Which spans are LLM requests: those that are marked, and SERVER spans of an inference endpoint.

        Values that targets found on a span count as well, see `add_evidence`.
        """
        if self._llm is None:
            if any(len(rows) == self.size for rows in self._evidence):
                self._llm = np.ones(self.size, np.bool_)
                return self._llm
            batch, marks = self.batch, self._landmarks
            self._llm = self.marked.copy()
            for rows in self._evidence:
                self._llm[rows] = True
            for slot in marks.targets:
                if slot in self.present:
                    records = batch.column(slot)
                    known = marks.endpoints.lookup(batch.data, records["off"], records["len"]) >= 0
                    server = self.of_kind(SERVER)[records["row"]]
                    self._llm[records["row"][known & server]] = True
        return self._llm

    def add_evidence(self, rows: Rows) -> None:
        """Spans that turned out to be LLM requests."""
        if self._llm is None:
            self._evidence.append(rows)
        else:
            self._llm[rows] = True

    def note(self, target: str, bad: Bad) -> None:
        """Count values that cannot be used."""
        self.bad[target, bad.reason] += len(bad.rows)


@cache
def _table(kinds: frozenset[int]) -> bytes:
    """For each kind whether it is one of them."""
    return bytes(kind in kinds for kind in range(256))


SERVER = frozenset({2})
