"""Triton's spans: one for each model that a request passes, an ensemble's as well as those within it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_bridge.batch import Batch, PlanBuilder

    Mask = NDArray[np.bool_]

_VERSION = "triton.model_version"
"""Enrichment gives each of Triton's model spans this key, whichever way it was spelled."""
_PARENTS = ("triton.trace_parent_id", "trace_parent_id")
"""The number of the model's span around this one, 0 for none: counted by Triton, no span's id."""


class Triton:
    """Tells a whole inference from the models within it."""

    def __init__(self, plan: PlanBuilder) -> None:
        self._version = plan.want(_VERSION)
        self._parents = tuple(plan.want(key) for key in _PARENTS)

    def models(self, batch: Batch) -> tuple[Mask, Mask] | None:
        """Which spans are inferences, and which are of models within one; None: none is Triton's."""
        if not batch.resolved_has(self._version):
            return None
        model = ~np.isnan(batch.resolved_numbers(self._version))
        parent = np.full(len(batch), np.nan)
        for slot in self._parents:
            if batch.resolved_has(slot):
                parent = np.fmax(parent, batch.resolved_numbers(slot))
        return model & (parent == 0), model & (parent > 0)
