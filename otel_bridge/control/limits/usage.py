"""What spans say of the tokens that requests used."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from otel_bridge.control.calls import CallingSpans

if TYPE_CHECKING:
    from otel_bridge.batch import Batch, PlanBuilder
    from otel_bridge.control.config import SpansConfig
    from otel_bridge.control.limits.limiter import Limiter

_CLOCK_SKEW = 1_000_000_000
"""Nanoseconds by which a service's clock may be behind the one that reservations are made by."""
_TOKENS = ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens")


class UsageTap:
    """A step of the data path (contracts.TraceProcessor) that reads, and changes nothing."""

    def __init__(self, config: SpansConfig, columns: PlanBuilder, limiter: Limiter) -> None:
        self._limiter = limiter
        self._slots = [columns.want(key) for key in _TOKENS]
        self._calling = CallingSpans(config)

    def process(self, batch: Batch) -> None:
        """Settle the requests whose spans tell their tokens."""
        if not any(batch.resolved_has(slot) for slot in self._slots):
            return
        spans = batch.spans
        found = [batch.resolved_numbers(slot) for slot in self._slots]
        told = np.logical_or(*(~np.isnan(numbers) for numbers in found))
        rows = np.flatnonzero(self._calling.among(spans) & told)
        used = np.nansum([numbers[rows] for numbers in found], axis=0)
        for row, tokens in zip(rows.tolist(), used.tolist(), strict=True):
            span = spans[row]
            self._limiter.settle(span["trace_id"].tobytes().hex(), tokens, int(span["end"]) + _CLOCK_SKEW)
