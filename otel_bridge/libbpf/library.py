"""libbpf by ctypes: its functions, its errors, and BPF maps.

Only functions that take opaque pointers are called, so nothing here depends on the layout of a libbpf
structure, but for option structures, which carry their own size so that they may grow. Works with libbpf 1.0
and later.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import re
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from otel_bridge.errors import BridgeError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

_SONAME = "libbpf.so.1"
_KIND_STRUCT, _KIND_TYPEDEF = 4, 8  # linux/btf.h
_MEMBERS = 0xFFFF  # of btf_type.info: how many there are
_STATS_RUN_TIME = 0  # linux/bpf.h: BPF_STATS_RUN_TIME
_PTR, _INT, _U32, _SIZE, _TEXT = (
    ctypes.c_void_p,
    ctypes.c_int,
    ctypes.c_uint32,
    ctypes.c_size_t,
    ctypes.c_char_p,
)
_PRINT = ctypes.CFUNCTYPE(_INT, _INT, _TEXT, _PTR)


_PROTOTYPES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "libbpf_version_string": (_TEXT, ()),
    "libbpf_set_print": (_PTR, (_PRINT,)),
    "libbpf_num_possible_cpus": (_INT, ()),
    "bpf_object__open_file": (_PTR, (_TEXT, _PTR)),
    "bpf_object__load": (_INT, (_PTR,)),
    "bpf_object__close": (None, (_PTR,)),
    "bpf_object__find_map_by_name": (_PTR, (_PTR, _TEXT)),
    "bpf_object__next_map": (_PTR, (_PTR, _PTR)),
    "bpf_object__find_program_by_name": (_PTR, (_PTR, _TEXT)),
    "bpf_object__next_program": (_PTR, (_PTR, _PTR)),
    "bpf_map__name": (_TEXT, (_PTR,)),
    "bpf_map__type": (_INT, (_PTR,)),
    "bpf_map__map_flags": (_U32, (_PTR,)),
    "bpf_map__fd": (_INT, (_PTR,)),
    "bpf_map__reuse_fd": (_INT, (_PTR, _INT)),
    "bpf_map__key_size": (_U32, (_PTR,)),
    "bpf_map__value_size": (_U32, (_PTR,)),
    "bpf_map__max_entries": (_U32, (_PTR,)),
    "bpf_map__set_max_entries": (_INT, (_PTR, _U32)),
    "bpf_map__set_initial_value": (_INT, (_PTR, _TEXT, _SIZE)),
    "bpf_program__name": (_TEXT, (_PTR,)),
    "bpf_program__section_name": (_TEXT, (_PTR,)),
    "bpf_program__set_expected_attach_type": (_INT, (_PTR, _INT)),
    "bpf_program__set_autoload": (_INT, (_PTR, ctypes.c_bool)),
    "bpf_program__fd": (_INT, (_PTR,)),
    "bpf_program__attach": (_PTR, (_PTR,)),
    "bpf_program__attach_uprobe_opts": (_PTR, (_PTR, _INT, _TEXT, _SIZE, _PTR)),
    "bpf_program__attach_usdt": (_PTR, (_PTR, _INT, _TEXT, _TEXT, _TEXT, _PTR)),
    "bpf_link__destroy": (_INT, (_PTR,)),
    "bpf_link__fd": (_INT, (_PTR,)),
    "bpf_link_create": (_INT, (_INT, _INT, _INT, _PTR)),
    "bpf_link_update": (_INT, (_INT, _INT, _PTR)),
    "bpf_obj_pin": (_INT, (_INT, _TEXT)),
    "bpf_prog_query": (
        _INT,
        (_INT, _INT, _U32, ctypes.POINTER(_U32), ctypes.POINTER(_U32), ctypes.POINTER(_U32)),
    ),
    "bpf_map_create": (_INT, (_INT, _TEXT, _U32, _U32, _U32, _PTR)),
    "bpf_map_freeze": (_INT, (_INT,)),
    "bpf_prog_load": (_INT, (_INT, _TEXT, _TEXT, _PTR, _SIZE, _PTR)),
    "bpf_raw_tracepoint_open": (_INT, (_TEXT, _INT)),
    "bpf_map_lookup_elem": (_INT, (_INT, _PTR, _PTR)),
    "bpf_map_update_elem": (_INT, (_INT, _PTR, _PTR, ctypes.c_uint64)),
    "bpf_map_delete_elem": (_INT, (_INT, _PTR)),
    "bpf_map_get_next_key": (_INT, (_INT, _PTR, _PTR)),
    "bpf_map_lookup_and_delete_batch": (_INT, (_INT, _PTR, _PTR, _PTR, _PTR, ctypes.POINTER(_U32), _PTR)),
    "bpf_enable_stats": (_INT, (_INT,)),
    "bpf_obj_get": (_INT, (_TEXT,)),
    "bpf_obj_get_info_by_fd": (_INT, (_INT, _PTR, _PTR)),
    "btf__load_from_kernel_by_id": (_PTR, (_U32,)),
    "btf__type_by_id": (_PTR, (_PTR, _U32)),
    "btf__resolve_type": (_INT, (_PTR, _U32)),
    "btf__resolve_size": (ctypes.c_int64, (_PTR, _U32)),
    "btf__name_by_offset": (_TEXT, (_PTR, _U32)),
    "btf__load_vmlinux_btf": (_PTR, ()),
    "btf__find_by_name_kind": (ctypes.c_int32, (_PTR, _TEXT, _U32)),
    "btf__free": (None, (_PTR,)),
}


class LibbpfError(BridgeError):
    """A call into libbpf or the kernel failed.

    Attributes:
        errno: what the kernel said, positive; 0 when it is not known.
        log: libbpf's own words, the verifier's log included.
    """

    def __init__(self, action: str, number: int, log: str = "") -> None:
        self.errno = number
        self.log = log
        name = errno.errorcode.get(number, str(number))
        cause = _cause(log)
        super().__init__(f"{action}: {os.strerror(number)} ({name})" + (f"; {cause}" if cause else ""))


def _cause(log: str) -> str:
    """The line of a verifier log, or of libbpf's own words, that says what is wrong."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    before_end = [
        line
        for line in lines
        if not re.match(r"libbpf: (prog|failed|-- END)|-- (BEGIN|END)|processed \d+ insns|\d+: |;", line)
    ]
    return (before_end or lines or [""])[-1][:300]


