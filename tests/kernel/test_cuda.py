"""CUDA's calls on the span that made them: driver and runtime, shared and linked in, against stand-ins."""

from __future__ import annotations

import ctypes
import importlib.metadata
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from otel_bridge.elf.file import ElfFile
from otel_bridge.kernel.probes import cuda
from otel_bridge.kernel.records import CudaOperation
from otel_bridge.model import KernelEventKind, Match
from tests.support.gpu import SCENARIO, STANDIN, Scenario, build
from tests.support.kernel import eventually, followed, monitoring, trace_id
from tests.support.processes import needs_command

HERE = Path(__file__).parent
pytestmark = pytest.mark.usefixtures("each_backend")

PRIME = 23
OUT_OF_MEMORY, ILLEGAL_ADDRESS = 2, 700
NO_DRIVER = {34, 35, 36, 100}
"""cudaErrorStubLibrary, cudaErrorInsufficientDriver, cudaErrorCallRequiresNewerDriver, cudaErrorNoDevice."""
FLAGS = ("-shared", "-fPIC", "-O1", "-fno-inline", "-fno-optimize-sibling-calls", "-pthread")
SOURCES = (HERE / "cuda_functions.c", HERE / "publisher.c")


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A program that is linked to libcudart and libcuda."""
    directory = build(tmp_path_factory.mktemp("cuda"))
    libraries = [directory / "libcudart.so.12", directory / "libcuda.so.1"]
    return compiled(directory / "program.so", libraries)


@pytest.fixture(scope="module")
def bundled(tmp_path_factory):
    """A program beside a runtime whose name has a hash, as a wheel brings it."""
    directory = build(tmp_path_factory.mktemp("wheel"))
    runtime = directory / "libcudart-d0da41ae.so.12"
    command = ["cc", *FLAGS, STANDIN / "cudart.c", f"-Wl,-soname,{runtime.name}", "-Wl,-rpath,$ORIGIN"]
    subprocess.run([*command, "-o", runtime, directory / "libcuda.so.1"], check=True)
    return compiled(directory / "wheel.so", [runtime, directory / "libcuda.so.1"])


@pytest.fixture(scope="module")
def linked_in(tmp_path_factory):
    """A program with both linked in."""
    directory = tmp_path_factory.mktemp("linked-in")
    return compiled(directory / "engine.so", [], STANDIN / "cudart.c", STANDIN / "cuda.c")


@pytest.fixture
def real(tmp_path):
    """A program on NVIDIA's own runtime, as their wheel brings it; there is no driver under it."""
    try:
        wheel = importlib.metadata.files("nvidia-cuda-runtime-cu12") or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("needs NVIDIA's runtime: pip install nvidia-cuda-runtime-cu12")
    [found] = [file.locate() for file in wheel if file.match("libcudart.so.*")]
    # A copy, since what else may run on this machine has the wheel's own mapped.
    runtime = shutil.copy(found, tmp_path)
    needs_command("cc", "gcc")
    program = tmp_path / "program.so"
    command = ["cc", *FLAGS, "-DWITHOUT_DRIVER", *SOURCES, "-Wl,-rpath,$ORIGIN", "-o", program, runtime]
    subprocess.run(command, check=True)
    return program


def runtime_of(program):
    """The runtime beside a program."""
    return next(program.parent.glob("libcudart.so.*"))


def compiled(path, libraries, *more):
    """A library that publishes spans and uses CUDA."""
    needs_command("cc", "gcc")
    command = ["cc", *FLAGS, *SOURCES, *more, "-Wl,-rpath,$ORIGIN", "-o", path, *libraries]
    subprocess.run(command, check=True)
    return path


@pytest.fixture
def scenario(tmp_path, monkeypatch):
    """What the stand-ins play; room for 1 MiB."""
    made = Scenario(tmp_path / "scenario")
    made.play(f"cuda {1 << 20}")
    monkeypatch.setenv(SCENARIO, str(made.path))
    return made


@pytest.fixture
def watch(start_worker, scenario):
    """A worker with a program of CUDA's, and the probe on it."""
    contexts = []

    def start(library, files, **settings):
        worker = start_worker(library)
        context = monitoring("cuda", cuda={"alloc_threshold": "1h", "copy_threshold": "1h", **settings})
        monitor = context.__enter__()
        contexts.append(context)
        followed(monitor, worker.pid)
        eventually("CUDA is covered", lambda: len(mine(monitor, library)) >= files)
        return monitor, worker

    yield start
    for context in contexts:
        context.__exit__(None, None, None)


def mine(monitor, library):
    """The covered files of this test's program: other tests may run beside."""
    paths = [Path(f"/proc/self/fd/{file.fd}").readlink() for file in monitor.files("cuda")]
    return [path for path in paths if path.parent == library.parent]


