"""Evictions of DRM's drivers on the span that asked for the room.

No driver is here to evict anything, so the kernel runs the programs with arguments of the test's own
(BPF_PROG_TEST_RUN): verified, loaded and run as they are where a driver is, in the thread that asks. What
this cannot show: that amdgpu and xe call their tracepoints so; and the size of a buffer, whose type is in
their modules (tests/bpf/test_drm.c has one).
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from otel_bridge.errors import BridgeError
from otel_bridge.kernel.probes import drm
from otel_bridge.model import KernelEventKind, Match
from tests.support.kernel import followed, monitoring
from tests.support.processes import needs_command

HERE = Path(__file__).parent
PRIME = 23
SYSTEM, TRANSLATED, DEVICE, SECOND_DEVICE, NOWHERE = 0, 1, 2, 3, 0xFFFFFFFF


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """A program that publishes spans and runs tracepoints' programs."""
    path = tmp_path_factory.mktemp("drm") / "runs.so"
    sources = [HERE / "tracepoint_runs.c", HERE / "publisher.c"]
    subprocess.run([needs_command("cc", "gcc"), "-shared", "-fPIC", "-O1", *sources, "-o", path], check=True)
    return path


class WithDrivers:
    """A back end that says that the drivers are there."""

    def __init__(self, backend):
        self._backend = backend

    def __getattr__(self, name):
        return getattr(self._backend, name)

    def tracepoints(self, names):
        return dict.fromkeys(names, True)


@pytest.fixture
def run(library, start_worker, monkeypatch):
    """Runs a program so many times in a worker's thread; ends with all sums taken."""
    worker = start_worker(library)
    with monitoring("memory") as monitor:
        followed(monitor, worker.pid)
        loader = monitor._loader
        monkeypatch.setattr(loader, "_backend", WithDrivers(loader._backend))
        # All but the last step, which asks the kernel for the tracepoints.
        loaded = loader._make(drm.PROBE)
        with monitor._objects:
            monitor._accounts.open("drm", loader.cpus)
            loader.loaded["drm"] = loaded

        def run_program(name, *, moved_from, to, times=PRIME, **job):
            arguments = [os.getpid(), loaded.object.program_fd(name), 0, to, moved_from]
            call = {"do": "call_function", "function": "run_tracepoint", "arguments": arguments}
            assert worker.do({**call, "times": times, **job}) == [times]

        run_program.monitor, run_program.worker = monitor, worker
        yield run_program


def evictions(monitor, number):
    """Of a span, all sums together."""
    records = monitor.events.on_span(KernelEventKind.DRM_SUM, number)
    assert {int(match) for match in records["match"]} <= {Match.THREAD}
    return int(records["evictions"].sum()) if len(records) else 0


@pytest.mark.parametrize("to", [SYSTEM, TRANSLATED])
def test_a_buffer_that_leaves_device_memory_is_on_the_span_that_wants_the_room(run, to):
    """By either driver, from either memory of a card of two tiles; each exactly once."""
    run("amdgpu_bo_move", moved_from=DEVICE, to=to, span=1)
    run("xe_bo_move", moved_from=DEVICE, to=to, span=2, times=29)
    run("xe_bo_move", moved_from=SECOND_DEVICE, to=to, span=3, times=31)
    run.monitor.close()
    assert [evictions(run.monitor, number) for number in (1, 2, 3)] == [PRIME, 29, 31]


@pytest.mark.parametrize(
    ("moved_from", "to"),
    [
        (NOWHERE, DEVICE),  # made there
        (SYSTEM, DEVICE),  # put back
        (TRANSLATED, DEVICE),
        (TRANSLATED, SYSTEM),  # swapped out, long after it was evicted
        (DEVICE, DEVICE),  # moved within
        (DEVICE, NOWHERE),  # given back
    ],
)
def test_other_moves_are_no_evictions(run, moved_from, to):
    """Nothing had to wait for room in device memory."""
    for program in ("amdgpu_bo_move", "xe_bo_move"):
        run(program, moved_from=moved_from, to=to, span=1)
    run("amdgpu_bo_move", moved_from=DEVICE, to=TRANSLATED, span=2, times=1)
    run.monitor.close()
    assert (evictions(run.monitor, 1), evictions(run.monitor, 2)) == (0, 1)


def test_numbers_of_amdgpu_s_own_are_no_device_memory(run):
    """From 3 on they are memories on its chip; xe's 3 is the second tile's."""
    run("amdgpu_bo_move", moved_from=SECOND_DEVICE, to=SYSTEM, span=1)
    run("amdgpu_bo_move", moved_from=DEVICE, to=SYSTEM, span=2, times=1)
    run.monitor.close()
    assert (evictions(run.monitor, 1), evictions(run.monitor, 2)) == (0, 1)


def test_outside_spans_evictions_are_summed_up_by_process(run):
    """As of a program that publishes nothing."""
    run("amdgpu_bo_move", moved_from=DEVICE, to=SYSTEM)
    run.monitor.close()
    records = run.monitor.events.of(KernelEventKind.DRM_SUM, tgid=run.worker.pid)
    assert set(records["match"]) == {Match.NONE}
    assert int(records["evictions"].sum()) == PRIME


def test_a_kernel_without_drivers_does_without():
    """`required` is content, since nothing is wrong; the state says why."""
    with monitoring("memory", "drm") as monitor:
        states = monitor.states
        assert states["memory"].loaded
        if states["drm"].loaded:
            pytest.skip("needs a kernel without amdgpu and xe")
        assert "amdgpu_bo_move" in states["drm"].reason


def test_a_tracepoint_that_is_not_there_is_not_attached_to(run):
    """What the loader would be told, did it not ask before."""
    loaded = run.monitor._loader.loaded["drm"]
    with pytest.raises(BridgeError, match="amdgpu_bo_move"):
        loaded.attach()
    assert not loaded.links
