"""A probe that BCC compiled: its maps made, its programs loaded and attached, without CO-RE.

Which maps and programs there are, and of what size, is told by the CO-RE object of the same source, which is
opened and never loaded: that asks nothing of the kernel.
"""

from __future__ import annotations

import ctypes
import errno
import os
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from otel_bridge.libbpf import uprobe
from otel_bridge.libbpf.core_object import MapShape, Object
from otel_bridge.libbpf.library import LibbpfError, Map

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from otel_bridge.libbpf.library import Library
    from otel_bridge.libbpf.uprobe import Descriptors

INSTRUCTION = np.dtype([("code", "u1"), ("registers", "u1"), ("offset", "<i2"), ("immediate", "<i4")])
"""struct bpf_insn; the upper half of `registers` is the source."""

MAP_NUMBERS = 0x7F000000  # bpf/common/bcc.bpf.h
_LOAD_64 = 0x18  # linux/bpf.h: BPF_LD | BPF_DW | BPF_IMM
_PSEUDO_MAP, _PSEUDO_MAP_VALUE = 1, 2

_ARRAY, _LRU_HASH, _ARRAY_OF_MAPS, _SK_STORAGE, _TASK_STORAGE = 2, 9, 12, 24, 29  # enum bpf_map_type
_RDONLY_PROG = 1 << 7
_KPROBE, _RAW_TRACEPOINT = 2, 17  # enum bpf_prog_type; uprobes are of the kind of kprobes
_LICENSE = b"Dual MIT/GPL"
_LOG_SIZE = 1 << 20

_INSTEAD_OF_STORAGE = {_SK_STORAGE: (16, 65536), _TASK_STORAGE: (8, 16384)}
"""Bytes of a key and room of the tables that stand in for storage with sockets and threads (bcc.bpf.h)."""

_CONSTANTS = ".rodata."


class _MapOptions(ctypes.Structure):
    """struct bpf_map_create_opts, as far as it is set."""

    _fields_ = (
        ("sz", ctypes.c_size_t),
        ("btf", ctypes.c_uint32 * 4),
        ("inner_map_fd", ctypes.c_uint32),
        ("map_flags", ctypes.c_uint32),
    )


class _ProgramOptions(ctypes.Structure):
    """struct bpf_prog_load_opts."""

    _fields_ = (
        ("sz", ctypes.c_size_t),
        ("attempts", ctypes.c_int),
        ("before_fds", ctypes.c_uint32 * 8),
        ("fd_array", ctypes.c_void_p),
        ("func_info", ctypes.c_void_p),
        ("func_info_sizes", ctypes.c_uint32 * 2),
        ("line_info", ctypes.c_void_p),
        ("line_info_sizes", ctypes.c_uint32 * 2),
        ("log_level", ctypes.c_uint32),
        ("log_size", ctypes.c_uint32),
        ("log_buf", ctypes.c_void_p),
    )


Compile: TypeAlias = "Callable[[str, list[str], Mapping[str, int]], Mapping[str, NDArray[np.void]]]"
"""From a probe's name, its programs and the numbers of its maps to the programs' instructions."""


def programs_of(obj: Object) -> list[str]:
    """The programs that BCC can compile: where a static tracepoint's arguments are, libbpf alone tells."""
    return [name for name in obj.programs if obj.section(name) != "usdt"]


def map_numbers(obj: Object) -> dict[str, int]:
    """The number of each map and of each structure of constants, by its name in the source."""
    names = [name.removeprefix(_CONSTANTS) for name in obj.maps]
    return {name: number for number, name in enumerate(sorted(names), 1) if not name.startswith((".", "__"))}


def resolve(code: NDArray[np.void], descriptors: Mapping[int, int]) -> NDArray[np.void]:
    """Instructions with each map's number replaced by its descriptor."""
    out = code.copy()
    source = out["registers"] >> 4
    loads = (out["code"] == _LOAD_64) & ((source == _PSEUDO_MAP) | (source == _PSEUDO_MAP_VALUE))
    for place in np.flatnonzero(loads):
        out["immediate"][place] = descriptors[int(out["immediate"][place]) - MAP_NUMBERS]
    return out


