"""A module with nothing in it but `otel_thread_ctx_v1`, made at run time where no C compiler made one.

Readers find the symbol in a module that the dynamic loader loaded, and the loader gives each thread its own.
A module is a file in a well-known format: this one is a page of headers, a symbol table with two thread-local
symbols, and the two relocations that tell readers the module's number (general-dynamic). It has no code.

Sources: the System V ABI, its AMD64 and AArch64 supplements, ELF Handling For Thread-Local Storage.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct

PAGE = 65_536  # the largest that AArch64 has
POINTER, RECORD = b"otel_thread_ctx_v1", b"otel_bridge_record"
RECORD_OFFSET, RECORD_SIZE = 16, 40

# Machine, and its relocations for a module's number and for an offset in its block.
MACHINES = {"x86_64": (62, 16, 17), "aarch64": (183, 1028, 1029)}

SEGMENT_LOAD, SEGMENT_DYNAMIC, SEGMENT_TLS, SEGMENT_STACK = 1, 2, 7, 0x6474E551
READ, WRITE = 4, 2
GLOBAL_TLS = 1 << 4 | 6


def load() -> ctypes.CDLL:
    """The module, loaded.

    Raises:
        OSError: this machine is not known, or the loader may not load it (a memfd that is not executable).
    """
    if platform.machine() not in MACHINES or ctypes.sizeof(ctypes.c_void_p) != 8:  # noqa: PLR2004 - bytes
        raise OSError(f"no thread-local module can be made for {platform.machine()}")
    file = os.memfd_create("otel_thread_ctx", os.MFD_CLOEXEC)
    try:
        os.write(file, image(*MACHINES[platform.machine()]))
        return ctypes.CDLL(f"/proc/self/fd/{file}")
    finally:
        os.close(file)


def image(machine: int, module_relocation: int, offset_relocation: int) -> bytes:
    """The file: a read-only page with all tables, then a page that the loader writes to."""
    strings = b"\0" + POINTER + b"\0" + RECORD + b"\0"
    symbols = bytes(24) + _symbol(1, 0, 8) + _symbol(2 + len(POINTER), RECORD_OFFSET, RECORD_SIZE)
    # One bucket, three chains: 1, then 2.
    hashes = struct.pack("<6I", 1, len(symbols) // 24, 1, 0, 2, 0)
    slot = PAGE
    relocations = b"".join(
        struct.pack("<QQq", slot + 8 * index, 1 << 32 | kind, 0)
        for index, kind in enumerate((module_relocation, offset_relocation))
    )

    headers_size = 64 + 5 * 56
    symbols_at = headers_size
    relocations_at = symbols_at + len(symbols)
    hashes_at = relocations_at + len(relocations)
    strings_at = hashes_at + len(hashes)
    dynamic_at = slot + 16
    dynamic = b"".join(
        struct.pack("<QQ", tag, value)
        for tag, value in (
            (4, hashes_at),  # DT_HASH
            (5, strings_at),  # DT_STRTAB
            (6, symbols_at),  # DT_SYMTAB
            (7, relocations_at),  # DT_RELA
            (8, len(relocations)),  # DT_RELASZ
            (9, 24),  # DT_RELAENT
            (10, len(strings)),  # DT_STRSZ
            (11, 24),  # DT_SYMENT
            (0, 0),
        )
    )
    end = dynamic_at + len(dynamic)
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 3, machine, 1, 0, 64, 0, 0, 64, 56, 5, 64, 0, 0
    )
    segments = (
        _segment(SEGMENT_LOAD, READ, 0, strings_at + len(strings), PAGE),
        _segment(SEGMENT_LOAD, READ | WRITE, slot, end - slot, PAGE),
        _segment(SEGMENT_DYNAMIC, READ | WRITE, dynamic_at, len(dynamic), 8),
        struct.pack("<IIQQQQQQ", SEGMENT_TLS, READ, end, end, end, 0, RECORD_OFFSET + RECORD_SIZE, 16),
        _segment(SEGMENT_STACK, READ | WRITE, 0, 0, 16),
    )
    tables = header + b"".join(segments) + symbols + relocations + hashes + strings
    return tables.ljust(PAGE, b"\0") + bytes(16) + dynamic


def _symbol(name: int, value: int, size: int) -> bytes:
    """A defined one: any section index but 0 says so, there being no sections."""
    return struct.pack("<IBBHQQ", name, GLOBAL_TLS, 0, 1, value, size)


def _segment(kind: int, flags: int, offset: int, size: int, alignment: int) -> bytes:
    return struct.pack("<IIQQQQQQ", kind, flags, offset, offset, offset, size, size, alignment)
