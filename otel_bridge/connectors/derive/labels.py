"""Labels: where each comes from, and the cells that spans with the same labels share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from otel_bridge import catalog
from otel_bridge.edits import Slices
from otel_bridge.groups import Cells, Column, Texts, sent_on_spans
from otel_bridge.model import Scope, SpanKind, StatusCode, ValueType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from otel_bridge.batch import Batch, PlanBuilder
    from otel_bridge.catalog import DerivedMetric

_SOURCES: dict[str, tuple[str, ...]] = {
    catalog.GEN_AI_REQUEST_MODEL.key: (
        catalog.GEN_AI_REQUEST_MODEL.key,
        catalog.LLM_MODEL_ID.key,
        catalog.GEN_AI_RESPONSE_MODEL.key,
    ),
    catalog.GEN_AI_RESPONSE_MODEL.key: (catalog.GEN_AI_RESPONSE_MODEL.key,),
    catalog.GEN_AI_OPERATION.key: (catalog.GEN_AI_OPERATION.key,),
    catalog.GEN_AI_PROVIDER.key: (catalog.GEN_AI_PROVIDER.key,),
    catalog.ERROR_TYPE.key: (catalog.ERROR_TYPE.key,),
    catalog.HTTP_METHOD.key: (catalog.HTTP_METHOD.key, "http.method"),
    catalog.HTTP_ROUTE.key: (catalog.HTTP_ROUTE.key,),
    catalog.HTTP_STATUS.key: (catalog.HTTP_STATUS.key, "http.status_code"),
    catalog.RPC_SYSTEM.key: (catalog.RPC_SYSTEM.key, "rpc.system"),
    catalog.RPC_METHOD.key: (catalog.RPC_METHOD.key,),
    catalog.RPC_STATUS.key: (catalog.RPC_STATUS.key, "rpc.grpc.status_code"),
}
"""Labels that are span attributes: under which keys, the first that has a value."""

_NUMERIC = frozenset({catalog.HTTP_STATUS.key, catalog.RPC_STATUS.key})

CALL_OPERATIONS = frozenset({"chat", "text_completion", "generate_content", "embeddings"})
"""Operations that are one call of a model; agents, workflows and tools are made of such."""
OTHER = "_OTHER"
"""What failed, where a failed span does not say."""

_KINDS = tuple(f"SPAN_KIND_{kind.name}" for kind in SpanKind)
_STATUSES = tuple(f"STATUS_CODE_{status.name}" for status in StatusCode)


_KNOWN = frozenset(
    {
        catalog.SERVICE_NAME.key,
        catalog.SPAN_NAME.key,
        catalog.SPAN_KIND.key,
        catalog.STATUS_CODE.key,
        *_SOURCES,
    }
)
"""Labels of some metric, which as dimensions are labels of all."""
_OBSERVED = (catalog.GEN_AI_TOKEN_TYPE.key, catalog.CAUSE.key)
"""Labels that come from what is observed, not from the span; a metric has one at most, its last."""


class Trait:
    """What a cell's labels tell of its spans, worked out once a cell: bits of a number.

    Plain numbers, not an IntFlag: they are combined for every request.
    """

    HTTP = 1
    RPC = 2
    CLIENT_KIND = 4
    SERVER_KIND = 8
    ENTRY = 16  # SERVER or CONSUMER
    CALL = 32
    NO_OPERATION = 64


@dataclass(frozen=True, slots=True)
class Labelled:
    """The spans of one request by their labels.

    Attributes:
        texts: what the columns slice.
        services: the service of each span.
        cells: the cell of each span.
        traits: u1, of each span's cell.
    """

    texts: Texts
    services: Column
    cells: NDArray[np.uint32]
    traits: NDArray[np.uint8]

    def having(self, traits: int) -> NDArray[np.bool_]:
        """Which spans have all of some traits."""
        wanted = np.uint8(traits)
        mask: NDArray[np.bool_] = (self.traits & wanted) == wanted
        return mask


class _Label:
    """One label whose values stand on spans or resources.

    A number is a code of its cell, not a text: writing it out for each span is what would cost.
    """

    def __init__(
        self,
        plan: PlanBuilder,
        keys: Sequence[str],
        scopes: Sequence[Scope] = (Scope.SPAN,),
        *,
        numeric: bool,
    ) -> None:
        self._in_order = tuple(plan.want(key, scope=scope) for scope in scopes for key in keys)
        self.slots = frozenset(self._in_order)
        self.numeric = numeric

    def read(
        self, batch: Batch, texts: Texts, longest: int
    ) -> tuple[Column | None, NDArray[np.float64] | None]:
        """Its texts and its numbers (NaN: none) on each span; None where no span has any."""
        column: Column | None = None
        numbers: NDArray[np.float64] | None = None
        present = batch.resolved_present()
        for slot in self._in_order:
            if slot not in present:
                continue
            sent = sent_on_spans(batch, slot, longest)
            more, found = sent or self._resolved(batch, texts, slot, longest)
            if not self.numeric:
                found = None
            if column is None and numbers is None:
                column, numbers = more, found
                if column is not None and column.lens.all():
                    break
                continue
            # The first source that has a value wins, be it a text or a number.
            has = _has(column, numbers, len(batch))
            if more is not None:
                more = more.without(has)
                column = more if column is None else column.otherwise(more)
            if found is not None:
                numbers = found if numbers is None else np.where(has, numbers, found)
        return column, numbers

    def _resolved(
        self, batch: Batch, texts: Texts, slot: int, longest: int
    ) -> tuple[Column | None, NDArray[np.float64] | None]:
        """What is on each span with what steps have added, truths as texts."""
        pieces = batch.resolved_texts(slot)
        found = batch.resolved_numbers(slot) if self.numeric else None
        if found is not None and (truths := _truths(batch, slot, found)) is not None:
            pieces.append(truths)
            found[truths.rows] = np.nan
        return texts.column(pieces, longest) if pieces else None, found


def _has(column: Column | None, numbers: NDArray[np.float64] | None, rows: int) -> NDArray[np.bool_]:
    has = np.zeros(rows, np.bool_) if column is None else column.lens > 0
    return has if numbers is None else has | ~np.isnan(numbers)


_TRUTHS = b"falsetrue"


def _truths(batch: Batch, slot: int, numbers: NDArray[np.float64]) -> Slices | None:
    """The truths among an attribute's numbers, written out; those that steps have added are numbers."""
    records = batch.column(slot)
    if not (records["type"] == ValueType.BOOL).any():
        return None
    index = batch.by_span(slot)
    rows = np.flatnonzero(index >= 0)
    records = records[index[rows]]
    # What an edit took away has no number, or another.
    rows = rows[(records["type"] == ValueType.BOOL) & (records["value"] == numbers[rows])].astype("<u4")
    true = numbers[rows] != 0
    return Slices(rows, _TRUTHS, np.where(true, 5, 0).astype("<u4"), np.where(true, 4, 5).astype("<u4"))


