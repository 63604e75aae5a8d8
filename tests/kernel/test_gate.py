"""Gates for real: a service in a namespace of its own, and what becomes of its new connections."""

from __future__ import annotations

import asyncio
import ctypes
import os
import platform
import signal
import subprocess
import sys
import time
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import numpy as np
import pytest

from otel_bridge import catalog
from otel_bridge.breakers import State
from otel_bridge.contracts import SystemClock
from otel_bridge.control.actions.config import ActionsConfig
from otel_bridge.control.gate.keeper import Keeper
from otel_bridge.libbpf.core_object import Object
from otel_bridge.libbpf.library import Library
from otel_bridge.mounts import mounts
from otel_bridge.telemetry import Telemetry
from tests.support.cgroups import MIB, MemoryCgroup, MissingControllerError
from tests.support.gates import change, service
from tests.support.kernel import eventually
from tests.support.processes import needs_command

PRIME = 211
FOREVER = 3600.0


@pytest.fixture(autouse=True)
def pins(bpffs):
    """A place of the test's own, empty again afterwards."""
    needs_command("unshare", "util-linux")
    place = bpffs / "gates"
    yield place
    for pin in sorted(place.rglob("*"), reverse=True):
        pin.rmdir() if pin.is_dir() else pin.unlink()
    if place.exists():
        place.rmdir()


@pytest.fixture
def cgroup():
    """A control group (version 2) of the test's own."""
    try:
        mount = mounts("cgroup2")[0]
    except IndexError:
        pytest.skip("needs cgroup v2: mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified")
    group = mount / f"otel-bridge-test-{os.getpid()}"
    group.mkdir()
    yield group
    eventually("its processes are gone", lambda: not (group / "cgroup.procs").read_text())
    group.rmdir()


@pytest.fixture
def run_out_of_memory():
    """Has processes in a service's namespace killed for want of memory, one after the other."""
    try:
        group = MemoryCgroup(f"otel-bridge-gate-{os.getpid()}", 32 * MIB)
    except MissingControllerError as error:
        pytest.skip(str(error))

    def run(guarded, times):
        enter = ["nsenter", f"--net=/proc/{guarded.pid}/ns/net", sys.executable, "-c"]
        for _ in range(times):
            filler = subprocess.Popen([*enter, "input(); bytearray(1 << 28)"], stdin=subprocess.PIPE)
            group.add(filler.pid)
            filler.communicate(b"\n")
            assert filler.returncode == -signal.SIGKILL

    yield run
    group.remove()


@pytest.fixture
def steering(tmp_path):
    """Attaches a program to a service's namespace that gives each connection to the service's socket."""
    clang = needs_command("clang", "clang")
    path = tmp_path / "steering.bpf.o"
    multiarch = f"/usr/include/{platform.machine()}-linux-gnu"
    flags = ["-g", "-O2", "-target", "bpf", "-isystem", multiarch]
    subprocess.run([clang, *flags, "-c", Path(__file__).with_name("steering.bpf.c"), "-o", path], check=True)
    library = Library()
    loaded = Object(library, path)
    loaded.load()
    opened = []

    def attach(guarded):
        namespace = os.open(f"/proc/{guarded.pid}/ns/net", os.O_RDONLY)
        opened.append(namespace)
        opened.append(listener := listener_of(guarded.pid))
        loaded.map("listeners", np.dtype("<u4"), np.dtype("<u8")).set(0, listener)
        opened.append(
            library.call("attach", library.bpf_link_create, loaded.program_fd("steer"), namespace, 36, None)
        )

    yield attach
    for fd in opened:
        os.close(fd)
    loaded.close()


def listener_of(pid):
    """A copy of the first socket of another process."""
    libc = ctypes.CDLL(None, use_errno=True)
    process = os.pidfd_open(pid)
    number = next(
        int(entry.name)
        for entry in sorted(Path(f"/proc/{pid}/fd").iterdir(), key=lambda entry: int(entry.name))
        if str(entry.readlink()).startswith("socket:")
    )
    fd = libc.syscall(438, process, number, 0)  # pidfd_getfd
    os.close(process)
    assert fd >= 0, os.strerror(ctypes.get_errno())
    return fd


