"""Uprobes by links of their own kind (BPF_TRACE_UPROBE_MULTI, since Linux 6.6: 89ae89f53d20).

A uprobe that is a perf event is let go under a lock of all perf events, after a grace period of its own: a
tenth of a second each, one after another. A node that uses a dozen copies of OpenSSL has hundreds of them,
and the bridge, told to stop, would still be at it when it is killed. Links of this kind wait together, see
`close_all`. libbpf knows them since 1.3, but the kernel is asked directly: Debian 12 has 1.1.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING

from otel_bridge.libbpf.core_object import Link, Object
from otel_bridge.libbpf.library import LibbpfError
from otel_bridge.libbpf.system_calls import bpf
from otel_bridge.libbpf.uprobe import place_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from otel_bridge.libbpf.library import Library
    from otel_bridge.libbpf.uprobe import Descriptors

_PROGRAM_LOAD, _LINK_CREATE = 5, 28  # linux/bpf.h: enum bpf_cmd
_KPROBE = 2  # BPF_PROG_TYPE_KPROBE, which uprobes are of
_UPROBE_MULTI = 48  # BPF_TRACE_UPROBE_MULTI
_AT_RETURN = 1  # BPF_F_UPROBE_MULTI_RETURN
_ATTRIBUTES = 128  # bytes
_SECTIONS = ("uprobe", "uretprobe")
_AT_ONCE = 64
"""Links that wait for the kernel together."""

_RETURN_ZERO = struct.pack("<BBhiBBhi", 0xB7, 0, 0, 0, 0x95, 0, 0, 0)


class MultiLink(Link):
    """A link that the kernel gave, and libbpf does not know."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @property
    def fd(self) -> int:
        """Its descriptor; closed with the link."""
        return self._fd

    def close(self) -> None:
        """Detach."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class MultiObject(Object):
    """An object whose uprobes are attached by links of their own kind.

    Args:
        library: libbpf.
        path: of the compiled object.

    Raises:
        LibbpfError: the file is no BPF object.
    """

    def __init__(self, library: Library, path: Path) -> None:
        super().__init__(library, path)
        for name in self.programs:
            if self.section(name) in _SECTIONS:
                self.expect_attach_type(name, _UPROBE_MULTI)

    def attach_uprobe(
        self,
        program: str,
        path: str,
        *,
        symbol: str = "",
        offset: int = 0,
        at_return: bool = False,
        cookie: int = 0,
    ) -> MultiLink:
        """See `Object.attach_uprobe`."""
        place = place_of(path, symbol, offset)
        return _attach(self.program_fd(program), path, place, at_return=at_return, cookie=cookie)


def open_object(library: Library, path: Path) -> Object:
    """An object whose uprobes are attached by links of their own kind where the kernel has them.

    Raises:
        LibbpfError: the file is no BPF object.
    """
    kind = MultiObject if available() else Object
    return kind(library, path)


def close_all(links: Iterable[Link | Descriptors]) -> None:
    """Detach, side by side where that is faster.

    All others are closed one after another: the kernel makes them wait for each other anyway, and those of
    static tracepoints change what they share.
    """
    side_by_side = []
    for link in links:
        if isinstance(link, MultiLink):
            side_by_side.append(link)
        else:
            link.close()
    if not side_by_side:
        return
    with ThreadPoolExecutor(min(len(side_by_side), _AT_ONCE), "kernel-detach") as pool:
        for closed in [pool.submit(link.close) for link in side_by_side]:
            closed.result()


@cache
def available() -> bool:
    """Whether the running kernel has such links, and lets this process attach them."""
    try:
        program = _load_nothing()
    except LibbpfError:
        return False
    try:
        _attach(program, "/", 0, at_return=False, cookie=0)
    except LibbpfError as error:
        # A kernel that has them says that a directory is no file; another does not know what it is asked.
        return error.errno == errno.EBADF
    finally:
        os.close(program)
    return False


def _load_nothing() -> int:
    code = ctypes.create_string_buffer(_RETURN_ZERO, len(_RETURN_ZERO))
    terms = ctypes.create_string_buffer(b"GPL")
    attributes = bytearray(_ATTRIBUTES)
    struct.pack_into("<II", attributes, 0, _KPROBE, len(_RETURN_ZERO) // 8)
    struct.pack_into("<QQ", attributes, 8, ctypes.addressof(code), ctypes.addressof(terms))
    struct.pack_into("<I", attributes, 68, _UPROBE_MULTI)
    return _bpf(_PROGRAM_LOAD, attributes, "load a program for uprobes")


def _attach(program: int, path: str, place: int, *, at_return: bool, cookie: int) -> MultiLink:
    name = ctypes.create_string_buffer(os.fsencode(path))
    places, cookies = ctypes.c_uint64(place), ctypes.c_uint64(cookie)
    attributes = bytearray(_ATTRIBUTES)
    struct.pack_into("<IIII", attributes, 0, program, 0, _UPROBE_MULTI, 0)
    pointers = (ctypes.addressof(name), ctypes.addressof(places), 0, ctypes.addressof(cookies))
    struct.pack_into("<QQQQ", attributes, 16, *pointers)
    struct.pack_into("<II", attributes, 48, 1, _AT_RETURN if at_return else 0)
    return MultiLink(_bpf(_LINK_CREATE, attributes, f"attach to {path}+{place:#x}"))


def _bpf(command: int, attributes: bytearray, action: str) -> int:
    try:
        return bpf(command, attributes)
    except OSError as error:
        raise LibbpfError(action, error.errno or 0) from error
