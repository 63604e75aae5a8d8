"""Requests on disk: SQLite segments that are only appended to, and an index of what is still pending.

Everything here is synchronous and belongs to one thread; `disk.DiskQueue` is its asynchronous face.

    <directory>/lock                       held by the process that uses the directory
    <directory>/index.sqlite               one row for each request that is not delivered yet, without payload
    <directory>/<first number>.sqlite      a segment: payloads with checksums
    <directory>/damaged/                   files that were damaged, kept for a person to look at

A segment's rows are never changed, so damage to one page costs the rows on that page (and those whose
overflow pages it held) and no others, see `salvage`. A rollback journal is used, not a write-ahead log:
SQLite reads a log only up to its first damaged frame. A segment is deleted when nothing of it is pending.

Order on append: the segment is committed (with fsync, if so configured), then the index, then the caller is
told. The index is never synced: after a crash of the whole machine it is mended from the segments.
"""

from __future__ import annotations

import bisect
import contextlib
import fcntl
import itertools
import os
import re
import sqlite3
import zlib
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from otel_bridge.errors import BridgeError
from otel_bridge.exporters.otlp import salvage
from otel_bridge.exporters.otlp.queue import MOST_JOINED
from otel_bridge.model import Signal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from otel_bridge.contracts import Clock
    from otel_bridge.exporters.otlp.config import StorageConfig

SIGNALS = (Signal.TRACES, Signal.METRICS, Signal.LOGS)
"""On disk a signal is its place in this tuple."""
LARGEST_SEGMENT = 16 << 20
"""A segment takes no more rows from this size on, bytes."""
_SEGMENTS_AT_LEAST = 16
"""A full store has at least so many segments, so that space comes back in small steps."""
_SEGMENT_NAME = re.compile(r"(\d{20})\.sqlite")
_OPEN_SEGMENTS = 4
_CORRUPT, _NOT_A_DATABASE, _GENERIC = 11, 26, 1
_SEGMENT_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS record (number INTEGER PRIMARY KEY, signal INTEGER NOT NULL, "
    "items INTEGER NOT NULL, received_ns INTEGER NOT NULL, checksum INTEGER NOT NULL, payload BLOB NOT NULL)"
)
_INDEX_SCHEMA = (
    "CREATE TABLE pending (number INTEGER PRIMARY KEY, signal INTEGER NOT NULL, items INTEGER NOT NULL, "
    "received_ns INTEGER NOT NULL, size INTEGER NOT NULL);"
    "CREATE TABLE known (one INTEGER PRIMARY KEY CHECK (one = 0), last INTEGER NOT NULL);"
    "INSERT INTO known VALUES (0, 0);"
)


class DiskError(BridgeError):
    """The disk cannot be used; the text names the path and what mends it."""


class DiskFullError(DiskError):
    """The configured size is used up."""


class Append(NamedTuple):
    """A request to be written; `taken` when a consumer has it in its hands already."""

    signal: Signal
    payload: bytes
    items: int
    received_ns: int
    taken: bool


class Record(NamedTuple):
    """A request read back."""

    number: int
    signal: Signal
    payload: bytes
    items: int
    received_ns: int


@dataclass(slots=True)
class Loss:
    """Requests that were on disk and are gone, or a file that was set aside.

    Attributes:
        reason: the label value.
        path: the file they were in.
        aside: where the damaged file lies now.
        requests: how many were lost.
        recovered: how many of the damaged file were whole and still to be sent.
        items: lost items by signal.
        first_ns: when the oldest lost one was received, unix nanoseconds.
        last_ns: the youngest.
    """

    reason: str
    path: Path
    aside: Path | None = None
    requests: int = 0
    recovered: int = 0
    items: Counter[Signal] = field(default_factory=Counter)
    first_ns: int = 0
    last_ns: int = 0

    def add(self, signal: Signal, items: int, received_ns: int) -> None:
        """Count one request."""
        self.requests += 1
        self.items[signal] += items
        self.first_ns = min(self.first_ns or received_ns, received_ns)
        self.last_ns = max(self.last_ns, received_ns)

    @property
    def text(self) -> str:
        """What happened, for a log."""
        if self.reason == "disk_full":
            return "the queue on disk is full: the oldest requests made room"
        return (
            "a file of the queue on disk is damaged: it was set aside, its whole requests will be delivered"
        )

    def details(self) -> dict[str, str | int]:
        """The rest of the log line."""
        details: dict[str, str | int] = {
            "path": str(self.path),
            "requests_lost": self.requests,
            "items_lost": self.items.total(),
            "requests_recovered": self.recovered,
        }
        if self.aside is not None:
            details["kept_at"] = str(self.aside)
        if self.requests and self.first_ns:
            details["lost_from"] = _iso(self.first_ns)
            details["lost_to"] = _iso(self.last_ns)
        return details