class Bridge(Keeper):
    """A keeper with one gate, and what it says."""

    def __init__(self, pins, **gate):
        self.telemetry = Telemetry()
        self.told = []
        config = ActionsConfig.model_validate(
            {
                "pins": str(pins) if pins else None,
                "scan_interval": 0.05,
                "gates": {"llama": {"targets": ["llama*"], **gate}},
            }
        )
        super().__init__(
            config, self.telemetry, SystemClock(), lambda target, reason: self.told.append((target, reason))
        )
        self.gate = self.gates[0]

    def turn(self, state, seconds=FOREVER, target="llama"):
        """Have a breaker change."""
        self.gate.apply(change(target, state, time.monotonic() + seconds if state is State.OPEN else 0.0))

    def connections(self, result):
        """How many the kernel counted."""
        value = self.telemetry.registry.get_sample_value(
            catalog.CONTROL_GATE_CONNECTIONS.name + "_total", {"gate": "llama", "result": result}
        )
        return int(value or 0)


@asynccontextmanager
async def bridge(pins, **gate):
    """A bridge at work."""
    keeper = Bridge(pins, **gate)
    await keeper.start()
    keeper.settle()
    try:
        yield keeper
    finally:
        await keeper.stop(1.0)


@contextmanager
def dying_bridge(pins, turn="OPEN", **gate):
    """A bridge in a process of its own, its breaker turned, that ends by SIGKILL with the block."""
    code = f"""
import asyncio, sys
from tests.kernel.test_gate import Bridge, State
async def main():
    keeper = Bridge({str(pins)!r}, **{gate!r})
    await keeper.start()
    keeper.settle()
    keeper.turn(State.{turn})
    print("shut", file=sys.stderr, flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    try:
        assert process.stderr.readline() == "shut\n"
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stderr.close()


@contextmanager
def named(name, pid):
    """A process in the namespace of another whose command line ends in a name."""
    command = ["nsenter", f"--net=/proc/{pid}/ns/net", sys.executable, "-c", "input()", name]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.communicate()


async def test_open_refuses_new_connections_and_no_others(pins):
    """With a reset; streams go on, other ports are let alone, closing lets all in again."""
    with service(ports=2) as guarded:
        guarded.keep()
        async with bridge(pins, pid=guarded.pid, ports=[guarded.port]) as keeper:
            keeper.turn(State.OPEN)
            assert guarded.knock(PRIME) == {"refused": PRIME}
            eventually("all are counted", lambda: keeper.connections("refused") == PRIME)
            assert guarded.knock(PRIME, guarded.ports[1]) == {"admitted": PRIME}
            assert guarded.goes_on()
            keeper.turn(State.CLOSED)
            assert guarded.knock(PRIME) == {"admitted": PRIME}
            assert guarded.goes_on()
        assert keeper.connections("refused") == PRIME
        assert keeper.connections("admitted") == 0
        assert guarded.knock(PRIME) == {"admitted": PRIME}
    assert not list(pins.glob("netns-*")), "what is not shut is taken out at the end"


async def test_half_open_admits_a_share(pins):
    """The share is chance, so its bounds are wide.

    The kernel counts no fewer than the client saw, and at times more: a packet of a connection that is being
    made or closed on another CPU may be looked up as if it were new (README.md). An admitted one has three.
    """
    with service() as guarded:
        async with bridge(pins, pid=guarded.pid, half_open_share=0.3) as keeper:
            keeper.turn(State.HALF_OPEN)
            seen = guarded.knock(997)
            keeper.turn(State.CLOSED)
        assert seen["admitted"] + seen["refused"] == 997
        # Six standard deviations: wrong once in 500 million runs.
        assert abs(seen["admitted"] - 0.3 * 997) < 6 * (997 * 0.3 * 0.7) ** 0.5
        more = {name: keeper.connections(name) - seen[name] for name in seen}
        assert min(more.values()) >= 0
        assert sum(more.values()) <= 3 * seen["admitted"]


@pytest.mark.parametrize(("share", "result"), [(0.0, "refused"), (1.0, "admitted")])
async def test_half_open_at_its_ends(pins, share, result):
    """None, and all."""
    with service() as guarded:
        async with bridge(pins, pid=guarded.pid, half_open_share=share) as keeper:
            keeper.turn(State.HALF_OPEN)
            assert guarded.knock(PRIME) == {result: PRIME}


async def test_a_dead_bridge_leaves_no_gate_shut(pins):
    """After SIGKILL the kernel itself ends the lease."""
    with service() as guarded:
        with dying_bridge(pins, pid=guarded.pid, lease=4.0):
            assert guarded.knock(PRIME) == {"refused": PRIME}
            await asyncio.sleep(5)
            assert guarded.knock() == {"refused": 1}, "the lease is renewed while the bridge lives"
        assert guarded.knock() == {"refused": 1}, "the gate outlives the bridge"
        eventually("the lease has ended", lambda: guarded.knock() == {"admitted": 1})


async def test_a_restart_takes_the_gate_over(pins):
    """Shut all the while, with one program; the new bridge's breakers then decide."""
    with service() as guarded:
        with dying_bridge(pins, pid=guarded.pid, ports=[guarded.port]):
            pass
        assert guarded.knock(PRIME) == {"refused": PRIME}
        keeper = Bridge(pins, pid=guarded.pid, ports=[guarded.port])
        await keeper.start()
        (attached,) = keeper._attached.values()
        assert attached.adopted
        assert attached.others == 0
        assert guarded.knock(PRIME) == {"refused": PRIME}, "until the breakers are known"
        keeper.settle()
        assert guarded.knock(PRIME) == {"admitted": PRIME}, "none of them is open now"
        keeper.turn(State.OPEN)
        assert guarded.knock(PRIME) == {"refused": PRIME}
        await keeper.stop(1.0)
        assert guarded.knock(PRIME) == {"refused": PRIME}, "a stopped bridge leaves it shut for the next one"


