"""Requests on disk: SQLite segments that are only appended to, and an index of what is still pending.

Everything here is synchronous and belongs to one thread; `disk.DiskQueue` is its asynchronous face.

    <directory>/lock                       held by the process that uses the directory
    <directory>/index.sqlite               one row for each request that is not delivered yet, without payload
    <directory>/<first number>.sqlite      a segment: payloads with checksums
    <directory>/damaged/                   files that were damaged, for a person to look at; bounded

A segment's rows are never changed, so damage to one page costs the rows on that page (and those whose
overflow pages it held) and no others, see `salvage`. A rollback journal is used, not a write-ahead log:
SQLite reads a log only up to its first damaged frame. A segment is deleted when nothing of it is pending.

Order on append: the segment is committed (with fsync, if so configured), then the index, then the caller is
told. The index is never synced: after a crash of the whole machine it is mended from the segments.
"""

from __future__ import annotations

import bisect
import contextlib
import sqlite3
from typing import TYPE_CHECKING

from otel_bridge.exporters.otlp.directory import Directory, remove_journal
from otel_bridge.exporters.otlp.disk_error import DiskError, DiskFullError, is_damage, unusable
from otel_bridge.exporters.otlp.index import Index
from otel_bridge.exporters.otlp.loss import Loss
from otel_bridge.exporters.otlp.queue import MOST_JOINED
from otel_bridge.exporters.otlp.record import Append, Record, signal_at
from otel_bridge.exporters.otlp.segment import Segment, rescue, to_row
from otel_bridge.model import Signal

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from otel_bridge.contracts import Clock
    from otel_bridge.exporters.otlp.config import StorageConfig

LARGEST_SEGMENT = 16 << 20
"""A segment takes no more rows from this size on, bytes."""
_SEGMENTS_AT_LEAST = 16
"""A full store has at least so many segments, so that space comes back in small steps."""
_OPEN_SEGMENTS = 4


