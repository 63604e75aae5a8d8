"""Whole records out of a damaged SQLite file.

SQLite reaches rows through inner pages; when one of those, or the first page, is damaged, the rows below
are all there and out of its reach. A segment's rows are only ever appended, so each leaf page holds complete
rows: this walks over all pages of the file and reads the leaves by SQLite's documented file format
(https://www.sqlite.org/fileformat2.html, sections 1.6 and 2.1). Whether a row is whole is for the caller's
checksum to say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PAGE_SIZE = 4096
"""The page size that the segments are made with: a damaged header cannot be asked."""

_TABLE_LEAF = 0x0D
_LEAF_HEADER = 8
_MOST_LOCAL = PAGE_SIZE - 35
_LEAST_LOCAL = (PAGE_SIZE - 12) * 32 // 255 - 23
_PER_OVERFLOW_PAGE = PAGE_SIZE - 4
_INTEGER_SIZES = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}
_FIRST_BLOB = 12

Value = int | bytes | None


class _Unreadable(Exception):  # noqa: N818 (never leaves this module)
    """Bytes that are no row."""


def rows(path: Path) -> Iterator[tuple[int, list[Value]]]:
    """Every row of every table's leaves: its row id and its columns (NULL, integers and blobs only)."""
    with path.open("rb") as file:
        number = 0
        while page := file.read(PAGE_SIZE):
            number += 1
            if len(page) < PAGE_SIZE:
                page += bytes(PAGE_SIZE - len(page))
            # Page 1 begins with the file's header and holds the schema.
            if number == 1 or page[0] != _TABLE_LEAF:
                continue
            after = file.tell()
            for pointer in _pointers(page):
                try:
                    yield _row(file, page, pointer)
                except (_Unreadable, IndexError):
                    continue
            file.seek(after)


def _pointers(page: bytes) -> list[int]:
    count = int.from_bytes(page[3:5], "big")
    if _LEAF_HEADER + 2 * count > PAGE_SIZE:
        return []
    return [
        int.from_bytes(page[at : at + 2], "big") for at in range(_LEAF_HEADER, _LEAF_HEADER + 2 * count, 2)
    ]


def _row(file: BinaryIO, page: bytes, pointer: int) -> tuple[int, list[Value]]:
    size, at = _varint(page, pointer)
    row_id, at = _varint(page, at)
    if size <= _MOST_LOCAL:
        record = page[at : at + size]
    else:
        local = _LEAST_LOCAL + (size - _LEAST_LOCAL) % _PER_OVERFLOW_PAGE
        if local > _MOST_LOCAL:
            local = _LEAST_LOCAL
        following = int.from_bytes(page[at + local : at + local + 4], "big")
        record = page[at : at + local] + _overflow(file, following, size - local)
    if len(record) != size:
        raise _Unreadable
    return row_id, _columns(record)


def _overflow(file: BinaryIO, number: int, size: int) -> bytes:
    pieces: list[bytes] = []
    while size > 0:
        if number == 0:
            raise _Unreadable
        file.seek((number - 1) * PAGE_SIZE)
        page = file.read(PAGE_SIZE)
        piece = page[4 : 4 + min(size, _PER_OVERFLOW_PAGE)]
        if not piece:
            raise _Unreadable
        pieces.append(piece)
        size -= len(piece)
        number = int.from_bytes(page[:4], "big")
    return b"".join(pieces)


def _columns(record: bytes) -> list[Value]:
    header_size, at = _varint(record, 0)
    body = header_size
    columns: list[Value] = []
    while at < header_size:
        kind, at = _varint(record, at)
        if kind == 0:
            columns.append(None)
        elif kind in {8, 9}:
            columns.append(kind - 8)
        elif kind in _INTEGER_SIZES:
            size = _INTEGER_SIZES[kind]
            columns.append(int.from_bytes(record[body : body + size], "big", signed=True))
            body += size
        elif kind >= _FIRST_BLOB and kind % 2 == 0:
            size = (kind - _FIRST_BLOB) // 2
            columns.append(record[body : body + size])
            body += size
        else:
            raise _Unreadable
    return columns


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """SQLite's big-endian varint: up to eight bytes of seven bits, a ninth of eight."""
    value = 0
    for _ in range(8):
        byte = data[at]
        at += 1
        value = value << 7 | byte & 0x7F
        if byte < 0x80:  # noqa: PLR2004 (the continuation bit)
            return value, at
    return value << 8 | data[at], at + 1