async def test_an_open_ends_with_its_own_lease(pins):
    """No longer than the breaker said, although the bridge lives."""
    with service() as guarded:
        async with bridge(pins, pid=guarded.pid) as keeper:
            keeper.turn(State.OPEN, seconds=3)
            assert guarded.knock() == {"refused": 1}
            eventually("the lease has ended", lambda: guarded.knock() == {"admitted": 1})


async def test_two_bridges_on_one_gate(pins):
    """The second says that it does not hold, and takes over when the first has ended."""
    with service() as guarded:
        async with bridge(pins, pid=guarded.pid) as first, bridge(pins, pid=guarded.pid) as second:
            first.turn(State.OPEN)
            with pytest.raises(OSError, match="another bridge holds the gate"):
                second.turn(State.OPEN)
            second.turn(State.CLOSED)
            assert guarded.knock() == {"refused": 1}, "what does not hold it does not open it"
            with pytest.raises(OSError, match="another bridge holds the gate"):
                second.turn(State.OPEN)
            await first.stop(1.0)
            await asyncio.to_thread(
                eventually, "the second has it", lambda: second.gate.inodes and not second.gate.missing
            )
            assert guarded.knock() == {"refused": 1}
            second.turn(State.CLOSED)
            assert guarded.knock() == {"admitted": 1}


async def test_a_namespace_that_is_gone(pins):
    """Is forgotten with its pins; an open then says that it holds nothing."""
    with service() as guarded:
        keeper = Bridge(pins, pid=guarded.pid)
        await keeper.start()
        keeper.settle()
        keeper.turn(State.OPEN)
    # The pins go first.
    await asyncio.to_thread(eventually, "it is forgotten", lambda: keeper.gate.missing)
    assert not list(pins.glob("netns-*"))
    with pytest.raises(OSError, match="nothing runs that fits"):
        keeper.turn(State.OPEN)
    await keeper.stop(1.0)


