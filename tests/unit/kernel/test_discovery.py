"""Looking at processes: when, and what is made of what is found. procfs is a directory here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from otel_bridge.errors import BridgeError
from otel_bridge.kernel.discovery import AFTER_EXEC, AGES, LINGER, RETRIES, Discovery, mapped_files
from otel_bridge.kernel.mappings import Mapped
from otel_bridge.kernel.records import PROCESS_EVENT
from otel_bridge.kernel.thread_context import Judgement
from otel_bridge.model import KernelEventKind
from otel_bridge.testing import FakeClock

EXEC, EXIT, FORK = KernelEventKind.PROCESS_EXEC, KernelEventKind.PROCESS_EXIT, KernelEventKind.PROCESS_FORK
PUBLISHER = "7f0000000000-7f0000001000 r-xp 00000000 fe:00 21 /opt/publisher.so\n"
LIBC = "7f0000000000-7f0000001000 r-xp 00000000 fe:00 22 /usr/lib/libc.so.6\n"
LIBSSL = "7f0000000000-7f0000001000 r-xp 00000000 fe:00 12 /usr/lib/libssl.so.3\n"
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
    counts_changes: bool = False


class News:
    """Mapped files, as the kernel would tell them."""

    def __init__(self) -> None:
        self.lost = 0
        self.fds = []
        self.waiting: list[Mapped] = []

    def take(self, dull):
        """See `mappings.MappingNews`."""
        waiting, self.waiting = self.waiting, []
        return [mapped for mapped in waiting if mapped.key not in dull]


class Libssl:
    """A place that takes files by their name."""

    def __init__(self) -> None:
        self.attached: list[str] = []
        self.detached: list[str] = []

    def attach(self, file):
        """See `discovery.Place`."""
        if not file.name.startswith("libssl"):
            return None
        self.attached.append(file.path)
        return lambda: self.detached.append(file.path)


class World:
    """A procfs, a clock, and what was found."""

    def __init__(self, proc, *, news: bool = True) -> None:
        self.proc = proc
        self.clock = FakeClock()
        self.layouts: dict[int, Layout | Exception | None] = {}
        self.asked: list[int] = []
        self.judged: list[tuple[int, str]] = []
        self.unsettled: set[str] = set()
        self.followed: list[int] = []
        self.told: list[tuple[int, int]] = []
        self.libssl = Libssl()
        self.news = News()
        self.inodes: dict[int, int] = {}
        (proc / "self" / "ns").mkdir(parents=True)
        (proc / "self" / "ns" / "pid").write_text("")
        self.discovery = Discovery(
            self.clock,
            self,
            lambda pid, _: self.followed.append(pid),
            [self.libssl],
            tell=lambda records: self.told.extend(zip(records["kind"], records["tgid"], strict=True)),
            news=self.news if news else None,
            scan_interval=30.0,
            proc=proc,
        )

    def judge(self, pid, files):
        """As thread_context does: files of this name carry the symbol."""
        self.judged += [(pid, path) for _, _, path in sorted(files)]
        unsettled = frozenset(file for file in files if file[2] in self.unsettled)
        return Judgement(frozenset(file for file in files if "publisher" in file[2]) - unsettled, unsettled)

    def locate(self, pid):
        """As thread_context does."""
        self.asked.append(pid)
        found = self.layouts.get(pid, Layout())
        if isinstance(found, Exception):
            raise found
        return found

    def begin(self, pid, maps="", *, started=100):
        """A process that runs from now on, unannounced."""
        (self.proc / str(pid) / "ns").mkdir(parents=True)
        (self.proc / str(pid) / "ns" / "pid").write_text("")
        (self.proc / str(pid) / "status").write_text(f"Name:\tx\nNSpid:\t{pid}\n")
        (self.proc / str(pid) / "maps").write_text(maps)
        self.start_at(pid, started)

    def start_at(self, pid, started):
        """Its start time, behind a name that is hard to read."""
        (self.proc / str(pid) / "stat").write_text(f"{pid} (a) b) S " + "0 " * 18 + f"{started} 0\n")

    def end(self, pid):
        """A process that is gone, unannounced."""
        for path in sorted((self.proc / str(pid)).rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        (self.proc / str(pid)).rmdir()

    def announce(self, kind, pid, *, parent=0, followed=False):
        """An event of the process probe."""
        records = np.zeros(1, PROCESS_EVENT)
        records["kind"], records["tgid"], records["parent"], records["followed"] = kind, pid, parent, followed
        self.discovery.announce(records)

    def run(self, pid, maps=""):
        """A process that is announced as the kernel does: its files, then the exec."""
        self.begin(pid, maps)
        self.map(pid, maps)
        self.announce(EXEC, pid)

    def map(self, pid, line):
        """Files that a process maps now."""
        known = (self.proc / str(pid) / "maps").read_text()
        (self.proc / str(pid) / "maps").write_text(known if line in known else known + line)
        for part in line.splitlines():
            fields = part.split(maxsplit=5)
            if len(fields) == 6:
                major, _, minor = fields[3].partition(":")
                key = int(major, 16), int(minor, 16), int(fields[4]), 0
                self.news.waiting.append(Mapped(pid, key, fields[5]))

    async def pass_time(self, seconds):
        """Let it look whenever it wants to."""
        end = self.clock.monotonic() + seconds
        while (wait := self.discovery.step()) <= end - self.clock.monotonic():
            await self.clock.advance(max(wait, 0.001))
        await self.clock.advance(max(0.0, end - self.clock.monotonic()))


@pytest.fixture
def world(tmp_path):
    """No process yet, and the kernel tells of mapped files."""
    return World(tmp_path)


@pytest.fixture
def quiet_world(tmp_path):
    """The kernel tells of no mapped files."""
    return World(tmp_path, news=False)


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
    world.begin(7, MAPS + PUBLISHER)
    world.begin(8, MAPS)
    world.discovery.step()
    assert world.followed == [7]
    assert sorted(world.libssl.attached) == [
        "/opt/my libs/libssl-8a6b3a8f.so.1.1 (deleted)",
        "/usr/lib/libssl.so.3",
    ]
    assert sorted(world.told) == [(EXEC, 7), (EXEC, 8)]


async def test_a_file_that_went_away_with_its_process_is_asked_of_the_next_one(world, monkeypatch):
    """It is reached through the process, which may end at that very moment."""
    attach = world.libssl.attach

    def go_away(_file):
        world.end(7)
        monkeypatch.setattr(world.libssl, "attach", attach)

    monkeypatch.setattr(world.libssl, "attach", go_away)
    world.run(7, LIBSSL)
    await world.pass_time(1)
    assert not (world.proc / "7").exists()
    assert world.libssl.attached == []
    world.run(8, LIBSSL)
    await world.pass_time(1)
    assert world.libssl.attached == ["/usr/lib/libssl.so.3"]


async def test_what_is_loaded_late_is_found_at_once(world):
    """An interpreter imports its TLS module and the publisher when it comes to it."""
    world.discovery.step()
    world.run(7, LIBC)
    await world.pass_time(3600)
    assert world.followed == []
    world.map(7, PUBLISHER + LIBSSL)
    await world.pass_time(0.1)
    assert world.followed == [7]
    assert world.libssl.attached == ["/usr/lib/libssl.so.3"]


async def test_without_news_what_is_loaded_late_is_found_by_looking(quiet_world):
    """In growing intervals; a process that publishes nothing costs less and less."""
    world = quiet_world
    world.discovery.step()
    world.run(7, LIBC)
    await world.pass_time(600)
    assert world.followed == []
    world.begin(8)
    (world.proc / "7" / "maps").write_text(PUBLISHER)
    await world.pass_time(AGES[-1])
    assert world.followed == [7]
    assert world.asked == [7]


async def test_an_idle_machine_costs_nothing(world):
    """No file is read again and no process looked at while nothing is new."""
    for pid in range(100, 200):
        world.begin(pid, MAPS)
    world.discovery.step()
    judged = len(world.judged)
    assert judged == 3  # each file once, for a hundred processes
    for pid in range(100, 200):
        (world.proc / str(pid) / "maps").unlink()
    await world.pass_time(25)  # before the next scan
    assert world.discovery.step() > 1.0
    assert len(world.judged) == judged


async def test_a_thousand_short_lived_processes_are_never_looked_at(world):
    """They end before it is their turn, and what they map is known."""
    world.begin(1, LIBC)
    world.discovery.step()
    judged = len(world.judged)
    for pid in range(1000, 2000):
        world.announce(FORK, pid, parent=1)
        world.run(pid, LIBC)
        await world.clock.advance(AFTER_EXEC / 2)
        world.discovery.step()
        world.announce(EXIT, pid)
        world.end(pid)
    world.discovery.step()
    assert len(world.judged) == judged
    assert world.discovery.known == 1


async def test_a_library_whose_loader_is_still_at_work_is_looked_at_again(world):
    """It is mapped before it is relocated; and read while it is mapped."""
    world.discovery.step()
    world.unsettled = {"/opt/publisher.so"}
    world.layouts[7] = None
    world.run(7, PUBLISHER)
    await world.pass_time(0.1)
    assert world.asked == []
    world.unsettled = set()
    await world.pass_time(0.2)
    assert world.asked
    assert world.followed == []
    del world.layouts[7]
    await world.pass_time(1.0)
    assert world.followed == [7]


async def test_looking_again_ends(world):
    """A library that carries the symbol and never gets a place for it."""
    world.discovery.step()
    world.layouts[7] = None
    world.run(7, PUBLISHER)
    await world.pass_time(600)
    assert len(world.asked) <= len(RETRIES) + 1


async def test_ended_processes_are_forgotten(world):
    """By their exit event, or by the scan that misses them."""
    for pid in (7, 8):
        world.begin(pid, PUBLISHER)
    world.discovery.step()
    assert world.discovery.followed == {7, 8}
    world.end(7)
    world.announce(EXIT, 7)
    world.discovery.step()
    assert world.discovery.followed == {8}
    world.end(8)
    await world.pass_time(31)
    assert world.discovery.followed == frozenset()
    assert world.discovery.known == 0


async def test_an_exec_begins_anew(world):
    """The new program may keep its spans elsewhere, or nowhere."""
    world.begin(7, PUBLISHER)
    world.discovery.step()
    (world.proc / "7" / "maps").write_text(LIBC)
    world.announce(EXEC, 7)
    await world.pass_time(1.0)
    assert world.discovery.followed == frozenset()


async def test_a_number_that_came_back_unannounced_is_another_process(world):
    """Its start time says so."""
    world.begin(7, PUBLISHER)
    world.discovery.step()
    await world.pass_time(31)
    (world.proc / "7" / "maps").write_text(LIBC)
    world.start_at(7, 999)
    await world.pass_time(31)
    assert world.discovery.followed == frozenset()


async def test_a_forked_child_is_followed_with_its_parent(world):
    """The kernel gave it its parent's layout; without one it is looked at itself."""
    world.begin(7, PUBLISHER)
    world.discovery.step()
    world.begin(8, PUBLISHER)
    world.announce(FORK, 8, parent=7, followed=True)
    world.begin(9, PUBLISHER)
    world.announce(FORK, 9, parent=7, followed=False)
    world.discovery.step()
    assert world.discovery.followed == {7, 8}
    await world.pass_time(1.0)
    assert world.discovery.followed == {7, 8, 9}
    assert world.followed == [7, 9]


