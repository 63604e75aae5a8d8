"""Block I/O: latency summed per span and device; slow or failed single requests as events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_bridge.kernel.probes.base import Probe, Program, Sums, constants, nanoseconds
from otel_bridge.kernel.records import BLOCK_CONFIG, BLOCK_IO, BLOCK_KEY, BLOCK_SUM_VALUE
from otel_bridge.model import KernelEventKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_bridge.kernel.config import ProbesConfig


def _constants(config: ProbesConfig) -> NDArray[Any]:
    return constants(BLOCK_CONFIG, {"latency_threshold_ns": nanoseconds(config.block.latency_threshold)})


PROBE = Probe(
    name="block",
    gives="block I/O latency and queue depth of a span, by device",
    programs=(
        Program("block_io_start", "block_io_start", "6.5", "requests on the span whose thread asks for them"),
        Program(
            "block_rq_issue",
            "block_rq_issue",
            "5.11",
            "requests, some without their span (those another thread hands to the device)",
            stands_in_for="block_io_start",
        ),
        Program("block_rq_complete", "block_rq_complete", "5.11", "when requests end"),
    ),
    record=BLOCK_IO,
    kinds=frozenset({KernelEventKind.BLOCK_IO}),
    sums=Sums(KernelEventKind.BLOCK_SUM, BLOCK_KEY, BLOCK_SUM_VALUE),
    config_of=lambda config: config.block,
    constants=_constants,
)
