"""Enrichment: what each LLM request was, in one vocabulary, worked out over whole batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from otel_bridge import catalog
from otel_bridge.columns import Lineage
from otel_bridge.model import ValueType
from otel_bridge.processors.enrich import vocabulary
from otel_bridge.processors.enrich.facts import (
    TYPES,
    FactStep,
    FinishReasonsStep,
    JsonColumns,
    OperationStep,
    WordStep,
)
from otel_bridge.processors.enrich.messages import MessagesStep
from otel_bridge.processors.enrich.targets import SOURCE_NAMES, Compiler
from otel_bridge.processors.enrich.values import REASONS, Texts, as_texts
from otel_bridge.processors.enrich.vocabulary import FACTS, OPERATION, Fact, Old
from otel_bridge.processors.enrich.work import Landmarks, Work

if TYPE_CHECKING:
    from collections.abc import Iterable

    from otel_bridge.batch import Batch, PlanBuilder
    from otel_bridge.processors.enrich.config import EnrichConfig, ExtraKey
    from otel_bridge.processors.enrich.targets import Search
    from otel_bridge.telemetry import Deferred, Telemetry

VocabularyStep = FactStep | WordStep | FinishReasonsStep | MessagesStep


class _Types:
    """The types that current attributes must have."""

    def __init__(self) -> None:
        self.steps: dict[int, int] = {}
        self._expected: dict[int, int] = {}

    def expect(self, slot: int, kind: ValueType, step: int) -> None:
        """Which step mends a column."""
        self._expected[slot] = int(kind)
        self.steps[slot] = step

    def wrong(self, work: Work) -> Iterable[int]:
        """The columns that hold values of other types."""
        for slot in work.present & self._expected.keys():
            if (work.batch.column(slot)["type"] != self._expected[slot]).any():
                yield slot


class Enrich:
    """A TraceProcessor that turns GenAI attributes into current ones and finds each target's value.

    Args:
        config: what is to be found, and where.
        plan: where the columns for it are asked for.
        telemetry: counts what was found, by which source, and what was not believed.
        convert_messages: whether flattened messages are put into the current form; pointless where content
            is not kept. Prompts are measured in any case.
    """

    def __init__(
        self, config: EnrichConfig, plan: PlanBuilder, telemetry: Telemetry, *, convert_messages: bool
    ) -> None:
        self._explain = config.explain
        self._landmarks = Landmarks(plan)
        json = JsonColumns(plan)
        self._steps: list[VocabularyStep] = []
        self._by_slot: dict[int, list[int]] = {}
        self._types = _Types()
        facts: dict[str, frozenset[int]] = {}
        if config.vocabulary.enabled:
            facts = self._compile_vocabulary(config, plan, json, convert_messages=convert_messages)
        compiler = Compiler(plan, self._landmarks, json, config.body_attributes, facts)
        self._targets = [compiler.target(key, given) for key, given in config.resolved_targets().items()]
        self._response_id = plan.want("gen_ai.response.id")
        inherits = any(target.inherits for target in self._targets)
        self._lineages = (
            {target.key: Lineage(config.lineage.capacity) for target in self._targets if target.inherits}
            if inherits
            else {}
        )
        self._resolved_by: dict[tuple[str, str], Deferred] = {}
        self._bad = telemetry.counter(catalog.ENRICH_BAD_VALUES)
        self._conflicts = telemetry.counter(catalog.ENRICH_CONFLICTS)
        for target in self._targets:
            names = {step.name for step in (*target.first, *target.last)}
            for name in SOURCE_NAMES:
                if name in names:
                    resolved = telemetry.deferred(catalog.ENRICH_RESOLVED, target.key, name)
                    self._resolved_by[target.key, name] = resolved
            for reason in REASONS:
                self._bad.labels(target.key, reason)

    def process(self, batch: Batch) -> None:
        """Work on one batch."""
        if not len(batch):
            return
        work = Work(batch, self._landmarks)
        self._normalise(work)
        searches = [target.search(work) for target in self._targets]
        for search in searches:
            search.ask_first(explain=self._explain)
        for search in searches:
            lineage = self._remember(work, search)
            search.ask(search.target.last, self._explain, lineage)
        for records in work.removed:
            batch.cut(records)
        self._count(work, searches)

    def _normalise(self, work: Work) -> None:
        due = {step for slot in work.present for step in self._by_slot.get(slot, ())}
        for slot in self._types.wrong(work):
            due.add(self._types.steps[slot])
        for step in sorted(due):
            self._steps[step].run(work)

    def _remember(self, work: Work, search: Search) -> Lineage | None:
        """Keep each span, with the value that was found on itself, for its descendants and counterparts."""
        lineage = self._lineages.get(search.target.key)
        if lineage is None:
            return None
        batch = work.batch
        offs, lens = np.zeros(work.size, "<u4"), np.zeros(work.size, "<u4")
        foreign: list[Texts] = []
        for values in search.values:
            texts = values if isinstance(values, Texts) else as_texts(values)
            if texts.data is batch.data:
                offs[texts.rows], lens[texts.rows] = texts.offs, texts.lens
            elif len(texts.rows):
                foreign.append(texts)
        lineage.remember(batch.spans, batch.data, offs, lens)
        for texts in foreign:
            lineage.remember(batch.spans[texts.rows], texts.data, texts.offs, texts.lens)
        for ids in self._response_ids(work):
            lineage.remember_ids(batch.data, ids.offs, ids.lens, offs[ids.rows], lens[ids.rows])
        return lineage

    def _response_ids(self, work: Work) -> Iterable[Texts]:
        known = work.facts.get("gen_ai.response.id")
        if known is not None:
            return [ids for ids in known if isinstance(ids, Texts) and ids.data is work.batch.data]
        records = work.batch.column(self._response_id)
        return (
            [Texts(records["row"], work.batch.data, records["off"], records["len"])] if len(records) else []
        )

    def _count(self, work: Work, searches: list[Search]) -> None:
        for search in searches:
            for source, spans in search.resolved.items():
                self._resolved_by[search.target.key, source](spans)
        for (target, reason), values in work.bad.items():
            self._bad.labels(target, reason).inc(values)
        for target, spans in work.conflicts.items():
            self._conflicts.labels(target).inc(spans)

    def _compile_vocabulary(
        self, config: EnrichConfig, plan: PlanBuilder, json: JsonColumns, *, convert_messages: bool
    ) -> dict[str, frozenset[int]]:
        remove = config.vocabulary.originals == "remove"
        slots: dict[str, frozenset[int]] = {}
        provider = next(fact for fact in FACTS if fact.key == vocabulary.PROVIDER)
        words = WordStep(provider, plan, self._landmarks, json, remove=remove)
        self._add(words, [words.slot, *(source.slot for source in words.sources)])
        operation = OperationStep(OPERATION, plan, self._landmarks, json, remove=remove)
        self._add(operation, [operation.slot, *operation.hints, *(one.slot for one in operation.sources)])
        for fact in merged(FACTS, config.vocabulary.extra):
            if fact.words is None:
                step = FactStep(fact, plan, self._landmarks, json, remove=remove)
                sources = [source.slot for source in step.sources]
                self._add(step, sources)
                self._types.expect(step.slot, TYPES[fact.type], len(self._steps) - 1)
                slots[fact.key] = frozenset((step.slot, *sources))
        reasons = FinishReasonsStep(plan, self._landmarks, remove=remove)
        self._add(reasons, [*reasons.slots, reasons.choices])
        self._types.expect(reasons.slot, ValueType.ARRAY, len(self._steps) - 1)
        if convert_messages:
            for key in (vocabulary.INPUT_MESSAGES, vocabulary.OUTPUT_MESSAGES):
                messages = MessagesStep(key, plan, remove=remove)
                self._add(messages, messages.slots)
        return slots

    def _add(self, step: VocabularyStep, slots: Iterable[int]) -> None:
        self._steps.append(step)
        for slot in set(slots):
            self._by_slot.setdefault(slot, []).append(len(self._steps) - 1)


def merged(facts: tuple[Fact, ...], extra: tuple[ExtraKey, ...]) -> list[Fact]:
    """The vocabulary with a user's own names; a name that is there already gains old ones."""
    by_key = {fact.key: fact for fact in facts}
    for given in extra:
        old = tuple(Old(key, unit=given.unit or "s", marks=False) for key in given.from_)
        known = by_key.get(given.key)
        if known is None:
            by_key[given.key] = Fact(given.key, given.type, old, time=given.unit is not None)
        else:
            by_key[given.key] = Fact(
                known.key,
                known.type,
                (*known.old, *old),
                known.words,
                known.minimum,
                known.maximum,
                known.time,
            )
    return list(by_key.values())