class _Messages(threading.local):
    """libbpf speaks in the thread that called it: no lock, so loading a probe holds up no reader."""

    def __init__(self) -> None:
        self.said: list[str] = []


_messages = _Messages()
_vsnprintf = ctypes.CDLL(None).vsnprintf
_vsnprintf.argtypes = (_PTR, _SIZE, _TEXT, _PTR)


def _keep_message(level: int, template: bytes, arguments: int) -> int:
    if level == 0:  # LIBBPF_WARN; the others tell what went well
        text = ctypes.create_string_buffer(1 << 16)
        _vsnprintf(text, len(text), template, arguments)
        _messages.said.append(text.value.decode(errors="replace"))
    return 0


_print = _PRINT(_keep_message)
"""Lives as long as the process: libbpf keeps one pointer, whichever `Library` calls it."""


class Library:
    """The loaded libbpf, its messages captured instead of printed.

    Raises:
        LibbpfError: libbpf is not installed, or lacks a function that is needed.
    """

    def __init__(self, name: str = _SONAME) -> None:
        try:
            self._lib = ctypes.CDLL(name, use_errno=True)
            for function, (result, arguments) in _PROTOTYPES.items():
                pointer = getattr(self._lib, function)
                pointer.restype, pointer.argtypes = result, arguments
        except (OSError, AttributeError) as error:
            raise LibbpfError(
                f"{name} (libbpf 1.0 or later) cannot be used: {error}; "
                "mend with: apt-get install libbpf1 (Fedora: dnf install libbpf)",
                errno.ENOENT,
            ) from error
        self._lib.libbpf_set_print(_print)

    @contextmanager
    def _captured(self) -> Iterator[list[str]]:
        _messages.said = []
        yield _messages.said

    @property
    def version(self) -> str:
        """As libbpf says it, "v1.1"."""
        text: bytes = self._lib.libbpf_version_string()
        return text.decode()

    @property
    def possible_cpus(self) -> int:
        """How many values an element of a per-CPU map has."""
        return self.call("count CPUs", self._lib.libbpf_num_possible_cpus)

    def call(self, action: str, function: Any, *arguments: Any) -> int:
        """Call a function that answers a negative errno when it fails.

        Raises:
            LibbpfError: it failed.
        """
        with self._captured() as messages:
            ctypes.set_errno(0)
            result: int = function(*arguments)
            if result < 0:
                raise LibbpfError(action, ctypes.get_errno() or -result, "".join(messages))
        return result

    def pointer(self, action: str, function: Any, *arguments: Any) -> int:
        """Call a function that answers NULL when it fails.

        Raises:
            LibbpfError: it failed.
        """
        with self._captured() as messages:
            ctypes.set_errno(0)
            result: int | None = function(*arguments)
            if not result:
                raise LibbpfError(action, ctypes.get_errno(), "".join(messages))
        return result

    def __getattr__(self, name: str) -> Any:
        """A raw function of libbpf, with its prototype set."""
        if name not in _PROTOTYPES:
            raise AttributeError(name)
        return getattr(self._lib, name)

    def kernel_tracepoints(self, names: Sequence[str]) -> dict[str, bool]:
        """Which raw tracepoints the running kernel has, told from its BTF.

        Raises:
            LibbpfError: the kernel has no BTF.
        """
        with self._kernel_btf() as btf:
            return {
                name: self.btf__find_by_name_kind(btf, f"btf_trace_{name}".encode(), _KIND_TYPEDEF) > 0
                for name in names
            }

    def kernel_members(self, structure: str) -> frozenset[str]:
        """The named members of one of the running kernel's structures, told from its BTF; none without it.

        Raises:
            LibbpfError: the kernel has no BTF.
        """
        with self._kernel_btf() as btf:
            number = self.btf__find_by_name_kind(btf, structure.encode(), _KIND_STRUCT)
            if number <= 0:
                return frozenset()
            # struct btf_type and the struct btf_member that follow it, three words each (linux/btf.h).
            words = ctypes.cast(self.btf__type_by_id(btf, number), ctypes.POINTER(_U32))
            names = (words[3 * place] for place in range(1, 1 + (words[1] & _MEMBERS)))
            return frozenset(self.btf__name_by_offset(btf, name).decode() for name in names if name)

    @contextmanager
    def _kernel_btf(self) -> Iterator[int]:
        btf = self.pointer("read the kernel's BTF", self.btf__load_vmlinux_btf)
        try:
            yield btf
        finally:
            self.btf__free(btf)

    def enable_stats(self) -> int:
        """Have the kernel count and time program runs while the returned descriptor is open.

        Raises:
            LibbpfError: refused.
        """
        return self.call("enable BPF run statistics", self.bpf_enable_stats, _STATS_RUN_TIME)


