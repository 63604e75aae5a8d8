"""Loads probes through a back end, shares what they share, and swaps one while the others run."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import structlog

from otel_bridge.errors import BridgeError
from otel_bridge.kernel.config import ProbeConfig
from otel_bridge.kernel.probes.base import CONFIG_SECTION, constants
from otel_bridge.kernel.process_table import ProcessTable
from otel_bridge.kernel.records import (
    CONTEXT_SOURCES,
    PROCESSES,
    RATE_LIMIT,
    ROWS_A_LOT,
    THREAD_LAYOUT,
    U4,
    U8,
    Counter,
)
from otel_bridge.kernel.ring import Ring, RingMemory
from otel_bridge.kernel.sums import HashTables, RowTables
from otel_bridge.libbpf import OBJECTS, uprobe_multi
from otel_bridge.libbpf.library import LibbpfError, Map, memory_of, run_statistics

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from otel_bridge.kernel.backend import Backend
    from otel_bridge.kernel.bcc_object import BccObject
    from otel_bridge.kernel.config import KernelConfig
    from otel_bridge.kernel.probes.base import Probe, Program, Sums, Uprobe
    from otel_bridge.kernel.records import Dtype
    from otel_bridge.kernel.sums import SumTables
    from otel_bridge.libbpf.core_object import Link, Object
    from otel_bridge.libbpf.library import Library
    from otel_bridge.libbpf.uprobe import Descriptors

log = structlog.get_logger(__name__)

SHARED = frozenset({"processes", "layouts", "sockets", "thread_requests", "http_requests", "shared_contexts"})
_SOURCES_SECTION = ".rodata.sources"
_USDT_MAPS = "__bpf_usdt"  # libbpf's own, filled anew for each object
_OWN_RING_SIZE = 64 * 1024  # of the probes that have no configuration


def object_path(probe: Probe) -> Path:
    """Where a probe's compiled object lies."""
    return OBJECTS / f"{probe.name}.bpf.o"


def choose(
    programs: tuple[Program, ...], present: dict[str, bool], *, accounts: bool
) -> tuple[list[Program], list[Program]]:
    """The programs to load, and those the kernel has no tracepoint for.

    A program that stands in for another is loaded only where that one cannot be, and is not missed elsewhere.
    Nor is one of a module that is not loaded: no machine has every driver.

    Args:
        programs: of a probe.
        present: which tracepoints there are.
        accounts: the scheduler's accounts of threads can be read.
    """
    usable = {
        program.name
        for program in programs
        if present[program.tracepoint] and (accounts or not program.by_accounts)
    }
    chosen = [
        program for program in programs if program.name in usable and program.stands_in_for not in usable
    ]
    taken = {program.name for program in chosen}
    replaced = {program.stands_in_for for program in chosen}
    missing = [
        program
        for program in programs
        if program.name not in taken
        and program.stands_in_for not in usable
        and program.name not in replaced
        and not program.module
    ]
    return chosen, missing


class NotHereError(BridgeError):
    """What an optional probe hangs on is not in this kernel."""


def attach(obj: Object | BccObject, path: str, uprobe: Uprobe) -> Link | Descriptors:
    """Attach one program to one place in a file.

    Raises:
        LibbpfError: refused, or the place is not there (errno ENOENT).
    """
    if uprobe.usdt is not None:
        return obj.attach_usdt(uprobe.program, path, *uprobe.usdt, cookie=uprobe.cookie)
    return obj.attach_uprobe(
        uprobe.program,
        path,
        symbol=uprobe.symbol,
        offset=uprobe.offset,
        at_return=uprobe.at_return,
        cookie=uprobe.cookie,
    )


class Called:
    """A program that another one calls, until `close`.

    Args:
        place: the map that the other one looks in.
        fd: of the program.

    Raises:
        LibbpfError: refused.
    """

    def __init__(self, place: Map, fd: int) -> None:
        self._place = place
        place.set(0, fd)

    def close(self) -> None:
        """Have it called no more."""
        self._place.discard(0)


