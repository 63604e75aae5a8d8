"""Attaching a program to a place in a file, without an object that libbpf knows.

The kernel's interface for that is a perf event of the kind "uprobe" (perf_event_open(2)).
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING

from otel_bridge.elf.file import ElfFile
from otel_bridge.elf.loaded import ElfError
from otel_bridge.libbpf.library import LibbpfError
from otel_bridge.libbpf.system_calls import PERF_ATTRIBUTES, perf_event_open

if TYPE_CHECKING:
    from otel_bridge.libbpf.library import Library

_PMU = Path("/sys/bus/event_source/devices/uprobe")
_IOC_ENABLE, _IOC_SET_BPF = 0x2400, 0x40042408
_ATTACH_PERF_EVENT = 41  # linux/bpf.h: BPF_PERF_EVENT


class _LinkOptions(ctypes.Structure):
    """struct bpf_link_create_opts, as far as it is set."""

    _fields_ = (
        ("sz", ctypes.c_size_t),
        ("flags", ctypes.c_uint32),
        ("iter_info", ctypes.c_void_p),
        ("iter_info_len", ctypes.c_uint32),
        ("target_btf_id", ctypes.c_uint32),
        ("bpf_cookie", ctypes.c_uint64),
    )


class Descriptors:
    """A program attached somewhere for as long as descriptors are open."""

    def __init__(self, *fds: int) -> None:
        self._fds = fds

    def close(self) -> None:
        """Detach."""
        fds, self._fds = self._fds, ()
        for fd in fds:
            os.close(fd)


def attach(
    library: Library, program: int, path: str, offset: int, *, at_return: bool, cookie: int
) -> Descriptors:
    """Attach to a place in a file, in every process that maps it.

    Args:
        library: libbpf.
        program: descriptor of a loaded program.
        path: of the file; needed now only, the kernel keeps the inode.
        offset: bytes from the file's start.
        at_return: when the function there returns, not when it is called.
        cookie: what the program is told about this place; other than 0 it needs Linux 5.15.

    Raises:
        LibbpfError: refused.
    """
    event = _open_event(path, offset, at_return=at_return)
    try:
        if not cookie:
            _control(event, _IOC_SET_BPF, program)
            _control(event, _IOC_ENABLE, 0)
            return Descriptors(event)
        options = _LinkOptions(sz=ctypes.sizeof(_LinkOptions), bpf_cookie=cookie)
        link = library.call(
            f"attach to {path}+{offset:#x}",
            library.bpf_link_create,
            program,
            event,
            _ATTACH_PERF_EVENT,
            ctypes.addressof(options),
        )
    except BaseException:
        os.close(event)
        raise
    attached = Descriptors(link, event)
    try:
        _control(event, _IOC_ENABLE, 0)
    except BaseException:
        attached.close()
        raise
    return attached


def place_of(path: str, symbol: str, offset: int) -> int:
    """Where in a file a program is attached, bytes from its start.

    Args:
        path: of the file.
        symbol: a function; empty: none.
        offset: bytes from the function's first instruction; without one, from the file's start.

    Raises:
        LibbpfError: it is not there (errno ENOENT), or the file cannot be read as ELF.
    """
    if not symbol:
        return offset
    try:
        with ElfFile(path) as file:
            place = file.offset_of(symbol.encode())
    except (OSError, ElfError) as error:
        raise LibbpfError(f"look for {symbol} in {path}", errno.EINVAL, str(error)) from error
    if place is None:
        raise LibbpfError(f"look for {symbol} in {path}", errno.ENOENT)
    return place + offset


def _control(event: int, request: int, argument: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ioctl(event, ctypes.c_ulong(request), ctypes.c_ulong(argument)):
        raise LibbpfError("attach a program to a perf event", ctypes.get_errno())


def _open_event(path: str, offset: int, *, at_return: bool) -> int:
    try:
        kind = int((_PMU / "type").read_text())
        bit = int((_PMU / "format" / "retprobe").read_text().partition(":")[2])
    except (OSError, ValueError):
        kind = bit = -1
    if kind < 0:
        raise LibbpfError(
            f"the kernel has no uprobes as perf events ({_PMU}, CONFIG_UPROBE_EVENTS)", errno.ENOSYS
        )
    name = ctypes.create_string_buffer(os.fsencode(path))
    attributes = bytearray(PERF_ATTRIBUTES)
    struct.pack_into("<IIQ", attributes, 0, kind, PERF_ATTRIBUTES, at_return << bit)
    struct.pack_into("<QQ", attributes, 56, ctypes.addressof(name), offset)
    try:
        return perf_event_open(attributes, 0)
    except OSError as error:
        raise LibbpfError(f"attach to {path}+{offset:#x}", error.errno or 0) from error
