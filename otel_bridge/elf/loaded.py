"""A 64-bit ELF module as the dynamic loader left it in the memory of a process.

Only what a running process needs is looked at (program headers, the dynamic section and what that points to),
so a stripped module is as good as any. Sources: the System V ABI, its AMD64 and AArch64 supplements, and
"GNU hash" as binutils writes it.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING

from otel_bridge.errors import BridgeError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_bridge.elf.memory import Mapping, ProcessMemory

PAGE = 4096
HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")
SYMBOL = struct.Struct("<IBBHQQ")
RELOCATION = struct.Struct("<QQq")
DYNAMIC = struct.Struct("<Qq")

MAGIC_64_LITTLE = b"\x7fELF\x02\x01"
UNDEFINED = 0

# A module that claims more than this is not one; the largest real ones stay below a tenth of it.
MAX_PROGRAM_HEADERS = 512
MAX_DYNAMIC_ENTRIES = 1024
MAX_RELOCATION_BYTES = 64 << 20
MAX_CHAIN = 1 << 16


class ElfError(BridgeError):
    """The bytes are not a loaded ELF module, or not one of a kind that is understood."""


class Machine(IntEnum):
    """e_machine."""

    X86_64 = 62
    AARCH64 = 183


class Segment(IntEnum):
    """p_type."""

    LOAD = 1
    DYNAMIC = 2
    TLS = 7


class Tag(IntEnum):
    """d_tag."""

    PLTRELSZ = 2
    STRTAB = 5
    SYMTAB = 6
    RELA = 7
    RELASZ = 8
    STRSZ = 10
    JMPREL = 23
    HASH = 4
    GNU_HASH = 0x6FFFFEF5


@dataclass(frozen=True, slots=True)
class DynamicSymbol:
    """An entry of .dynsym: its index, its type (STT_…) and its value."""

    index: int
    type: int
    value: int


@dataclass(frozen=True, slots=True)
class Relocation:
    """What the loader wrote: where (an offset from the module's base), what kind, for which symbol."""

    offset: int
    type: int
    symbol: int


@dataclass(frozen=True, slots=True)
class TlsSegment:
    """PT_TLS: the size and alignment of the module's thread-local block, bytes."""

    size: int
    alignment: int


class LoadedElf:
    """A module, from the mapping of its first page.

    Raises:
        ElfError: it is none, or for another machine.
    """

    def __init__(self, memory: ProcessMemory, mapping: Mapping) -> None:
        self._memory = memory
        head = memory.read(mapping.start, min(PAGE, mapping.end - mapping.start))
        if head[:6] != MAGIC_64_LITTLE or len(head) < HEADER.size:
            raise ElfError("no 64-bit little-endian ELF header")
        _, _, machine, _, _, headers_at, _, _, _, header_size, count, *_ = HEADER.unpack_from(head)
        if machine not in tuple(Machine):
            raise ElfError(f"machine {machine} is not supported, only x86-64 (62) and AArch64 (183)")
        if header_size != PROGRAM_HEADER.size or not 0 < count <= MAX_PROGRAM_HEADERS:
            raise ElfError(f"{count} program headers of {header_size} bytes")
        self.machine = Machine(machine)
        self.identity = hashlib.blake2b(head, digest_size=16).digest()
        """Of the first page: file header, program headers and, as a rule, the build id."""
        headers = self._memory.read(mapping.start + headers_at, count * PROGRAM_HEADER.size)
        self._segments = list(PROGRAM_HEADER.iter_unpack(headers))
        self.base = mapping.start - self._first_page()

    def _first_page(self) -> int:
        for kind, _, offset, address, *_ in self._segments:
            if kind == Segment.LOAD and offset < PAGE:
                return int(address) & -PAGE
        raise ElfError("no segment holds the ELF header")

    @cached_property
    def _dynamic(self) -> dict[int, int]:
        for kind, _, _, address, _, _, size, _ in self._segments:
            if kind == Segment.DYNAMIC:
                entries = min(size // DYNAMIC.size, MAX_DYNAMIC_ENTRIES)
                data = self._memory.read(self.base + address, entries * DYNAMIC.size)
                return _until_null(data)
        raise ElfError("no dynamic section")

    @property
    def tls(self) -> TlsSegment | None:
        """The thread-local segment, if the module has one."""
        for kind, _, _, _, _, _, size, alignment in self._segments:
            if kind == Segment.TLS:
                return TlsSegment(size, max(alignment, 1))
        return None

    def _table(self, tag: Tag) -> int:
        """The address of what a tag points to; glibc relocates these entries in place, musl does not."""
        if tag not in self._dynamic:
            raise ElfError(f"no {tag.name} entry")
        value = self._dynamic[tag]
        return value if value >= self.base > 0 else self.base + value

    def symbol(self, name: bytes) -> DynamicSymbol | None:
        """The definition of a name in .dynsym."""
        if Tag.GNU_HASH in self._dynamic:
            candidates = self._gnu_chain(name)
        elif Tag.HASH in self._dynamic:
            candidates = self._sysv_chain(name)
        else:
            return None
        strings, size = self._table(Tag.STRTAB), self._dynamic.get(Tag.STRSZ, 0)
        for index in candidates:
            name_at, info, _, section, value, _ = self._symbol_at(index)
            if section == UNDEFINED or name_at + len(name) >= size:
                continue
            if self._memory.read(strings + name_at, len(name) + 1) == name + b"\0":
                return DynamicSymbol(index, info & 0xF, value)
        return None

    def _symbol_at(self, index: int) -> tuple[int, int, int, int, int, int]:
        data = self._memory.read(self._table(Tag.SYMTAB) + index * SYMBOL.size, SYMBOL.size)
        return SYMBOL.unpack(data)

    def _word(self, address: int) -> int:
        return int.from_bytes(self._memory.read(address, 4), "little")

    def _gnu_chain(self, name: bytes) -> Iterator[int]:
        """Indexes of the symbols whose hash is that of `name`, but for the lowest bit."""
        table = self._table(Tag.GNU_HASH)
        buckets, first, bloom_words, _ = struct.unpack("<4I", self._memory.read(table, 16))
        if buckets == 0:
            return
        wanted = gnu_hash(name)
        buckets_at = table + 16 + 8 * bloom_words
        index = self._word(buckets_at + 4 * (wanted % buckets))
        if index < first:
            return
        chain_at = buckets_at + 4 * buckets
        for _ in range(MAX_CHAIN):
            found = self._word(chain_at + 4 * (index - first))
            if found | 1 == wanted | 1:
                yield index
            if found & 1:
                return
            index += 1
        raise ElfError("a hash chain without an end")

    def _sysv_chain(self, name: bytes) -> Iterator[int]:
        """Indexes of the symbols in the bucket of `name`."""
        table = self._table(Tag.HASH)
        buckets, chains = struct.unpack("<2I", self._memory.read(table, 8))
        if buckets == 0:
            return
        index = self._word(table + 8 + 4 * (sysv_hash(name) % buckets))
        for _ in range(MAX_CHAIN):
            if not 0 < index < chains:
                return
            yield index
            index = self._word(table + 8 + 4 * (buckets + index))
        raise ElfError("a hash chain without an end")

    def relocations(self) -> Iterator[Relocation]:
        """Everything the loader resolved for this module."""
        for start, size in ((Tag.RELA, Tag.RELASZ), (Tag.JMPREL, Tag.PLTRELSZ)):
            length = self._dynamic.get(size, 0)
            if start not in self._dynamic or length <= 0:
                continue
            if length > MAX_RELOCATION_BYTES:
                raise ElfError(f"{length} bytes of relocations")
            data = self._memory.read(self._table(start), length - length % RELOCATION.size)
            for offset, info, _ in RELOCATION.iter_unpack(data):
                yield Relocation(offset, info & 0xFFFFFFFF, info >> 32)


def _until_null(data: bytes) -> dict[int, int]:
    entries: dict[int, int] = {}
    for tag, value in DYNAMIC.iter_unpack(data):
        if tag == 0:
            break
        entries.setdefault(tag, value)
    return entries


def gnu_hash(name: bytes) -> int:
    """The hash of DT_GNU_HASH."""
    value = 5381
    for byte in name:
        value = (value * 33 + byte) & 0xFFFFFFFF
    return value


def sysv_hash(name: bytes) -> int:
    """The hash of DT_HASH."""
    value = 0
    for byte in name:
        value = (value << 4) + byte
        high = value & 0xF0000000
        value = (value ^ (high >> 24)) & ~high & 0xFFFFFFFF
    return value