async def test_pins_of_a_dead_bridge_and_a_dead_namespace_are_taken_out(pins):
    """By whichever bridge comes next."""
    with service() as guarded:
        with dying_bridge(pins, pid=guarded.pid):
            pass
        assert list(pins.glob("netns-*"))
    with service() as other:
        async with bridge(pins, pid=other.pid):
            inode = other.inode
            await asyncio.to_thread(
                eventually,
                "only its own is left",
                lambda: [place.name for place in pins.iterdir()] == [f"netns-{inode}"],
            )


async def test_a_service_that_comes_later_is_found_by_its_name_and_by_its_port(pins):
    """And is shut at once when its breaker is open already."""
    with service() as first:
        async with bridge(pins, ports=[first.port]) as by_port:
            assert by_port.gate.inodes == {first.inode}
            by_port.turn(State.OPEN)
            assert first.knock() == {"refused": 1}
    async with bridge(pins, process=f"*-test-of-gate-{os.getpid()}") as by_name:
        with pytest.raises(OSError, match="nothing runs that fits"):
            by_name.turn(State.OPEN)
        with service() as later, named(f"-test-of-gate-{os.getpid()}", later.pid):
            await asyncio.to_thread(eventually, "it is found", lambda: by_name.gate.inodes)
            assert later.knock(PRIME) == {"refused": PRIME}


async def test_another_gate_is_there_already(pins):
    """Such as that of a bridge without pins: the stricter of the two counts."""
    with service() as guarded:
        async with bridge(None, pid=guarded.pid), bridge(pins, pid=guarded.pid) as keeper:
            (attached,) = keeper._attached.values()
            assert attached.others == 1
            keeper.turn(State.OPEN)
            assert guarded.knock(PRIME) == {"refused": PRIME}


async def test_another_program_that_steers_connections_goes_first(pins, steering, capfd):
    """As the kernel has it: what that one gives to a socket comes in. It is said, and counted."""
    with service() as guarded:
        steering(guarded)
        assert guarded.knock(PRIME) == {"admitted": PRIME}
        async with bridge(pins, pid=guarded.pid) as keeper:
            keeper.turn(State.OPEN)
            assert guarded.knock(PRIME) == {"admitted": PRIME}
        assert keeper.connections("overruled") >= PRIME
        assert "other programs steer connections" in capfd.readouterr().out


async def test_by_control_group(pins, cgroup):
    """Nothing is answered; streams go on, other services are let alone."""
    with service(cgroup=cgroup) as guarded, service() as other:
        guarded.keep()
        async with bridge(pins, pid=guarded.pid, mechanism="cgroup") as keeper:
            assert guarded.knock(PRIME) == {"admitted": PRIME}
            keeper.turn(State.OPEN)
            assert guarded.knock(3, patience=0.3) == {"silence": 3}
            assert other.knock(3) == {"admitted": 3}
            assert guarded.goes_on()
            keeper.turn(State.CLOSED)
            assert guarded.knock(PRIME) == {"admitted": PRIME}
        assert keeper.connections("refused") >= 3, "one that is asked again is counted again"


async def test_a_service_without_a_control_group_of_its_own(pins):
    """The root is everybody's: nothing is attached there."""
    with service() as guarded:
        async with bridge(pins, pid=guarded.pid, mechanism="cgroup") as keeper:
            with pytest.raises(OSError, match="no control group"):
                keeper.turn(State.OPEN)
            assert guarded.knock() == {"admitted": 1}
        assert not list(pins.glob("netns-*"))


