"""Finds in running processes what the probes need: where threads keep their span, which libraries they use.

The kernel tells of every process that begins or ends and of every file that is mapped to run code from
(`mappings`), so a process is looked at when there is something new to it: a file whose contents are not known
yet, or one that carries the context's symbol. What is in a file is found out once, whoever maps it. An idle
machine costs nothing, and a process of known files one look at a set for each of them.

Where the kernel gives no news of mappings, processes are looked at in growing intervals instead.
"""

from __future__ import annotations

import math
import os
import select
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
import structlog

from otel_bridge.errors import BridgeError
from otel_bridge.kernel.process_names import ProcessNames
from otel_bridge.model import KernelEventKind
from otel_bridge.mounts import PROC

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from otel_bridge.contracts import Clock
    from otel_bridge.kernel.mappings import Key, Mapped
    from otel_bridge.kernel.thread_context import FileKey, Judgement, ThreadContextLayout

log = structlog.get_logger(__name__)

AGES = (0.05, 0.25, 0.7, 2.0, 3.0, 4.0, 5.0, 10.0, 15.0, 30.0)
"""Seconds between the looks at one process without news of mappings; the last repeats."""

RETRIES = (0.02, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0)
"""Seconds between the looks at a process whose loader is still at work on what it mapped."""

GATHER = 0.02
"""Seconds in which news are gathered before they are acted on: a program maps its libraries one by one."""

AFTER_EXEC = 0.05
"""Seconds after which a new program is looked at once; most that are shorter lived never are."""

LINGER = 60.0
"""Seconds that probes stay on a file that no process maps any more."""

MAX_FILES = 1 << 16
"""Files whose contents are remembered."""

_EXECUTABLE = 2  # in "r-xp"
_MAPS_FIELDS = 6
_START_TIME = 19  # field 22 of /proc/PID/stat, counted from behind the command's name
_NEVER = math.inf

Identity = tuple[str, int]

Content = tuple[int | str, ...]
"""What tells one file from another by what is in it: see `_content`."""


class ContextFinder(Protocol):
    """What `thread_context` does."""

    def judge(self, pid: int, files: Collection[FileKey]) -> Judgement:
        """Which of the files that a process has mapped carry the symbol."""

    def locate(self, pid: int) -> ThreadContextLayout | None:
        """Where a process's threads keep their span; None when nowhere (yet)."""


class News(Protocol):
    """What `mappings.MappingNews` does."""

    lost: int

    @property
    def fds(self) -> Sequence[int]:
        """Readable when there are some."""

    def take(self, dull: set[Key]) -> Iterable[Mapped]:
        """What was mapped since the last time."""


@dataclass(frozen=True, slots=True)
class MappedFile:
    """A file whose code a process has mapped.

    Attributes:
        identity: device and inode, as the maps tell them.
        path: as the process names it.
        open_path: where this process reaches it, also in another mount namespace and when it was deleted.
    """

    identity: Identity
    path: str
    open_path: str

    @property
    def key(self) -> FileKey:
        """An inode's number comes back when its file is gone; with the same name it seldom does."""
        return (*self.identity, self.path)

    @property
    def name(self) -> str:
        """Without its directory."""
        return self.path.rpartition("/")[2].removesuffix(" (deleted)")


@dataclass(frozen=True, slots=True)
class MappedCode:
    """A piece of a file that a process runs code from.

    Attributes:
        start: first address.
        end: the address after the last.
        offset: bytes into the file.
        file: which.
    """

    start: int
    end: int
    offset: int
    file: MappedFile


def mapped_files(pid: int, proc: Path = PROC) -> Iterator[MappedFile]:
    """Files whose code the process has mapped, each once; none when it is gone or a kernel thread."""
    seen: set[Identity] = set()
    for addresses, _, device, inode, path in _code_lines(pid, proc):
        identity = device, int(inode)
        if identity not in seen:
            seen.add(identity)
            yield MappedFile(identity, path, _reachable(proc / str(pid), addresses, path))


