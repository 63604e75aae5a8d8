"""Why the queue on disk cannot be used, and what mends it."""

from __future__ import annotations

import os
import sqlite3
from typing import TYPE_CHECKING

from otel_bridge.errors import BridgeError

if TYPE_CHECKING:
    from pathlib import Path

_CORRUPT, _NOT_A_DATABASE, _GENERIC = 11, 26, 1


class DiskError(BridgeError):
    """The disk cannot be used; the text names the path and what mends it."""


class DiskFullError(DiskError):
    """The configured size is used up."""


def is_damage(error: sqlite3.Error) -> bool:
    """Whether the file's content is at fault: corrupt, no database, or without our tables."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is None or code & 0xFF in {_CORRUPT, _NOT_A_DATABASE, _GENERIC}


def unusable(where: Path, error: OSError | sqlite3.Error) -> DiskError:
    """What to tell an operator whose directory `where` gave this error."""
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
