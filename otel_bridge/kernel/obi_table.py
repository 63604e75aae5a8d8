"""The table in which OpenTelemetry's eBPF instrumentation (OBI) keeps the span that each thread is at.

OBI pins it as `traces_ctx_v1` when it runs with `OTEL_EBPF_BPF_POPULATE_TRACE_CONTEXT=true`; its layout is
that of OTEP 4855: a thread (pid_tgid, u64) → trace_id[16], span_id[8]. It is somebody else's, so nothing
is believed of it that its own type information does not say.
"""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from otel_bridge.errors import BridgeError
from otel_bridge.kernel.records import SHARED_CONTEXT

if TYPE_CHECKING:
    from otel_bridge.libbpf.library import Library

_LRU_HASH = 9  # linux/bpf.h: BPF_MAP_TYPE_LRU_HASH
_KEY_BYTES = 8
_KIND_INT, _KIND_ARRAY, _KIND_STRUCT = 1, 3, 4  # linux/btf.h
_INFO = np.dtype(
    [
        ("type", "<u4"),
        ("id", "<u4"),
        ("key_size", "<u4"),
        ("value_size", "<u4"),
        ("max_entries", "<u4"),
        ("flags", "<u4"),
        ("name", "S16"),
        ("ifindex", "<u4"),
        ("kernel_value_type", "<u4"),
        ("device", "<u8"),
        ("inode", "<u8"),
        ("btf", "<u4"),
        ("key_type", "<u4"),
        ("value_type", "<u4"),
        ("_pad", "<u4"),
    ]
)
"""struct bpf_map_info (linux/bpf.h), as far as it is looked at."""

_WANTED = "a table of threads (u64) with trace_id[16] and span_id[8], as OTEP 4855 lays it out"


class _Type(ctypes.Structure):
    """struct btf_type (linux/btf.h)."""

    _fields_ = (("name", ctypes.c_uint32), ("info", ctypes.c_uint32), ("size", ctypes.c_uint32))


class _Member(ctypes.Structure):
    """struct btf_member (linux/btf.h); `offset` is in bits."""

    _fields_ = (("name", ctypes.c_uint32), ("type", ctypes.c_uint32), ("offset", ctypes.c_uint32))


def open_table(library: Library, path: str) -> int:
    """A descriptor of the table; the caller closes it.

    Raises:
        BridgeError: there is none, it may not be opened, or it is laid out otherwise.
    """
    try:
        fd = library.call(f"open {path}", library.bpf_obj_get, os.fsencode(path))
    except BridgeError as error:
        raise BridgeError(
            f"kernel.obi_table: {error}; start OBI first, with OTEL_EBPF_BPF_POPULATE_TRACE_CONTEXT=true"
        ) from error
    try:
        difference = _difference(library, fd)
    except BaseException:
        os.close(fd)
        raise
    if difference:
        os.close(fd)
        raise BridgeError(f"kernel.obi_table: {path} is {difference}; expected {_WANTED}")
    return fd


def _difference(library: Library, fd: int) -> str:
    """What the table is that it should not be; empty when it is as expected."""
    info = np.zeros(1, _INFO)
    size = ctypes.c_uint32(info.nbytes)
    library.call(
        "ask about the table",
        library.bpf_obj_get_info_by_fd,
        fd,
        info.ctypes.data,
        ctypes.addressof(size),
    )
    found = info[0]
    if found["type"] != _LRU_HASH:
        return f"a map of type {found['type']}, not an LRU hash ({_LRU_HASH})"
    sizes = int(found["key_size"]), int(found["value_size"])
    if sizes != (_KEY_BYTES, SHARED_CONTEXT.itemsize):
        return "a map with keys and values of {} and {} bytes".format(*sizes)
    if not found["btf"]:
        return "a map without type information"
    btf = library.pointer("read the table's types", library.btf__load_from_kernel_by_id, int(found["btf"]))
    try:
        return _wrong_types(library, btf, int(found["key_type"]), int(found["value_type"]))
    finally:
        library.btf__free(btf)


def _wrong_types(library: Library, btf: int, key: int, value: int) -> str:
    if _resolved(library, btf, key)[0] != _KIND_INT:
        return "a map whose keys are no numbers"
    kind, count, address = _resolved(library, btf, value)
    if kind != _KIND_STRUCT:
        return "a map whose values are no structure"
    members = (_Member * count).from_address(address + ctypes.sizeof(_Type))
    found = [_shown(library, btf, member) for member in members]
    wanted = [("trace_id", 0, 16), ("span_id", 128, 8)]
    if found != wanted:
        return "a map with values of " + ", ".join(f"{name}[{size}] at bit {at}" for name, at, size in found)
    return ""


def _resolved(library: Library, btf: int, number: int) -> tuple[int, int, int]:
    """A type behind its typedefs: its kind, how many members it has, and where it lies in memory."""
    number = library.call("follow a type", library.btf__resolve_type, btf, number)
    address = library.pointer("read a type", library.btf__type_by_id, btf, number)
    info: int = _Type.from_address(address).info
    return info >> 24 & 0x1F, info & 0xFFFF, address


def _shown(library: Library, btf: int, member: _Member) -> tuple[str, int, int]:
    """A member's name, its offset in bits, and its bytes; 0 bytes where it is no array."""
    is_array = _resolved(library, btf, member.type)[0] == _KIND_ARRAY
    size: int = library.btf__resolve_size(btf, member.type) if is_array else 0
    name: Any = library.btf__name_by_offset(btf, member.name)
    return name.decode(errors="replace"), member.offset, size
