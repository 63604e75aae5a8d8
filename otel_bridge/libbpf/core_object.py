"""CO-RE objects: opened, adapted, loaded and attached by libbpf."""

from __future__ import annotations

import ctypes
import errno
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from otel_bridge.libbpf.library import LibbpfError, Map

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from otel_bridge.libbpf.library import Library


class _UprobeOptions(ctypes.Structure):
    """struct bpf_uprobe_opts."""

    _fields_ = (
        ("sz", ctypes.c_size_t),
        ("ref_ctr_offset", ctypes.c_size_t),
        ("bpf_cookie", ctypes.c_uint64),
        ("retprobe", ctypes.c_bool),
        ("func_name", ctypes.c_char_p),
    )


class _UsdtOptions(ctypes.Structure):
    """struct bpf_usdt_opts."""

    _fields_ = (("sz", ctypes.c_size_t), ("usdt_cookie", ctypes.c_uint64))


class Link:
    """A program attached somewhere, until `close`."""

    def __init__(self, library: Library, pointer: int) -> None:
        self._library = library
        self._pointer = pointer

    @property
    def fd(self) -> int:
        """Its descriptor; closed with the link."""
        return self._library.call("descriptor of a link", self._library.bpf_link__fd, self._pointer)

    def close(self) -> None:
        """Detach; what is pinned stays attached."""
        pointer, self._pointer = self._pointer, 0
        if pointer:
            self._library.bpf_link__destroy(pointer)


class MapShape(NamedTuple):
    """What a map is made as: enum bpf_map_type, bytes, elements, BPF_F_… flags."""

    kind: int
    key_size: int
    value_size: int
    max_entries: int
    flags: int


