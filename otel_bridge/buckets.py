"""Sums and buckets of one metric's series, added to by whole columns.

The work is done by the native crate (`_native/src/columns/series.rs`) or, where that is not installed, by
`buckets_reference`, alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from otel_bridge import buckets_reference
from otel_bridge.native import kernels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_kernels = kernels(buckets_reference, "Buckets")

OVERFLOW = 0
"""The row of the series that takes what exceeds the limit."""


class SeriesOfCells:
    """From cells (`groups.Cells`) to the rows of their series."""

    def __init__(self) -> None:
        self.kernel = _kernels.SeriesOfCells()

    def set(self, cell: int, row: int) -> None:
        """A cell's values go there."""
        self.kernel.set(cell, row)

    def forget(self, rows: Sequence[int]) -> None:
        """Cells of these series have none any more."""
        self.kernel.forget(rows)

    @property
    def nbytes(self) -> int:
        """Bytes that it holds."""
        size: int = self.kernel.nbytes
        return size


class Outcome(NamedTuple):
    """What became of a column of values.

    Attributes:
        unknown: cells without a series, ascending; when there is one, nothing was added.
        negative: values that were refused for that.
        too_large: the same.
        overflowed: values that went to the overflow series.
        buckets: where a worst value was taken: row times buckets plus bucket; of several the last one stands.
        rows: which of the values each of them was.
    """

    unknown: list[int]
    negative: int
    too_large: int
    overflowed: int
    buckets: NDArray[np.uint32]
    rows: NDArray[np.uint32]


class Buckets:
    """Sums, counts by bucket, and the worst recent value of each bucket.

    Args:
        bounds: upper bounds, inclusive, ascending; one more bucket is without.
        exemplars: whether worst values are kept.
    """

    def __init__(self, bounds: Sequence[float], *, exemplars: bool) -> None:
        self._width = len(bounds) + 1
        self._kept = self._width if exemplars else 0
        self._kernel = _kernels.Buckets(list(bounds), exemplars)

    def grow(self, rows: int) -> None:
        """Have room for so many series."""
        self._kernel.grow(rows)

    def clear(self, rows: Sequence[int]) -> None:
        """Begin series anew."""
        self._kernel.clear(rows)

    def observe(
        self,
        mask: NDArray[np.bool_],
        cells: bytes,
        values: NDArray[np.float64],
        table: SeriesOfCells,
        *,
        largest: float,
        now: float,
        oldest: float,
    ) -> Outcome:
        """Add the values that a mask picks to the series of their cells; NaN is no value.

        Args:
            mask: of all rows.
            cells: a u32 a row.
            values: of all rows.
            table: the series of each cell.
            largest: that a value may be.
            now: monotonic seconds.
            oldest: a worst value that was seen before gives way to any other.
        """
        unknown, negative, too_large, overflowed, taken = self._kernel.observe(
            mask.tobytes(), cells, values.tobytes(), table.kernel, largest, now, oldest
        )
        pairs = np.frombuffer(taken, "<u4").reshape(-1, 2)
        return Outcome(unknown, negative, too_large, overflowed, pairs[:, 0], pairs[:, 1])

    def last(self) -> NDArray[np.float64]:
        """When each series was observed last, monotonic seconds."""
        return np.frombuffer(self._kernel.last(), "<f8")

    def read(self) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64]]:
        """Sums, counts (a column a bucket), worst values (the same; no columns without exemplars)."""
        sums, counts, worst = self._kernel.read()
        return (
            np.frombuffer(sums, "<f8"),
            np.frombuffer(counts, "<i8").reshape(-1, self._width),
            np.frombuffer(worst, "<f8").reshape(len(sums) // 8, self._kept),
        )

    @property
    def nbytes(self) -> int:
        """Bytes that it holds."""
        size: int = self._kernel.nbytes
        return size
