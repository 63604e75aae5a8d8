"""Where a running process keeps `otel_thread_ctx_v1`: found from outside, as OTEP 4947 asks of readers.

The symbol is a thread-local pointer to the record of the thread's active span. A BPF program needs the way to
that pointer from the thread pointer (`task->thread.fsbase` on x86-64, `task->thread.uw.tp_value` on arm64).
The dynamic loader chose the way when it loaded the module, and left its choice in the slot that the module's
own relocation names. Every step is read from the memory of the process, never from its files: what is parsed
is what is loaded, also in containers, after an upgrade of the file, and for a deleted one.

    layout = locate(pid)
    if layout is not None:
        processes[pid] = layout.offset, layout.module, layout.dtv_pointer, layout.dtv_stride

With `module == 0` the variable lies at thread pointer + `offset`. Otherwise the address of the DTV lies at
thread pointer + `dtv_pointer`, the module's block of this thread is the word at DTV + `module` * `dtv_stride`
(0 or all ones: this thread has not touched it, so it has no record), and the variable lies at block +
`offset`. With glibc (`dtv_stride` 16) the DTV of a thread may be too short for a module that was loaded
later: the word at DTV - 16 is the highest module it has an entry for.

Any writer is found, however it was built: TLS descriptors, general-dynamic, initial-exec, local-exec; with
glibc and with musl. Nothing in the process is trusted: a malformed ELF costs its own module only.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from otel_bridge.elf.loaded import ElfError, LoadedElf, Machine
from otel_bridge.elf.memory import ProcessMemory, UnreadableError
from otel_bridge.errors import BridgeError
from otel_bridge.mounts import PROC

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from otel_bridge.elf.memory import Mapping

SYMBOL = b"otel_thread_ctx_v1"
OUR_MODULE = "/otel_bridge/context/_record."

STT_TLS = 6
MAX_MODULES = 1 << 16
# Static thread-local blocks lie within this of the thread pointer; nothing sane comes near it.
MAX_STATIC_OFFSET = 1 << 30


class ThreadContextError(BridgeError):
    """The process has the symbol, but the way to it cannot be told; the text says why."""


class Access(Enum):
    """How a module reaches its variable, told by the kind of relocation (ELF Handling For TLS, Drepper)."""

    DESCRIPTOR = auto()
    GENERAL_DYNAMIC = auto()
    INITIAL_EXEC = auto()
    LOCAL_EXEC = auto()


ACCESS = {
    Machine.X86_64: {36: Access.DESCRIPTOR, 16: Access.GENERAL_DYNAMIC, 18: Access.INITIAL_EXEC},
    Machine.AARCH64: {1031: Access.DESCRIPTOR, 1028: Access.GENERAL_DYNAMIC, 1030: Access.INITIAL_EXEC},
}

# Bytes from the thread pointer to the address of the DTV: tcbhead_t of glibc, struct pthread of musl.
DTV_POINTER = {
    (Machine.X86_64, False): 8,
    (Machine.X86_64, True): 8,
    (Machine.AARCH64, False): 0,
    (Machine.AARCH64, True): -8,
}
# An entry is {block, to_free} in glibc, the block alone in musl.
DTV_STRIDE = {False: 16, True: 8}


@dataclass(frozen=True, slots=True)
class ThreadContextLayout:
    """The way from a thread pointer to the thread's `otel_thread_ctx_v1`, as the module's text explains.

    Attributes:
        offset: bytes from the thread pointer, or from the start of the module's block.
        module: the loader's number of the module that has the symbol; 0 when `offset` counts from the thread
            pointer.
        dtv_pointer: bytes from the thread pointer to the address of the DTV.
        dtv_stride: bytes of one entry of the DTV.
        path: the module, as /proc/PID/maps names it.
    """

    offset: int
    module: int
    dtv_pointer: int
    dtv_stride: int
    path: str

    @property
    def counts_changes(self) -> bool:
        """Whether a count of changes stands behind each record, odd while it is written: ours have."""
        return OUR_MODULE in self.path


@dataclass(frozen=True, slots=True)
class _Variable:
    """What an image says about the symbol: the same in every process that loads it.

    `slot` is the offset from the base at which the loader wrote its choice; `value` counts from the start of
    the module's thread-local block.
    """

    access: Access
    slot: int
    value: int


FileKey = tuple[str, int, str]


class Judgement(NamedTuple):
    """What was found out about some files.

    Attributes:
        carriers: have the symbol.
        unsettled: could not be read at this moment.
    """

    carriers: frozenset[FileKey]
    unsettled: frozenset[FileKey]


class ThreadContextLocator:
    """Finds the symbol in processes, and remembers which images have it: most processes share theirs.

    Args:
        remembered: how many images are kept in mind, 4 KiB each.
    """

    def __init__(self, remembered: int = 4096) -> None:
        self._variables: OrderedDict[bytes, _Variable | None] = OrderedDict()
        self._remembered = remembered

    def locate(self, pid: int, *, proc: Path = PROC) -> ThreadContextLayout | None:
        """The layout of a process, or None when nothing in it has the symbol (yet).

        Where several modules have it, ours is taken before others: a tracer's library carries the symbol also
        when nobody turned its publishing on.

        Args:
            pid: a process, numbered as in the pid namespace that `proc` belongs to.
            proc: where procfs is mounted.

        Raises:
            ProcessLookupError: the process is gone, or has no memory (a kernel thread, a zombie).
            PermissionError: its memory may not be read: that takes the same user, or CAP_SYS_PTRACE.
            ThreadContextError: the symbol is there, but no way to it was found.
        """
        found: list[ThreadContextLayout] = []
        problems: list[str] = []
        with ProcessMemory(pid, proc) as memory:
            musl = any(_is_musl(mapping.path) for mapping in memory.mappings)
            for mapping in memory.mappings:
                if not _may_be_module(mapping):
                    continue
                try:
                    elf = LoadedElf(memory, mapping)
                    variable = self._variable(elf)
                except (ElfError, UnreadableError):
                    continue  # a data file, or memory that is going away: no loader made a module of it
                if variable is None:
                    continue
                try:
                    found.append(_resolve(memory, elf, variable, mapping.path, musl=musl))
                except (ThreadContextError, UnreadableError) as error:
                    problems.append(f"{mapping.path}: {error}")
        if not found and problems:
            raise ThreadContextError(f"process {pid}: {'; '.join(problems)}")
        return min(found, key=lambda layout: not layout.counts_changes, default=None)

    def judge(self, pid: int, files: Collection[FileKey], *, proc: Path = PROC) -> Judgement:
        """Which of some files that a process has mapped have the symbol: the same in every process.

        Args:
            pid: a process, numbered as in the pid namespace that `proc` belongs to.
            files: device, inode and path, as /proc/PID/maps tells them.
            proc: where procfs is mounted.

        Raises:
            ProcessLookupError: the process is gone, or has no memory (a kernel thread, a zombie).
            PermissionError: its memory may not be read: that takes the same user, or CAP_SYS_PTRACE.
        """
        carriers: set[FileKey] = set()
        unsettled: set[FileKey] = set()
        with ProcessMemory(pid, proc) as memory:
            for mapping in memory.mappings:
                key = mapping.device, mapping.inode, mapping.path
                if key not in files or not _may_be_module(mapping):
                    continue
                try:
                    if self._variable(LoadedElf(memory, mapping)) is not None:
                        carriers.add(key)
                except ElfError:
                    continue
                except UnreadableError:  # being mapped, or going away, at this moment
                    unsettled.add(key)
        return Judgement(frozenset(carriers), frozenset(unsettled))

    def _variable(self, elf: LoadedElf) -> _Variable | None:
        if elf.identity in self._variables:
            self._variables.move_to_end(elf.identity)
            return self._variables[elf.identity]
        variable = _find(elf)
        self._variables[elf.identity] = variable
        if len(self._variables) > self._remembered:
            self._variables.popitem(last=False)
        return variable


shared = ThreadContextLocator()
"""For all callers in this process."""


def locate(pid: int, *, proc: Path = PROC) -> ThreadContextLayout | None:
    """`ThreadContextLocator.locate`, with one locator for all callers in this process."""
    return shared.locate(pid, proc=proc)


def _may_be_module(mapping: Mapping) -> bool:
    return mapping.offset == 0 and mapping.inode != 0 and mapping.permissions.startswith("r")


def _is_musl(path: str) -> bool:
    """By its own name (ld-musl-x86_64.so.1), or by its folder where another C library rules."""
    return any("musl" in part for part in PurePosixPath(path).parts[-2:])


def _find(elf: LoadedElf) -> _Variable | None:
    symbol = elf.symbol(SYMBOL)
    if symbol is None or symbol.type != STT_TLS:
        return None
    kinds = ACCESS[elf.machine]
    for relocation in elf.relocations():
        if relocation.symbol == symbol.index and relocation.type in kinds:
            return _Variable(kinds[relocation.type], relocation.offset, symbol.value)
    # Nothing left to the loader: the linker knew the place, which it can only in the main executable.
    return _Variable(Access.LOCAL_EXEC, 0, symbol.value)


def _resolve(
    memory: ProcessMemory, elf: LoadedElf, variable: _Variable, path: str, *, musl: bool
) -> ThreadContextLayout:
    module, offset = _place(memory, elf, variable)
    return ThreadContextLayout(
        offset=offset,
        module=module,
        dtv_pointer=DTV_POINTER[elf.machine, musl],
        dtv_stride=DTV_STRIDE[musl],
        path=path,
    )


def _place(memory: ProcessMemory, elf: LoadedElf, variable: _Variable) -> tuple[int, int]:
    """The module (0: none needed) and the offset."""
    if variable.access is Access.LOCAL_EXEC:
        return 0, _static(_local_exec_offset(elf, variable.value))
    slot = elf.base + variable.slot
    if variable.access is Access.INITIAL_EXEC:
        (offset,) = struct.unpack("<q", memory.read(slot, 8))
        return 0, _static(offset)
    if variable.access is Access.GENERAL_DYNAMIC:
        (module,) = struct.unpack("<Q", memory.read(slot, 8))
        return _module(module), variable.value
    resolver, argument = struct.unpack("<Qq", memory.read(slot, 16))
    code = memory.mapping_at(resolver)
    if code is None or "x" not in code.permissions:
        raise ThreadContextError("its TLS descriptor was not resolved by a loader")
    if memory.mapping_at(argument) is None:
        return 0, _static(argument)
    module, offset = struct.unpack("<2Q", memory.read(argument, 16))
    return _module(module), offset


def _local_exec_offset(elf: LoadedElf, value: int) -> int:
    segment = elf.tls
    if segment is None:
        raise ThreadContextError("it has the symbol but no thread-local segment")
    align = segment.alignment
    if elf.machine is Machine.X86_64:
        return value - (segment.size + align - 1) // align * align
    return value + (16 + align - 1) // align * align


def _static(offset: int) -> int:
    if not -MAX_STATIC_OFFSET < offset < MAX_STATIC_OFFSET:
        raise ThreadContextError(f"its slot holds {offset:#x}, which is no offset from a thread pointer")
    return offset


def _module(module: int) -> int:
    if not 0 < module < MAX_MODULES:
        raise ThreadContextError(f"its slot holds {module:#x}, which is no module number")
    return module
