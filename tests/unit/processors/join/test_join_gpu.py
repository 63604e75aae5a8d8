"""What CUDA and the drivers of GPUs said, on the span that suffered it."""

from __future__ import annotations

import numpy as np
import pytest

from otel_bridge.events import KernelEvents
from otel_bridge.kernel.records import (
    CUDA_EVENT,
    CUDA_SUM_VALUE,
    DRM_SUM_VALUE,
    SPAN_KEY,
    CudaOperation,
    sum_record,
)
from otel_bridge.model import KernelEventKind as Kind
from otel_bridge.model import Match
from otel_bridge.testing import attributes_of
from tests.unit.processors.join.test_join import SECOND, START, TRACE, Bench, span_id

MIB = 1 << 20
OUT_OF_MEMORY, ILLEGAL_ADDRESS = 2, 700


def said(dtype, kind, **fields):
    """One record on the first span."""
    record = np.zeros(1, dtype)
    record["kind"], record["match"], record["trace_id"] = kind, Match.THREAD, TRACE
    record["span_id"], record["time"] = span_id(1), START + SECOND // 2
    for name, value in fields.items():
        record[name] = value
    return KernelEvents("test", record)


@pytest.mark.parametrize(
    ("error", "name", "out_of_memory"),
    [
        (OUT_OF_MEMORY, "kernel.cuda.out_of_memory", 1),
        (ILLEGAL_ADDRESS, "kernel.cuda.alloc", None),
        (0, "kernel.cuda.alloc", None),
    ],
)
def test_an_allocation_that_failed_is_an_event_on_its_span(error, name, out_of_memory):
    """For want of memory it has a name of its own, and a count that samplers and rules go by."""
    bench = Bench()
    bench.join.take(
        said(CUDA_EVENT, Kind.CUDA_ALLOC, error=error, size=3 * MIB, operation=CudaOperation.POOL, duration=7)
    )
    hit, other = bench.pass_through({}, {})
    assert not other.events
    (event,) = hit.events
    shown = attributes_of(event.attributes)
    assert event.name == name
    assert (shown["kernel.cuda.size"], shown["kernel.cuda.operation"]) == (3 * MIB, "pool")
    assert shown.get("kernel.error") == (error or None)
    attributes = attributes_of(hit.attributes)
    assert attributes["kernel.cuda.events"] == 1
    assert attributes.get("kernel.cuda.out_of_memory") == out_of_memory
    assert attributes["kernel.match"] == "thread"


def test_launch_gaps_are_counted_and_the_longest_is_told():
    """Of a span whose GPU waited for it."""
    bench = Bench()
    for duration in (60, 90, 70):
        bench.join.take(
            said(CUDA_EVENT, Kind.CUDA_LAUNCH_GAP, duration=duration, operation=CudaOperation.LAUNCH)
        )
    (span,) = bench.pass_through({})
    attributes = attributes_of(span.attributes)
    assert (attributes["kernel.cuda.launch_gaps"], attributes["kernel.cuda.launch_gap.max"]) == (3, 90)
    assert {event.name for event in span.events} == {"kernel.cuda.launch_gap"}


def test_sums_of_cuda_and_of_evictions_are_attributes():
    """What did not happen is left out."""
    bench = Bench()
    for _ in range(2):
        cuda = sum_record(SPAN_KEY, CUDA_SUM_VALUE)
        bench.join.take(said(cuda, Kind.CUDA_SUM, first=START, allocs=3, alloc_bytes=MIB, alloc_max_ns=5))
        evicted = sum_record(SPAN_KEY, DRM_SUM_VALUE)
        bench.join.take(said(evicted, Kind.DRM_SUM, first=START, evictions=4, evicted_bytes=8 * MIB))
    (span,) = bench.pass_through({})
    assert attributes_of(span.attributes) == {
        "kernel.cuda.allocs": 6,
        "kernel.cuda.alloc.bytes": 2 * MIB,
        "kernel.cuda.alloc.max": 5,
        "kernel.drm.evictions": 8,
        "kernel.drm.evicted_bytes": 16 * MIB,
        "kernel.match": "thread",
    }
    assert not span.events