def call(worker, function, *arguments, **job):
    """Have a function called, 23 times."""
    worker.do({"do": "call_function", "function": function, "arguments": arguments, "times": PRIME, **job})


def sums(monitor, number):
    """What is summed up on a span, by field; its match."""
    records = monitor.events.on_span(KernelEventKind.CUDA_SUM, number)
    assert set(records["match"]) == {Match.THREAD}
    return {name: int(records[name].sum()) for name in records.dtype.names if name.endswith(("s", "bytes"))}


LINKS = {"shared": 2, "bundled": 2, "linked_in": 1}


@pytest.mark.parametrize("link", LINKS)
def test_every_call_counts_once_on_its_span(watch, request, link):
    """A runtime's call holds the driver's; however they are linked."""
    library = request.getfixturevalue(link)
    monitor, worker = watch(library, LINKS[link])
    call(worker, "runtime_alloc", 4096, span=1)
    call(worker, "pool_alloc", 512, span=1)
    call(worker, "driver_alloc", 1024, span=2)
    call(worker, "pitch_alloc", 64, 16, span=2)
    call(worker, "runtime_copy", 100, span=3)
    call(worker, "driver_copy", 10, span=3)
    call(worker, "peer_copy", 1000, span=4)
    call(worker, "rectangle_copy", 64, 16, span=4)
    monitor.close()
    first, second, third, fourth = (sums(monitor, number) for number in (1, 2, 3, 4))
    assert (first["allocs"], first["frees"], first["failures"]) == (2 * PRIME, 2 * PRIME, 0)
    assert first["alloc_bytes"] == PRIME * (4096 + 512)
    assert (second["allocs"], second["alloc_bytes"]) == (2 * PRIME, 2 * PRIME * 1024)
    assert (third["copies"], third["copy_bytes"]) == (2 * PRIME, PRIME * 110)
    assert (fourth["copies"], fourth["copy_bytes"]) == (2 * PRIME, PRIME * (1000 + 64 * 16))
    assert not len(monitor.events.of(KernelEventKind.CUDA_ALLOC, tgid=worker.pid))


def test_no_memory_is_an_event_on_the_span_that_suffered_it(watch, shared):
    """With the size that was asked for; by the runtime's code and the driver's, which are the same."""
    monitor, worker = watch(shared, 2)
    call(worker, "runtime_alloc", 2 << 20, span=1)
    call(worker, "driver_alloc", 3 << 20, span=2)
    call(worker, "driver_alloc", 4096, span=3)
    monitor.close()
    for number, size in ((1, 2 << 20), (2, 3 << 20)):
        events = monitor.events.on_span(KernelEventKind.CUDA_ALLOC, number)
        assert len(events) == PRIME
        assert set(events["error"]) == {OUT_OF_MEMORY}
        assert set(events["size"]) == {size}
        assert set(events["operation"]) == {CudaOperation.DEVICE}
        assert sums(monitor, number)["failures"] == PRIME
        assert sums(monitor, number)["alloc_bytes"] == 0
    assert not len(monitor.events.on_span(KernelEventKind.CUDA_ALLOC, 3))


def test_calls_of_nvidia_s_own_runtime_are_seen(watch, real):
    """Without a driver all of them fail, each with the code that says so; sizes are those asked for."""
    code = ctypes.CDLL(str(runtime_of(real))).cudaMalloc(ctypes.byref(ctypes.c_void_p()), 4096)
    if code not in NO_DRIVER:
        pytest.skip("needs a machine without NVIDIA's driver")
    monitor, worker = watch(real, 1)
    call(worker, "runtime_alloc", 4096, span=1)
    call(worker, "pool_alloc", 512, span=2)
    call(worker, "runtime_copy", 100, span=3)
    call(worker, "rectangle_copy", 64, 16, span=4)
    monitor.close()
    for number, kind, size, operation in (
        (1, KernelEventKind.CUDA_ALLOC, 4096, CudaOperation.DEVICE),
        (2, KernelEventKind.CUDA_ALLOC, 512, CudaOperation.POOL),
        (3, KernelEventKind.CUDA_COPY, 100, CudaOperation.COPY),
        (4, KernelEventKind.CUDA_COPY, 1024, CudaOperation.COPY),
    ):
        events = monitor.events.on_span(kind, number)
        seen = {(int(row["error"]), int(row["size"]), int(row["operation"])) for row in events}
        assert len(events) == PRIME
        assert seen == {(code, size, operation)}


