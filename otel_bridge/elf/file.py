"""Symbols of a 64-bit ELF file on disk: whether it defines a name, and which function an offset lies in.

Tables are read whole into NumPy arrays, since a Python loop over the symbols of one interpreter takes as long
as everything else together. Nothing in a file is trusted: sizes are bounded and every offset is checked.
Sources: the System V ABI and its AMD64 and AArch64 supplements.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from otel_bridge.elf.loaded import (
    HEADER,
    MAGIC_64_LITTLE,
    MAX_PROGRAM_HEADERS,
    ElfError,
    Machine,
    Segment,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from types import TracebackType

    from numpy.typing import NDArray

SECTION = np.dtype(
    [
        ("name", "<u4"),
        ("type", "<u4"),
        ("flags", "<u8"),
        ("address", "<u8"),
        ("offset", "<u8"),
        ("size", "<u8"),
        ("link", "<u4"),
        ("info", "<u4"),
        ("alignment", "<u8"),
        ("entry_size", "<u8"),
    ]
)
"""Elf64_Shdr."""

SEGMENT = np.dtype(
    [
        ("type", "<u4"),
        ("flags", "<u4"),
        ("offset", "<u8"),
        ("address", "<u8"),
        ("physical", "<u8"),
        ("file_size", "<u8"),
        ("memory_size", "<u8"),
        ("alignment", "<u8"),
    ]
)
"""Elf64_Phdr."""

SYMBOL = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8")]
)
"""Elf64_Sym."""

SHT_SYMTAB, SHT_DYNSYM = 2, 11
STT_FUNC, STT_GNU_IFUNC = 2, 10
_UNDEFINED = 0
_WRITABLE = 2  # PF_W
_MAX_SECTIONS = 4096
_MAX_TABLE = 256 << 20
"""Bytes; the names of a debug build of a large framework are half of this."""
_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class SymbolTable:
    """A table of symbols and the names that it points into."""

    symbols: NDArray[np.void]
    names: bytes

    def defines(self, name: bytes) -> bool:
        """Whether a function of this name is in the file itself, not asked of another one."""
        return self.find(name) is not None

    def defined(self, names: Iterable[bytes]) -> set[bytes]:
        """Those of some names that are functions in the file itself."""
        functions = self.functions()
        return {name for name in names if np.isin(functions["name"], list(self._places(name))).any()}

    def find(self, name: bytes) -> np.void | None:
        """The function of this name that is in the file itself; None when there is none."""
        functions = self.functions()
        found = functions[np.isin(functions["name"], list(self._places(name)))]
        first: np.void | None = found[0] if len(found) else None
        return first

    def functions(self) -> NDArray[np.void]:
        """The functions that are defined here."""
        symbols = self.symbols
        kind = symbols["info"] & 0xF
        here: NDArray[np.void] = symbols[
            (symbols["section"] != _UNDEFINED) & ((kind == STT_FUNC) | (kind == STT_GNU_IFUNC))
        ]
        return here

    def name(self, symbol: np.void) -> bytes:
        """What a symbol is called."""
        start = int(symbol["name"])
        return self.names[start : self.names.find(b"\0", start)]

    def _places(self, name: bytes) -> Iterator[int]:
        """Every offset of a name; linkers let names share their ends."""
        place = self.names.find(name + b"\0")
        while place >= 0:
            yield place
            place = self.names.find(name + b"\0", place + 1)


class Segments:
    """The parts of a file that a loader maps.

    Attributes:
        loaded: dtype SEGMENT.
    """

    def __init__(self, every: NDArray[np.void]) -> None:
        self.loaded: NDArray[np.void] = every[every["type"] == Segment.LOAD]

    def address_of(self, offset: int) -> int | None:
        """The address, as symbols count them, of what lies at an offset of the file."""
        for segment in self.loaded:
            into = offset - int(segment["offset"])
            if 0 <= into < int(segment["file_size"]):
                return int(segment["address"]) + into
        return None

    def offset_of(self, address: int) -> int | None:
        """Where in the file lies what symbols say to be at an address; the reverse of `address_of`."""
        for segment in self.loaded:
            into = address - int(segment["address"])
            if 0 <= into < int(segment["file_size"]):
                return int(segment["offset"]) + into
        return None


class ElfFile:
    """An open file.

    Args:
        path: as this process sees it.

    Attributes:
        segments: stay of use when the file is closed.

    Raises:
        OSError: it cannot be opened.
        ElfError: it is no 64-bit ELF file, or for another machine.
    """

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._read_header()
        except BaseException:
            self.close()
            raise

    def _read_header(self) -> None:
        head = os.pread(self._fd, HEADER.size, 0)
        if len(head) < HEADER.size or head[:6] != MAGIC_64_LITTLE:
            raise ElfError("no 64-bit little-endian ELF header")
        header = HEADER.unpack(head)
        machine, segments_at, sections_at = header[2], header[5], header[6]
        segment_size, segments, section_size, sections = header[9:13]
        if machine not in tuple(Machine):
            raise ElfError(f"machine {machine} is not supported, only x86-64 (62) and AArch64 (183)")
        if segment_size != SEGMENT.itemsize or segments > MAX_PROGRAM_HEADERS:
            raise ElfError(f"{segments} program headers of {segment_size} bytes")
        self.segments = Segments(self._array(SEGMENT, segments_at, segments))
        if sections and section_size != SECTION.itemsize:
            raise ElfError(f"section headers of {section_size} bytes")
        # Without section headers (sstrip) there are no tables to be found by them.
        self._sections = self._array(SECTION, sections_at, min(sections, _MAX_SECTIONS))

    def _array(self, dtype: np.dtype[Any], offset: int, count: int) -> NDArray[np.void]:
        return np.frombuffer(self._bytes(offset, count * dtype.itemsize), dtype)

    def _bytes(self, offset: int, size: int) -> bytes:
        if size > _MAX_TABLE or offset > 1 << 62:
            raise ElfError(f"a table of {size} bytes at {offset}")
        data = os.pread(self._fd, size, offset)
        if len(data) != size:
            raise ElfError(f"a table of {size} bytes at {offset} that the file does not have")
        return data

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return os.fstat(self._fd).st_size

    def tables(self, most_bytes: int = _MAX_TABLE) -> Iterator[SymbolTable]:
        """The full table first, where the file was not stripped of it; then the one for the loader.

        Args:
            most_bytes: of a table's symbols, and of their names; larger ones are passed over.

        Raises:
            ElfError: a table lies outside the file.
        """
        for kind in (SHT_SYMTAB, SHT_DYNSYM):
            for section in self._sections[self._sections["type"] == kind]:
                if section["entry_size"] != SYMBOL.itemsize or section["link"] >= len(self._sections):
                    raise ElfError("a symbol table of another layout")
                names = self._sections[section["link"]]
                if max(int(section["size"]), int(names["size"])) > most_bytes:
                    continue
                count = int(section["size"]) // SYMBOL.itemsize
                yield SymbolTable(
                    self._array(SYMBOL, int(section["offset"]), count),
                    self._bytes(int(names["offset"]), int(names["size"])),
                )

    def defines(self, function: bytes) -> bool:
        """Whether the file has a function of this name that a probe can be put on."""
        return any(table.defines(function) for table in self.tables())

    def defined(self, functions: Collection[bytes]) -> set[bytes]:
        """Those of some functions that the file has."""
        found: set[bytes] = set()
        for table in self.tables():
            found |= table.defined(set(functions) - found)
        return found

    def contains(self, text: bytes) -> bool:
        """Whether the constants of the program hold some bytes."""
        for segment in self.segments.loaded:
            if segment["flags"] & _WRITABLE:
                continue
            start = int(segment["offset"])
            end = min(start + int(segment["file_size"]), self.size)
            for place in range(start, end, _PIECE):
                # Each piece overlaps the next by the length of what is looked for.
                if text in os.pread(self._fd, min(_PIECE + len(text), end - place), place):
                    return True
        return False

    def offset_of(self, function: bytes) -> int | None:
        """Where in the file a function begins; None when the file does not define it."""
        for table in self.tables():
            symbol = table.find(function)
            if symbol is not None:
                return self.segments.offset_of(int(symbol["value"]))
        return None

    def begins(self, function: bytes, code: bytes) -> bool:
        """Whether a function of this name begins with this code."""
        offset = self.offset_of(function)
        return offset is not None and os.pread(self._fd, len(code), offset) == code

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
