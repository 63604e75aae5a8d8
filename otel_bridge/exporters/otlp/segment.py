"""A segment of the queue on disk: an SQLite file of payloads with checksums that is only appended to."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Self

from otel_bridge.exporters.otlp import salvage
from otel_bridge.exporters.otlp.directory import make_private
from otel_bridge.exporters.otlp.record import SIGNALS, Append, Record, checksum

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

Row = tuple[int, int, int, int, int, bytes]
"""Number, signal, items, received_ns, checksum, payload."""

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS record (number INTEGER PRIMARY KEY, signal INTEGER NOT NULL, "
    "items INTEGER NOT NULL, received_ns INTEGER NOT NULL, checksum INTEGER NOT NULL, payload BLOB NOT NULL)"
)


class Segment:
    """One segment, open. Every method raises sqlite3.Error; `disk_error.is_damage` tells which kind."""

    def __init__(self, path: Path, *, fsync: bool) -> None:
        """Open a file that exists; `fsync`: a commit returns when the disk has it."""
        if not path.exists():
            raise sqlite3.DatabaseError(f"{path} is gone")
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            self._connection.execute(f"PRAGMA page_size = {salvage.PAGE_SIZE}")
            self._connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._connection.execute("PRAGMA journal_mode = TRUNCATE")
            self._connection.execute(f"PRAGMA synchronous = {'FULL' if fsync else 'OFF'}")
            self._connection.execute("PRAGMA auto_vacuum = NONE")
        except sqlite3.Error:
            self.close()
            raise

    @classmethod
    def create(cls, path: Path, *, fsync: bool) -> Self:
        """Make a new, empty one."""
        make_private(path)
        segment = cls(path, fsync=fsync)
        try:
            segment._connection.execute(_SCHEMA)
        except sqlite3.Error:
            segment.close()
            raise
        return segment

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def append(self, rows: Iterable[Row]) -> None:
        """Write rows, all or none; after a failure the segment must be closed."""
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany("INSERT INTO record VALUES (?, ?, ?, ?, ?, ?)", rows)
        self._connection.execute("COMMIT")

    def fetch(self, number: int) -> Record | None:
        """One request; None when it is not there or not whole."""
        row = self._connection.execute(
            "SELECT signal, items, received_ns, checksum, payload FROM record WHERE number = ?", (number,)
        ).fetchone()
        return _verified(number, row) if row is not None else None

    def last(self) -> int:
        """The highest number; 0 when it is empty."""
        (last,) = self._connection.execute("SELECT max(number) FROM record").fetchone()
        return int(last or 0)


def to_row(number: int, request: Append) -> Row:
    """The row that keeps a request."""
    signal = SIGNALS.index(request.signal)
    crc = checksum(number, signal, request.items, request.received_ns, request.payload)
    return number, signal, request.items, request.received_ns, crc, request.payload


def rescue(damaged: Path, fresh: Path, wanted: Callable[[int], bool], *, fsync: bool) -> set[int]:
    """Make a new segment of the whole rows of a damaged one whose numbers are wanted; those numbers."""
    found: set[int] = set()

    def rows() -> Iterator[Row]:
        for row in _whole_rows(damaged):
            if row[0] not in found and wanted(row[0]):
                found.add(row[0])
                yield row

    fresh.unlink(missing_ok=True)
    segment = Segment.create(fresh, fsync=fsync)
    try:
        segment.append(rows())
    finally:
        segment.close()
    return found


def _verified(number: int, row: tuple[int, int, int, int, bytes]) -> Record | None:
    """The record that a row holds, or None when its checksum says that it is not whole."""
    signal, items, received_ns, crc, payload = row
    if not isinstance(payload, bytes) or crc != checksum(number, signal, items, received_ns, payload):
        return None
    return Record(number, SIGNALS[signal], payload, items, received_ns)


def _whole_rows(path: Path) -> Iterator[Row]:
    """The rows of a damaged segment that are whole."""
    if not path.exists():
        return
    for number, columns in salvage.rows(path):
        if len(columns) != 6 or columns[0] is not None:  # noqa: PLR2004 (the columns of a record)
            continue
        _, signal, items, received_ns, crc, payload = columns
        if (
            isinstance(signal, int)
            and isinstance(items, int)
            and isinstance(received_ns, int)
            and isinstance(crc, int)
            and isinstance(payload, bytes)
            and 0 <= signal < len(SIGNALS)
            and _verified(number, (signal, items, received_ns, crc, payload)) is not None
        ):
            yield number, signal, items, received_ns, crc, payload
