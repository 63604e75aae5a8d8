"""Spans as calls of targets: how long each took, and whether it failed; whole batches at a time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from otel_bridge import catalog
from otel_bridge.control.breaker import Calls
from otel_bridge.groups import Cells, Texts, sent_on_spans
from otel_bridge.model import Scope, SpanKind, StatusCode
from otel_bridge.targets import key_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_bridge.batch import Batch, PlanBuilder
    from otel_bridge.control.config import FieldConfig, SpansConfig, TargetsConfig
    from otel_bridge.control.sources import Sources
    from otel_bridge.control.strategies import Strategies
    from otel_bridge.groups import Column

_LONGEST = 512
"""Bytes of one part that are looked at."""
_MOST_NAMES = 20_000
"""Combinations of names that are remembered; beyond, all are forgotten and found again."""
_SERVER_ERROR = 500


class CallingSpans:
    """Which spans tell of calls: those of the configured kinds that were not rejected."""

    def __init__(self, config: SpansConfig) -> None:
        self._kinds = np.zeros(256, np.bool_)
        self._kinds[[SpanKind[kind.upper()] for kind in config.kinds]] = True

    def among(self, spans: NDArray[np.void]) -> NDArray[np.bool_]:
        """A mask of spans (batch.SPAN records)."""
        mask: NDArray[np.bool_] = self._kinds[spans["kind"]] & (spans["reject"] == 0)
        return mask


class CallTap:
    """A step of the data path (contracts.TraceProcessor) that reads, and changes nothing.

    Of nested spans of one resource in a request the outermost counts: it is what the caller waited for.
    """

    def __init__(
        self,
        config: SpansConfig,
        targets: TargetsConfig,
        columns: PlanBuilder,
        sources: Sources,
        strategies: Strategies | None = None,
    ) -> None:
        self._sources = sources
        self._strategies = strategies
        self._fields = [_Field(targets.field(name), columns) for name in targets.key]
        self._statuses = [columns.want(key) for key in (catalog.HTTP_STATUS.key, "http.status_code")]
        self._calling = CallingSpans(config)
        self._ignored = config.ignored_statuses
        self._cells = Cells(width=1)
        self._keys: list[str] = []

    def process(self, batch: Batch) -> None:
        """Tell of the calls in one batch."""
        event = time.monotonic_ns()
        spans = batch.spans
        rows = np.flatnonzero(self._calling.among(spans))
        if not len(rows):
            return
        rows = _outermost(spans, rows)
        rows = rows[np.argsort(spans["end"][rows], kind="stable")]
        cells = self._name(batch)[rows]
        calls = self._calls(batch, rows)
        if self._strategies is not None:
            self._strategies.take(calls)
        first = cells[0]
        if (cells == first).all():
            self._tell(int(first), calls, event)
            return
        for cell in np.unique(cells).tolist():
            mine = cells == cell
            self._tell(
                cell,
                Calls(
                    calls.seconds[mine],
                    calls.errors[mine],
                    calls.ignored[mine],
                    calls.starts[mine],
                    calls.traces[mine],
                ),
                event,
            )

    def _tell(self, cell: int, calls: Calls, event: int) -> None:
        key = self._keys[cell]
        if key:
            self._sources.take_calls(key, calls, event)

    def _name(self, batch: Batch) -> NDArray[np.uint32]:
        """The number of each span's target."""
        if len(self._cells) > _MOST_NAMES:
            self._cells.clear()
            self._keys.clear()
        texts = Texts(batch.data, len(batch))
        columns = [(at, field.column(batch, texts)) for at, field in enumerate(self._fields)]
        cells = self._cells.assign(texts, columns, np.zeros((len(batch), 1), "u1"))
        for number in range(len(self._keys), len(self._cells)):
            parts = [""] * len(self._fields)
            for at, label in self._cells.labels(number)[1]:
                parts[at] = label.decode("utf-8", "replace")
            self._keys.append(key_of(parts))
        return cells

    def _calls(self, batch: Batch, rows: NDArray[np.intp]) -> Calls:
        spans = batch.spans[rows]
        errors = spans["status"] == StatusCode.ERROR
        ignored = np.zeros(len(rows), np.bool_)
        for slot in self._statuses:
            if batch.resolved_has(slot):
                statuses = batch.resolved_numbers(slot)[rows]
                errors |= statuses >= _SERVER_ERROR
                for status in self._ignored:  # np.isin sorts first, which takes longer for so few
                    ignored |= statuses == status
        starts, ends = spans["start"], spans["end"]
        seconds = np.where(ends > starts, ends - starts, 0) / 1e9
        return Calls(seconds, errors, ignored, starts, np.ascontiguousarray(spans["trace_id"]))


class _Field:
    """One part of targets' names: the first of some attributes, a span's before its resource's."""

    def __init__(self, config: FieldConfig, columns: PlanBuilder) -> None:
        self._slots = [
            columns.want(key, scope=scope)
            for scope in (Scope.SPAN, Scope.RESOURCE)
            for key in config.attributes
        ]

    def column(self, batch: Batch, texts: Texts) -> Column:
        column = None
        for slot in self._slots:
            found = self._read(batch, texts, slot) if batch.resolved_has(slot) else None
            if found is not None:
                column = found if column is None else column.otherwise(found)
        return texts.column((), _LONGEST) if column is None else column

    @staticmethod
    def _read(batch: Batch, texts: Texts, slot: int) -> Column | None:
        found = sent_on_spans(batch, slot, _LONGEST)
        return found.texts if found is not None else texts.column(batch.resolved_texts(slot), _LONGEST)


def _outermost(spans: NDArray[np.void], rows: NDArray[np.intp]) -> NDArray[np.intp]:
    """Rows without those whose parent is among them, in the same trace and resource."""
    if len(rows) == 1:
        return rows
    mine = spans[rows]
    parents = np.ascontiguousarray(mine["parent_id"]).view("<u8")
    if not parents.any():
        return rows
    ids = np.ascontiguousarray(mine["span_id"]).view("<u8")
    order = np.argsort(ids)
    at = order[np.minimum(np.searchsorted(ids, parents, sorter=order), len(ids) - 1)]
    inner = (
        (ids[at] == parents)
        & (mine["resource"][at] == mine["resource"])
        & (mine["trace_id"][at] == mine["trace_id"])
    )
    outermost: NDArray[np.intp] = rows[~inner]
    return outermost
