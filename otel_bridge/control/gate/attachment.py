"""One namespace's program: attached, or taken over from the bridge before, with its slots in our memory."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import numpy as np
import structlog

from otel_bridge.control.gate.records import ALL_PORTS, CONFIG, SLOT, SLOTS, U4
from otel_bridge.errors import BridgeError
from otel_bridge.libbpf import OBJECTS, uprobe_multi
from otel_bridge.libbpf.library import LibbpfError, Map

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from otel_bridge.control.gate.config import AllocationsConfig
    from otel_bridge.control.gate.namespaces import Namespace
    from otel_bridge.libbpf.core_object import Object
    from otel_bridge.libbpf.library import Library

log = structlog.get_logger(__name__)

LOOKUP, INGRESS, KILLS, ALLOCATIONS = "gate_lookup", "gate_ingress", "gate_mark_victim", "gate_allocation"
_PROGRAMS = (LOOKUP, INGRESS, KILLS, ALLOCATIONS)
_MAPS = ("gate_slots", "gate_ports")
_BPF_SK_LOOKUP = 36  # linux/bpf.h: enum bpf_attach_type
_BPF_CGROUP_INET_INGRESS = 0
_LINK_INFO = np.dtype(
    [
        ("type", "<u4"),
        ("id", "<u4"),
        ("program", "<u4"),
        ("_pad", "<u4"),
        ("place", "<u8"),
        ("rest", "<u8", 16),
    ]
)
_LINK_CGROUP, _LINK_NETNS = 3, 5  # enum bpf_link_type


class HeldError(BridgeError):
    """Another bridge has the gate."""


class Attachment:
    """The gate of one namespace.

    Args:
        library: libbpf.
        namespace: which.
        mechanism: "sk_lookup", "cgroup", or "auto".
        pins: a directory of bpffs that the gate is kept in; None: it ends with this process.
        also: what else is counted: KILLS, ALLOCATIONS.

    Raises:
        HeldError: another bridge has it.
        BridgeError: it cannot be attached.
        OSError: the namespace is gone.
    """

    def __init__(
        self,
        library: Library,
        namespace: Namespace,
        mechanism: str,
        pins: Path | None,
        also: Sequence[str] = (),
    ) -> None:
        self.namespace = namespace
        self._watched: set[tuple[str, str]] = set()
        self.others = 0
        self._library = library
        self._place = pins / f"netns-{namespace.inode}" if pins is not None else None
        self._numbers: dict[int, int] = {}
        self._claims: dict[int, str] = {}
        self._held = ExitStack()
        with ExitStack() as opened:
            if self._place is not None:
                self._lock(opened, self._place)
            # Held, it keeps the namespace, so that no other gets its inode meanwhile.
            fd = os.open(namespace.path, os.O_RDONLY | os.O_CLOEXEC)
            opened.callback(os.close, fd)
            if os.fstat(fd).st_ino != namespace.inode:
                raise FileNotFoundError(errno.ENOENT, "the namespace is gone", str(namespace.path))
            self.adopted = self._attach(opened, fd, mechanism, also)
            self._held = opened.pop_all()

    @staticmethod
    def _lock(opened: ExitStack, place: Path) -> None:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _lock(opened, place):
            raise HeldError(f"another bridge holds the gate at {place}; it is taken over when that one ends")

    def _attach(self, opened: ExitStack, fd: int, mechanism: str, also: Sequence[str]) -> bool:
        """Attach all; gives whether the gate was there before."""
        ways = {"auto": (LOOKUP, INGRESS), "sk_lookup": (LOOKUP,), "cgroup": (INGRESS,)}[mechanism]
        problems = []
        for way in ways:
            try:
                with ExitStack() as trying:
                    adopted = self._attach_as(trying, fd, way, also)
                    opened.enter_context(trying.pop_all())
            except (LibbpfError, BridgeError) as error:
                problems.append(str(error))
                continue
            self.mechanism = "sk_lookup" if way == LOOKUP else "cgroup"
            if problems:
                log.warning("a gate drops in silence instead of refusing", reason="; ".join(problems))
            return adopted
        if self._place is not None and not (self._place / "link").exists():
            self._forget_pins()
            self._place.rmdir()
        raise BridgeError("; ".join(problems))

    def _attach_as(self, opened: ExitStack, fd: int, way: str, also: Sequence[str]) -> bool:
        target = fd
        if way == INGRESS:
            if self.namespace.cgroup is None:
                raise BridgeError(
                    "the service has no control group (version 2) of its own to attach to; run it as a "
                    "systemd service or in a container"
                )
            target = os.open(self.namespace.cgroup, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            opened.callback(os.close, target)
        self._loaded = loaded = self._load(opened, (way, *also))
        adopted = self._link(opened, loaded, way, target)
        self._unpin("kills")
        self._unpin("allocations-*")
        if KILLS in also:
            self._watch_kills(opened, loaded)
        self._map(opened, loaded)
        if way == LOOKUP:
            self.others = self._count_lookups(fd) - 1
        return adopted

    def _load(self, opened: ExitStack, programs: Sequence[str]) -> Object:
        """Load the programs, over the maps that were left unless those are of another version."""
        kept = [self._pinned(name) for name in _MAPS]
        try:
            if None not in kept:
                try:
                    return self._load_over(opened, programs, kept)
                except LibbpfError as error:
                    log.warning("a gate of another version is replaced", reason=str(error))
                    self._forget_pins()
            return self._load_over(opened, programs, ())
        finally:
            for found in kept:
                if found is not None:
                    os.close(found)

    def _load_over(self, opened: ExitStack, programs: Sequence[str], kept: Sequence[int | None]) -> Object:
        loaded = uprobe_multi.open_object(self._library, OBJECTS / "gate.bpf.o")
        with ExitStack() as trying:
            trying.callback(loaded.close)
            for program in _PROGRAMS:
                if program not in programs:
                    loaded.leave_out(program)
            loaded.check_sizes("gate_slots", U4, SLOT)
            loaded.set_constants(".rodata.config", np.array([self.namespace.inode], CONFIG))
            for name, fd in zip(_MAPS, kept, strict=bool(kept)):
                assert fd is not None
                loaded.share(name, fd)
            loaded.load()
            if not kept:
                for name in _MAPS:
                    self._pin(loaded.map_fd(name), name)
            opened.enter_context(trying.pop_all())
        return loaded

    def _link(self, opened: ExitStack, loaded: Object, way: str, target: int) -> bool:
        """Attach the program, in place of the one that a bridge before left there."""
        program = loaded.program_fd(way)
        found = self._pinned("link")
        if found is not None:
            with ExitStack() as old:
                old.callback(os.close, found)
                if self._leads_to(found, way, target):
                    self._library.call("replace a gate", self._library.bpf_link_update, found, program, None)
                    opened.callback(os.close, found)
                    old.pop_all()
                    return True
            self._unpin("link")
        kind = _BPF_SK_LOOKUP if way == LOOKUP else _BPF_CGROUP_INET_INGRESS
        link = self._library.call(f"attach {way}", self._library.bpf_link_create, program, target, kind, None)
        opened.callback(os.close, link)
        self._pin(link, "link")
        return False

    def _leads_to(self, link: int, way: str, target: int) -> bool:
        info = _link_info(self._library, link)
        if way == LOOKUP:
            # The namespace's inode; 0 once it is gone.
            return (
                int(info["type"]) == _LINK_NETNS and int(info["place"]) & 0xFFFFFFFF == self.namespace.inode
            )
        # A control group's id is its inode.
        return int(info["type"]) == _LINK_CGROUP and int(info["place"]) == os.fstat(target).st_ino

    def _watch_kills(self, opened: ExitStack, loaded: Object) -> None:
        link = self._library.call(
            f"attach {KILLS}", self._library.bpf_raw_tracepoint_open, None, loaded.program_fd(KILLS)
        )
        opened.callback(os.close, link)
        self._pin(link, "kills")

    def watch_allocations(self, config: AllocationsConfig, files: Mapping[str, Path]) -> None:
        """Count failed allocations in some libraries, those that are counted already once only.

        Args:
            config: which functions.
            files: by what tells a file apart, and a path to it that holds now.

        Raises:
            LibbpfError: the kernel refuses.
            BridgeError: a file has none of the functions.
        """
        for mark, path in files.items():
            found = [function for function in config.functions if self._watch(config, mark, path, function)]
            if not found:
                raise BridgeError(
                    f"{path.name} has none of {', '.join(config.functions)}; set kills.allocations.functions"
                )

    def _watch(self, config: AllocationsConfig, mark: str, path: Path, function: str) -> bool:
        """Whether a library has a function, and its failures are counted."""
        if (mark, function) in self._watched:
            return True
        try:
            link = self._loaded.attach_uprobe(
                ALLOCATIONS, str(path), symbol=function, at_return=True, cookie=config.failed
            )
        except LibbpfError as error:
            if error.errno == errno.ENOENT:
                return False
            raise
        self._held.callback(link.close)
        self._pin(link.fd, f"allocations-{len(self._watched)}")
        self._watched.add((mark, function))
        log.info(
            "failed allocations are counted",
            namespace=self.namespace.inode,
            library=path.name,
            function=function,
        )
        return True

    def _map(self, opened: ExitStack, loaded: Object) -> None:
        self._ports = loaded.map("gate_ports", U4, U4)
        size = SLOTS * SLOT.itemsize
        memory = mmap.mmap(
            loaded.map_fd("gate_slots"), size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE
        )
        # The array keeps the mapping; it goes when nobody holds a slot any more.
        self._slots = np.frombuffer(memory, SLOT, SLOTS)
        self._numbers = {
            int(port): int(number[0])
            for port in self._ports.keys().tolist()
            if (number := self._ports.get(port)) is not None
        }
        opened.callback(self._numbers.clear)

    def _count_lookups(self, fd: int) -> int:
        count = ctypes.c_uint32(0)
        ids, flags = (ctypes.c_uint32 * 64)(), ctypes.c_uint32(0)
        count.value = len(ids)
        self._library.call(
            "ask for other programs",
            self._library.bpf_prog_query,
            fd,
            _BPF_SK_LOOKUP,
            0,
            ctypes.byref(flags),
            ids,
            ctypes.byref(count),
        )
        return count.value

    # Pins

    def _pinned(self, name: str) -> int | None:
        if self._place is None:
            return None
        try:
            path = os.fsencode(self._place / name)
            return self._library.call(f"open {name}", self._library.bpf_obj_get, path)
        except LibbpfError as error:
            if error.errno == errno.ENOENT:
                return None
            raise

    def _pin(self, fd: int, name: str) -> None:
        if self._place is not None:
            path = os.fsencode(self._place / name)
            self._library.call(f"pin {path.decode()}", self._library.bpf_obj_pin, fd, path)

    def _unpin(self, pattern: str) -> None:
        if self._place is not None:
            for pin in self._place.glob(pattern):
                pin.unlink(missing_ok=True)

    def _forget_pins(self) -> None:
        for name in ("link", "kills", "allocations-*", *_MAPS):
            self._unpin(name)

    # Slots

    def claim(self, ports: Sequence[int], owner: str) -> list[NDArray[np.void]]:
        """The slots of some ports (none: all others), each of shape (1,), in the kernel's memory.

        Raises:
            BridgeError: another gate has one of them, or there are too many.
        """
        rows = []
        for port in ports or (ALL_PORTS,):
            if (other := self._claims.get(port, owner)) != owner:
                where = f"port {port}" if port else "the whole namespace"
                raise BridgeError(f"{where} is guarded by gate {other} already: give each port to one gate")
            rows.append(self._number(port))
        for port in ports or (ALL_PORTS,):
            self._claims[port] = owner
        return [self._slots[number : number + 1] for number in rows]

    def _number(self, port: int) -> int:
        if (known := self._numbers.get(port)) is not None:
            return known
        free = set(range(SLOTS)) - set(self._numbers.values())
        if not free:
            raise BridgeError(f"more than {SLOTS} ports of one namespace")
        number = min(free)
        self._slots[number : number + 1].view("u1")[:] = 0
        self._ports.set(port, number)
        self._numbers[port] = number
        return number

    def drop_unclaimed(self) -> None:
        """Open what a bridge before had shut and nobody guards any more."""
        for port in [port for port in self._numbers if port not in self._claims]:
            number = self._numbers.pop(port)
            self._slots["until_ns"][number] = 0
            self._ports.discard(port)

    @property
    def shut(self) -> bool:
        """Whether a slot is."""
        return bool((self._slots["until_ns"] > time.monotonic_ns()).any())

    def close(self) -> None:
        """Leave it to the next bridge, as it is."""
        self._held.close()

    def remove(self) -> None:
        """Take it out of the kernel."""
        self._forget_pins()
        if self._place is not None:
            self._place.rmdir()
        self._held.close()


def _link_info(library: Library, link: int) -> np.void:
    """What the kernel says about a link."""
    info = np.zeros(1, _LINK_INFO)
    size = ctypes.c_uint32(_LINK_INFO.itemsize)
    library.call(
        "ask about a link", library.bpf_obj_get_info_by_fd, link, info.ctypes.data, ctypes.byref(size)
    )
    found: np.void = info[0]
    return found


def sweep(library: Library, pins: Path) -> None:
    """Take out what nobody holds, and whose namespace is gone or whose leases have all ended."""
    for place in pins.glob("netns-*"):
        # Another bridge may be taking it out as well.
        with ExitStack() as opened, suppress(FileNotFoundError):
            if _lock(opened, place) and not _in_use(library, place):
                for pin in place.iterdir():
                    pin.unlink()
                place.rmdir()
                log.info("a gate that nobody holds is taken out", place=str(place))


def _lock(opened: ExitStack, place: Path) -> bool:
    """Hold a gate until `opened` ends; False when somebody else does."""
    fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    opened.callback(os.close, fd)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _in_use(library: Library, place: Path) -> bool:
    with ExitStack() as opened:
        fds = []
        for name in ("link", "gate_slots"):
            try:
                fd = library.call(f"open {name}", library.bpf_obj_get, os.fsencode(place / name))
            except LibbpfError as error:
                if error.errno == errno.ENOENT:
                    return False
                raise
            opened.callback(os.close, fd)
            fds.append(fd)
        info = _link_info(library, fds[0])
        gone = not int(info["place"]) & (0xFFFFFFFF if info["type"] == _LINK_NETNS else -1)
        slots = Map(library, fds[1], U4, SLOT)
        now = time.monotonic_ns()
        leases = [slot["until_ns"][0] for number in range(SLOTS) if (slot := slots.get(number)) is not None]
        return not gone and any(until > now for until in leases)
