"""Names the functions of stacks, for the worst waits: bounded in number, in memory and in time.

The kernel hands over addresses: where in the kernel the thread waited, and where in its program. What the
latter are called is looked up in the symbol tables of the files that the process has mapped, in a thread of
its own, so that a table that is read for the first time holds up no ring buffer.

User stacks are walked by frame pointers: they end where a library was built without them. Frames of
interpreted code are those of the interpreter (`_PyEval_EvalFrameDefault`).
"""

from __future__ import annotations

import ctypes
import threading
from bisect import bisect_right
from collections import OrderedDict, deque
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import structlog

from otel_bridge.elf.file import ElfFile
from otel_bridge.elf.loaded import ElfError
from otel_bridge.events import KernelEvents
from otel_bridge.kernel.discovery import mapped_code
from otel_bridge.mounts import PROC

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from otel_bridge.contracts import Clock
    from otel_bridge.elf.file import SymbolTable
    from otel_bridge.kernel.discovery import MappedCode, MappedFile
    from otel_bridge.kernel.kernel_symbols import KernelSymbols
    from otel_bridge.kernel.thread_context import FileKey

log = structlog.get_logger(__name__)

STACKS_PER_SECOND = 50
"""Of more waits in a second, the shortest are handed on without their stack."""

TEXT_BYTES = 1536
"""Of a stack; frames that do not fit are left out, the outermost first."""

MAX_FILES = 64
"""Files whose symbols are kept; those used longest ago go first."""

MAX_TABLE_BYTES = 64 << 20
"""Of one symbol table; a larger one is not read."""

MAX_PROCESSES = 256
MAPS_AGE = 1.0
"""Seconds for which a process's mappings are believed."""

ADDRESSES, KERNEL_ADDRESSES, TEXT = "user_stack", "kernel_stack", "stack"
"""The fields that the kernel fills, and the one that takes their place."""

_FRAME_LENGTH = 160  # characters: names of C++ have no end
_Z_PREFIX = b"_Z"


class Functions:
    """The functions of a file, by address.

    Args:
        elf: an open file.

    Raises:
        ElfError: its tables lie outside it.
    """

    def __init__(self, elf: ElfFile) -> None:
        self._address_of = elf.segments.address_of
        self._tables: list[tuple[NDArray[np.void], SymbolTable]] = []
        for table in elf.tables(MAX_TABLE_BYTES):
            functions = table.functions()
            self._tables.append((functions[np.argsort(functions["value"], kind="stable")], table))

    def at(self, offset: int) -> str | None:
        """The function at an offset of the file, "name+0x1f"; None when it has no name."""
        address = self._address_of(offset)
        if address is None:
            return None
        for functions, table in self._tables:
            index = int(np.searchsorted(functions["value"], address, "right")) - 1
            if index < 0:
                continue
            start = int(functions["value"][index])
            if address - start >= max(int(functions["size"][index]), 1):
                continue
            first = int(np.searchsorted(functions["value"], start, "left"))
            names = (table.name(symbol) for symbol in functions[first : index + 1])
            return f"{demangled(min(names, key=_internal))}+{address - start:#x}"
        return None


def _internal(name: bytes) -> tuple[int, int]:
    """How much a name is the library's own affair: of poll and __poll people know the first."""
    return len(name) - len(name.lstrip(b"_")), len(name)


class _Mappings(NamedTuple):
    read_at: float
    starts: list[int]
    code: list[MappedCode]


class Symbolizer:
    """Names addresses in running processes.

    Args:
        clock: for the age of what is remembered.
        kernel: names the kernel's own.
        proc: where procfs is mounted.
    """

    def __init__(self, clock: Clock, kernel: KernelSymbols, proc: Path = PROC) -> None:
        self._clock = clock
        self._kernel = kernel
        self._proc = proc
        self._processes: OrderedDict[int, _Mappings] = OrderedDict()
        self._files: OrderedDict[FileKey, Functions | None] = OrderedDict()

    def text(self, pid: int, addresses: Sequence[int], in_kernel: Sequence[int] = ()) -> str:
        """A stack for people, innermost frame first, a frame a line: `clock_nanosleep+0x63 (libc.so.6)`.

        Args:
            pid: the process, as this process's pid namespace counts.
            addresses: innermost first; all but the first are where calls return to.
            in_kernel: the same of the kernel, which the program called or which interrupted it.
        """
        lines = self._kernel.frames(in_kernel) if in_kernel else []
        room = TEXT_BYTES - sum(len(line.encode()) + 1 for line in lines)
        for depth, address in enumerate(addresses):
            # A call may be the last instruction of its function: what it returns to is the next one's then.
            line = self._frame(pid, address - (depth > 0))
            room -= len((line or "").encode()) + 1
            # What lies in no code is no caller: a function used the frame pointer's register otherwise.
            if room < 0 or (depth and line is None):
                break
            lines.append(line or f"{address:#x}")
        return "\n".join(lines)

    def _frame(self, pid: int, address: int) -> str | None:
        """The function at an address; None when no code is mapped there."""
        mappings = self._mappings(pid)
        index = bisect_right(mappings.starts, address) - 1
        if index < 0 or address >= mappings.code[index].end:
            return None
        code = mappings.code[index]
        offset = address - code.start + code.offset
        functions = self._functions(code.file)
        name = functions.at(offset) if functions is not None else None
        frame = f"{name} ({code.file.name})" if name else f"{code.file.name}+{offset:#x}"
        return frame[:_FRAME_LENGTH]

    def _mappings(self, pid: int) -> _Mappings:
        known = self._processes.get(pid)
        now = self._clock.monotonic()
        if known is None or now - known.read_at > MAPS_AGE:
            code = list(mapped_code(pid, self._proc))
            known = self._processes[pid] = _Mappings(now, [piece.start for piece in code], code)
        self._processes.move_to_end(pid)
        if len(self._processes) > MAX_PROCESSES:
            self._processes.popitem(last=False)
        return known

    def _functions(self, file: MappedFile) -> Functions | None:
        if file.key not in self._files:
            self._files[file.key] = _read(file)
            if len(self._files) > MAX_FILES:
                self._files.popitem(last=False)
        self._files.move_to_end(file.key)
        return self._files[file.key]


