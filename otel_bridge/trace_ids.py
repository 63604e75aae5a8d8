"""Trace ids of a batch as numbers, for steps that compare them by the column."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

U8 = NDArray[np.uint64]

RANDOM_BITS = 56
"""Bits of a trace id's end that are random (W3C Trace Context level 2)."""


def halves(spans: NDArray[np.void]) -> tuple[U8, U8]:
    """The trace ids of batch.SPAN records as two numbers, the first bytes being the highest."""
    numbers = np.ascontiguousarray(spans["trace_id"]).view(">u8").reshape(-1, 2).astype("<u8")
    return numbers[:, 0], numbers[:, 1]


def randomness(spans: NDArray[np.void]) -> U8:
    """The randomness of batch.SPAN records: the last seven bytes of their trace ids."""
    return halves(spans)[1] & np.uint64((1 << RANDOM_BITS) - 1)
