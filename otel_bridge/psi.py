"""Pressure stall information: how long tasks of a cgroup, or of the machine, wait for memory."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from otel_bridge.mounts import PROC, mounts

if TYPE_CHECKING:
    from pathlib import Path

_LINE = re.compile(r"^(some|full) avg10=(\d+\.\d+) .*\btotal=(\d+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Stall:
    """How long tasks waited.

    Attributes:
        share: of the last ten seconds, 0 to 1.
        total: seconds since the cgroup was made.
    """

    share: float
    total: float


@dataclass(frozen=True, slots=True)
class Pressure:
    """A cgroup's, or the machine's.

    Attributes:
        some: at least one task waited.
        full: all that could run did.
    """

    some: Stall
    full: Stall


def parse(text: str) -> Pressure | None:
    """The content of a memory.pressure file; None when it is of another form."""
    found = {
        tasks: Stall(float(share) / 100, int(total) / 1e6) for tasks, share, total in _LINE.findall(text)
    }
    return Pressure(**found) if found.keys() == {"some", "full"} else None


def read(path: Path) -> Pressure | None:
    """`parse` of a file; None also when it cannot be read: no cgroup any more, or no PSI."""
    try:
        return parse(path.read_text())
    except (OSError, UnicodeDecodeError):
        return None


def unified_mount(proc: Path = PROC) -> Path | None:
    """Where the unified cgroup hierarchy is mounted: the only one that counts pressure."""
    return next(iter(mounts("cgroup2", proc)), None)


def file_of(mount: Path, cgroup: str) -> Path:
    """Where a cgroup's memory pressure is told."""
    return mount / cgroup.lstrip("/") / "memory.pressure"