async def test_two_gates_in_one_namespace(pins):
    """Each has its ports; a port, and the way that it is guarded, belongs to one."""
    with service(ports=2) as guarded:
        gates = {
            "first": {"ports": [guarded.ports[0]]},
            "second": {"ports": [guarded.ports[1]]},
            "same": {"ports": [guarded.ports[1]]},
            "silent": {"ports": [9], "mechanism": "cgroup"},
        }
        common = {"targets": ["*"], "pid": guarded.pid}
        config = ActionsConfig.model_validate(
            {"pins": str(pins), "gates": {name: common | gate for name, gate in gates.items()}}
        )
        keeper = Keeper(config, Telemetry(), SystemClock(), lambda *_: None)
        await keeper.start()
        keeper.settle()
        try:
            first, second, same, silent = keeper.gates
            first.apply(change("llama", State.OPEN, time.monotonic() + FOREVER))
            assert guarded.knock(PRIME) == {"refused": PRIME}
            assert guarded.knock(PRIME, guarded.ports[1]) == {"admitted": PRIME}
            second.apply(change("llama", State.OPEN, time.monotonic() + FOREVER))
            assert guarded.knock(PRIME, guarded.ports[1]) == {"refused": PRIME}
            with pytest.raises(OSError, match="guarded by gate second already"):
                same.apply(change("llama", State.OPEN, time.monotonic() + FOREVER))
            with pytest.raises(OSError, match="another gate guards the same namespace by sk_lookup"):
                silent.apply(change("llama", State.OPEN, time.monotonic() + FOREVER))
        finally:
            await keeper.stop(1.0)


KILLS = {"kills": 3, "window": 60, "open_time": 600, "target": "llama"}


async def test_the_kernel_trips_after_oom_kills(pins, run_out_of_memory):
    """So many within the window; the breaker is told. Kills elsewhere do not count."""
    with service() as guarded, service() as other:
        async with bridge(pins, pid=guarded.pid, kills=KILLS) as keeper:
            # Stands for the board, which shuts the gate when it is told.
            keeper._on_kills = lambda target, reason: (
                keeper.told.append((target, reason)),
                keeper.turn(State.OPEN),
            )
            run_out_of_memory(other, 3)
            run_out_of_memory(guarded, 2)
            assert guarded.knock() == {"admitted": 1}
            run_out_of_memory(guarded, 1)
            assert guarded.knock() == {"refused": 1}
            await asyncio.to_thread(eventually, "the breaker is told", lambda: keeper.told)
            assert guarded.knock() == {"refused": 1}
        assert keeper.told == [("llama", "3 OOM kills within 60 s; the kernel shut gate llama")]


async def test_a_breaker_that_does_not_follow_opens_the_gate_again(pins, run_out_of_memory):
    """As one that an operator has disabled."""
    with service() as guarded:
        async with bridge(pins, pid=guarded.pid, kills=KILLS | {"kills": 1}) as keeper:
            run_out_of_memory(guarded, 1)
            await asyncio.to_thread(eventually, "the breaker is told", lambda: keeper.told)
            eventually("it is open again", lambda: guarded.knock() == {"admitted": 1})


async def test_the_kernel_trips_without_the_bridge(pins, run_out_of_memory):
    """The program outlives the bridge, and its trip has an end of its own."""
    kills = KILLS | {"kills": 2, "open_time": 5}
    with service() as guarded:
        with dying_bridge(pins, turn="CLOSED", pid=guarded.pid, kills=kills):
            pass
        assert guarded.knock() == {"admitted": 1}
        run_out_of_memory(guarded, 2)
        assert guarded.knock() == {"refused": 1}
        eventually("the trip has ended", lambda: guarded.knock() == {"admitted": 1})


async def test_without_pins_the_gate_ends_with_the_bridge():
    """As on a machine without bpffs."""
    with service() as guarded:
        async with bridge(None, pid=guarded.pid) as keeper:
            keeper.turn(State.OPEN)
            assert guarded.knock(PRIME) == {"refused": PRIME}
        assert guarded.knock(PRIME) == {"admitted": PRIME}


async def test_the_strictest_of_several_targets_counts(pins):
    """The gate cannot see whom a connection is for."""
    with service() as guarded:
        async with bridge(pins, pid=guarded.pid, half_open_share=1.0) as keeper:
            keeper.turn(State.OPEN, target="llama/8b")
            keeper.turn(State.HALF_OPEN, target="llama/70b")
            assert guarded.knock() == {"refused": 1}
            keeper.turn(State.CLOSED, target="llama/8b")
            assert guarded.knock() == {"admitted": 1}