class Store:
    """The requests of one destination on disk; belongs to one thread after `open`."""

    def __init__(self, directory: Path, config: StorageConfig, clock: Clock) -> None:
        self._directory = Directory(directory, clock, config.max_damaged_size)
        self._config = config
        self._segment_size = min(LARGEST_SEGMENT, config.max_size // _SEGMENTS_AT_LEAST)
        self._opened_index: Index | None = None
        self._segments: dict[int, Segment] = {}
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
            self._directory.hold()
            self._firsts = sorted(self._directory.find_segments())
            self._sizes = {first: self._directory.segment(first).stat().st_size for first in self._firsts}
            self._open_index()
            self._reconcile()
        except (OSError, sqlite3.Error) as error:
            self.close()
            raise unusable(self._directory.path, error) from error
        except DiskError:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the directory."""
        for segment in self._segments.values():
            segment.close()
        self._segments.clear()
        if self._opened_index is not None:
            self._opened_index.close()
            self._opened_index = None
        self._directory.let_go()

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
                failure = unusable(self._directory.path, error)
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
            raise unusable(self._directory.path, error) from error

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
            raise unusable(self._directory.path, error) from error

    # The index.

    @property
    def _index(self) -> Index:
        assert self._opened_index is not None, "the store is open"
        return self._opened_index

    def _open_index(self) -> None:
        path = self._directory.index
        sound = False
        try:
            self._opened_index = Index(path)
            sound = self._opened_index.is_sound()
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
        if not sound:
            self._replace_index(path)
        elif self._index.is_new and self._firsts:
            self._fill_index()

    def _replace_index(self, path: Path) -> None:
        """Set a damaged index aside and make one from the segments: at worst some are delivered twice."""
        if self._opened_index is not None:
            self._opened_index.close()
        aside = self._directory.set_aside(path, keep=False)
        self._opened_index = Index(path)
        self._fill_index()
        self.losses.append(Loss("damaged", path, aside, recovered=self._index.count()))

    def _fill_index(self) -> None:
        """Every row of every segment is pending."""
        for first in list(self._firsts):
            self._index_segment(first, after=0)

    def _index_segment(self, first: int, *, after: int) -> None:
        """Note the rows of one segment beyond `after` as pending; a damaged segment is mended for it."""
        for _ in range(2):
            try:
                self._close_segment(first)
                self._index.add_segment(self._directory.segment(first), after)
            except sqlite3.DatabaseError as error:
                if not is_damage(error) or first in self._repaired:
                    raise
                self._repair(first, known=False)
            else:
                return

    def _reconcile(self) -> None:
        """Agree with the segments: rows that the index does not know, rows without a file, empty files."""
        for first in self._firsts[::-1]:
            # A kill between making a file and its first commit leaves it empty.
            if not self._sizes[first] and not self._index.count(*self._range(first)):
                self._delete_segment(first)
        last = self._index.last
        for first in self._firsts[::-1]:
            if self._last_in(first) <= last:
                break
            self._index_segment(first, after=last)
        self._next = max([self._index.last, *(self._last_in(first) for first in self._firsts[-1:])]) + 1
        self._lose_orphans()
        for first in list(self._firsts):
            self._counts[first] = self._index.count(*self._range(first))
            if not self._counts[first]:
                self._delete_segment(first)

    def _last_in(self, first: int) -> int:
        for _ in range(2):
            try:
                return self._segment(first).last()
            except sqlite3.DatabaseError as error:
                if not is_damage(error) or first in self._repaired:
                    raise
                self._repair(first, known=True)
                if first not in self._sizes:
                    return 0
        return 0

    def _lose_orphans(self) -> None:
        """Rows of the index older than any segment: somebody deleted the file."""
        oldest = self._firsts[0] if self._firsts else self._next
        orphans = self._index.between(0, oldest)
        if orphans:
            loss = Loss("damaged", self._directory.path)
            for orphan in orphans:
                loss.add(signal_at(orphan.signal), orphan.items, orphan.received_ns)
            self.losses.append(loss)
            self._index.remove_between(0, oldest)

    def _range(self, first: int) -> tuple[int, int]:
        """The numbers that belong to a segment: from, and up to but without."""
        place = bisect.bisect_right(self._firsts, first)
        return first, self._firsts[place] if place < len(self._firsts) else 1 << 62

    def _owner(self, number: int) -> int | None:
        place = bisect.bisect_right(self._firsts, number)
        return self._firsts[place - 1] if place else None

    def _forget(self, numbers: list[int]) -> None:
        deleted = self._index.remove(numbers)
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

    def _segment(self, first: int) -> Segment:
        segment = self._segments.get(first)
        if segment is not None:
            return segment
        for other in list(self._segments):
            if len(self._segments) < _OPEN_SEGMENTS:
                break
            if other != self._active:
                self._close_segment(other)
        segment = Segment(self._directory.segment(first), fsync=self._config.fsync)
        self._segments[first] = segment
        return segment

    def _close_segment(self, first: int) -> None:
        segment = self._segments.pop(first, None)
        if segment is not None:
            segment.close()

    def _writable_segment(self) -> int:
        active = self._active
        if active is not None and self._sizes[active] < self._segment_size:
            return active
        if active is not None:
            self._active = None
        first = self._next
        path = self._directory.segment(first)
        self._segments[first] = Segment.create(path, fsync=self._config.fsync)
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
                        f"the queue on disk in {self._directory.path} is full (max_size "
                        f"{self._config.max_size} bytes); raise storage.max_size, or set storage.when_full: "
                        "drop_oldest"
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
        low, high = self._range(first)
        loss = Loss("disk_full", self._directory.segment(first))
        for row in self._index.between(low, high):
            if row.number not in self._taken:
                loss.add(signal_at(row.signal), row.items, row.received_ns)
        self._index.remove_between(low, high)
        self._taken.difference_update(range(low, min(high, self._next)))
        self.losses.append(loss)
        self._delete_segment(first)

    def _write(self, segment: int, group: list[tuple[int, Append]]) -> None:
        if not group:
            return
        rows = [to_row(number, request) for number, request in group]
        self._segment(segment).append(rows)
        self._index.add(rows, last=group[-1][0])
        self._counts[segment] += len(group)
        self._taken.update(number for number, request in group if request.taken)
        self._sizes[segment] = self._directory.segment(segment).stat().st_size

    def _abandon_segment(self) -> None:
        """After a failed write go on with a new file; what was committed stays and will be read."""
        active, self._active = self._active, None
        if active is None:
            return
        self._close_segment(active)
        with contextlib.suppress(OSError):
            self._sizes[active] = self._directory.segment(active).stat().st_size
        if not self._counts[active]:
            self._delete_segment(active)

    def _delete_segment(self, first: int) -> None:
        self._close_segment(first)
        if self._active == first:
            self._active = None
        path = self._directory.segment(first)
        path.unlink(missing_ok=True)
        remove_journal(path)
        self._firsts.remove(first)
        self._sizes.pop(first, None)
        self._counts.pop(first, None)
        self._repaired.discard(first)

    # Reading, and damage.

    def _choose(self, limit: int, skip: frozenset[int], alone: frozenset[int]) -> list[int]:
        """Numbers of the oldest requests that may be given out together."""
        chosen: list[int] = []
        size = 0
        first_signal = None
        skipped = False
        with contextlib.closing(self._index.after(self._cursor)) as rows:
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
        return chosen

    def _read(self, number: int) -> Record | None:
        """One request; None when it is lost, which is then counted."""
        owner = self._owner(number)
        if owner is not None:
            for _ in range(2):
                try:
                    record = self._segment(owner).fetch(number)
                except sqlite3.DatabaseError as error:
                    if not is_damage(error):
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
        row = self._index.get(number)
        if row is None:
            return
        loss = Loss("damaged", self._directory.path)
        loss.add(signal_at(row.signal), row.items, row.received_ns)
        self.losses.append(loss)
        self._forget([number])

    def _repair(self, first: int, *, known: bool) -> None:
        """Set a damaged segment aside and put a new one with its whole requests in its place.

        `known`: the index says which are pending; otherwise all that are found are.
        """
        self._repaired.add(first)
        self._close_segment(first)
        if self._active == first:
            self._active = None
        low, high = self._range(first)
        pending = {row.number: row for row in self._index.between(low, high)}
        path = self._directory.segment(first)
        fresh = path.with_name(path.name + ".new")
        found = rescue(
            path,
            fresh,
            lambda number: low <= number < high and (not known or number in pending),
            fsync=self._config.fsync,
        )
        aside = self._directory.set_aside(path, keep=True)
        fresh.replace(path)
        remove_journal(path)
        self._sizes[first] = path.stat().st_size
        loss = Loss("damaged", path, aside, recovered=len(found))
        if known:
            lost = [number for number in pending if number not in found and number not in self._taken]
            for number in lost:
                row = pending[number]
                loss.add(signal_at(row.signal), row.items, row.received_ns)
            self._counts.setdefault(first, len(pending))
            self._forget(lost)
        elif found and high <= self._next:
            # Without the index nobody knows what the missing ones held; they count as one item each.
            for _ in range(high - low - len(found)):
                loss.requests += 1
                loss.items[Signal.TRACES] += 1
        self.losses.append(loss)
