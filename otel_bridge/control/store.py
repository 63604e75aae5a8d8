"""Breakers and the audit log in an SQLite file, written behind by a thread of its own.

Nobody waits for the disk: what is handed over is written as soon as the thread is free, all that waits in one
transaction. WAL with synchronous=NORMAL survives kill -9; a crash of the machine may lose the last moments.
A file that cannot be used never stops the bridge: it goes on in memory, and says so.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from otel_bridge import catalog
from otel_bridge.control.audit import Entry
from otel_bridge.control.codec import Clocks, dump_bytes, load_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_bridge.contracts import Clock
    from otel_bridge.control.config import StateConfig
    from otel_bridge.control.machine import Record
    from otel_bridge.telemetry import Telemetry

log = structlog.get_logger(__name__)

_SCHEMA = """
CREATE TABLE IF NOT EXISTS breakers (target TEXT PRIMARY KEY, record BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS audit (
    id INTEGER PRIMARY KEY, time INTEGER NOT NULL, target TEXT NOT NULL, event TEXT NOT NULL,
    before TEXT NOT NULL, after TEXT NOT NULL, cause TEXT NOT NULL, actor TEXT NOT NULL, reason TEXT NOT NULL,
    replica TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS audit_target ON audit (target, id);
"""
_COLUMNS = ", ".join(field.name for field in fields(Entry))
_PLACES = ", ".join("?" * len(fields(Entry)))
_RECENT = 1000
"""Entries kept in memory, for when there is no file."""
_RETRY = 10.0
"""Seconds between two tries to use a file that could not be used."""
_BUSY = 2.0
"""Seconds to wait for somebody else's lock."""


def boot_id() -> str:
    """Which boot the monotonic clock counts from."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


@dataclass
class _Pending:
    records: dict[str, tuple[Record, Clocks]]
    entries: list[Entry]

    def __bool__(self) -> bool:
        return bool(self.records or self.entries)


class StateStore:
    """Keeps records and entries; all methods may be called from any thread.

    Args:
        config: which file.
        clock: for the clocks that are written beside each record.
        telemetry: for metrics.
        boot: which boot this is.
    """

    def __init__(
        self, config: StateConfig, clock: Clock, telemetry: Telemetry, boot: Callable[[], str] = boot_id
    ) -> None:
        self._config = config
        self._clock = clock
        self._boot = boot()
        self._up = telemetry.gauge(catalog.CONTROL_STORE_UP).labels("sqlite")
        self._damaged = telemetry.counter(catalog.CONTROL_STORE_DAMAGED)
        self._recent: deque[Entry] = deque(maxlen=_RECENT)
        self._pending = _Pending({}, [])
        self._known: dict[str, tuple[Record, Clocks]] = {}
        self._wake = threading.Condition()
        self._busy = False
        self._ending = False
        self._thread: threading.Thread | None = None
        self._db: sqlite3.Connection | None = None
        self._lock_file: int | None = None

    def open(self) -> tuple[dict[str, tuple[Record, bool]], Entry | None]:
        """Open the file and read what it holds; then begin to write.

        Returns:
            Records by target, on this process's monotonic clock, each with whether its times are exact; and
            what went wrong, if anything did.
        """
        records: dict[str, tuple[Record, bool]] = {}
        trouble = None
        if self._config.file is not None:
            try:
                self._connect(self._config.file)
                records = self._read()
            except (OSError, sqlite3.Error) as error:
                trouble = self._recover(self._config.file, error)
            self._thread = threading.Thread(target=self._write_behind, name="control-state", daemon=True)
            self._thread.start()
        self._up.set(self._db is not None)
        return records, trouble

    def close(self, deadline: float) -> None:
        """Write what waits, for at most so many seconds, and close the file."""
        with self._wake:
            self._ending = True
            self._wake.notify_all()
        if self._thread is not None:
            self._thread.join(deadline)
            self._thread = None

    def save(self, target: str, record: Record) -> None:
        """Keep a record in place of the target's last one."""
        kept = record, self.clocks()
        with self._wake:
            self._pending.records[target] = kept
            if _worth_keeping(record):
                self._known[target] = kept
            else:
                self._known.pop(target, None)
            self._wake.notify_all()

    def append(self, entry: Entry) -> None:
        """Add to the audit log."""
        with self._wake:
            self._recent.append(entry)
            self._pending.entries.append(entry)
            if len(self._pending.entries) > self._config.max_audit_entries:
                del self._pending.entries[0]
            self._wake.notify_all()

    def history(self, target: str | None, limit: int) -> list[Entry]:
        """The newest entries, of one target or of all, the newest first; reads the file."""
        self.flush(1.0)
        file = self._config.file
        if self._db is not None and file is not None:
            where, values = ("WHERE target = ?", (target,)) if target else ("", ())
            try:
                with _reading(file) as db:
                    rows = db.execute(
                        f"SELECT {_COLUMNS} FROM audit {where} ORDER BY id DESC LIMIT ?",  # noqa: S608 (constants)
                        (*values, limit),
                    ).fetchall()
                return [Entry(*row) for row in rows]
            except sqlite3.Error as error:
                log.warning("the audit log cannot be read; the newest entries are shown", error=str(error))
        with self._wake:
            recent = [entry for entry in reversed(self._recent) if not target or entry.target == target]
        return recent[:limit]

    def flush(self, timeout: float) -> bool:
        """Wait until all that was handed over is written; False when it took longer."""
        if self._thread is None or self._db is None:
            return True
        with self._wake:
            return self._wake.wait_for(lambda: not self._pending and not self._busy, timeout)

    def clocks(self) -> Clocks:
        """What the clocks show now."""
        return Clocks(self._boot, self._clock.monotonic(), self._clock.time_ns() / 1e9)

    # The file; in `open` and then in the thread only.

    def _connect(self, file: Path) -> None:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(f"{file}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            raise BlockingIOError(error.errno, "another bridge uses it", str(file)) from error
        db = None
        try:
            with suppress(FileExistsError):
                os.close(os.open(file, os.O_CREAT | os.O_EXCL, 0o600))
            db = sqlite3.connect(file, timeout=_BUSY, check_same_thread=False, isolation_level=None)
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=NORMAL")
            _check(db)
            db.executescript(_SCHEMA)
        except BaseException:
            if db is not None:
                db.close()
            os.close(lock)
            raise
        self._db, self._lock_file = db, lock

    def _read(self) -> dict[str, tuple[Record, bool]]:
        assert self._db is not None
        clocks = self.clocks()
        records = {}
        for target, data in self._db.execute("SELECT target, record FROM breakers"):
            try:
                records[target] = load_bytes(data, clocks)
            except ValueError as error:
                self._damaged.inc()
                log.warning(
                    "a breaker's record cannot be read; it begins anew", target=target, error=str(error)
                )
        return records

    def _recover(self, file: Path, error: Exception) -> Entry:
        """Go on without what the file held: with a new one when it is damaged, else in memory."""
        self._damaged.inc()
        if _is_damage(error):
            self._disconnect()
            kept = _put_aside(file, self._clock.time_ns())
            try:
                self._connect(file)
                reason = f"{file} is damaged ({error}); kept as {kept}, breakers begin anew"
            except (OSError, sqlite3.Error) as again:
                reason = (
                    f"{file} is damaged ({error}), kept as {kept}, and a new one cannot be made ({again})"
                )
        else:
            self._disconnect()
            reason = (
                f"{file} cannot be used ({error}); breakers begin anew and are kept in memory only, until it "
                "can be. Mend the cause, or set control.state.file"
            )
        log.error("the state of breakers is lost", reason=reason)
        return Entry(self._clock.time_ns(), "", "store", cause="lost", reason=reason)

    def _disconnect(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None

    def _write_behind(self) -> None:
        retry_at = 0.0
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._ending or self._pending, None if self._db else _RETRY)
                if self._ending and (not self._pending or self._db is None):
                    break
                if not self._db and time.monotonic() < retry_at:
                    self._wake.wait(_RETRY)
                    continue
                pending, self._pending = self._pending, _Pending({}, [])
                self._busy = True
            done = self._reconnect() and self._write(pending)
            with self._wake:
                self._busy = False
                if not done:
                    retry_at = time.monotonic() + _RETRY
                    pending.records.update(self._pending.records)
                    entries = [*pending.entries, *self._pending.entries]
                    self._pending = _Pending(pending.records, entries[-self._config.max_audit_entries :])
                self._wake.notify_all()
        self._disconnect()

    def _reconnect(self) -> bool:
        if self._db is not None:
            return True
        assert self._config.file is not None
        try:
            self._connect(self._config.file)
        except (OSError, sqlite3.Error) as error:
            if _is_damage(error):
                self.append(self._recover(self._config.file, error))
            if self._db is None:
                log.warning("the state of breakers is still in memory only", reason=str(error))
                return False
        self._up.set(1)
        log.warning("the state of breakers is kept again", file=str(self._config.file))
        with self._wake:
            known = dict(self._known)
        return self._write(_Pending(known, []))

    def _write(self, pending: _Pending) -> bool:
        db = self._db
        if db is None:
            return False
        try:
            db.execute("BEGIN IMMEDIATE")
            db.executemany(
                "REPLACE INTO breakers VALUES (?, ?)",
                [
                    (target, dump_bytes(*kept))
                    for target, kept in pending.records.items()
                    if _worth_keeping(kept[0])
                ],
            )
            db.executemany(
                "DELETE FROM breakers WHERE target = ?",
                [(target,) for target, kept in pending.records.items() if not _worth_keeping(kept[0])],
            )
            db.executemany(
                f"INSERT INTO audit ({_COLUMNS}) VALUES ({_PLACES})",  # noqa: S608 (constants)
                [tuple(entry.as_dict().values()) for entry in pending.entries],
            )
            db.execute(
                "DELETE FROM audit WHERE id <= (SELECT max(id) FROM audit) - ?",
                (self._config.max_audit_entries,),
            )
            db.execute("COMMIT")
        except sqlite3.Error as error:
            with suppress(sqlite3.Error):
                db.execute("ROLLBACK")
            self._up.set(0)
            self._damaged.inc()
            log.error("breakers cannot be written", file=str(self._config.file), error=str(error))  # noqa: TRY400
            self._disconnect()
            return False
        return True


def _is_damage(error: Exception) -> bool:
    """Whether the file itself is bad, so that it would be again."""
    return isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError)


def _worth_keeping(record: Record) -> bool:
    """Whether it says anything that a new one would not."""
    return record.judged or not record.idle


def _check(db: sqlite3.Connection) -> None:
    """Raise DatabaseError if the file is damaged."""
    if (found := db.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
        raise sqlite3.DatabaseError(found)


class _reading:  # noqa: N801 (used like a function)
    """A connection that only reads, closed at the end."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __enter__(self) -> sqlite3.Connection:
        self._db = sqlite3.connect(f"{self._file.absolute().as_uri()}?mode=ro", uri=True, timeout=_BUSY)
        return self._db

    def __exit__(self, *_exc: object) -> None:
        self._db.close()


def _put_aside(file: Path, time_ns: int) -> Path:
    """Move a damaged file and what belongs to it out of the way."""
    kept = file.with_name(f"{file.name}.damaged-{time_ns}")
    for suffix in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            Path(f"{file}{suffix}").rename(f"{kept}{suffix}")
    return kept
