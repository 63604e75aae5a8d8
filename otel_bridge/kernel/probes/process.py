"""Processes that fork, exec and exit: what the other probes' knowledge of threads stands on."""

from otel_bridge.kernel.probes.base import Probe, Program
from otel_bridge.kernel.records import PROCESS_EVENT
from otel_bridge.model import KernelEventKind

PROBE = Probe(
    name="process",
    gives="new processes are followed at once, ended ones forgotten",
    programs=(
        Program(
            "sched_process_fork",
            "sched_process_fork",
            "5.5",
            "forked children are known, and keep their context",
        ),
        Program("sched_process_exec", "sched_process_exec", "5.5", "new programs are looked at, at once"),
        Program("sched_process_exit", "sched_process_exit", "5.5", "ended processes are forgotten"),
    ),
    record=PROCESS_EVENT,
    kinds=frozenset(
        {KernelEventKind.PROCESS_FORK, KernelEventKind.PROCESS_EXEC, KernelEventKind.PROCESS_EXIT}
    ),
)
