"""Spans grouped without a Python loop: by their labels, and by the call that they tell of.

The work is done by the native crate (`_native/src/columns/`) or, where that is not installed, by
`groups_reference`, alike.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from otel_bridge import groups_reference
from otel_bridge.model import Scope
from otel_bridge.native import kernels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from otel_bridge.batch import Batch
    from otel_bridge.edits import Slices

    U4 = NDArray[np.uint32]
    U1 = NDArray[np.uint8]

_kernels = kernels(groups_reference, "sent_values")

_TEXTS, _NUMBERS, _TRUTHS = 1, 2, 4
TELLS, FIRST_OF_CALL, FIRST_OF_ID = 1, 2, 4
"""What `Calls.tell` says of a span."""
NO_ROLE, CLIENT, SERVER = 0, 1, 2
"""From which side a span tells of a call."""


@dataclass(slots=True)
class Texts:
    """A text for each row of several columns: slices of the request, and of what steps have added to it.

    Attributes:
        data: the request.
        rows: how many spans it has.
        added: what columns had elsewhere, back to back; an offset beyond `data` is one into it.
    """

    data: bytes
    rows: int
    added: bytearray = field(default_factory=bytearray)

    def column(self, pieces: Sequence[Slices], longest: int) -> Column:
        """A column of pieces (`Batch.resolved_texts`); texts are cut to `longest` bytes."""
        column = Column(np.zeros(self.rows, "<u4"), np.zeros(self.rows, "<u4"))
        for piece in pieces:
            column.offs[piece.rows] = piece.offs if piece.data is self.data else self._add(piece)
            column.lens[piece.rows] = np.minimum(piece.lens, longest)
        return column

    @staticmethod
    def sent(records: NDArray[np.void], rows: int, longest: int) -> Sent | None:
        """The strings and numbers among an attribute's records (batch.ATTRIBUTE); None if there are truths.

        Args:
            records: as the request has them; of several of a row the last one counts.
            rows: of how many spans, or resources.
            longest: strings are cut to so many bytes.
        """
        offs, lens, numbers, found = _kernels.sent_values(records.tobytes(), rows, longest)
        if found & _TRUTHS:
            return None
        return Sent(
            Column(np.frombuffer(offs, "<u4"), np.frombuffer(lens, "<u4")) if found & _TEXTS else None,
            np.frombuffer(numbers, "<f8") if found & _NUMBERS else None,
        )

    def _add(self, piece: Slices) -> U4:
        start = len(self.data) + len(self.added)
        self.added += piece.data
        return piece.offs + np.uint32(start)


@dataclass(frozen=True, slots=True)
class Column:
    """Offsets and lengths into `Texts`, shape (rows,), u4; an empty text is none."""

    offs: U4
    lens: U4

    def otherwise(self, other: Column) -> Column:
        """The other column's text where this one has none."""
        has = self.lens > 0
        return Column(np.where(has, self.offs, other.offs), np.where(has, self.lens, other.lens))

    def without(self, rows: NDArray[np.bool_]) -> Column:
        """None where a mask says so."""
        return Column(self.offs, np.where(rows, np.uint32(0), self.lens))

    def bytes(self) -> tuple[bytes, bytes]:
        """As the kernels take it."""
        return self.offs.tobytes(), self.lens.tobytes()


class Sent(NamedTuple):
    """An attribute of each row; None where no row has such a value.

    Attributes:
        texts: slices of the request.
        numbers: f8; NaN: none.
    """

    texts: Column | None
    numbers: NDArray[np.float64] | None

    def of(self, owners: U4) -> Sent:
        """Those of each span's resource."""
        texts = self.texts and Column(self.texts.offs[owners], self.texts.lens[owners])
        return Sent(texts, None if self.numbers is None else self.numbers[owners])


def sent_on_spans(batch: Batch, slot: int, longest: int) -> Sent | None:
    """What is on each span as it was sent; None: that is not all.

    Args:
        batch: the request.
        slot: of an attribute of spans or of their resources.
        longest: strings are cut to so many bytes.
    """
    records = batch.sent(slot)
    if records is None:
        return None
    if batch.plan.wants[slot].scope is Scope.SPAN:
        return Texts.sent(records, len(batch), longest)
    found = Texts.sent(records, batch.resources, longest)
    return found and found.of(batch.spans["resource"])


class Cells:
    """Numbers for combinations of texts and codes, given as they come: 0, 1, 2, ….

    Nothing is forgotten but by `clear`: whoever asks bounds it.

    Args:
        width: how many codes (bytes) a row has.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._cells = _kernels.Cells()

    def __len__(self) -> int:
        """How many combinations are known."""
        return len(self._cells)

    def assign(
        self, texts: Texts, columns: Sequence[tuple[int, Column]], codes: NDArray[np.generic]
    ) -> NDArray[np.uint32]:
        """Each row's number.

        Args:
            texts: what the columns slice.
            columns: each with the number of its label, 0 to 255, ascending; a label without texts may be left
                out, which is the same as a column of empty ones.
            codes: `width` bytes a row.
        """
        found = self._cells.assign(
            texts.data,
            bytes(texts.added),
            [(label, *column.bytes()) for label, column in columns],
            codes.tobytes(),
            self._width,
        )
        return np.frombuffer(found, "<u4")

    def labels(self, number: int) -> tuple[bytes, list[tuple[int, bytes]]]:
        """The codes of a number, and its texts, each with its label; a label without a text is left out.

        Raises:
            KeyError: it was not given.
        """
        found: tuple[bytes, list[tuple[int, bytes]]] | None = self._cells.labels(number, self._width)
        if found is None:
            raise KeyError(number)
        return found

    def clear(self) -> None:
        """Forget all; numbers begin anew."""
        self._cells.clear()


class Calls:
    """Which of the spans that tell of one call of a model counts for it.

    Several spans of one service may tell of one call, from the same side: that of the client library, that of
    a framework around it, that of a second instrumentation. The innermost counts: a span whose descendant was
    counted does not, nor one whose ancestor was, if that came first. Spans that tell of nothing hand on what
    is known between those that do, as far as they arrive in between. The same id of a response counts once.

    Args:
        capacity: how many spans, ids and traces are remembered at most; at least half as many are.
    """

    def __init__(self, capacity: int) -> None:
        self._calls = _kernels.Calls(capacity)

    def __len__(self) -> int:
        """How many spans are remembered."""
        return len(self._calls)

    def tell(self, spans: NDArray[np.void], roles: U1, texts: Texts, services: Column, ids: Column) -> U1:
        """Settle the spans of a request (batch.SPAN records).

        Args:
            spans: all of them, whether or not they tell of a call.
            roles: CLIENT, SERVER, or NO_ROLE for a span that tells of none.
            texts: what the columns slice.
            services: each span's service.
            ids: the response's id, or on a server the request's.

        Returns:
            For each span bits. TELLS: it is the innermost. FIRST_OF_CALL: and no other stood for its call
            before; an engine's request id without the number of up to four digits behind "-" or "_" names
            the call, and of several spans in a request the last to end stands for it. FIRST_OF_ID: no other
            had its very id before.
        """
        said = self._calls.tell(
            spans["trace_id"].tobytes(),
            spans["span_id"].tobytes(),
            spans["parent_id"].tobytes(),
            spans["start"].tobytes(),
            spans["end"].tobytes(),
            roles.tobytes(),
            texts.data,
            bytes(texts.added),
            services.bytes(),
            ids.bytes(),
        )
        return np.frombuffer(said, "u1")