def mapped_code(pid: int, proc: Path = PROC) -> Iterator[MappedCode]:
    """Where the process has which code, in the order of addresses; none when it is gone."""
    for addresses, offset, device, inode, path in _code_lines(pid, proc):
        start, _, end = addresses.partition("-")
        file = MappedFile((device, int(inode)), path, _reachable(proc / str(pid), addresses, path))
        yield MappedCode(int(start, 16), int(end, 16), int(offset, 16), file)


def _code_lines(pid: int, proc: Path) -> Iterator[tuple[str, str, str, str, str]]:
    """Of the executable mappings of files: addresses, offset, device, inode, path."""
    try:
        lines = (proc / str(pid) / "maps").read_text(errors="surrogateescape").splitlines()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return
    for line in lines:
        fields = line.split(maxsplit=_MAPS_FIELDS - 1)
        if len(fields) == _MAPS_FIELDS and fields[1][_EXECUTABLE] == "x" and fields[5].startswith("/"):
            yield fields[0], fields[2], fields[3], fields[4], fields[5]


def _reachable(process: Path, addresses: str, path: str) -> str:
    # The link leads to the file itself, whatever became of its name. It takes CAP_CHECKPOINT_RESTORE.
    direct = f"{process}/map_files/{addresses}"
    if os.access(direct, os.R_OK):
        return direct
    return f"{process}/root{path.removesuffix(' (deleted)')}"


class Place(Protocol):
    """Functions that programs are attached to, in every file that has them."""

    def attach(self, file: MappedFile) -> Callable[[], None] | None:
        """Attach to a file that is new to this place, if it is one of its files; returns what detaches."""


@dataclass(frozen=True, slots=True)
class _Known:
    """What was found out about a file.

    Attributes:
        carrier: it carries the context's symbol.
        content: which file it is, wherever it is mounted.
    """

    carrier: bool
    content: Content


@dataclass(slots=True)
class _Process:
    """What is known of one.

    Attributes:
        due: when it is to be looked at; never, while nothing is new.
        began: its start time in clock ticks, once procfs was asked.
        looks: how many looks led to this `due`.
        followed: the kernel knows where its threads keep their span.
        complaint: why it cannot be followed.
        news: files it mapped that are not known to be dull.
        covered: files of it that programs are attached to.
    """

    due: float
    began: int = 0
    looks: int = 0
    followed: bool = False
    complaint: str = ""
    news: dict[Key, str] = field(default_factory=dict)
    covered: frozenset[Content] = frozenset()


