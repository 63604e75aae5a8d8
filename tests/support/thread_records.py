"""Reads the span records of another process's threads as a BPF program would: each thread is stopped.

Nothing of the product but `locate` is used here, so a test that compares the two compares independent code.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pytest

from otel_bridge.kernel.thread_context import locate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_bridge.kernel.thread_context import ThreadContextLayout

PTRACE_DETACH = 17
PTRACE_SEIZE = 0x4206
PTRACE_INTERRUPT = 0x4207
PTRACE_GETREGS = 12
REGISTERS = 27  # struct user_regs_struct of x86-64, 8 bytes each
FS_BASE = 21
WAIT_ALL = 0x40000000  # __WALL: threads that are no children of ours

needs_x86_64 = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="reads fs_base by ptrace, which is x86-64's thread pointer"
)

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


@dataclass(frozen=True, slots=True)
class Published:
    """What a thread's record holds."""

    trace_id: int
    span_id: int
    flags: int


class ThreadReader:
    """Reads the records of a process that has the symbol."""

    def __init__(self, pid: int) -> None:
        layout = locate(pid)
        assert layout is not None, f"process {pid} has no otel_thread_ctx_v1"
        self.layout: ThreadContextLayout = layout
        self._pid = pid
        self._memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY)

    def close(self) -> None:
        os.close(self._memory)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def threads(self) -> list[int]:
        """Their tids."""
        return [int(task.name) for task in Path(f"/proc/{self._pid}/task").iterdir()]

    def all(self) -> dict[int, Published | None]:
        """Every thread's record, by tid; a thread that ends meanwhile is left out."""
        records = {}
        for tid in self.threads():
            try:
                records[tid] = self.of(tid)
            except ProcessLookupError:
                continue
        return records

    def of(self, tid: int) -> Published | None:
        """One thread's record, read while the thread is stopped."""
        with stopped(tid) as thread_pointer:
            address = self.record_address(thread_pointer)
            if address is None:
                return None
            trace_id, span_id, valid, flags, size = struct.unpack("<16s8sBBH", self.read(address, 28))
            assert size == 0
            if valid != 1:
                return None
            return Published(int.from_bytes(trace_id), int.from_bytes(span_id), flags)

    def record_address(self, thread_pointer: int) -> int | None:
        """Where the thread's record lies; None when it has none."""
        layout = self.layout
        variable = thread_pointer + layout.offset
        if layout.module:
            dtv = self._word(thread_pointer + layout.dtv_pointer)
            if layout.dtv_stride == 16 and self._word(dtv - 16) < layout.module:
                return None
            block = self._word(dtv + layout.module * layout.dtv_stride)
            if block in (0, (1 << 64) - 1):
                return None
            variable = block + layout.offset
        return self._word(variable) or None

    def read(self, address: int, size: int) -> bytes:
        return os.pread(self._memory, size, address)

    def _word(self, address: int) -> int:
        return struct.unpack("<Q", self.read(address, 8))[0]


@contextmanager
def stopped(tid: int) -> Iterator[int]:
    """A thread held still; gives its thread pointer."""
    _ptrace(PTRACE_SEIZE, tid)
    try:
        _ptrace(PTRACE_INTERRUPT, tid)
        try:
            os.waitpid(tid, WAIT_ALL)
        except ChildProcessError as error:
            raise ProcessLookupError(f"thread {tid} has ended") from error
        registers = (ctypes.c_ulonglong * REGISTERS)()
        _ptrace(PTRACE_GETREGS, tid, data=ctypes.addressof(registers))
        yield registers[FS_BASE]
    finally:
        _libc.ptrace(PTRACE_DETACH, tid, None, None)


def _ptrace(request: int, tid: int, data: int = 0) -> None:
    if _libc.ptrace(request, tid, None, ctypes.c_void_p(data)) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), f"ptrace({request:#x}) of thread {tid}")
