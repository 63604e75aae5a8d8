"""What a span says of its trace: that it failed, was slow, was hit in the kernel, or what somebody wished."""

from __future__ import annotations

from enum import IntFlag
from typing import TYPE_CHECKING

import numpy as np

from otel_bridge.batch import numbers
from otel_bridge.columns import Parsed, parse_double
from otel_bridge.model import StatusCode, ValueType

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_bridge.batch import Batch, PlanBuilder
    from otel_bridge.processors.sample.config import KeepConfig

SAMPLING_PRIORITY = "sampling.priority"
"""OpenTracing's wish: above 0 keep the trace, 0 do not."""


class Reason(IntFlag):
    """Why a trace is kept or dropped whatever its randomness; the lowest bit counts first."""

    NONE = 0
    ERROR = 1
    SLOW = 2
    KERNEL = 4
    PRIORITY = 8
    UNWANTED = 16

    @property
    def label(self) -> str:
        """Its value in metrics."""
        return _LABELS[self]


# Plain numbers: a flag's own operators cost more than all the rest of a look-up.
KEEP = int(Reason.ERROR | Reason.SLOW | Reason.KERNEL | Reason.PRIORITY)
"""Bits of the reasons to keep a trace."""
UNWANTED = int(Reason.UNWANTED)

_LABELS = {
    Reason.NONE: "rate",
    Reason.ERROR: "error",
    Reason.SLOW: "slow",
    Reason.KERNEL: "kernel",
    Reason.PRIORITY: "priority",
    Reason.UNWANTED: "priority",
}


def first_of(reasons: int) -> Reason:
    """The reason that counts among some bits."""
    return Reason(reasons & -reasons)


class Reasons:
    """Reads the columns that a verdict depends on."""

    def __init__(self, keep: KeepConfig | None, columns: PlanBuilder) -> None:
        self._errors = keep is not None and keep.errors
        self._slow = None if keep is None or keep.slow is None else np.uint64(round(keep.slow * 1e9))
        kernel = {} if keep is None else keep.kernel
        self._kernel = [(columns.want(key), least) for key, least in kernel.items()]
        self._priority = columns.want(SAMPLING_PRIORITY)

    def of(self, batch: Batch) -> NDArray[np.uint8]:
        """For each span its reasons (bits of `Reason`)."""
        spans = batch.spans
        reasons = np.zeros(len(spans), "u1")
        if self._errors:
            reasons[spans["status"] == StatusCode.ERROR] |= np.uint8(Reason.ERROR)
        if self._slow is not None:
            start, end = spans["start"], spans["end"]
            reasons[(end > start) & (end - start >= self._slow)] |= np.uint8(Reason.SLOW)
        for slot, least in self._kernel:
            if batch.resolved_has(slot):
                reasons[batch.resolved_numbers(slot) >= least] |= np.uint8(Reason.KERNEL)
        if batch.has(self._priority):
            self._wishes(batch, reasons)
        return reasons

    def _wishes(self, batch: Batch, reasons: NDArray[np.uint8]) -> None:
        column = batch.column(self._priority)
        wishes = numbers(column)
        texts = column["type"] == ValueType.STRING
        if texts.any():
            values, states = parse_double(batch.data, column["off"][texts], column["len"][texts])
            wishes[texts] = np.where(states == Parsed.OK, values, np.nan)
        reasons[column["row"][wishes > 0]] |= np.uint8(Reason.PRIORITY)
        reasons[column["row"][wishes == 0]] |= np.uint8(Reason.UNWANTED)
