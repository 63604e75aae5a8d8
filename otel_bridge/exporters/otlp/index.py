"""The index of the queue on disk: one row for each request that is not delivered yet, without payload."""

from __future__ import annotations

import contextlib
import sqlite3
from typing import TYPE_CHECKING, NamedTuple

from otel_bridge.exporters.otlp.directory import make_private

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator
    from pathlib import Path

    from otel_bridge.exporters.otlp.segment import Row

_SCHEMA = (
    "CREATE TABLE pending (number INTEGER PRIMARY KEY, signal INTEGER NOT NULL, items INTEGER NOT NULL, "
    "received_ns INTEGER NOT NULL, size INTEGER NOT NULL);"
    "CREATE TABLE known (one INTEGER PRIMARY KEY CHECK (one = 0), last INTEGER NOT NULL);"
    "INSERT INTO known VALUES (0, 0);"
)
_SELECT = "SELECT number, signal, items, received_ns, size FROM pending"


class Pending(NamedTuple):
    """A request that is not delivered yet; `signal` is its place in `record.SIGNALS`, `size` in bytes."""

    number: int
    signal: int
    items: int
    received_ns: int
    size: int


class Index:
    """The index, open. Every method raises sqlite3.Error; `disk_error.is_damage` tells which kind.

    Attributes:
        is_new: whether there was none before.
    """

    def __init__(self, path: Path) -> None:
        """Open it, or make it."""
        self.is_new = not path.exists()
        make_private(path)
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            self._connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            # PERSIST keeps the journal's space, so that a full disk can still note what was delivered.
            self._connection.execute("PRAGMA journal_mode = PERSIST")
            self._connection.execute("PRAGMA synchronous = OFF")
            if self.is_new:
                self._connection.executescript(f"BEGIN;{_SCHEMA}COMMIT;")
        except sqlite3.Error:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def is_sound(self) -> bool:
        """Whether every page can be read and it holds what it should."""
        (verdict,) = self._connection.execute("PRAGMA quick_check(1)").fetchone()
        known = self._connection.execute("SELECT last FROM known WHERE one = 0").fetchone()
        self._connection.execute(
            "SELECT number, signal, items, received_ns, size FROM pending LIMIT 1"
        ).fetchall()
        return verdict == "ok" and known is not None

    @property
    def last(self) -> int:
        """The highest number that it has known of."""
        (last,) = self._connection.execute("SELECT last FROM known WHERE one = 0").fetchone()
        return int(last)

    def count(self, low: int = 0, high: int = 1 << 62) -> int:
        """How many requests are pending from `low` up to, but without, `high`."""
        (count,) = self._connection.execute(
            "SELECT count(*) FROM pending WHERE number >= ? AND number < ?", (low, high)
        ).fetchone()
        return int(count)

    def get(self, number: int) -> Pending | None:
        """One request."""
        rows = self.between(number, number + 1)
        return rows[0] if rows else None

    def between(self, low: int, high: int) -> list[Pending]:
        """The requests from `low` up to, but without, `high`."""
        rows = self._connection.execute(
            "SELECT number, signal, items, received_ns, size FROM pending WHERE number >= ? AND number < ?",
            (low, high),
        )
        return [Pending(*row) for row in rows]

    def after(self, number: int) -> Generator[tuple[int, int, int], None, None]:
        """Number, signal and size of the requests beyond a number, in order; close it before a change."""
        rows = self._connection.execute(
            "SELECT number, signal, size FROM pending WHERE number > ? ORDER BY number", (number,)
        )
        try:
            yield from rows
        finally:
            rows.close()

    def add(self, rows: Iterable[Row], last: int) -> None:
        """Note rows of a segment, the highest of which is `last`."""
        with self._transaction():
            self._connection.executemany(
                "INSERT INTO pending VALUES (?, ?, ?, ?, ?)", [(*row[:4], len(row[5])) for row in rows]
            )
            self._connection.execute("UPDATE known SET last = ?", (last,))

    def add_segment(self, path: Path, after: int) -> None:
        """Note the rows of a closed segment beyond `after`, without a row passing through Python."""
        self._connection.execute("ATTACH ? AS segment", (str(path),))
        try:
            with self._transaction():
                self._connection.execute(
                    "INSERT OR IGNORE INTO pending SELECT number, signal, items, received_ns, "
                    "length(payload) FROM segment.record WHERE number > ?",
                    (after,),
                )
                self._connection.execute(
                    "UPDATE known SET last = max(last, coalesce((SELECT max(number) FROM pending), 0))"
                )
        finally:
            self._connection.execute("DETACH segment")

    def remove(self, numbers: Iterable[int]) -> list[int]:
        """Forget requests; the numbers of those that were there."""
        with self._transaction():
            return [
                number
                for number in numbers
                if self._connection.execute("DELETE FROM pending WHERE number = ?", (number,)).rowcount
            ]

    def remove_between(self, low: int, high: int) -> None:
        """Forget the requests from `low` up to, but without, `high`."""
        self._connection.execute("DELETE FROM pending WHERE number >= ? AND number < ?", (low, high))

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN")
        try:
            yield
            self._connection.execute("COMMIT")
        except sqlite3.Error:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