def _written(value: float) -> str:
    return str(int(value)) if value.is_integer() else repr(value)


class Labels:
    """Puts each span into a cell: one combination of everything that is a label of any metric.

    Metrics have fewer labels than a cell; each keeps a table from cells to its series, so that after the
    first span of a cell no text is looked at again.

    Args:
        plan: where the columns are asked for.
        dimensions: further labels.
        longest: bytes of a label's value.
        capacity: cells that are kept; beyond it all are forgotten and found again.
    """

    def __init__(self, plan: PlanBuilder, dimensions: Sequence[str], longest: int, capacity: int) -> None:
        either = (Scope.SPAN, Scope.RESOURCE)
        self._sources = {
            catalog.SERVICE_NAME.key: _Label(
                plan, (catalog.SERVICE_NAME.key,), (Scope.RESOURCE,), numeric=False
            ),
            **{key: _Label(plan, keys, numeric=key in _NUMERIC) for key, keys in _SOURCES.items()},
            **{key: _Label(plan, (key,), either, numeric=True) for key in dimensions if key not in _KNOWN},
        }
        self._numeric = tuple(key for key, source in self._sources.items() if source.numeric)
        self._codes = np.dtype([("kind", "u1"), ("status", "u1"), *((key, "<f8") for key in self._numeric)])
        self.dimensions = tuple(dimensions)
        self._keys = (catalog.SPAN_NAME.key, *self._sources, catalog.SPAN_KIND.key, catalog.STATUS_CODE.key)
        self._place = {key: at for at, key in enumerate(self._keys)}
        self._longest = longest
        self._capacity = capacity
        self._cells = Cells(self._codes.itemsize)
        self._values: list[tuple[str, ...]] = []
        self._traits = np.zeros(64, "u1")

    def label(self, batch: Batch) -> Labelled:
        """Put the spans of a request into cells."""
        spans = batch.spans
        texts = Texts(batch.data, len(batch))
        codes = np.zeros(len(batch), self._codes)
        codes["kind"], codes["status"] = spans["kind"], spans["status"]
        names = Column(spans["name_off"], np.minimum(spans["name_len"], self._longest).astype("<u4"))
        columns = {catalog.SPAN_NAME.key: names}
        present = batch.resolved_present()
        for key, source in self._sources.items():
            if source.numeric:
                codes[key] = np.nan
            if source.slots.isdisjoint(present):
                continue
            column, numbers = source.read(batch, texts, self._longest)
            if column is not None:
                columns[key] = column
            if numbers is not None:
                np.copyto(codes[key], numbers, where=np.isfinite(numbers))
        cells = self._cells.assign(
            texts, [(self._place[key], column) for key, column in columns.items()], codes
        )
        for number in range(len(self._values), len(self._cells)):
            self._meet(number)
        services = columns.get(catalog.SERVICE_NAME.key) or texts.column((), self._longest)
        return Labelled(texts, services, cells, self._traits[cells])

    def keys(self, metric: DerivedMetric) -> tuple[str, ...]:
        """The keys of a metric's labels: its own, further dimensions, and last what is observed."""
        own = metric.labels
        observed = own[-1:] if own[-1] in _OBSERVED else ()
        fixed = own[: len(own) - len(observed)]
        return (*fixed, *(key for key in self.dimensions if key not in own), *observed)

    def labels(self, metric: DerivedMetric, cell: int, variant: str) -> tuple[str, ...]:
        """The values of a metric's labels in a cell (series.Namer)."""
        keys = self.keys(metric)
        if variant:
            return (*self._of_cell(cell, keys[:-1]), variant)
        return self._of_cell(cell, keys)

    def _of_cell(self, cell: int, keys: Sequence[str]) -> tuple[str, ...]:
        values = self._values[cell]
        return tuple(values[self._place[key]] for key in keys)

    @property
    def count(self) -> int:
        """Of the cells that are known (series.Namer)."""
        return len(self._values)

    @property
    def full(self) -> bool:
        """Whether there are more cells than are to be kept."""
        return len(self._values) > self._capacity

    def clear(self) -> None:
        """Forget all cells; they are numbered anew."""
        self._cells.clear()
        self._values.clear()

    def _meet(self, number: int) -> None:
        packed, texts = self._cells.labels(number)
        codes = np.frombuffer(packed, self._codes)[0]
        kind, status = int(codes["kind"]), int(codes["status"])
        values = [""] * len(self._keys)
        for place, text in texts:
            # A value that was cut may end within a character.
            values[place] = text.decode(errors="ignore")
        for key in self._numeric:
            at, value = self._place[key], float(codes[key])
            if not values[at] and not np.isnan(value):
                values[at] = _written(value)
        values[self._place[catalog.SPAN_KIND.key]] = _named(_KINDS, kind)
        values[self._place[catalog.STATUS_CODE.key]] = _named(_STATUSES, status)
        error = self._place[catalog.ERROR_TYPE.key]
        values[error] = (values[error] or OTHER) if status == StatusCode.ERROR else ""
        self._values.append(tuple(values))
        if number >= len(self._traits):
            self._traits = np.concatenate([self._traits, np.zeros(len(self._traits), "u1")])
        self._traits[number] = self._traits_of(number, kind)

    def _traits_of(self, number: int, kind: int) -> int:
        method, system, operation = self._of_cell(
            number, (catalog.HTTP_METHOD.key, catalog.RPC_SYSTEM.key, catalog.GEN_AI_OPERATION.key)
        )
        traits = 0
        if method:
            traits |= Trait.HTTP
        if system:
            traits |= Trait.RPC
        if kind == SpanKind.CLIENT:
            traits |= Trait.CLIENT_KIND
        if kind == SpanKind.SERVER:
            traits |= Trait.SERVER_KIND
        if kind in (SpanKind.SERVER, SpanKind.CONSUMER):
            traits |= Trait.ENTRY
        if operation in CALL_OPERATIONS:
            traits |= Trait.CALL
        if not operation:
            traits |= Trait.NO_OPERATION
        return traits


def _named(names: Sequence[str], code: int) -> str:
    return names[code] if code < len(names) else names[0]