async def test_news_that_overtake_the_fork_are_kept(world):
    """They come through another buffer."""
    world.begin(7, LIBC)
    world.discovery.step()
    world.begin(8, LIBC)
    world.map(8, PUBLISHER)
    world.discovery.step()
    world.announce(FORK, 8, parent=7)
    await world.pass_time(1.0)
    assert world.discovery.followed == {8}


async def test_lost_news_make_every_process_new(world):
    """Anything may have been mapped meanwhile."""
    world.begin(7, LIBC)
    world.discovery.step()
    (world.proc / "7" / "maps").write_text(PUBLISHER)
    await world.pass_time(1.0)
    assert world.followed == []
    world.news.lost = 3
    world.discovery.step()
    assert world.followed == [7]
    assert world.news.lost == 0


async def test_programs_are_taken_off_a_file_that_nobody_maps_any_more(world):
    """They would keep its file system busy; a moment later somebody may map it again."""
    for pid in (7, 8):
        world.begin(pid, LIBSSL)
    world.discovery.step()
    world.announce(EXIT, 7)
    await world.pass_time(2 * LINGER)
    assert world.libssl.detached == []
    world.announce(EXIT, 8)
    world.end(7)
    world.end(8)
    await world.pass_time(LINGER / 2)
    assert world.libssl.detached == []
    await world.pass_time(LINGER)
    assert world.libssl.detached == ["/usr/lib/libssl.so.3"]
    world.run(9, LIBSSL)
    await world.pass_time(1.0)
    assert world.libssl.attached == ["/usr/lib/libssl.so.3"] * 2