class Discovery:
    """Looks at processes, in a thread of its own.

    Args:
        clock: for the intervals.
        context: finds where a process's threads keep their span.
        follow: told of each process found, with its layout.
        places: what to attach to files.
        tell: told of processes that begin and end, dtype `events.PROCESS`.
        news: of mapped files; None where the kernel gives none.
        scan_interval: seconds between two looks for processes that nobody announced.
        proc: where procfs is mounted.
    """

    def __init__(
        self,
        clock: Clock,
        context: ContextFinder,
        follow: Callable[[int, ThreadContextLayout], None],
        places: Sequence[Place],
        *,
        tell: Callable[[NDArray[np.void]], None],
        news: News | None,
        scan_interval: float,
        proc: Path = PROC,
    ) -> None:
        self._clock = clock
        self._context = context
        self._follow = follow
        self._places = list(places)
        self._tell = tell
        self._mappings = news
        self._scan_interval = scan_interval
        self._proc = proc
        self._names = ProcessNames(proc)
        self._processes: dict[int, _Process] = {}
        self._due: set[int] = set()
        self._files: dict[FileKey, _Known] = {}
        self._covered: dict[Content, dict[Place, Callable[[], None]]] = {}
        self._unused: dict[Content, float] = {}
        self._dull: set[Key] = set()
        self._next_scan = clock.monotonic()
        self._records: list[NDArray[np.void]] = []
        self._new_places: list[Place] | None = None
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._run, name="kernel-discovery", daemon=True)

    def announce(self, records: NDArray[np.void]) -> None:
        """Take in the process probe's records; called in the reader's thread."""
        with self._lock:
            self._records.append(records)
            self._wake_up()

    def replace_places(self, places: Sequence[Place]) -> None:
        """Attach to these from now on; what hangs on others is taken off by whoever takes them away."""
        with self._lock:
            self._new_places = list(places)
            self._wake_up()

    def _wake_up(self) -> None:
        """With the lock held: who announces does not wait for whoever stops, and may come too late."""
        if self._wake >= 0:
            os.eventfd_write(self._wake, 1)

    @property
    def followed(self) -> frozenset[int]:
        """Processes that publish their spans."""
        return frozenset(pid for pid, process in list(self._processes.items()) if process.followed)

    @property
    def known(self) -> int:
        """How many processes are known."""
        return len(self._processes)

    def complaints(self) -> dict[int, str]:
        """Processes that publish their spans and cannot be followed, each with the reason."""
        return {pid: found.complaint for pid, found in list(self._processes.items()) if found.complaint}

    def start(self) -> None:
        """Look at every process now, then go on in a thread."""
        self.step()
        self._thread.start()

    def stop(self) -> None:
        """End the thread; what is announced from here on is nobody's."""
        self._stopping.set()
        with self._lock:
            self._wake_up()
        if self._thread.is_alive():
            self._thread.join()
        with self._lock:
            wake, self._wake = self._wake, -1
        if wake >= 0:
            os.close(wake)

    def _run(self) -> None:
        with select.epoll() as epoll:
            for fd in (self._wake, *(self._mappings.fds if self._mappings is not None else ())):
                epoll.register(fd, select.EPOLLIN)
            wait = self.step()
            while not self._stopping.is_set():
                if any(fd == self._wake for fd, _ in epoll.poll(wait)):
                    os.eventfd_read(self._wake)
                self._stopping.wait(GATHER)
                wait = self.step()

    def step(self) -> float:
        """Do what is due; returns the seconds until there is more."""
        now = self._clock.monotonic()
        self._change_places(now)
        # In this order: what a process mapped that has ended since brings nobody back.
        self._take_mappings(now)
        self._take_records(now)
        if now >= self._next_scan:
            self._scan(now)
            self._next_scan = now + self._scan_interval
        for pid in [pid for pid in self._due if self._processes[pid].due <= now]:
            self._look(pid, self._processes[pid], now)
        self._let_go_of_unused(now)
        due = min((self._processes[pid].due for pid in self._due), default=_NEVER)
        return max(0.0, min(due, self._next_scan) - self._clock.monotonic())

    # What happened

    def _change_places(self, now: float) -> None:
        with self._lock:
            places, self._new_places = self._new_places, None
        if places is None:
            return
        self._places = places
        for content, attached in list(self._covered.items()):
            self._covered[content] = {place: detach for place, detach in attached.items() if place in places}
            if not self._covered[content]:
                del self._covered[content]
        self._files.clear()
        self._dull.clear()
        self._look_at_all(now)

    def _take_records(self, now: float) -> None:
        with self._lock:
            records, self._records = self._records, []
        if not records:
            return
        joined = np.concatenate(records)
        for kind, pid, parent, followed in zip(
            joined["kind"].tolist(),
            joined["tgid"].tolist(),
            joined["parent"].tolist(),
            joined["followed"].tolist(),
            strict=True,
        ):
            if kind == KernelEventKind.PROCESS_EXIT:
                self._end(pid, now)
            elif kind == KernelEventKind.PROCESS_FORK:
                self._fork(pid, parent, now, followed=bool(followed))
            else:
                self._end(pid, now)
                self._begin(pid, now + AFTER_EXEC)
        self._tell(self._names.of_records(joined))

    def _begin(self, pid: int, due: float) -> _Process:
        process = self._processes[pid] = _Process(due)
        self._schedule(pid, process, due)
        return process

    def _fork(self, pid: int, parent: int, now: float, *, followed: bool) -> None:
        """A child has what its parent had mapped, and is looked at only for what its parent still is."""
        before = self._processes.get(parent)
        # News of what the child mapped itself may have been faster.
        early = self._processes.get(pid)
        # The parent may have been found just after the kernel made the child without a layout.
        again = before is None or early is not None or before.due < _NEVER or before.followed != followed
        child = self._begin(pid, now + AFTER_EXEC if again else _NEVER)
        child.followed = followed
        if early is not None:
            child.news = early.news
        if before is not None:
            child.covered = before.covered

    def _end(self, pid: int, now: float) -> None:
        self._due.discard(pid)
        process = self._processes.pop(pid, None)
        for content in process.covered if process is not None else ():
            if not any(content in other.covered for other in self._processes.values()):
                self._unused[content] = now + LINGER

    def _take_mappings(self, now: float) -> None:
        if self._mappings is None:
            return
        try:
            for mapped in self._mappings.take(self._dull):
                if self._is_dull(mapped):
                    continue
                process = self._processes.get(mapped.pid)
                if process is None:
                    process = self._begin(mapped.pid, _NEVER)
                process.news[mapped.key] = mapped.path
                self._schedule(mapped.pid, process, min(process.due, now + RETRIES[0]))
        except BridgeError as error:
            log.warning(
                "news of mapped files are not understood; processes are looked through", error=str(error)
            )
            self._mappings.lost += 1
        if self._mappings.lost:
            self._mappings.lost = 0
            self._look_at_all(now)

    def _is_dull(self, mapped: Mapped) -> bool:
        """Whether a file is known to hold nothing of use; then its next mapping is no news, whoever maps it.

        On some file systems (overlayfs) the news name another inode than the maps do: a look settles those.
        """
        major, minor, inode, _ = mapped.key
        known = self._files.get((f"{major:02x}:{minor:02x}", inode, mapped.path))
        if known is None or not self._is_of_no_use(known):
            return False
        self._dull.add(mapped.key)
        return True

    def _is_of_no_use(self, known: _Known) -> bool:
        """Whether nobody cares who maps a file; of a covered one it must be known when nobody does."""
        return not known.carrier and known.content not in self._covered

    def _schedule(self, pid: int, process: _Process, due: float, looks: int = 0) -> None:
        process.due, process.looks = due, looks
        if due < _NEVER:
            self._due.add(pid)
        else:
            self._due.discard(pid)

    def _look_at_all(self, now: float) -> None:
        for pid, process in self._processes.items():
            self._schedule(pid, process, now)

    def _scan(self, now: float) -> None:
        """A safety net under the news, which a busy kernel may drop."""
        running = {int(path.name) for path in self._proc.iterdir() if path.name.isdigit()}
        for pid, process in list(self._processes.items()):
            began = _start_time(self._proc, pid) if pid in running else 0
            if began == 0 or process.began not in (0, began):
                self._end(pid, now)
            else:
                process.began = began
        unknown = running - self._processes.keys()
        for pid in unknown:
            self._begin(pid, now)
        if unknown:
            self._tell(self._names.of_running(sorted(unknown)))

    # Looking

    def _look(self, pid: int, process: _Process, now: float) -> None:
        files = list(mapped_files(pid, self._proc))
        settled = self._judge(pid, files)
        known = [self._files[file.key] for file in files if file.key in self._files]
        process.covered = frozenset(file.content for file in known if file.content in self._covered)
        for content in process.covered & self._unused.keys():
            del self._unused[content]
        # Last, so that a process that is followed has its libraries covered.
        if any(file.carrier for file in known):
            settled = self._look_for_context(pid, process) and settled
        self._note_dull(process, files)
        self._schedule_next(pid, process, now, settled=settled)

    def _judge(self, pid: int, files: list[MappedFile]) -> bool:
        """Find out what is in files that are new; False when some could not be read at this moment."""
        new = [file for file in files if file.key not in self._files]
        if not new:
            return True
        try:
            judgement = self._context.judge(pid, {file.key for file in new})
        except (ProcessLookupError, FileNotFoundError, PermissionError):
            # Gone; or closed to this process, which `doctor` tells from the missing capability.
            return True
        if len(self._files) >= MAX_FILES:
            self._files.clear()
        settled = [file for file in new if file.key not in judgement.unsettled]
        for file in settled:
            known = self._files[file.key] = _Known(file.key in judgement.carriers, _content(file))
            self._cover(file, known.content)
        self._forget_unreached(pid, settled)
        return not judgement.unsettled

    def _forget_unreached(self, pid: int, files: list[MappedFile]) -> None:
        """A file is reached through the process: where it is gone, what is in it was not found out.

        The next one that maps the file is asked, instead of none ever again.
        """
        still = {((device, int(inode)), path) for _, _, device, inode, path in _code_lines(pid, self._proc)}
        for file in files:
            if (file.identity, file.path) not in still and self._files[file.key].content not in self._covered:
                del self._files[file.key]

    def _cover(self, file: MappedFile, content: Content) -> None:
        attached = self._covered.get(content, {})
        for place in self._places:
            if place not in attached and (detach := place.attach(file)) is not None:
                attached[place] = detach
        if attached:
            self._covered[content] = attached

    def _look_for_context(self, pid: int, process: _Process) -> bool:
        """Follow a process if it can be; False when it is worth another look."""
        if process.followed:
            return True
        try:
            layout = self._context.locate(pid)
            if layout is not None:
                self._follow(pid, layout)
        except (ProcessLookupError, FileNotFoundError, PermissionError):
            return True
        except BridgeError as error:
            if process.complaint != str(error):
                log.warning("a process publishes its spans and cannot be followed", pid=pid, error=str(error))
                process.complaint = str(error)
            return False
        process.complaint = ""
        process.followed = layout is not None
        return process.followed

    def _note_dull(self, process: _Process, files: list[MappedFile]) -> None:
        """Of the files that brought this look about, those whose next mapping need not."""
        known = {file.path: self._files[file.key] for file in files if file.key in self._files}
        for key, path in process.news.items():
            if path in known and self._is_of_no_use(known[path]):
                self._dull.add(key)
        process.news.clear()
        if len(self._dull) > MAX_FILES:
            self._dull.clear()

    def _schedule_next(self, pid: int, process: _Process, now: float, *, settled: bool) -> None:
        looks = process.looks
        if self._mappings is None:
            due = now + AGES[min(looks, len(AGES) - 1)]
        elif settled or looks >= len(RETRIES):
            due = _NEVER
        else:
            due = now + RETRIES[looks]
        self._schedule(pid, process, due, looks + 1)

    def _let_go_of_unused(self, now: float) -> None:
        """Programs on a file keep its file system busy: a container's could not be removed."""
        for content in [content for content, end in self._unused.items() if end <= now]:
            del self._unused[content]
            for detach in self._covered.pop(content, {}).values():
                detach()
            for key in [key for key, known in self._files.items() if known.content == content]:
                del self._files[key]


def _content(file: MappedFile) -> Content:
    """The same for one file in every mount: containers of one image have its files in overlays of their own.

    A program that is attached through two of them would run twice. What an overlay shows of a file that it
    did not copy is the number and times of the file below; of one that it copied, the time of the copy.
    """
    try:
        status = os.stat(file.open_path)  # noqa: PTH116 (a link of procfs, not a path to be resolved)
    except OSError:
        return file.identity
    return status.st_ino, status.st_ctime_ns, status.st_size


def _start_time(proc: Path, pid: int) -> int:
    """In clock ticks since boot; 0 when the process is gone."""
    try:
        stat = (proc / str(pid) / "stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    # Behind the command's name, which may hold blanks and brackets.
    return int(stat.rpartition(b")")[2].split()[_START_TIME])