class Object:
    """A CO-RE object: opened, adapted, loaded, attached.

    Raises:
        LibbpfError: the file is no BPF object.
    """

    def __init__(self, library: Library, path: Path) -> None:
        self._library = library
        self.name = path.name.removesuffix(".bpf.o")
        self._pointer = library.pointer(
            f"open {path}", library.bpf_object__open_file, os.fsencode(path), None
        )

    def _map(self, name: str) -> int:
        return self._library.pointer(
            f"find map {name} in {self.name}",
            self._library.bpf_object__find_map_by_name,
            self._pointer,
            name.encode(),
        )

    def _program(self, name: str) -> int:
        return self._library.pointer(
            f"find program {name} in {self.name}",
            self._library.bpf_object__find_program_by_name,
            self._pointer,
            name.encode(),
        )

    @property
    def maps(self) -> list[str]:
        """The names of all maps, `.rodata` and the like included."""
        return self._names(self._library.bpf_object__next_map, self._library.bpf_map__name)

    @property
    def programs(self) -> list[str]:
        """The names of all programs."""
        return self._names(self._library.bpf_object__next_program, self._library.bpf_program__name)

    def _names(self, following: Any, name_of: Any) -> list[str]:
        names, item = [], following(self._pointer, None)
        while item:
            names.append(name_of(item).decode())
            item = following(self._pointer, item)
        return names

    def section(self, program: str) -> str:
        """The section that says what a program attaches to, "tp_btf/sched_switch"."""
        text: bytes = self._library.bpf_program__section_name(self._program(program))
        return text.decode()

    def set_constants(self, name: str, values: NDArray[Any]) -> None:
        """Set the one structure of a constant section (".rodata.config"), before loading.

        Raises:
            LibbpfError: its size differs, or there is no such section.
        """
        raw = values.tobytes()
        self._library.call(
            f"set {name} of {self.name}",
            self._library.bpf_map__set_initial_value,
            self._map(name),
            raw,
            len(raw),
        )

    def set_max_entries(self, name: str, count: int) -> None:
        """Size a map, before loading; for a ring buffer in bytes, a power of two of pages."""
        self._library.call(
            f"size {name} of {self.name}", self._library.bpf_map__set_max_entries, self._map(name), count
        )

    def max_entries(self, name: str) -> int:
        """How large a map is."""
        count: int = self._library.bpf_map__max_entries(self._map(name))
        return count

    def shape(self, name: str) -> MapShape:
        """What a map is made as."""
        pointer, library = self._map(name), self._library
        return MapShape(
            library.bpf_map__type(pointer),
            library.bpf_map__key_size(pointer),
            library.bpf_map__value_size(pointer),
            library.bpf_map__max_entries(pointer),
            library.bpf_map__map_flags(pointer),
        )

    def share(self, name: str, fd: int) -> None:
        """Use an existing map instead of making one, before loading.

        Raises:
            LibbpfError: it does not fit.
        """
        self._library.call(
            f"share {name} with {self.name}", self._library.bpf_map__reuse_fd, self._map(name), fd
        )

    def leave_out(self, program: str) -> None:
        """Do not load a program, before loading."""
        self._library.call(
            f"leave out {program}", self._library.bpf_program__set_autoload, self._program(program), False
        )

    def expect_attach_type(self, program: str, kind: int) -> None:
        """Say how a program will be attached (linux/bpf.h: enum bpf_attach_type), before loading.

        Raises:
            LibbpfError: its kind of program is not attached that way.
        """
        self._library.call(
            f"set how {program} is attached",
            self._library.bpf_program__set_expected_attach_type,
            self._program(program),
            kind,
        )

    def load(self) -> None:
        """Have the kernel verify and take the programs, and make the maps.

        Raises:
            LibbpfError: refused; the text holds the verifier's reason.
        """
        self._library.call(f"load {self.name}", self._library.bpf_object__load, self._pointer)

    def map(self, name: str, key: np.dtype[Any], value: np.dtype[Any]) -> Map:
        """A map of the loaded object; closed with it.

        Raises:
            LibbpfError: its key or value has another size than the dtype.
        """
        self.check_sizes(name, key, value)
        return Map(self._library, self.map_fd(name), key, value)

    def check_sizes(self, name: str, key: np.dtype[Any], value: np.dtype[Any]) -> None:
        """Compare a map's key and value with what this package takes them for.

        Raises:
            LibbpfError: they differ in size.
        """
        _, *sizes, _, _ = self.shape(name)
        expected = [key.itemsize, value.itemsize]
        if sizes != expected:
            raise LibbpfError(
                f"map {name} of {self.name} has keys and values of {sizes} bytes, expected {expected}: the "
                "object and this package differ in version; mend with: make -C bpf",
                errno.EINVAL,
            )

    def map_fd(self, name: str) -> int:
        """A map's descriptor; closed with the object."""
        return self._library.call(f"descriptor of {name}", self._library.bpf_map__fd, self._map(name))

    def program_fd(self, name: str) -> int:
        """A loaded program's descriptor; closed with the object."""
        return self._library.call(f"descriptor of {name}", self._library.bpf_program__fd, self._program(name))

    def attach(self, program: str) -> Link:
        """Attach to what the program's section names.

        Raises:
            LibbpfError: refused, or there is no such tracepoint.
        """
        return Link(
            self._library,
            self._library.pointer(
                f"attach {program}", self._library.bpf_program__attach, self._program(program)
            ),
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
    ) -> Link:
        """Attach to a function in a file, in every process that maps it.

        Args:
            program: which program.
            path: the file; needed now only, the kernel keeps the inode.
            symbol: the function; empty when `offset` says it all.
            offset: bytes from the function's first instruction; without a symbol, from the file's start.
            at_return: when the function returns, not when it is called.
            cookie: what the program is told about this place; other than 0 it needs Linux 5.15.

        Raises:
            LibbpfError: refused, or the file is no ELF or lacks the symbol (errno ENOENT).
        """
        options = _UprobeOptions(
            sz=ctypes.sizeof(_UprobeOptions),
            bpf_cookie=cookie,
            retprobe=at_return,
            func_name=symbol.encode() or None,
        )
        return Link(
            self._library,
            self._library.pointer(
                f"attach {program} to {symbol or 'offset'}+{offset:#x} in {path}",
                self._library.bpf_program__attach_uprobe_opts,
                self._program(program),
                -1,
                os.fsencode(path),
                offset,
                ctypes.addressof(options),
            ),
        )

    def attach_usdt(self, program: str, path: str, provider: str, name: str, *, cookie: int = 0) -> Link:
        """Attach to a statically defined tracepoint of a file, in every process that maps it.

        Raises:
            LibbpfError: refused, or the file has no such tracepoint (errno ENOENT).
        """
        options = _UsdtOptions(sz=ctypes.sizeof(_UsdtOptions), usdt_cookie=cookie)
        return Link(
            self._library,
            self._library.pointer(
                f"attach {program} to {provider}:{name} in {path}",
                self._library.bpf_program__attach_usdt,
                self._program(program),
                -1,
                os.fsencode(path),
                provider.encode(),
                name.encode(),
                ctypes.addressof(options),
            ),
        )

    def close(self) -> None:
        """Give programs and maps back; what is attached or shared stays with its other holders."""
        pointer, self._pointer = self._pointer, 0
        if pointer:
            self._library.bpf_object__close(pointer)
