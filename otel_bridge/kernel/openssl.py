"""Who uses OpenSSL, and whether its functions can be probed: shared, linked in, or linked in and stripped."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from otel_bridge.elf.file import ElfFile
from otel_bridge.elf.loaded import ElfError
from otel_bridge.kernel.discovery import mapped_files
from otel_bridge.kernel.probes import tls

if TYPE_CHECKING:
    from pathlib import Path

    from otel_bridge.kernel.discovery import Identity, MappedFile

ONLY_IN_LIBSSL = b"SSL for verify callback"
"""A text in libssl's code (ssl/ssl_cert.c), in every version since 0.9.6, and in no other library's."""

LARGEST = 512 << 20
"""Bytes of a file that is searched for that text."""


class Coverage(Enum):
    """How a file has OpenSSL."""

    SHARED = "libssl"
    LINKED_IN = "linked in, with symbols"
    STRIPPED = "linked in, without symbols"
    UNREADABLE = "cannot be read"

    @property
    def covered(self) -> bool:
        """Whether its functions can be probed."""
        return self in (Coverage.SHARED, Coverage.LINKED_IN)


@dataclass(frozen=True, slots=True)
class OpensslFile:
    """A file with OpenSSL in it.

    Attributes:
        path: as the processes name it.
        coverage: how it has it.
        processes: that have it mapped: "name (pid)", with "elsewhere" for those in another mount namespace.
    """

    path: str
    coverage: Coverage
    processes: tuple[str, ...]


def survey(proc: Path) -> tuple[tuple[OpensslFile, ...], int]:
    """Every mapped file with OpenSSL; and how many processes cannot be looked into."""
    own_mounts = _mounts(proc / "self")
    kinds: dict[Identity, Coverage | None] = {}
    users: dict[tuple[str, Identity], list[str]] = defaultdict(list)
    unreadable = 0
    for directory in sorted(
        (path for path in proc.iterdir() if path.name.isdigit()), key=lambda p: int(p.name)
    ):
        if not os.access(directory / "maps", os.R_OK):
            unreadable += 1
            continue
        for file in mapped_files(int(directory.name), proc):
            if file.identity not in kinds:
                kinds[file.identity] = coverage_of(file)
            if kinds[file.identity] is not None:
                users[file.path, file.identity].append(_called(directory, own_mounts))
    found = (
        OpensslFile(path, kind, tuple(names))
        for (path, identity), names in sorted(users.items())
        if (kind := kinds[identity]) is not None
    )
    return tuple(found), unreadable


def coverage_of(file: MappedFile) -> Coverage | None:
    """How a file has OpenSSL; None when it has none."""
    shared = re.fullmatch(tls.PROBE.library, file.name) is not None
    try:
        with ElfFile(file.open_path) as elf:
            if elf.defines(tls.PROBE.function.encode()):
                return Coverage.SHARED if shared else Coverage.LINKED_IN
            if elf.size <= LARGEST and elf.contains(ONLY_IN_LIBSSL):
                return Coverage.STRIPPED
    except (OSError, ElfError):
        return Coverage.UNREADABLE if shared else None
    return None


def _called(process: Path, own_mounts: int) -> str:
    try:
        name = (process / "comm").read_text(errors="replace").strip()
    except OSError:  # it has just ended
        name = "?"
    elsewhere = ", elsewhere" if _mounts(process) not in (0, own_mounts) else ""
    return f"{name} ({process.name}{elsewhere})"


def _mounts(process: Path) -> int:
    """Its mount namespace; 0 when that may not be looked at."""
    try:
        return (process / "ns" / "mnt").stat().st_ino
    except OSError:
        return 0