class Map:
    """A BPF map, by file descriptor.

    Args:
        library: libbpf.
        fd: the map's descriptor, kept open by whoever gave it.
        key: the key's dtype.
        value: the value's dtype, of one CPU for per-CPU maps.
    """

    def __init__(self, library: Library, fd: int, key: np.dtype[Any], value: np.dtype[Any]) -> None:
        self._library = library
        self.fd = fd
        self._key = key
        self._value = value

    def get(self, key: Any, *, cpus: int = 1) -> NDArray[Any] | None:
        """The value of a key, shape (cpus,); None when there is none.

        Raises:
            LibbpfError: the kernel refused.
        """
        raw_key = np.array([key], self._key)
        # Per-CPU values are handed over in steps of eight bytes; single values need no rounding.
        stride = self._value.itemsize if cpus == 1 else -(-self._value.itemsize // 8) * 8
        out = np.zeros((cpus, stride), "u1")
        try:
            self._library.call(
                "read a map",
                self._library.bpf_map_lookup_elem,
                self.fd,
                raw_key.ctypes.data,
                out.ctypes.data,
            )
        except LibbpfError as error:
            if error.errno == errno.ENOENT:
                return None
            raise
        return np.ascontiguousarray(out[:, : self._value.itemsize]).view(self._value).reshape(cpus)

    def set(self, key: Any, value: Any) -> None:
        """Write the value of a key.

        Raises:
            LibbpfError: the map is full, or the kernel refused.
        """
        raw_key, raw_value = np.array([key], self._key), np.array([value], self._value)
        self._library.call(
            "write a map",
            self._library.bpf_map_update_elem,
            self.fd,
            raw_key.ctypes.data,
            raw_value.ctypes.data,
            0,
        )

    def discard(self, key: Any) -> bool:
        """Remove a key; False when it was not there.

        Raises:
            LibbpfError: the kernel refused.
        """
        raw_key = np.array([key], self._key)
        try:
            self._library.call(
                "remove from a map", self._library.bpf_map_delete_elem, self.fd, raw_key.ctypes.data
            )
        except LibbpfError as error:
            if error.errno == errno.ENOENT:
                return False
            raise
        return True

    def keys(self) -> NDArray[Any]:
        """All keys; some may be missed or come twice while a program writes."""
        found: list[NDArray[Any]] = []
        previous: int | None = None
        while True:
            following = np.zeros(1, self._key)
            if self._library.bpf_map_get_next_key(self.fd, previous, following.ctypes.data):
                return np.concatenate(found) if found else np.zeros(0, self._key)
            found.append(following)
            previous = following.ctypes.data

    def take_all(self, room: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """All keys and values of a hash map, removed from it; `room` is the map's max_entries.

        Raises:
            LibbpfError: the kernel refused.
        """
        keys, values = np.zeros(room, self._key), np.zeros(room, self._value)
        # The cursor is as large as a key, and at least a u32.
        cursor = np.zeros(max(self._key.itemsize, 4), "u1")
        taken, first = 0, True
        while taken < room:
            count = ctypes.c_uint32(room - taken)
            result = self._library.bpf_map_lookup_and_delete_batch(
                self.fd,
                None if first else cursor.ctypes.data,
                cursor.ctypes.data,
                keys[taken:].ctypes.data,
                values[taken:].ctypes.data,
                ctypes.byref(count),
                None,
            )
            taken, first = taken + count.value, False
            if result == 0:
                continue
            if ctypes.get_errno() == errno.ENOENT:  # that was the last bucket
                break
            raise LibbpfError("empty a map", ctypes.get_errno())
        return keys[:taken].copy(), values[:taken].copy()


def memory_of(fd: int, dtype: np.dtype[Any], count: int) -> NDArray[Any]:
    """The elements of an array map that user space may have in its memory, shape (count,).

    They stay mapped as long as the array lives; programs read and write them meanwhile.

    Args:
        fd: of the map, needed only now.
        dtype: of an element; the kernel keeps each in whole words of eight bytes.
        count: the map's max_entries.

    Raises:
        BridgeError: refused.
    """
    try:
        memory = mmap.mmap(fd, dtype.itemsize * count, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    except OSError as error:
        # Its PermissionError would be taken for that of a process that may not be looked at.
        raise BridgeError(f"map a BPF array of {count} elements: {error}") from error
    return np.frombuffer(memory, dtype)


def run_statistics(fd: int) -> tuple[int, int]:
    """How long (nanoseconds) and how often a loaded program ran while statistics were enabled."""
    fields = dict(
        line.split(":\t", 1)
        for line in Path(f"/proc/self/fdinfo/{fd}").read_text().splitlines()
        if ":\t" in line
    )
    return int(fields.get("run_time_ns", 0)), int(fields.get("run_cnt", 0))
