"""Waits of a span's threads: held against what the kernel itself accounts for them."""

from __future__ import annotations

import os

import pytest

from otel_bridge.kernel.backend import LibbpfBackend
from otel_bridge.model import KernelEventKind, Match
from tests.support.kernel import followed, monitoring

pytestmark = pytest.mark.usefixtures("each_backend")

PRIME = 23
HOGS = 3
ARMED = 1_000_000
"""Nanoseconds: a sleep's timer runs before its thread has left the CPU. That takes some microseconds, more
when it is interrupted there, and the wait is shorter than the sleep by as much."""


def test_sleeps_are_off_cpu_time_of_the_span(worker):
    """Each sleep is one wait, as long as it was."""
    with monitoring("sched", sched={"off_cpu_threshold": "10s", "run_queue_threshold": "10s"}) as monitor:
        followed(monitor, worker.pid)
        [elapsed] = worker.do({"do": "sleep", "span": 1, "seconds": 0.004, "times": PRIME})
    sums = monitor.events.on_span(KernelEventKind.SCHED_SUM, 1)
    assert set(sums["match"]) == {Match.THREAD}
    assert set(sums["tgid"]) == {worker.pid}
    assert sums["off_cpu_count"].sum() == PRIME
    assert sums["off_cpu_ns"].sum() >= sums["off_cpu_count"].sum() * (4_000_000 - ARMED)
    # Sleeps are all that this thread does: nothing comes on top, but they may be longer than they should.
    assert sums["off_cpu_ns"].sum() <= elapsed
    assert not len(monitor.events.on_span(KernelEventKind.SCHED_WAIT, 1))


def test_long_waits_are_events_with_the_stack_they_began_in(worker, each_backend):
    """Those over the threshold, and no shorter ones. In the kernel, then in the program."""
    with monitoring("sched", sched={"off_cpu_threshold": "200ms", "run_queue_threshold": "10s"}) as monitor:
        followed(monitor, worker.pid)
        worker.do({"do": "sleep", "span": 1, "seconds": 0.25, "times": 7})
        worker.do({"do": "sleep", "span": 2, "seconds": 0.001, "times": PRIME})
    waits = monitor.events.on_span(KernelEventKind.SCHED_WAIT, 1)
    assert len(waits) == 7
    assert (waits["off_cpu_ns"] >= 250_000_000 - ARMED).all()
    assert (waits["duration"] == waits["off_cpu_ns"] + waits["run_queue_ns"]).all()
    for stack in waits["stack"].tolist():
        lines = stack.decode().splitlines()
        in_kernel = [line for line in lines if line.endswith("(kernel)")]
        # Typed pointers to threads, whose stack can be had, are libbpf's alone.
        assert bool(in_kernel) == (each_backend == "libbpf")
        assert all("nanosleep+0x" in line for line in in_kernel[:1])
        assert lines[: len(in_kernel)] == in_kernel
        innermost = lines[len(in_kernel)]
        assert innermost.startswith("clock_nanosleep+0x")
        assert innermost.endswith("(libc.so.6)")
    assert not len(monitor.events.on_span(KernelEventKind.SCHED_WAIT, 2))
    assert len(monitor.events.on_span(KernelEventKind.SCHED_SUM, 2))


def run_queue_delay_is_right(worker, start_worker, *, apart, seconds=0.3, **how):
    """Hogs share the span's CPU; /proc/…/schedstat has the kernel's own figure for the same wait."""
    cpu = max(os.sched_getaffinity(0))
    hogs = [start_worker() for _ in range(HOGS)]
    with monitoring("sched", sched={"run_queue_threshold": "1ms"}) as monitor:
        followed(monitor, worker.pid)
        for hog in hogs:
            hog.send({"do": "burn", "cpu": cpu, "seconds": 2 * seconds, **how})
        [delay] = worker.do({"do": "burn", "span": 1, "cpu": cpu, "seconds": seconds, **how})
        programs = set(monitor.costs()["sched"])
    sums = monitor.events.on_span(KernelEventKind.SCHED_SUM, 1)
    assert delay > 200_000_000, "the hogs did not take the CPU"
    found = int(sums["run_queue_ns"].sum())
    # The worker may be kept waiting between asking the kernel and the span's beginning or end.
    assert delay - apart <= found <= 1.05 * delay
    waits = monitor.events.on_span(KernelEventKind.SCHED_WAIT, 1)
    assert len(waits) > 0
    assert (waits["run_queue_ns"] >= 1_000_000).all()
    return programs


def test_run_queue_delay_is_what_the_scheduler_accounts(worker, start_worker, each_backend):
    """Read from its accounts, where programs can; by wakeups elsewhere."""
    apart = 10_000_000 if each_backend == "bcc" else 100_000
    programs = run_queue_delay_is_right(worker, start_worker, apart=apart)
    assert ("sched_wakeup" in programs) == (each_backend == "bcc")


def test_threads_of_other_classes_are_accounted_alike(worker, start_worker, each_backend):
    """Round robin, in slices of a tenth of a second."""
    apart = 10_000_000 if each_backend == "bcc" else 100_000
    run_queue_delay_is_right(worker, start_worker, apart=apart, seconds=0.15, round_robin=True)


def test_wakeups_tell_where_the_accounts_are_not_told(worker, start_worker, each_backend, monkeypatch):
    """As on a kernel without CONFIG_FAIR_GROUP_SCHED."""
    if each_backend == "bcc":
        pytest.skip("BCC reads no accounts: the test before this one is the same")
    monkeypatch.setattr(LibbpfBackend, "accounts", lambda _self: False)
    programs = run_queue_delay_is_right(worker, start_worker, apart=10_000_000)
    assert programs == {"sched_switch_of_woken", "sched_wakeup"}


def test_a_thread_without_a_span_costs_no_rows(worker):
    """What waits for nobody is not summed."""
    with monitoring("sched") as monitor:
        followed(monitor, worker.pid)
        worker.do({"do": "sleep", "seconds": 0.001, "times": PRIME})
    assert not len(monitor.events.of(KernelEventKind.SCHED_SUM, tgid=worker.pid))