async def test_a_file_that_is_mapped_again_in_time_keeps_its_programs(world):
    """As a command does that is run every minute."""
    world.begin(7, LIBSSL)
    world.discovery.step()
    world.announce(EXIT, 7)
    world.end(7)
    await world.pass_time(LINGER / 2)
    world.run(8, LIBSSL)
    await world.pass_time(2 * LINGER)
    assert world.libssl.attached == ["/usr/lib/libssl.so.3"]
    assert world.libssl.detached == []


async def test_other_places_are_looked_for_in_files_that_are_known(world):
    """What hung on the old place is left to whoever took it away."""
    world.begin(7, LIBSSL)
    world.discovery.step()
    another = Libssl()
    world.discovery.replace_places([world.libssl, another])
    world.discovery.step()
    assert len(world.libssl.attached) == len(another.attached) == 1
    world.discovery.replace_places([another])
    world.discovery.step()
    assert world.libssl.detached == []
    assert len(another.attached) == 1


@pytest.mark.parametrize("error", [ProcessLookupError(), PermissionError(), FileNotFoundError()])
async def test_a_process_that_cannot_be_looked_into_stops_nothing(world, error):
    """The others are found all the same."""
    for pid in (7, 8):
        world.begin(pid, PUBLISHER)
    world.layouts = {7: error}
    world.discovery.step()
    assert world.followed == [8]


async def test_a_process_whose_symbol_leads_nowhere_is_complained_about(world):
    """It publishes, and cannot be followed: somebody should know."""
    world.begin(7, PUBLISHER)
    world.layouts[7] = BridgeError("the relocation is unknown")
    world.discovery.step()
    assert world.discovery.complaints() == {7: "the relocation is unknown"}
    world.layouts[7] = Layout()
    await world.pass_time(1.0)
    assert world.discovery.complaints() == {}


async def test_what_is_announced_after_the_stop_is_nobody_s(world):
    """The reader's thread does not know when discovery ends, nor does a reload."""
    world.discovery.start()
    world.discovery.stop()
    world.announce(EXEC, 7)
    world.discovery.replace_places([])
    world.discovery.stop()
    assert world.followed == []
