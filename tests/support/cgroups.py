"""Memory cgroups of a test's own, whichever version this machine has."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from otel_bridge.mounts import mounts

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20


class MissingControllerError(RuntimeError):
    """This machine lets nobody limit memory."""


class MemoryCgroup:
    """A memory cgroup, v1 or v2, without swap.

    Args:
        name: of its directory.
        limit: bytes; None: no limit yet.

    Raises:
        MissingControllerError: there is none to make it under.
    """

    def __init__(self, name: str, limit: int | None) -> None:
        parent, self._limit_file, self._usage_file = memory_controller()
        self.path = parent / name
        self.path.mkdir()
        if limit is not None:
            self.limit(limit)
        if (self.path / "memory.swap.max").exists():
            (self.path / "memory.swap.max").write_text("0")

    def limit(self, limit: int) -> None:
        """Allow so many bytes from now on."""
        (self.path / self._limit_file).write_text(str(limit))

    @property
    def usage(self) -> int:
        """Bytes charged to it now."""
        return int((self.path / self._usage_file).read_text())

    def add(self, pid: int) -> None:
        """Move a process in."""
        (self.path / "cgroup.procs").write_text(str(pid))

    def remove(self, timeout: float = 10.0) -> None:
        """Delete it, once its processes are gone.

        Raises:
            TimeoutError: they are not, after so many seconds.
        """
        end = time.monotonic() + timeout
        while (self.path / "cgroup.procs").read_text():
            if time.monotonic() > end:
                raise TimeoutError(f"{self.path} still has processes")
            time.sleep(0.02)
        self.path.rmdir()


def memory_controller() -> tuple[Path, str, str]:
    """Where memory cgroups are made, and the names of their files for the limit and for what is used.

    Raises:
        MissingControllerError: nowhere.
    """
    for mount in mounts("cgroup"):
        if (mount / "memory.limit_in_bytes").exists():
            return mount, "memory.limit_in_bytes", "memory.usage_in_bytes"
    for mount in mounts("cgroup2"):
        if "memory" in (mount / "cgroup.subtree_control").read_text().split():
            return mount, "memory.max", "memory.current"
    raise MissingControllerError(
        "needs a memory cgroup controller, v1 or enabled in the v2 root's cgroup.subtree_control"
    )