@dataclass(slots=True, eq=False)
class AttachedFile:
    """A file whose functions a probe's programs hang on.

    Attributes:
        fd: keeps the file, also when its path, its container or its process is gone.
        uprobes: the functions.
        links: what is attached now.
    """

    fd: int
    uprobes: tuple[Uprobe, ...]
    links: list[Link | Descriptors] = field(default_factory=list)

    def attach(self, obj: Object | BccObject) -> None:
        """Attach an object's programs.

        Raises:
            LibbpfError: refused; nothing stays attached.
        """
        path = f"/proc/self/fd/{self.fd}"
        try:
            for uprobe in self.uprobes:
                self._attach_one(obj, path, uprobe)
        except LibbpfError:
            self.detach()
            raise

    def _attach_one(self, obj: Object | BccObject, path: str, uprobe: Uprobe) -> None:
        try:
            link = attach(obj, path, uprobe)
        except LibbpfError as error:
            if uprobe.required or error.errno != errno.ENOENT:
                raise
        else:
            self.links.append(link)

    def detach(self) -> None:
        """Detach."""
        _detach_all([self])


def _detach_all(files: Sequence[AttachedFile]) -> None:
    """Detach from many files, in the time of one where the kernel lets them."""
    uprobe_multi.close_all(link for file in files for link in file.links)
    for file in files:
        file.links.clear()


@dataclass(slots=True)
class LoadedProbe:
    """A probe at work.

    Attributes:
        probe: which.
        programs: on tracepoints and attached.
        missing: programs that this kernel has no tracepoint for.
        ring: its events; None when it has none.
        ring_fd: readable when there are events; -1 without a ring.
        sums: its sums per span; None when it has none.
        counters: what it counts about itself, per CPU.
        callers: where those of its programs are put that another probe's call, by their name.
    """

    probe: Probe
    object: Object | BccObject
    programs: list[Program]
    missing: list[Program]
    counters: Map
    ring: Ring | None = None
    ring_fd: int = -1
    sums: SumTables | None = None
    callers: Mapping[str, Map] = field(default_factory=dict)
    links: list[Link | Descriptors | Called] = field(default_factory=list)

    def attach(self) -> None:
        """Attach to the tracepoints, or to what is called there.

        Raises:
            LibbpfError: refused; nothing stays attached.
        """
        try:
            for program in self.programs:
                self.links.append(self._attach(program.name))
        except LibbpfError:
            self.detach()
            raise

    def _attach(self, program: str) -> Link | Descriptors | Called:
        place = self.callers.get(program)
        if place is None:
            return self.object.attach(program)
        return Called(place, self.object.program_fd(program))

    def detach(self) -> None:
        """Detach from the tracepoints."""
        for link in self.links:
            link.close()
        self.links.clear()

    def costs(self) -> dict[str, tuple[int, int]]:
        """Nanoseconds and runs of each program while run statistics are enabled."""
        left_out = {program.name for program in self.probe.programs} - {p.name for p in self.programs}
        names = set(self.object.programs) - left_out
        return {name: run_statistics(self.object.program_fd(name)) for name in sorted(names)}


