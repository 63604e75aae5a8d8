"""Gates that the kernel shuts by itself after failed allocations, with the bridge and without it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kernel.test_gate import bridge, dying_bridge, pins  # noqa: F401 (a fixture)
from tests.support.gates import service
from tests.support.kernel import eventually
from tests.support.processes import needs_command

TRIP = {"kills": 3, "window": 60, "open_time": 600, "target": "llama"}
TOO_MUCH, ENOUGH = 5000, 10
PROGRAM = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
library.take.restype = ctypes.c_void_p
where = ctypes.c_void_p()
print("ready", flush=True)
for line in sys.stdin:
    function, size = line.split()
    if function == "take":
        library.take(ctypes.c_size_t(int(size)))
    else:
        library.cuMemAlloc_v2(ctypes.byref(where), ctypes.c_size_t(int(size)))
    print("done", flush=True)
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """Named as CUDA's driver library is."""
    path = tmp_path_factory.mktemp("allocations") / "libcuda.so.1"
    source = Path(__file__).with_name("failing_allocations.c")
    command = [needs_command("cc", "gcc"), "-shared", "-fPIC", "-O2", source, "-o", path]
    subprocess.run(command, check=True)
    return path


@contextmanager
def program(library, guarded):
    """A process of the service; answers a way to have it allocate."""
    enter = ["nsenter", f"--net=/proc/{guarded.pid}/ns/net", sys.executable, "-c", PROGRAM, str(library)]
    process = subprocess.Popen(enter, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"

    def allocate(size, times=1, function="cuMemAlloc_v2"):
        for _ in range(times):
            process.stdin.write(f"{function} {size}\n")
            process.stdin.flush()
            assert process.stdout.readline() == "done\n"

    yield allocate
    process.communicate()


async def counting(keeper, functions=1):
    """Wait until the library is found."""

    def found():
        return [one for one in keeper._attached.values() if len(one._watched) == functions]

    await asyncio.to_thread(eventually, "the library is found", found)


async def test_the_kernel_trips_after_failed_allocations(pins, library):  # noqa: F811
    """So many that fail for want of memory; others, and those of other namespaces, do not count."""
    with service() as guarded, service() as other, program(library, guarded) as allocate:
        async with bridge(pins, pid=guarded.pid, kills={**TRIP, "allocations": {}}) as keeper:
            keeper._on_kills = lambda target, reason: keeper.told.append((target, reason))
            keeper.gate.settle = lambda: None  # stands for a breaker that opens when it is told
            await counting(keeper)
            with program(library, other) as elsewhere:
                elsewhere(TOO_MUCH, 5)
            allocate(ENOUGH, 20)
            allocate(0, 5)
            allocate(TOO_MUCH, 2)
            assert guarded.knock() == {"admitted": 1}
            allocate(TOO_MUCH)
            assert guarded.knock() == {"refused": 1}
            await asyncio.to_thread(eventually, "the breaker is told", lambda: keeper.told)
    reason = "3 OOM kills or failed allocations within 60 s; the kernel shut gate llama"
    assert keeper.told == [("llama", reason)]


async def test_a_null_pointer_is_a_failure_too(pins, library):  # noqa: F811
    """Of functions like malloc, in a process that comes later."""
    allocations = {"library": "libcuda.so.1", "functions": ["take", "is_not_there"], "failed": 0}
    with service() as guarded:
        async with bridge(pins, pid=guarded.pid, kills={**TRIP, "allocations": allocations}) as keeper:
            keeper.gate.settle = lambda: None
            with program(library, guarded) as allocate:
                await counting(keeper)
                allocate(ENOUGH, 20, "take")
                allocate(TOO_MUCH, 20)
                assert guarded.knock() == {"admitted": 1}
                allocate(TOO_MUCH, 3, "take")
                assert guarded.knock() == {"refused": 1}


async def test_it_trips_without_the_bridge(pins, library):  # noqa: F811
    """What counts is pinned; the next bridge takes over, and counts nothing twice."""
    kills = {**TRIP, "open_time": 3, "allocations": {}}
    with service() as guarded, program(library, guarded) as allocate:
        with dying_bridge(pins, turn="CLOSED", pid=guarded.pid, kills=kills):
            await asyncio.to_thread(
                eventually, "the library is found", lambda: list(pins.glob("netns-*/allocations-*"))
            )
        assert guarded.knock() == {"admitted": 1}
        allocate(TOO_MUCH, 3)
        assert guarded.knock() == {"refused": 1}
        await asyncio.to_thread(eventually, "the trip has ended", lambda: guarded.knock() == {"admitted": 1})
        async with bridge(pins, pid=guarded.pid, kills={**kills, "kills": 8, "window": 60}) as keeper:
            await counting(keeper)
            # Three are remembered; four more are seven, and would be eleven if each counted twice.
            allocate(TOO_MUCH, 4)
            assert guarded.knock() == {"admitted": 1}
    assert not list(pins.glob("netns-*"))


async def test_a_library_without_the_functions_is_said(pins, library, capfd):  # noqa: F811
    """The gate holds all the same."""
    allocations = {"functions": ["is_not_there"]}
    with service() as guarded, program(library, guarded):
        async with bridge(pins, pid=guarded.pid, kills={**TRIP, "allocations": allocations}) as keeper:
            said = []

            def told():
                said.append(capfd.readouterr().out)
                return "libcuda.so.1 has none of is_not_there" in "".join(said)

            await asyncio.to_thread(eventually, "it is said", told)
            assert not keeper.gate.missing
