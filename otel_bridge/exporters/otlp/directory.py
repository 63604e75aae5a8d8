"""The directory of a queue on disk: who holds it, and its files by name."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from otel_bridge.exporters.otlp.disk_error import DiskError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_bridge.contracts import Clock

log = structlog.get_logger(__name__)

_SEGMENT_NAME = re.compile(r"(\d{20})\.sqlite")
_ASIDE_NAME = re.compile(r".+-(\d+)-(\d+)\.sqlite")
"""A file that was set aside: when, unix nanoseconds, and a number where two would have one name."""


class Directory:
    """One directory, for one process.

    Attributes:
        path: where it is.
        index: the path of the index.
    """

    def __init__(self, path: Path, clock: Clock, max_damaged_size: int) -> None:
        self.path = path
        self.index = path / "index.sqlite"
        self._damaged = path / "damaged"
        self._max_damaged_size = max_damaged_size
        self._clock = clock
        self._lock: int | None = None

    def hold(self) -> None:
        """Make it if need be, and take possession of it.

        Raises:
            DiskError: another process uses it.
            OSError: it cannot be made or written.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.path.mkdir(exist_ok=True, mode=0o700)
        self.path.chmod(0o700)
        self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(self._lock, 20, 0).decode(errors="replace").strip() or "unknown"
            raise DiskError(
                f"{self.path} is in use by another process (pid {holder}); stop it (kill {holder}), or "
                "give this one another storage.directory"
            ) from error
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, b"%d\n" % os.getpid(), 0)
        self._bound_damaged()

    def let_go(self) -> None:
        """Leave it to others."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def segment(self, first: int) -> Path:
        """The path of the segment whose first request has this number."""
        return self.path / f"{first:020d}.sqlite"

    def find_segments(self) -> Iterator[int]:
        """The first numbers of the segments, in no order; what a repair left unfinished is removed."""
        for entry in os.scandir(self.path):
            match = _SEGMENT_NAME.fullmatch(entry.name)
            if match:
                yield int(match[1])
            elif entry.name.endswith(".new"):
                # A repair that a kill cut short; the damaged file itself is still there.
                Path(entry.path).unlink()

    def set_aside(self, path: Path, *, keep: bool) -> Path | None:
        """Move a damaged file to `damaged/`, or with `keep` link it there so that its place can be taken.

        Returns:
            Where it is; None when it does not exist, or is larger than all that may be kept.
        """
        if not path.exists():
            return None
        self._damaged.mkdir(exist_ok=True, mode=0o700)
        stem = f"{path.stem}-{self._clock.time_ns()}"
        aside = next(
            candidate
            for number in itertools.count()
            if not (candidate := self._damaged / f"{stem}-{number}.sqlite").exists()
        )
        linked = False
        if keep:
            with contextlib.suppress(OSError):  # a file system without hard links
                os.link(path, aside)
                linked = True
        if not linked:
            path.replace(aside)
            remove_journal(path)
        self._bound_damaged()
        return aside if aside.exists() else None

    def _bound_damaged(self) -> None:
        """Remove the oldest of the files that were set aside until the others stay within the bound."""
        kept = sorted(
            (int(match[1]), int(match[2]), path)
            for path in self._damaged.glob("*.sqlite")
            if (match := _ASIDE_NAME.fullmatch(path.name))
        )
        sizes = [path.stat().st_size for _, _, path in kept]
        excess = sum(sizes) - self._max_damaged_size
        for (_, _, path), size in zip(kept, sizes, strict=True):
            if excess <= 0:
                return
            path.unlink()
            excess -= size
            log.warning(
                "a damaged file of the queue on disk is kept no longer: damaged/ would be larger than "
                "storage.max_damaged_size",
                path=str(path),
                bytes=size,
                max_damaged_size=self._max_damaged_size,
            )


def make_private(path: Path) -> None:
    """Create a file that only we can read, before SQLite would create it for all."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))


def remove_journal(path: Path) -> None:
    """Remove the rollback journal of an SQLite file, which must not be applied to another in its place."""
    path.with_name(path.name + "-journal").unlink(missing_ok=True)