class Loader:
    """Holds the loaded probes.

    Maps outlive the objects they came with: a probe that is loaded again goes on with its ring buffer, its
    counters and what it was following.

    Attributes:
        config: what the next probe is loaded with.
        cpus: how many values a per-CPU counter has.
        loaded: the probes at work, by name.
    """

    def __init__(self, library: Library, backend: Backend, config: KernelConfig) -> None:
        self._library = library
        self._backend = backend
        self.config = config
        self.cpus = library.possible_cpus
        self._kept: dict[tuple[str, str], int] = {}
        self._files: dict[str, list[AttachedFile]] = {}
        self._asks_obi = False
        self._processes: ProcessTable | None = None
        self.loaded: dict[str, LoadedProbe] = {}

    @property
    def processes(self) -> ProcessTable:
        """What the programs know of processes.

        Raises:
            BridgeError: no probe is loaded.
        """
        if self._processes is None:
            processes, layouts = (self._kept.get(("", name)) for name in ("processes", "layouts"))
            if processes is None or layouts is None:
                raise BridgeError("no probe is loaded that follows processes")
            write = Map(self._library, layouts, U4, THREAD_LAYOUT).set
            self._processes = ProcessTable(memory_of(processes, np.dtype(np.uint8), PROCESSES), write)
        return self._processes

    def use_obi_table(self, fd: int) -> None:
        """Ask OBI's table (`obi_table.open_table`) as well, in all probes that are loaded from now on."""
        self._kept["", "shared_contexts"] = fd
        self._asks_obi = True

    def load(self, probe: Probe) -> LoadedProbe:
        """Load a probe and attach it to its tracepoints.

        Raises:
            NotHereError: it is not needed here.
            BridgeError: this kernel, or these privileges, do not do.
        """
        loaded = self._make(probe)
        try:
            loaded.attach()
        except LibbpfError:
            loaded.object.close()
            raise
        self.loaded[probe.name] = loaded
        return loaded

    def _make(self, probe: Probe) -> LoadedProbe:
        present = self._backend.tracepoints([program.tracepoint for program in probe.programs])
        accounts = any(program.by_accounts for program in probe.programs) and self._backend.accounts()
        programs, missing = choose(probe.programs, present, accounts=accounts)
        if probe.programs and not programs:
            if probe.optional:
                names = ", ".join(program.tracepoint for program in probe.programs)
                raise NotHereError(f"no {names}: {probe.optional}")
            raise BridgeError(
                f"probe {probe.name}: this kernel ({os.uname().release}) has none of its tracepoints; "
                + "; ".join(f"{program.tracepoint} needs {program.since}" for program in missing)
            )
        obj = self._backend.open(probe)
        try:
            self._prepare(obj, probe, {program.name for program in programs})
            obj.load()
            self._keep(obj)
            return self._open(obj, probe, programs, missing)
        except BaseException:
            obj.close()
            raise

    def _prepare(self, obj: Object | BccObject, probe: Probe, programs: set[str]) -> None:
        known = {program.name for program in probe.programs}
        for name in obj.programs:
            if name in known and name not in programs:
                obj.leave_out(name)
        settings = self.config.probes
        own = probe.config_of(settings)
        values = probe.constants(settings)
        if values is not None:
            obj.set_constants(CONFIG_SECTION, values)
        if _SOURCES_SECTION in obj.maps:
            obj.set_constants(_SOURCES_SECTION, constants(CONTEXT_SOURCES, {"shared_table": self._asks_obi}))
        sizes: dict[str, int] = {}
        if probe.record is not None:
            ring = own if isinstance(own, ProbeConfig) else None
            sizes["events"] = ring.ring_size if ring else _OWN_RING_SIZE
            limit = ring.events_per_second if ring else 0
            obj.set_constants(".rodata.limit", constants(RATE_LIMIT, {"events_per_second": limit}))
        if probe.sums is not None:
            room = self._sum_room(probe.sums)
            sizes |= {"sums_a": room, "sums_b": room}
        for name in obj.maps:
            if name in sizes:
                obj.set_max_entries(name, sizes[name])
            kept = self._kept.get(self._place(obj, name))
            if kept is not None:
                obj.share(name, kept)

    @staticmethod
    def _place(obj: Object | BccObject, name: str) -> tuple[str, str]:
        return ("" if name in SHARED else obj.name, name)

    def _keep(self, obj: Object | BccObject) -> None:
        for name in obj.maps:
            place = self._place(obj, name)
            if not name.startswith((".", _USDT_MAPS)) and place not in self._kept:
                self._kept[place] = os.dup(obj.map_fd(name))

    def _fd(self, obj: Object | BccObject, name: str) -> int:
        return self._kept[self._place(obj, name)]

    def _open(
        self, obj: Object | BccObject, probe: Probe, programs: list[Program], missing: list[Program]
    ) -> LoadedProbe:
        counters = Map(self._library, self._fd(obj, "counters"), U4, U8)
        loaded = LoadedProbe(probe, obj, programs, missing, counters, callers=self._callers(programs))
        before = self.loaded.get(probe.name)
        if probe.record is not None:
            loaded.ring_fd = self._fd(obj, "events")
            loaded.ring = (
                before.ring
                if before
                else Ring(RingMemory.of_map(loaded.ring_fd, obj.max_entries("events")), probe.record)
            )
        if probe.sums is not None:
            loaded.sums = before.sums if before else self._sum_tables(obj, probe.sums)
        return loaded

    def _callers(self, programs: list[Program]) -> dict[str, Map]:
        if self.config.run_statistics:
            return {}  # the kernel counts what a program calls as its own
        return {
            program.name: Map(self._library, self._kept[program.called_by, f"call_{program.name}"], U4, U4)
            for program in programs
            if program.called_by in self.loaded
        }

    def _sum_room(self, sums: Sums) -> int:
        if sums.row is None:
            return self.config.max_spans
        # The head's lot, and what each CPU may leave of its last one.
        return self.config.max_spans + ROWS_A_LOT * (1 + self.cpus)

    def _sum_tables(self, obj: Object | BccObject, sums: Sums) -> SumTables:
        names = ("sums_a", "sums_b")
        key, value = (sums.key, sums.value) if sums.row is None else (U4, sums.row)
        for name in names:
            obj.map(name, key, value)  # raises when sizes differ
        slot = Map(self._library, self._fd(obj, "sums"), U4, U4)
        room = obj.max_entries("sums_a")
        first, second = (self._fd(obj, name) for name in names)
        if sums.row is None:
            tables = (Map(self._library, first, key, value), Map(self._library, second, key, value))
            return HashTables(slot, tables, room)
        memories = (memory_of(first, sums.row, room), memory_of(second, sums.row, room))
        return RowTables(slot, (first, second), memories)

    def attach_file(self, name: str, path: str, uprobes: tuple[Uprobe, ...]) -> AttachedFile:
        """Attach a loaded probe's programs to functions of a file, in every process that maps it.

        Args:
            name: of the probe.
            path: of the file, as this process sees it; needed only now.
            uprobes: the functions.

        Raises:
            OSError: the file is gone.
            LibbpfError: refused, or a required function is not in it; nothing stays attached.
        """
        file = AttachedFile(os.open(path, os.O_PATH | os.O_CLOEXEC), uprobes)
        try:
            file.attach(self.loaded[name].object)
        except LibbpfError:
            os.close(file.fd)
            raise
        self._files.setdefault(name, []).append(file)
        return file

    def detach_file(self, name: str, file: AttachedFile) -> None:
        """Detach from a file; harmless when the probe was unloaded meanwhile."""
        files = self._files.get(name, [])
        if file in files:
            files.remove(file)
            file.detach()
            os.close(file.fd)

    def covered(self, name: str) -> int:
        """How many files a probe's programs hang on."""
        return len(self._files.get(name, []))

    def map(self, probe: str, name: str, key: Dtype, value: Dtype) -> Map:
        """A map of a loaded probe.

        Raises:
            LibbpfError: it has no such map, or of another size.
        """
        return self.loaded[probe].object.map(name, key, value)

    def unload(self, name: str, *, last: Callable[[LoadedProbe], None] = lambda _: None) -> None:
        """Detach and give back a probe; its maps stay for when it is loaded again.

        What its programs called hangs on the tracepoints from then on, and misses what happens until it does
        (some milliseconds).

        Args:
            name: of the probe.
            last: takes what it left behind, when nothing is added any more.

        Raises:
            LibbpfError: what it called could not be attached; the probe is unloaded nevertheless.
        """
        loaded = self.loaded.get(name)
        if loaded is None:
            return
        loaded.detach()
        files = self._files.pop(name, [])
        _detach_all(files)
        for file in files:
            os.close(file.fd)
        last(loaded)
        del self.loaded[name]
        loaded.object.close()
        for other in self.loaded.values():
            if any(program.called_by == name for program in other.programs):
                other.detach()
                other.callers = self._callers(other.programs)
                other.attach()

    def reload(self, name: str, config: KernelConfig) -> LoadedProbe:
        """Swap one probe for itself under another configuration; the others are not touched.

        The new one is loaded and verified before the old one lets go, so this probe misses only what happens
        while it is attached again (some milliseconds). A ring buffer keeps the size that it began with.

        Raises:
            BridgeError: the new one was refused; the old one goes on.
        """
        before = self.loaded[name]
        previous, self.config = self.config, config
        try:
            after = self._make(before.probe)
            self._swap(before, after, self._files.get(name, []))
        except BaseException:
            self.config = previous
            raise
        self.loaded[name] = after
        before.object.close()
        return after

    @staticmethod
    def _swap(before: LoadedProbe, after: LoadedProbe, files: list[AttachedFile]) -> None:
        before.detach()
        _detach_all(files)
        try:
            after.attach()
            for file in files:
                file.attach(after.object)
        except LibbpfError:
            after.detach()
            before.attach()
            _detach_all(files)
            for file in files:
                file.attach(before.object)
            after.object.close()
            raise

    def count(self, name: str) -> NDArray[np.uint64]:
        """A probe's counters, shape (len(Counter), CPUs)."""
        counters = self.loaded[name].counters
        rows = [counters.get(int(which), cpus=self.cpus) for which in Counter]
        return np.stack([row if row is not None else np.zeros(self.cpus, "<u8") for row in rows])

    def detach(self) -> None:
        """Have no program run any more; what they left is still there."""
        for loaded in self.loaded.values():
            loaded.detach()
        _detach_all([file for files in self._files.values() for file in files])

    def close(self) -> None:
        """Unload everything."""
        for name in reversed(list(self.loaded)):
            self.unload(name)
        for fd in self._kept.values():
            os.close(fd)
        self._kept.clear()
        self._processes = None
