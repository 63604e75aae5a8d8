"""Scheduler: run-queue delay and off-CPU time, summed per span; long single waits as events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_bridge.kernel.probes.base import Probe, Program, Sums, constants, nanoseconds
from otel_bridge.kernel.records import SCHED_CONFIG, SCHED_ROW, SCHED_SUM_VALUE, SCHED_WAIT, SPAN_KEY
from otel_bridge.model import KernelEventKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_bridge.kernel.config import ProbesConfig


def _constants(config: ProbesConfig) -> NDArray[Any]:
    return constants(
        SCHED_CONFIG,
        {
            "run_queue_threshold_ns": nanoseconds(config.sched.run_queue_threshold),
            "off_cpu_threshold_ns": nanoseconds(config.sched.off_cpu_threshold),
            "stacks": int(config.sched.stacks),
        },
    )


_GIVES = "waits, those for a CPU told from those for anything else"

PROBE = Probe(
    name="sched",
    gives="how long a span's threads waited for a CPU, and for anything else",
    programs=(
        Program("sched_switch", "sched_switch", "5.10", _GIVES, by_accounts=True),
        Program("sched_switch_of_woken", "sched_switch", "5.5", _GIVES, stands_in_for="sched_switch"),
        Program("sched_wakeup", "sched_wakeup", "5.5", _GIVES, stands_in_for="sched_switch"),
    ),
    record=SCHED_WAIT,
    kinds=frozenset({KernelEventKind.SCHED_WAIT}),
    sums=Sums(KernelEventKind.SCHED_SUM, SPAN_KEY, SCHED_SUM_VALUE, SCHED_ROW),
    config_of=lambda config: config.sched,
    constants=_constants,
)
