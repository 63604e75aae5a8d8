"""Memory: OOM kills, and the time a span's threads spend on reclaim themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_bridge.kernel.probes.base import Probe, Program, Sums, constants, nanoseconds
from otel_bridge.kernel.records import MEMORY_CONFIG, MEMORY_EVENT, MEMORY_SUM_VALUE, SPAN_KEY
from otel_bridge.model import KernelEventKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_bridge.kernel.config import ProbesConfig


def _constants(config: ProbesConfig) -> NDArray[Any]:
    return constants(MEMORY_CONFIG, {"reclaim_threshold_ns": nanoseconds(config.memory.reclaim_threshold)})


def _reclaim(what: str, gives: str) -> tuple[Program, ...]:
    names = (f"mm_vmscan_{what}_reclaim_begin", f"mm_vmscan_{what}_reclaim_end")
    return tuple(Program(name, name, "5.5", gives) for name in names)


PROBE = Probe(
    name="memory",
    gives="OOM kills and time spent on memory reclaim, on the span that felt it",
    programs=(
        *_reclaim("direct", "reclaim for the machine's memory"),
        *_reclaim("memcg", "reclaim for a memory cgroup's limit"),
        Program("mark_victim", "mark_victim", "5.5", "OOM kills"),
        Program("signal_deliver", "signal_deliver", "5.5", "the spans that a killed process was at"),
    ),
    record=MEMORY_EVENT,
    kinds=frozenset({KernelEventKind.OOM_KILL, KernelEventKind.RECLAIM}),
    sums=Sums(KernelEventKind.MEMORY_SUM, SPAN_KEY, MEMORY_SUM_VALUE),
    config_of=lambda config: config.memory,
    constants=_constants,
)
