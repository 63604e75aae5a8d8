"""The waiting spans on disk, so that they can be acknowledged before their traces' verdicts.

Nothing is read from it but at start: memory has the same. One SQLite file, written by one thread; what is
asked for while it writes goes into the next transaction together.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import structlog

from otel_bridge.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

log = structlog.get_logger(__name__)

T = TypeVar("T")

_PIECES = """
    CREATE TABLE IF NOT EXISTS piece (
        number INTEGER PRIMARY KEY, checksum INTEGER NOT NULL, payload BLOB NOT NULL
    )"""
_KEPT = """
    CREATE TABLE IF NOT EXISTS kept (
        trace BLOB PRIMARY KEY, reason INTEGER NOT NULL, last INTEGER NOT NULL
    )"""
"""Traces that must be kept, and the last piece that can have spans of them."""
_PAGE_SIZE = 16384
"""Requests are large: with SQLite's 4 KiB they cost a third more."""
_FILE = "waiting.sqlite"
_PUT = "INSERT OR REPLACE INTO piece VALUES (?, ?, ?)"
_KEEP = "INSERT OR REPLACE INTO kept VALUES (?, ?, ?)"
_FORGET = "DELETE FROM piece WHERE number = ?"
_TIDY = "DELETE FROM kept WHERE last < coalesce((SELECT min(number) FROM piece), 1 << 62)"


class Left(NamedTuple):
    """What an earlier process left.

    Attributes:
        pieces: by number, in order.
        kept: traces that must be kept, with their reasons.
    """

    pieces: dict[int, bytes]
    kept: dict[bytes, int]


class _Job(NamedTuple):
    statement: str
    values: tuple[int | bytes, ...]
    done: asyncio.Future[None] | None


class Journal:
    """One file in a directory of its own; every method but `open` needs it to be open."""

    def __init__(self, directory: Path, *, fsync: bool) -> None:
        """Name the place.

        Args:
            directory: made with mode 0700 if missing.
            fsync: wait for the disk, so that a power loss loses nothing either.
        """
        self._directory = directory
        self._path = directory / _FILE
        self._fsync = fsync
        self._thread = ThreadPoolExecutor(1, "sample-journal")
        self._connection: sqlite3.Connection | None = None
        self._jobs: list[_Job] = []
        self._writer: asyncio.Task[None] | None = None

    @staticmethod
    def exists(directory: Path) -> bool:
        """Whether an earlier process may have left something there."""
        return (directory / _FILE).exists()

    async def open(self) -> Left:
        """Take possession of the file; one that is damaged is moved aside, for a person to look at.

        Raises:
            StartError: the directory cannot be used, or another process uses it.
        """
        try:
            return await self._in_thread(self._open)
        except (OSError, sqlite3.Error) as error:
            raise StartError(
                f"spans cannot wait on disk in {self._directory}: {error}; make it writable for the service "
                f"(chown -R {os.getuid()}:{os.getgid()} {self._directory}), stop whoever uses it, or set "
                "processors.sample.hold to sender or memory"
            ) from error

    def put(self, number: int, payload: bytes) -> asyncio.Future[None]:
        """Write a piece; the future is done when it is safe, or has an OSError or a sqlite3.Error."""
        return self._ask(_PUT, number, zlib.crc32(payload), payload)

    def keep(self, trace: bytes, reason: int, last: int) -> asyncio.Future[None]:
        """Note that a trace must be kept of which spans up to piece `last` wait; else as `put`."""
        return self._ask(_KEEP, trace, reason, last)

    def forget(self, number: int) -> None:
        """Remove a piece; what cannot be done now is tried again with what comes next."""
        self._jobs.append(_Job(_FORGET, (number,), None))
        self._wake()

    async def close(self) -> None:
        """Write what is left and let go of the file."""
        while self._writer is not None and not self._writer.done():
            await asyncio.wait([self._writer])
        await self._in_thread(self._close)
        self._thread.shutdown()

    def _ask(self, statement: str, *values: int | bytes) -> asyncio.Future[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.add_done_callback(_look_at)
        self._jobs.append(_Job(statement, values, done))
        self._wake()
        return done

    def _wake(self) -> None:
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write())

    async def _write(self) -> None:
        while self._jobs:
            jobs, self._jobs = self._jobs, []
            try:
                await self._in_thread(lambda jobs=jobs: self._commit(jobs))  # type: ignore[misc]
            except (OSError, sqlite3.Error) as error:
                for job in jobs:
                    if job.done is not None and not job.done.done():
                        job.done.set_exception(error)
                self._jobs[:0] = [job for job in jobs if job.done is None]
                return
            for job in jobs:
                if job.done is not None and not job.done.done():
                    job.done.set_result(None)

    async def _in_thread(self, what: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, what)

    # On the thread.

    def _open(self) -> Left:
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            return self._connect()
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise
            self._close()
            aside = self._path.with_name(f"damaged-{time.time_ns()}.sqlite")
            self._path.replace(aside)
            # A log that was meant for the other file must not be applied to this one.
            self._path.with_name(f"{_FILE}-wal").unlink(missing_ok=True)
            text = str(error)
            log.error("the journal of waiting spans was damaged; begun anew", error=text, kept=str(aside))  # noqa: TRY400
            return self._connect()

    def _connect(self) -> Left:
        # Before SQLite would create it for all to read: spans are personal data.
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        connection = sqlite3.connect(self._path, timeout=0, isolation_level=None, check_same_thread=False)
        self._connection = connection
        connection.execute(f"PRAGMA page_size = {_PAGE_SIZE}")
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {'FULL' if self._fsync else 'OFF'}")
        for table in (_PIECES, _KEPT):
            connection.execute(table)
        pieces = {}
        for number, checksum, payload in connection.execute("SELECT * FROM piece ORDER BY number"):
            if isinstance(payload, bytes) and zlib.crc32(payload) == checksum:
                pieces[number] = payload
            else:
                log.error("a request of waiting spans is damaged on disk and lost", number=number)
        kept = dict(connection.execute("SELECT trace, reason FROM kept").fetchall())
        return Left(pieces, kept)

    def _commit(self, jobs: list[_Job]) -> None:
        connection = self._connection
        if connection is None:
            raise sqlite3.OperationalError("the journal is closed")
        connection.execute("BEGIN IMMEDIATE")
        try:
            for job in jobs:
                connection.execute(job.statement, job.values)
            if any(job.statement == _FORGET for job in jobs):
                connection.execute(_TIDY)
            connection.execute("COMMIT")
        except sqlite3.Error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _look_at(done: asyncio.Future[None]) -> None:
    """Nobody waits for some of them: a sender that went away."""
    if not done.cancelled():
        done.exception()