def _read(file: MappedFile) -> Functions | None:
    try:
        with ElfFile(file.open_path) as elf:
            return Functions(elf)
    except (OSError, ElfError) as error:
        log.debug("a file's functions have no names", path=file.path, error=str(error))
        return None


@lru_cache(maxsize=4096)
def demangled(name: bytes) -> str:
    """A function's name as its author wrote it, where the C++ library is there to say so."""
    if not name.startswith(_Z_PREFIX):
        return name.decode(errors="replace")
    demangle = _demangler()
    found = demangle(name, None, None, ctypes.byref(ctypes.c_int())) if demangle is not None else None
    if not found:
        return name.decode(errors="replace")
    try:
        return (ctypes.cast(found, ctypes.c_char_p).value or name).decode(errors="replace")
    finally:
        _libc().free(ctypes.c_void_p(found))


@lru_cache(maxsize=1)
def _demangler() -> Any:
    """abi::__cxa_demangle, or None."""
    try:
        function = ctypes.CDLL("libstdc++.so.6")["__cxa_demangle"]
    except (OSError, AttributeError):
        return None
    function.restype = ctypes.c_void_p
    return function


@lru_cache(maxsize=1)
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


class StackNaming:
    """A thread between the reader and the bridge: events come without their addresses, the worst with names.

    Args:
        hand_on: takes the events; called in the reader's thread and in this one.
        clock: for the rate.
        symbolizer: names addresses.
    """

    def __init__(self, hand_on: Callable[[KernelEvents], None], clock: Clock, symbolizer: Symbolizer) -> None:
        self._hand_on = hand_on
        self._clock = clock
        self._symbolizer = symbolizer
        self._waiting: deque[KernelEvents] = deque()
        self._allowed = float(STACKS_PER_SECOND)
        self._allowed_at = clock.monotonic()
        self._ready = threading.Condition()
        self._busy = False
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="kernel-stacks", daemon=True)

    def take(self, events: KernelEvents) -> None:
        """Hand events on, those that get names a moment later."""
        chosen = self._choose(events.records)
        rest = events.records[~chosen]
        if len(rest):
            self._hand_on(KernelEvents(events.probe, _without_addresses(rest)))
        if chosen.any():
            with self._ready:
                self._waiting.append(KernelEvents(events.probe, events.records[chosen]))
                self._ready.notify_all()

    def _choose(self, records: NDArray[np.void]) -> NDArray[np.bool_]:
        """The longest of those that have a stack, as many as the rate allows now."""
        now = self._clock.monotonic()
        self._allowed = min(STACKS_PER_SECOND, self._allowed + (now - self._allowed_at) * STACKS_PER_SECOND)
        self._allowed_at = now
        have = np.flatnonzero(records[ADDRESSES][:, 0] | records[KERNEL_ADDRESSES][:, 0])
        longest = have[np.argsort(records["duration"][have], kind="stable")[::-1]][: int(self._allowed)]
        self._allowed -= len(longest)
        chosen = np.zeros(len(records), np.bool_)
        chosen[longest] = True
        return chosen

    def settle(self, timeout: float) -> None:
        """Wait until all events taken so far were handed on, `timeout` seconds at the most."""
        with self._ready:
            self._ready.wait_for(lambda: not self._waiting and not self._busy, timeout)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Hand on what waits, then end."""
        with self._ready:
            self._stopping = True
            self._ready.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._ready:
                while not self._waiting and not self._stopping:
                    self._ready.wait()
                if not self._waiting:
                    return
                events = self._waiting.popleft()
                self._busy = True
            self._hand_on(KernelEvents(events.probe, self._named(events.records)))
            with self._ready:
                self._busy = False
                self._ready.notify_all()

    def _named(self, records: NDArray[np.void]) -> NDArray[np.void]:
        out = _without_addresses(records, (TEXT, f"S{TEXT_BYTES}"))
        stacks = zip(records[ADDRESSES].tolist(), records[KERNEL_ADDRESSES].tolist(), strict=True)
        for row, (pid, (user, kernel)) in enumerate(zip(records["tgid"].tolist(), stacks, strict=True)):
            out[TEXT][row] = self._symbolizer.text(pid, _frames(user), _frames(kernel)).encode()
        return out


def _frames(addresses: list[int]) -> list[int]:
    return addresses[: addresses.index(0)] if 0 in addresses else addresses


def _without_addresses(records: NDArray[np.void], *more: tuple[str, str]) -> NDArray[np.void]:
    kept = [field for field in records.dtype.descr if field[0] not in (ADDRESSES, KERNEL_ADDRESSES)]
    out = np.zeros(len(records), np.dtype([*kept, *more]))
    for name, *_ in kept:
        out[name] = records[name]
    return out