def test_the_runtime_has_every_function_that_is_probed(real):
    """Under the names that are asked for: one misspelt would never be missed."""
    with ElfFile(str(runtime_of(real))) as elf:
        names = {
            one.symbol.encode() for one in cuda.PROBE.uprobes if one.symbol.lstrip("_").startswith("cuda")
        }
        defined = elf.defined(names)
    bare = re.compile(rb"_pt[sd][sz]$")
    assert {bare.sub(b"", name) for name in names} == {bare.sub(b"", name) for name in defined}


def test_other_errors_carry_their_code(watch, shared, scenario):
    """Of allocations, copies and frees."""
    monitor, worker = watch(shared, 2)
    errors = [f"error {function} * {ILLEGAL_ADDRESS}" for function in ("cuMemcpy", "cuMemFree")]
    scenario.play(f"cuda {1 << 20}", *errors)
    call(worker, "runtime_copy", 100, span=1)
    call(worker, "driver_alloc", 100, span=2)
    monitor.close()
    copies = monitor.events.on_span(KernelEventKind.CUDA_COPY, 1)
    assert [(int(row["error"]), int(row["size"])) for row in copies] == [(ILLEGAL_ADDRESS, 100)] * PRIME
    frees = monitor.events.on_span(KernelEventKind.CUDA_ALLOC, 2)
    assert [(int(row["error"]), int(row["operation"])) for row in frees] == (
        [(ILLEGAL_ADDRESS, CudaOperation.FREE)] * PRIME
    )


def test_slow_calls_are_events_with_how_long_they_took(watch, shared, scenario):
    """Above the threshold, and none below it."""
    monitor, worker = watch(shared, 2, alloc_threshold="2ms", copy_threshold="2ms")
    scenario.play(f"cuda {1 << 20}", "latency cuMemAlloc_v2 0 3000", "latency cuMemcpyHtoD 0 3000")
    call(worker, "runtime_alloc", 4096, span=1)
    call(worker, "runtime_copy", 4096, span=2)
    monitor.close()
    for kind, number in ((KernelEventKind.CUDA_ALLOC, 1), (KernelEventKind.CUDA_COPY, 2)):
        events = monitor.events.on_span(kind, number)
        assert len(events) == PRIME
        assert (events["duration"] >= 3_000_000).all()
        assert set(events["error"]) == {0}


def test_gaps_between_launches_of_one_span(watch, shared):
    """60 ms are one, 1 ms is none, and what lies between two spans is none, also of one trace."""
    monitor, worker = watch(shared, 2)
    call(worker, "launch_twice", 60_000, span=1)
    worker.do({"do": "sleep", "times": 1, "seconds": 0.1})
    call(worker, "launch_twice", 1_000, span=2)
    worker.do({"do": "sleep", "times": 1, "seconds": 0.1})
    call(worker, "launch_twice", 1_000, span=3, trace_id=trace_id(2).hex())
    monitor.close()
    gaps = monitor.events.on_span(KernelEventKind.CUDA_LAUNCH_GAP, 1)
    assert len(gaps) == PRIME
    assert (gaps["duration"] >= 60_000_000).all()
    for number in (2, 3):
        assert not len(monitor.events.on_span(KernelEventKind.CUDA_LAUNCH_GAP, number))


def test_launches_can_be_left_alone(watch, shared):
    """They are what costs."""
    monitor, worker = watch(shared, 2, launches=False)
    call(worker, "launch_twice", 60_000, span=1)
    monitor.close()
    assert not len(monitor.events.of(KernelEventKind.CUDA_LAUNCH_GAP, tgid=worker.pid))


def test_a_process_without_spans_is_summed_up_as_a_whole(watch, shared):
    """By its number alone."""
    monitor, worker = watch(shared, 2)
    call(worker, "driver_alloc", 4096)
    call(worker, "driver_alloc", 2 << 20)
    monitor.close()
    records = monitor.events.of(KernelEventKind.CUDA_SUM, tgid=worker.pid)
    assert set(records["match"]) == {Match.NONE}
    assert int(records["allocs"].sum()) == 2 * PRIME
    assert int(records["failures"].sum()) == PRIME
    failures = monitor.events.of(KernelEventKind.CUDA_ALLOC, tgid=worker.pid)
    assert len(failures) == PRIME
    assert not np.any(failures["trace_id"] != np.zeros((), "V16"))


def test_threads_keep_their_own_calls_apart(watch, shared):
    """Three spans at once, each with its own prime number of calls."""
    monitor, worker = watch(shared, 2)
    job = {"do": "call_function", "function": "runtime_alloc", "arguments": [4096]}
    worker.do(*({**job, "times": times, "span": span} for span, times in ((1, 23), (2, 29), (3, 31))))
    monitor.close()
    assert [sums(monitor, span)["allocs"] for span in (1, 2, 3)] == [23, 29, 31]