def _iso(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns / 1e9, UTC).isoformat(timespec="milliseconds")


def checksum(number: int, signal: int, items: int, received_ns: int, payload: bytes) -> int:
    """CRC-32 over everything that a row says."""
    return zlib.crc32(payload, zlib.crc32(b"%d %d %d %d" % (number, signal, items, received_ns)))


class Store:
    """The requests of one destination on disk; belongs to one thread after `open`."""

    def __init__(self, directory: Path, config: StorageConfig, clock: Clock) -> None:
        self._directory = directory
        self._config = config
        self._clock = clock
        self._segment_size = min(LARGEST_SEGMENT, config.max_size // _SEGMENTS_AT_LEAST)
        self._lock: int | None = None
        self._index: sqlite3.Connection | None = None
        self._connections: dict[int, sqlite3.Connection] = {}
        self._firsts: list[int] = []
        self._sizes: dict[int, int] = {}
        self._counts: dict[int, int] = {}
        self._active: int | None = None
        self._next = 1
        self._cursor = 0
        self._taken: set[int] = set()
        self._delivered: set[int] = set()
        self._repaired: set[int] = set()
        self.losses: list[Loss] = []
        """What was lost since somebody last looked; the reader empties it."""

    @property
    def bytes(self) -> int:
        """Bytes of all segments."""
        return sum(self._sizes.values())

    @property
    def requests(self) -> int:
        """Requests not delivered yet."""
        return sum(self._counts.values())

    @property
    def waiting(self) -> int:
        """Requests that nobody has in hand."""
        return self.requests - len(self._taken)

    def open(self) -> None:
        """Take possession of the directory and of what the last process left in it.

        Raises:
            DiskError: it cannot be used, or another process uses it.
        """
        try:
            self._prepare_directory()
            self._take_lock()
            self._firsts = sorted(self._find_segments())
            self._sizes = {first: self._path(first).stat().st_size for first in self._firsts}
            self._open_index()
            self._reconcile()
        except (OSError, sqlite3.Error) as error:
            self.close()
            raise self._unusable(error) from error
        except DiskError:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the directory."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        if self._index is not None:
            self._index.close()
            self._index = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def append(self, requests: list[Append]) -> list[int | DiskError]:
        """Write requests, in one transaction where they fit a segment; each gets its number or its error."""
        results: list[int | DiskError] = []
        at = 0
        while at < len(requests):
            try:
                segment = self._writable_segment()
                group = self._group(requests, at, self._segment_size - self._sizes[segment], results)
                self._write(segment, group)
            except (OSError, sqlite3.Error) as error:
                self._abandon_segment()
                failure = self._unusable(error)
                results[at:] = [failure] * (len(requests) - at)
                break
            at = len(results)
        return results

    def take(
        self, limit: int, skip: frozenset[int] = frozenset(), alone: frozenset[int] = frozenset()
    ) -> list[Record]:
        """The oldest requests that nobody has in hand: of one signal, up to `limit` bytes, or a larger one.

        Those in `skip` are left out; one in `alone` is not given out together with others.

        Raises:
            DiskError: the disk cannot be read.
        """
        try:
            while True:
                chosen = self._choose(limit, skip, alone)
                if not chosen:
                    return []
                records = [record for number in chosen if (record := self._read(number)) is not None]
                if records:
                    self._taken.update(record.number for record in records)
                    return records
        except (OSError, sqlite3.Error) as error:
            raise self._unusable(error) from error

    def untake(self, numbers: Iterable[int]) -> None:
        """Put requests back that were not delivered."""
        for number in numbers:
            if number in self._taken:
                self._taken.discard(number)
                self._cursor = min(self._cursor, number - 1)

    def done(self, numbers: list[int]) -> None:
        """Forget requests that were delivered or dropped.

        Raises:
            DiskError: that could not be written down; it is tried again with the next ones, and until then
                the requests are not given out again.
        """
        self._delivered.update(numbers)
        try:
            self._forget(sorted(self._delivered))
        except (OSError, sqlite3.Error) as error:
            raise self._unusable(error) from error

    # The directory.

    def _path(self, first: int) -> Path:
        return self._directory / f"{first:020d}.sqlite"

    def _prepare_directory(self) -> None:
        self._directory.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._directory.mkdir(exist_ok=True, mode=0o700)
        self._directory.chmod(0o700)

    def _take_lock(self) -> None:
        path = self._directory / "lock"
        self._lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(self._lock, 20, 0).decode(errors="replace").strip() or "unknown"
            raise DiskError(
                f"{self._directory} is in use by another process (pid {holder}); stop it (kill {holder}), or "
                "give this one another storage.directory"
            ) from error
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, b"%d\n" % os.getpid(), 0)

    def _find_segments(self) -> Iterator[int]:
        for entry in os.scandir(self._directory):
            match = _SEGMENT_NAME.fullmatch(entry.name)
            if match:
                yield int(match[1])
            elif entry.name.endswith(".new"):
                # A repair that a kill cut short; the damaged file itself is still there.
                Path(entry.path).unlink()

    def _unusable(self, error: OSError | sqlite3.Error) -> DiskError:
        where = self._directory
        text = str(error)
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        number = error.errno if isinstance(error, OSError) else None
        if code in {_CORRUPT, _NOT_A_DATABASE}:
            mend = "restart the service: it mends its files when it starts"
        elif code == sqlite3.SQLITE_FULL or number in {28, 122}:  # ENOSPC, EDQUOT
            mend = f"free space on its file system: df -h {where}"
        elif code in {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM} or number in {
            13,
            1,
        }:
            mend = f"make it writable for the service: chown -R {os.getuid()}:{os.getgid()} {where}"
        elif number == 30:  # noqa: PLR2004 (EROFS)
            mend = f"mount it writable: mount -o remount,rw $(findmnt -no TARGET -T {where.parent})"
        elif code == sqlite3.SQLITE_IOERR:
            mend = f"look at the disk and its limits: df -h {where}; dmesg | tail; ulimit -f"
        else:
            mend = f"look at it: ls -la {where}"
        return DiskError(f"the queue on disk in {where} cannot be used: {text}; {mend}")

    # The index.

    def _open_index(self) -> None:
        path = self._directory / "index.sqlite"
        existed = path.exists()
        try:
            self._index = self._connect_index(path, create=not existed)
            sound = _index_is_sound(self._index)
        except sqlite3.DatabaseError as error:
            if not _damaged(error):
                raise
            sound = False
        if not sound:
            self._replace_index(path)
        elif not existed and self._firsts:
            self._fill_index()

    def _connect_index(self, path: Path, *, create: bool) -> sqlite3.Connection:
        _make_private(path)
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            # PERSIST keeps the journal's space, so that a full disk can still note what was delivered.
            connection.execute("PRAGMA journal_mode = PERSIST")
            connection.execute("PRAGMA synchronous = OFF")
            if create:
                connection.executescript(f"BEGIN;{_INDEX_SCHEMA}COMMIT;")
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    def _replace_index(self, path: Path) -> None:
        """Set a damaged index aside and make one from the segments: at worst some are delivered twice."""
        if self._index is not None:
            self._index.close()
        aside = self._set_aside(path, keep=False)
        self._index = self._connect_index(path, create=True)
        self._fill_index()
        recovered = self._index.execute("SELECT count(*) FROM pending").fetchone()[0]
        self.losses.append(Loss("damaged", path, aside, recovered=recovered))

    def _fill_index(self) -> None:
        """Every row of every segment is pending."""
        assert self._index is not None
        for first in list(self._firsts):
            self._index_segment(first, after=0)

    def _index_segment(self, first: int, *, after: int) -> None:
        """Note the rows of one segment beyond `after` as pending; a damaged segment is mended for it."""
        assert self._index is not None
        for _ in range(2):
            try:
                self._copy_rows(first, after)
            except sqlite3.DatabaseError as error:
                if not _damaged(error) or first in self._repaired:
                    raise
                self._repair(first, known=False)
            else:
                return

    def _copy_rows(self, first: int, after: int) -> None:
        """From a segment to the index, without a row passing through Python."""
        assert self._index is not None
        connection = self._connections.pop(first, None)
        if connection is not None:
            connection.close()
        self._index.execute("ATTACH ? AS segment", (str(self._path(first)),))
        try:
            self._index.execute("BEGIN")
            self._index.execute(
                "INSERT OR IGNORE INTO pending SELECT number, signal, items, received_ns, length(payload) "
                "FROM segment.record WHERE number > ?",
                (after,),
            )
            self._index.execute(
                "UPDATE known SET last = max(last, coalesce((SELECT max(number) FROM pending), 0))"
            )
            self._index.execute("COMMIT")
        except sqlite3.Error:
            if self._index.in_transaction:
                self._index.execute("ROLLBACK")
            raise
        finally:
            self._index.execute("DETACH segment")

    def _reconcile(self) -> None:
        """Agree with the segments: rows that the index does not know, rows without a file, empty files."""
        assert self._index is not None
        for first in self._firsts[::-1]:
            # A kill between making a file and its first commit leaves it empty.
            if not self._sizes[first] and not self._pending_in(first):
                self._delete_segment(first)
        (last,) = self._index.execute("SELECT last FROM known WHERE one = 0").fetchone()
        for first in self._firsts[::-1]:
            if self._last_in(first) <= last:
                break
            self._index_segment(first, after=last)
        (last,) = self._index.execute("SELECT last FROM known WHERE one = 0").fetchone()
        self._next = max([last, *(self._last_in(first) for first in self._firsts[-1:])]) + 1
        self._lose_orphans()
        for first in list(self._firsts):
            self._counts[first] = self._pending_in(first)
            if not self._counts[first]:
                self._delete_segment(first)

    def _pending_in(self, first: int) -> int:
        assert self._index is not None
        (count,) = self._index.execute(
            "SELECT count(*) FROM pending WHERE number >= ? AND number < ?", self._range(first)
        ).fetchone()
        return int(count)

    def _last_in(self, first: int) -> int:
        for _ in range(2):
            try:
                (last,) = self._segment(first).execute("SELECT max(number) FROM record").fetchone()
            except sqlite3.DatabaseError as error:
                if not _damaged(error) or first in self._repaired:
                    raise
                self._repair(first, known=True)
                if first not in self._sizes:
                    return 0
            else:
                return int(last or 0)
        return 0

    def _lose_orphans(self) -> None:
        """Rows of the index older than any segment: somebody deleted the file."""
        assert self._index is not None
        oldest = self._firsts[0] if self._firsts else self._next
        rows = self._index.execute(
            "SELECT signal, items, received_ns FROM pending WHERE number < ?", (oldest,)
        ).fetchall()
        if rows:
            loss = Loss("damaged", self._directory)
            for signal, items, received_ns in rows:
                loss.add(SIGNALS[signal], items, received_ns)
            self.losses.append(loss)
            self._index.execute("DELETE FROM pending WHERE number < ?", (oldest,))

    def _range(self, first: int) -> tuple[int, int]:
        """The numbers that belong to a segment: from, and up to but without."""
        place = bisect.bisect_right(self._firsts, first)
        return first, self._firsts[place] if place < len(self._firsts) else 1 << 62

    def _owner(self, number: int) -> int | None:
        place = bisect.bisect_right(self._firsts, number)
        return self._firsts[place - 1] if place else None

    def _forget(self, numbers: list[int]) -> None:
        assert self._index is not None
        self._index.execute("BEGIN")
        try:
            deleted = [
                number
                for number in numbers
                if self._index.execute("DELETE FROM pending WHERE number = ?", (number,)).rowcount
            ]
            self._index.execute("COMMIT")
        except sqlite3.Error:
            if self._index.in_transaction:
                self._index.execute("ROLLBACK")
            raise
        self._delivered.difference_update(numbers)
        self._taken.difference_update(numbers)
        for number in deleted:
            owner = self._owner(number)
            if owner is not None:
                self._counts[owner] -= 1
        for first in {owner for number in deleted if (owner := self._owner(number)) is not None}:
            if not self._counts[first]:
                self._delete_segment(first)

    # Segments.

    def _segment(self, first: int) -> sqlite3.Connection:
        connection = self._connections.get(first)
        if connection is not None:
            return connection
        for other in list(self._connections):
            if len(self._connections) < _OPEN_SEGMENTS:
                break
            if other != self._active:
                self._connections.pop(other).close()
        path = self._path(first)
        if not path.exists():
            raise sqlite3.DatabaseError(f"{path} is gone")
        connection = _connect_segment(path, fsync=self._config.fsync)
        self._connections[first] = connection
        return connection

    def _writable_segment(self) -> int:
        active = self._active
        if active is not None and self._sizes[active] < self._segment_size:
            return active
        if active is not None:
            self._active = None
        first = self._next
        path = self._path(first)
        _make_private(path)
        connection = _connect_segment(path, fsync=self._config.fsync)
        self._connections[first] = connection
        connection.execute(_SEGMENT_SCHEMA)
        self._firsts.append(first)
        self._sizes[first] = path.stat().st_size
        self._counts[first] = 0
        self._active = first
        return first

    def _group(
        self, requests: list[Append], at: int, room: int, results: list[int | DiskError]
    ) -> list[tuple[int, Append]]:
        """The requests from `at` on that go into the segment together; numbers them in `results`."""
        group: list[tuple[int, Append]] = []
        for request in requests[at:]:
            size = len(request.payload)
            if group and size > room:
                break
            room -= size
            if self._make_room(size + sum(len(other.payload) for _, other in group)):
                group.append((self._next, request))
                results.append(self._next)
                self._next += 1
            else:
                results.append(
                    DiskFullError(
                        f"the queue on disk in {self._directory} is full (max_size {self._config.max_size} "
                        "bytes); raise storage.max_size, or set storage.when_full: drop_oldest"
                    )
                )
        return group

    def _make_room(self, size: int) -> bool:
        if self._config.when_full == "drop_oldest" and size <= self._config.max_size - self._segment_size:
            while self.bytes + size > self._config.max_size and self._firsts[0] != self._active:
                self._drop_segment(self._firsts[0])
        return self.bytes + size <= self._config.max_size

    def _drop_segment(self, first: int) -> None:
        """Give up a whole segment, except for what is in somebody's hands."""
        assert self._index is not None
        low, high = self._range(first)
        loss = Loss("disk_full", self._path(first))
        rows = self._index.execute(
            "SELECT number, signal, items, received_ns FROM pending WHERE number >= ? AND number < ?",
            (low, high),
        ).fetchall()
        for number, signal, items, received_ns in rows:
            if number not in self._taken:
                loss.add(SIGNALS[signal], items, received_ns)
        self._index.execute("DELETE FROM pending WHERE number >= ? AND number < ?", (low, high))
        self._taken.difference_update(range(low, min(high, self._next)))
        self.losses.append(loss)
        self._delete_segment(first)

    def _write(self, segment: int, group: list[tuple[int, Append]]) -> None:
        if not group:
            return
        assert self._index is not None
        rows = []
        for number, request in group:
            signal = SIGNALS.index(request.signal)
            crc = checksum(number, signal, request.items, request.received_ns, request.payload)
            rows.append((number, signal, request.items, request.received_ns, crc, request.payload))
        connection = self._segment(segment)
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("INSERT INTO record VALUES (?, ?, ?, ?, ?, ?)", rows)
        connection.execute("COMMIT")
        self._index.execute("BEGIN")
        try:
            self._index.executemany(
                "INSERT INTO pending VALUES (?, ?, ?, ?, ?)",
                [(*row[:4], len(row[5])) for row in rows],
            )
            self._index.execute("UPDATE known SET last = ?", (group[-1][0],))
            self._index.execute("COMMIT")
        except sqlite3.Error:
            if self._index.in_transaction:
                self._index.execute("ROLLBACK")
            raise
        self._counts[segment] += len(group)
        self._taken.update(number for number, request in group if request.taken)
        self._sizes[segment] = self._path(segment).stat().st_size

    def _abandon_segment(self) -> None:
        """After a failed write go on with a new file; what was committed stays and will be read."""
        active, self._active = self._active, None
        if active is None:
            return
        connection = self._connections.pop(active, None)
        if connection is not None:
            connection.close()
        with contextlib.suppress(OSError):
            self._sizes[active] = self._path(active).stat().st_size
        if not self._counts[active]:
            self._delete_segment(active)

    def _delete_segment(self, first: int) -> None:
        connection = self._connections.pop(first, None)
        if connection is not None:
            connection.close()
        if self._active == first:
            self._active = None
        path = self._path(first)
        path.unlink(missing_ok=True)
        path.with_name(path.name + "-journal").unlink(missing_ok=True)
        self._firsts.remove(first)
        self._sizes.pop(first, None)
        self._counts.pop(first, None)
        self._repaired.discard(first)

    # Reading, and damage.

    def _choose(self, limit: int, skip: frozenset[int], alone: frozenset[int]) -> list[int]:
        """Numbers of the oldest requests that may be given out together."""
        assert self._index is not None
        chosen: list[int] = []
        size = 0
        first_signal = None
        skipped = False
        rows = self._index.execute(
            "SELECT number, signal, size FROM pending WHERE number > ? ORDER BY number", (self._cursor,)
        )
        for number, signal, request_size in rows:
            if number in skip:
                skipped = True
                continue
            if number in self._taken or number in self._delivered:
                if not (chosen or skipped):
                    self._cursor = number
                continue
            size += request_size
            full = size > limit or len(chosen) == MOST_JOINED
            if chosen and (full or signal != first_signal or number in alone):
                break
            first_signal = signal
            chosen.append(number)
            if number in alone:
                break
        rows.close()
        return chosen

    def _read(self, number: int) -> Record | None:
        """One request; None when it is lost, which is then counted."""
        owner = self._owner(number)
        if owner is not None:
            for _ in range(2):
                try:
                    record = _fetch(self._segment(owner), number)
                except sqlite3.DatabaseError as error:
                    if not _damaged(error):
                        raise
                    record = None
                if record is not None:
                    return record
                if owner in self._repaired:
                    break
                self._repair(owner, known=True)
                if owner not in self._sizes:
                    return None
        self._lose(number)
        return None

    def _lose(self, number: int) -> None:
        """A request that the index knows and no file holds; a repair may have counted it already."""
        assert self._index is not None
        row = self._index.execute(
            "SELECT signal, items, received_ns FROM pending WHERE number = ?", (number,)
        ).fetchone()
        if row is None:
            return
        loss = Loss("damaged", self._directory)
        loss.add(SIGNALS[row[0]], row[1], row[2])
        self.losses.append(loss)
        self._forget([number])

    def _repair(self, first: int, *, known: bool) -> None:
        """Set a damaged segment aside and put a new one with its whole requests in its place.

        `known`: the index says which are pending; otherwise all that are found are.
        """
        assert self._index is not None
        self._repaired.add(first)
        connection = self._connections.pop(first, None)
        if connection is not None:
            connection.close()
        if self._active == first:
            self._active = None
        low, high = self._range(first)
        pending: dict[int, tuple[int, int, int]] = {
            number: (signal, items, received_ns)
            for number, signal, items, received_ns in self._index.execute(
                "SELECT number, signal, items, received_ns FROM pending WHERE number >= ? AND number < ?",
                (low, high),
            )
        }
        path = self._path(first)
        fresh = path.with_name(path.name + ".new")
        fresh.unlink(missing_ok=True)
        _make_private(fresh)
        target = _connect_segment(fresh, fsync=self._config.fsync)
        found: set[int] = set()
        try:
            target.execute(_SEGMENT_SCHEMA)
            target.execute("BEGIN")
            for row in _whole_rows(path):
                number = row[0]
                if low <= number < high and number not in found and (not known or number in pending):
                    found.add(number)
                    target.execute("INSERT INTO record VALUES (?, ?, ?, ?, ?, ?)", row)
            target.execute("COMMIT")
        finally:
            target.close()
        aside = self._set_aside(path, keep=True)
        fresh.replace(path)
        path.with_name(path.name + "-journal").unlink(missing_ok=True)
        self._sizes[first] = path.stat().st_size
        loss = Loss("damaged", path, aside, recovered=len(found))
        if known:
            lost = [number for number in pending if number not in found and number not in self._taken]
            for number in lost:
                signal, items, received_ns = pending[number]
                loss.add(SIGNALS[signal], items, received_ns)
            self._counts.setdefault(first, len(pending))
            self._forget(lost)
        elif found and high <= self._next:
            # Without the index nobody knows what the missing ones held; they count as one item each.
            for _ in range(high - low - len(found)):
                loss.requests += 1
                loss.items[Signal.TRACES] += 1
        self.losses.append(loss)

    def _set_aside(self, path: Path, *, keep: bool) -> Path | None:
        """Move a damaged file to `damaged/`, or with `keep` link it there so that its place can be taken."""
        if not path.exists():
            return None
        folder = self._directory / "damaged"
        folder.mkdir(exist_ok=True, mode=0o700)
        stem = f"{path.stem}-{self._clock.time_ns()}"
        aside = next(
            candidate
            for number in itertools.count()
            if not (candidate := folder / f"{stem}-{number}.sqlite").exists()
        )
        if keep:
            with contextlib.suppress(OSError):  # a file system without hard links
                os.link(path, aside)
                return aside
        path.replace(aside)
        path.with_name(path.name + "-journal").unlink(missing_ok=True)
        return aside


