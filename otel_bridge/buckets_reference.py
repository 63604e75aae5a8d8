"""The kernels of `buckets` in plain Python: what the native ones are held to, and used where those lack.

Same names, same bytes in and out as `_native.wire`; `buckets` says what they mean.
"""

from __future__ import annotations

import math
import struct
from bisect import bisect_left
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_OVERFLOW = 0


class SeriesOfCells:
    """From cells to the series of one metric."""

    def __init__(self) -> None:
        self.series: dict[int, int] = {}

    def set(self, cell: int, series: int) -> None:
        """A cell's values go there."""
        self.series[cell] = series

    def forget(self, series: Sequence[int]) -> None:
        """Cells of these series have none any more."""
        gone = frozenset(series)
        self.series = {cell: row for cell, row in self.series.items() if row not in gone}

    @property
    def nbytes(self) -> int:
        """About that many bytes."""
        return 100 * len(self.series)


class Buckets:
    """Sums and buckets of all series of one metric, and the worst recent value of each bucket."""

    def __init__(self, bounds: Sequence[float], exemplars: bool) -> None:  # noqa: FBT001 (the native signature)
        self._bounds = list(bounds)
        self._width = len(bounds) + 1
        self._exemplars = exemplars
        self._sums: list[float] = []
        self._last: list[float] = []
        self._counts: list[int] = []
        self._worst: list[float] = []
        self._seen: list[float] = []

    def grow(self, rows: int) -> None:
        """Have room for so many series."""
        more = rows - len(self._sums)
        self._sums += [0.0] * more
        self._last += [0.0] * more
        self._counts += [0] * (more * self._width)
        if self._exemplars:
            self._worst += [-math.inf] * (more * self._width)
            self._seen += [0.0] * (more * self._width)

    def clear(self, rows: Sequence[int]) -> None:
        """Begin series anew."""
        for row in rows:
            self._sums[row] = self._last[row] = 0.0
            for bucket in range(row * self._width, (row + 1) * self._width):
                self._counts[bucket] = 0
                if self._exemplars:
                    self._worst[bucket], self._seen[bucket] = -math.inf, 0.0

    def observe(  # noqa: PLR0917 (the native signature)
        self,
        mask: bytes,
        cells: bytes,
        values: bytes,
        table: SeriesOfCells,
        largest: float,
        now: float,
        oldest: float,
    ) -> tuple[list[int], int, int, int, bytes]:
        """Add the values of the rows that a mask picks to the series of their cells."""
        picked = [
            (row, cell, value)
            for row, (chosen, (cell,), (value,)) in enumerate(
                zip(mask, struct.iter_unpack("<I", cells), struct.iter_unpack("<d", values), strict=True)
            )
            if chosen and not math.isnan(value)
        ]
        fitting = [(row, cell, value) for row, cell, value in picked if 0 <= value <= largest]
        unknown = sorted({cell for _, cell, _ in fitting if cell not in table.series})
        if unknown:
            return unknown, 0, 0, 0, b""
        negative = sum(value < 0 for _, _, value in picked)
        taken = b""
        overflowed = 0
        for row, cell, value in fitting:
            series = table.series[cell]
            if series >= len(self._sums):
                raise ValueError(f"series {series} of {len(self._sums)} rows")
            overflowed += series == _OVERFLOW
            self._last[series] = now
            self._sums[series] += value
            bucket = series * self._width + bisect_left(self._bounds, value)
            self._counts[bucket] += 1
            if self._exemplars and (value > self._worst[bucket] or self._seen[bucket] < oldest):
                self._worst[bucket], self._seen[bucket] = value, now
                taken += struct.pack("<II", bucket, row)
        return [], negative, len(picked) - len(fitting) - negative, overflowed, taken

    def last(self) -> bytes:
        """When each series was observed last."""
        return _packed("d", self._last)

    def read(self) -> list[bytes]:
        """Sums, counts, worst values."""
        return [_packed("d", self._sums), _packed("q", self._counts), _packed("d", self._worst)]

    @property
    def nbytes(self) -> int:
        """About that many bytes."""
        return 32 * (2 * len(self._sums) + len(self._counts) + 2 * len(self._worst))


def _packed(kind: str, values: Iterable[float]) -> bytes:
    values = list(values)
    return struct.pack(f"<{len(values)}{kind}", *values)