class BccObject:
    """See `core_object.Object`, which this can stand in for.

    Args:
        library: libbpf, whose calls into the kernel are used.
        path: the CO-RE object of the same source.
        compile_: compiles it.

    Raises:
        LibbpfError: the file is no BPF object.
    """

    def __init__(self, library: Library, path: Path, compile_: Compile) -> None:
        self._library = library
        self._plan = Object(library, path)
        self.name = self._plan.name
        self._compile = compile_
        self._numbers = map_numbers(self._plan)
        self._left_out: set[str] = set()
        self._sizes: dict[str, int] = {}
        self._constants: dict[str, bytes] = {}
        self._shared: dict[str, int] = {}
        self._maps: dict[str, int] = {}
        self._programs: dict[str, int] = {}

    @property
    def maps(self) -> list[str]:
        """The names of all maps, those of constants included."""
        return [name for name in self._plan.maps if name.removeprefix(_CONSTANTS) in self._numbers]

    @property
    def programs(self) -> list[str]:
        """The names of all programs."""
        return programs_of(self._plan)

    def set_constants(self, name: str, values: NDArray[Any]) -> None:
        """Set the one structure of a constant section, before loading.

        Raises:
            LibbpfError: its size differs, or there is no such section.
        """
        raw, size = values.tobytes(), self._plan.shape(name).value_size
        if len(raw) != size:
            raise LibbpfError(f"set {name} of {self.name}: {len(raw)} bytes, expected {size}", errno.EINVAL)
        self._constants[name] = raw

    def set_max_entries(self, name: str, count: int) -> None:
        """Size a map, before loading."""
        self._sizes[name] = count

    def max_entries(self, name: str) -> int:
        """How large a map is."""
        return self._shape(name).max_entries

    def _shape(self, name: str) -> MapShape:
        shape = self._plan.shape(name)
        if shape.kind in _INSTEAD_OF_STORAGE:
            key_size, room = _INSTEAD_OF_STORAGE[shape.kind]
            return MapShape(_LRU_HASH, key_size, shape.value_size, room, 0)
        if name.startswith(_CONSTANTS):
            return MapShape(_ARRAY, 4, shape.value_size, 1, _RDONLY_PROG)
        return shape._replace(max_entries=self._sizes.get(name, shape.max_entries))

    def share(self, name: str, fd: int) -> None:
        """Use an existing map instead of making one, before loading."""
        self._shared[name] = fd

    def leave_out(self, program: str) -> None:
        """Do not load a program, before loading."""
        self._left_out.add(program)

    def load(self) -> None:
        """Compile, make the maps, have the kernel verify and take the programs.

        Raises:
            BridgeError: BCC or the kernel refused; the text holds the reason.
        """
        programs = self.programs
        code = self._compile(self.name, programs, self._numbers)
        # Those that hold other maps come last.
        for name in sorted(self.maps, key=lambda name: self._plan.shape(name).kind == _ARRAY_OF_MAPS):
            self._maps[name] = os.dup(self._shared[name]) if name in self._shared else self._make_map(name)
        descriptors = {self._numbers[name.removeprefix(_CONSTANTS)]: fd for name, fd in self._maps.items()}
        for name in programs:
            if name not in self._left_out:
                self._programs[name] = self._load_program(name, resolve(code[name], descriptors))

    def _make_map(self, name: str) -> int:
        shape = self._shape(name)
        options = _MapOptions(sz=ctypes.sizeof(_MapOptions), map_flags=shape.flags)
        inner = self._maps[f"{name}_a"] if shape.kind == _ARRAY_OF_MAPS else None
        if inner is not None:
            options.inner_map_fd = inner
        fd = self._library.call(
            f"make map {name} of {self.name}",
            self._library.bpf_map_create,
            shape.kind,
            name.removeprefix(_CONSTANTS).encode()[:15],
            shape.key_size,
            shape.value_size,
            shape.max_entries,
            ctypes.addressof(options),
        )
        try:
            self._fill(name, fd, shape, inner)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _fill(self, name: str, fd: int, shape: MapShape, inner: int | None) -> None:
        key = np.dtype("<u4")
        if inner is not None:
            Map(self._library, fd, key, key).set(0, inner)
        if name in self._constants:
            value = np.dtype((np.void, shape.value_size))
            Map(self._library, fd, key, value).set(0, np.void(self._constants[name]))
        if name.startswith(_CONSTANTS):
            # What does not change any more is known to the verifier.
            self._library.call(f"freeze {name} of {self.name}", self._library.bpf_map_freeze, fd)

    def _load_program(self, name: str, code: NDArray[np.void]) -> int:
        section = self._plan.section(name)
        kind = _KPROBE if section.startswith("u") else _RAW_TRACEPOINT
        try:
            return self._try_to_load(name, kind, code, None)
        except LibbpfError:
            # Once more, for what the verifier has to say.
            log = ctypes.create_string_buffer(_LOG_SIZE)
            try:
                return self._try_to_load(name, kind, code, log)
            except LibbpfError as error:
                said = log.value.decode(errors="replace")
                raise LibbpfError(f"load {name} of {self.name}", error.errno, said) from error

    def _try_to_load(
        self, name: str, kind: int, code: NDArray[np.void], log: ctypes.Array[ctypes.c_char] | None
    ) -> int:
        options = _ProgramOptions(sz=ctypes.sizeof(_ProgramOptions))
        if log is not None:
            options.log_level, options.log_size, options.log_buf = 1, len(log), ctypes.addressof(log)
        return self._library.call(
            f"load {name}",
            self._library.bpf_prog_load,
            kind,
            name.encode()[:15],
            _LICENSE,
            code.ctypes.data,
            len(code),
            ctypes.addressof(options),
        )

    def map(self, name: str, key: np.dtype[Any], value: np.dtype[Any]) -> Map:
        """A map of the loaded object; closed with it.

        Raises:
            LibbpfError: its key or value has another size than the dtype.
        """
        self._plan.check_sizes(name, key, value)
        return Map(self._library, self.map_fd(name), key, value)

    def map_fd(self, name: str) -> int:
        """A map's descriptor; closed with the object."""
        return self._maps[name]

    def program_fd(self, name: str) -> int:
        """A loaded program's descriptor; closed with the object."""
        return self._programs[name]

    def attach(self, program: str) -> Descriptors:
        """Attach to the tracepoint that the program's section names.

        Raises:
            LibbpfError: refused, or there is no such tracepoint.
        """
        tracepoint = self._plan.section(program).rpartition("/")[2]
        return uprobe.Descriptors(
            self._library.call(
                f"attach {program}",
                self._library.bpf_raw_tracepoint_open,
                tracepoint.encode(),
                self._programs[program],
            )
        )

    def attach_uprobe(
        self,
        program: str,
        path: str,
        *,
        symbol: str = "",
        offset: int = 0,
        at_return: bool = False,
        cookie: int = 0,
    ) -> Descriptors:
        """See `Object.attach_uprobe`."""
        place = uprobe.place_of(path, symbol, offset)
        return uprobe.attach(
            self._library, self._programs[program], path, place, at_return=at_return, cookie=cookie
        )

    def attach_usdt(
        self,
        program: str,
        path: str,
        provider: str,
        name: str,
        *,
        cookie: int = 0,  # noqa: ARG002 (the interface)
    ) -> Descriptors:
        """Not here.

        Raises:
            LibbpfError: always.
        """
        raise LibbpfError(f"attach {program} to {provider}:{name} in {path} by BCC", errno.EOPNOTSUPP)

    def close(self) -> None:
        """Give programs and maps back; what is attached or shared stays with its other holders."""
        fds = [*self._programs.values(), *self._maps.values()]
        self._programs.clear()
        self._maps.clear()
        for fd in fds:
            os.close(fd)
        self._plan.close()
