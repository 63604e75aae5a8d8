"""Looking at processes: when, and what is made of what is found. procfs is a directory here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from otel_bridge.errors import BridgeError
from otel_bridge.kernel.discovery import AGES, Discovery, mapped_files
from otel_bridge.kernel.records import PROCESS_EVENT
from otel_bridge.model import KernelEventKind
from otel_bridge.testing import FakeClock

MAPS = """\
55d0c0000000-55d0c0001000 r--p 00000000 fe:00 11 /usr/bin/python3.11
55d0c0001000-55d0c0002000 r-xp 00001000 fe:00 11 /usr/bin/python3.11
7f0000000000-7f0000001000 r-xp 00000000 fe:00 12 /usr/lib/libssl.so.3
7f0000002000-7f0000003000 r-xp 00002000 fe:00 12 /usr/lib/libssl.so.3
7f0000004000-7f0000005000 r-xp 00000000 fe:00 13 /opt/my libs/libssl-8a6b3a8f.so.1.1 (deleted)
7f0000006000-7f0000007000 rw-p 00000000 00:00 0
7ffc00000000-7ffc00001000 r-xp 00000000 00:00 0 [vdso]
"""


@dataclass
class Layout:
    """What a process was found to have."""

    offset: int = -8
    module: int = 0
    dtv_pointer: int = 8
    dtv_stride: int = 16


class World:
    """A procfs, a clock, and what was found."""

    def __init__(self, proc) -> None:
        self.proc = proc
        self.clock = FakeClock()
        self.layouts: dict[int, Layout | Exception] = {}
        self.asked: list[int] = []
        self.followed: list[int] = []
        self.libraries: list[str] = []
        self.discovery = Discovery(
            self.clock,
            self.locate,
            lambda pid, _: self.followed.append(pid),
            [(r"libssl[-.].*so.*", lambda file: self.libraries.append(file.path))],
            scan_interval=2.0,
            proc=proc,
        )

    def locate(self, pid):
        """As thread_context.locate does."""
        self.asked.append(pid)
        found = self.layouts.get(pid)
        if isinstance(found, Exception):
            raise found
        return found

    def begin(self, pid, maps=""):
        """A process that runs from now on."""
        (self.proc / str(pid)).mkdir()
        (self.proc / str(pid) / "maps").write_text(maps)

    def end(self, pid):
        """A process that is gone."""
        (self.proc / str(pid) / "maps").unlink()
        (self.proc / str(pid)).rmdir()

    def announce(self, kind, pid):
        """An event of the process probe."""
        records = np.zeros(1, PROCESS_EVENT)
        records["kind"], records["tgid"] = kind, pid
        self.discovery.announce(records)

    async def pass_time(self, seconds):
        """Let it look whenever it wants to."""
        end = self.clock.monotonic() + seconds
        while (wait := self.discovery.step()) <= end - self.clock.monotonic():
            await self.clock.advance(max(wait, 0.001))
        await self.clock.advance(end - self.clock.monotonic())


@pytest.fixture
def world(tmp_path):
    """No process yet."""
    return World(tmp_path)


def test_mapped_files_are_told_once_with_a_way_to_open_them(tmp_path):
    """Code only; names with spaces, deleted files, no vdso."""
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "maps").write_text(MAPS)
    files = list(mapped_files(7, tmp_path))
    assert [(file.identity, file.path) for file in files] == [
        (("fe:00", 11), "/usr/bin/python3.11"),
        (("fe:00", 12), "/usr/lib/libssl.so.3"),
        (("fe:00", 13), "/opt/my libs/libssl-8a6b3a8f.so.1.1 (deleted)"),
    ]
    assert files[2].open_path == f"{tmp_path}/7/root/opt/my libs/libssl-8a6b3a8f.so.1.1"


def test_a_process_that_is_gone_maps_nothing(tmp_path):
    """It may end at any time."""
    assert list(mapped_files(7, tmp_path)) == []


async def test_running_processes_are_found_at_the_start(world):
    """Each library once, however many processes map it."""
    world.begin(7, MAPS)
    world.begin(8, MAPS)
    world.layouts = {7: Layout()}
    world.discovery.step()
    assert world.followed == [7]
    assert sorted(world.libraries) == [
        "/opt/my libs/libssl-8a6b3a8f.so.1.1 (deleted)",
        "/usr/lib/libssl.so.3",
    ]


async def test_what_is_loaded_late_is_found(world):
    """An interpreter imports its TLS module and the publisher when it comes to it."""
    world.discovery.step()
    world.begin(7)
    world.announce(KernelEventKind.PROCESS_EXEC, 7)
    await world.pass_time(3.0)
    assert world.followed == []
    (world.proc / "7" / "maps").write_text(MAPS)
    world.layouts[7] = Layout()
    await world.pass_time(5.0)
    assert world.followed == [7]
    assert "/usr/lib/libssl.so.3" in world.libraries


async def test_an_exec_is_looked_at_within_a_tenth_of_a_second(world):
    """It need not wait for the next scan."""
    world.discovery.step()
    world.begin(7)
    world.layouts[7] = Layout()
    world.announce(KernelEventKind.PROCESS_EXEC, 7)
    await world.pass_time(0.1)
    assert world.followed == [7]


async def test_looks_grow_rare_and_stop_once_found(world):
    """Thousands of processes that publish nothing must cost next to nothing."""
    world.begin(7)
    await world.pass_time(600)
    assert len(world.asked) <= len(AGES) + 600 / AGES[-1] + 1
    world.layouts[7] = Layout()
    await world.pass_time(AGES[-1])
    asked = len(world.asked)
    await world.pass_time(600)
    assert len(world.asked) == asked


async def test_ended_processes_are_forgotten(world):
    """By their exit event, or by the scan that misses them."""
    for pid in (7, 8):
        world.begin(pid)
        world.layouts[pid] = Layout()
    world.discovery.step()
    assert world.discovery.followed == {7, 8}
    world.end(7)
    world.announce(KernelEventKind.PROCESS_EXIT, 7)
    world.discovery.step()
    assert world.discovery.followed == {8}
    world.end(8)
    await world.pass_time(2.5)
    assert world.discovery.followed == frozenset()
    assert world.discovery.known == 0


async def test_an_exec_begins_anew(world):
    """The new program may keep its spans elsewhere, or nowhere."""
    world.begin(7)
    world.layouts[7] = Layout()
    world.discovery.step()
    world.layouts[7] = None
    world.announce(KernelEventKind.PROCESS_EXEC, 7)
    await world.pass_time(1.0)
    assert world.discovery.followed == frozenset()


@pytest.mark.parametrize("error", [ProcessLookupError(), PermissionError(), FileNotFoundError()])
async def test_a_process_that_cannot_be_looked_into_stops_nothing(world, error):
    """The others are found all the same."""
    for pid in (7, 8):
        world.begin(pid)
    world.layouts = {7: error, 8: Layout()}
    world.discovery.step()
    assert world.followed == [8]


async def test_a_process_whose_symbol_leads_nowhere_is_complained_about(world):
    """It publishes, and cannot be followed: somebody should know."""
    world.begin(7)
    world.layouts[7] = BridgeError("the relocation is unknown")
    world.discovery.step()
    assert world.discovery.complaints() == {7: "the relocation is unknown"}
    world.layouts[7] = Layout()
    await world.pass_time(1.0)
    assert world.discovery.complaints() == {}
