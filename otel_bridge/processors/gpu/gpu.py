"""Spans say how full and how busy the GPU was that their process used."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from otel_bridge import catalog
from otel_bridge.batch import numbers
from otel_bridge.model import Scope, ValueType

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_bridge.batch import Batch, PlanBuilder
    from otel_bridge.gpu_usage import GpuUsage, SpanUsage


class GpuSpans:
    """A TraceProcessor over whole resources: all spans of a process at once.

    Args:
        columns: of the data path.
        usage: which process used which GPU.
    """

    def __init__(self, columns: PlanBuilder, usage: GpuUsage) -> None:
        self._usage = usage
        self._pid = columns.want("process.pid", scope=Scope.RESOURCE)
        self._container = columns.want("container.id", scope=Scope.RESOURCE)
        self._service = columns.want(catalog.SERVICE_NAME.key, scope=Scope.RESOURCE)

    def process(self, batch: Batch) -> None:
        """Note on each span of a process that uses a GPU what that went through."""
        if not self._usage.is_used or not len(batch):
            return
        if not batch.has(self._pid) and not batch.has(self._container):
            return
        pids = self._numbers(batch, self._pid)
        containers, services = self._texts(batch, self._container), self._texts(batch, self._service)
        spans = batch.spans
        for resource in np.unique(spans["resource"]).tolist():
            pid, container = pids.get(resource, 0), containers.get(resource, "")
            if not pid and not container:
                continue
            self._usage.learn(container, pid, services.get(resource, ""))
            rows = np.flatnonzero(spans["resource"] == resource).astype("<u4")
            starts = spans["start"][rows].astype(np.int64)
            found = self._usage.of(container, pid, starts, spans["end"][rows].astype(np.int64))
            if found is not None:
                _write(batch, rows, found)

    @staticmethod
    def _numbers(batch: Batch, slot: int) -> dict[int, int]:
        column = batch.column(slot)
        values = np.nan_to_num(numbers(column)).astype(np.int64)
        return dict(zip(column["row"].tolist(), values.tolist(), strict=True))

    @staticmethod
    def _texts(batch: Batch, slot: int) -> dict[int, str]:
        return {
            int(record["row"]): batch.text(int(record["off"]), int(record["len"]))
            for record in batch.column(slot)
            if record["type"] == ValueType.STRING
        }


def _write(batch: Batch, rows: NDArray[np.uint32], found: SpanUsage) -> None:
    """What was not read in a span's time is left out; a span of which nothing was read gets nothing."""
    known = ~np.isnan(found.memory_max) | ~np.isnan(found.utilization_max)
    if not known.any():
        return
    for attribute, values in (
        (catalog.GPU_MEMORY_AT_START, found.memory_at_start),
        (catalog.GPU_MEMORY_MAX, found.memory_max),
        (catalog.GPU_UTILIZATION_AT_START, found.utilization_at_start),
        (catalog.GPU_UTILIZATION_MAX, found.utilization_max),
    ):
        read = ~np.isnan(values)
        if read.any():
            batch.set_doubles(attribute.key, rows[read], values[read])
    batch.set_text(catalog.GPU_MATCH.key, rows[known], found.match)
    batch.set_ints(catalog.GPU_COUNT.key, rows[known], np.full(int(known.sum()), len(found.uuids), np.int64))
    for number, uuid in enumerate(found.uuids):
        mine = known & (found.worst == number)
        if mine.any():
            batch.set_text(catalog.HW_ID.key, rows[mine], uuid)