def _damaged(error: sqlite3.Error) -> bool:
    """Whether the file's content is at fault: corrupt, no database, or without our tables."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is None or code & 0xFF in {_CORRUPT, _NOT_A_DATABASE, _GENERIC}


def _index_is_sound(index: sqlite3.Connection) -> bool:
    """Whether every page of the index can be read and it holds what it should."""
    (verdict,) = index.execute("PRAGMA quick_check(1)").fetchone()
    known = index.execute("SELECT last FROM known WHERE one = 0").fetchone()
    index.execute("SELECT number, signal, items, received_ns, size FROM pending LIMIT 1").fetchall()
    return verdict == "ok" and known is not None


def _make_private(path: Path) -> None:
    """Create a file that only we can read, before SQLite would create it for all."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))


def _connect_segment(path: Path, *, fsync: bool) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        connection.execute(f"PRAGMA page_size = {salvage.PAGE_SIZE}")
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA journal_mode = TRUNCATE")
        connection.execute(f"PRAGMA synchronous = {'FULL' if fsync else 'OFF'}")
        connection.execute("PRAGMA auto_vacuum = NONE")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _fetch(connection: sqlite3.Connection, number: int) -> Record | None:
    row = connection.execute(
        "SELECT signal, items, received_ns, checksum, payload FROM record WHERE number = ?", (number,)
    ).fetchone()
    return _verified(number, row) if row is not None else None


def _verified(number: int, row: tuple[int, int, int, int, bytes]) -> Record | None:
    """The record that a row holds, or None when its checksum says that it is not whole."""
    signal, items, received_ns, crc, payload = row
    if not isinstance(payload, bytes) or crc != checksum(number, signal, items, received_ns, payload):
        return None
    return Record(number, SIGNALS[signal], payload, items, received_ns)


def _whole_rows(path: Path) -> Iterator[tuple[int, int, int, int, int, bytes]]:
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
