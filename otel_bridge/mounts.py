"""What is mounted where, as /proc/self/mountinfo tells it."""

from __future__ import annotations

import os
import re
from pathlib import Path

PROC = Path("/proc")

_POINT = 4
"""The field that names the mount point."""
_ESCAPE = re.compile(rb"\\([0-7]{3})")
"""Blanks, tabs, line ends and backslashes of a path."""


def mounts(kind: str, proc: Path = PROC) -> list[Path]:
    """Where file systems of a kind are mounted, in the order they were; lines of another form are left out.

    Args:
        kind: "cgroup2", "bpf", "tracefs", ….
        proc: where procfs is mounted.

    Raises:
        OSError: the list cannot be read.
    """
    wanted = kind.encode()
    found = []
    for line in (proc / "self" / "mountinfo").read_bytes().splitlines():
        # Before the hyphen are as many optional fields as the kernel likes.
        fields, _, rest = line.partition(b" - ")
        if rest.partition(b" ")[0] == wanted and len(places := fields.split(b" ")) > _POINT:
            found.append(Path(os.fsdecode(_ESCAPE.sub(_character, places[_POINT]))))
    return found


def _character(escape: re.Match[bytes]) -> bytes:
    return bytes([int(escape[1], 8) & 0xFF])
