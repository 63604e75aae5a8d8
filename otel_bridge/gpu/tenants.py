"""Whose processes use a GPU, and how long those wait for the host's memory."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from otel_bridge import psi
from otel_bridge.mounts import PROC

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from otel_bridge.gpu.processes import Process


@dataclass(frozen=True, slots=True)
class Tenant:
    """Somebody who uses a GPU.

    Attributes:
        name: value of the label tenant_id.
        cgroups: of its processes, in the unified hierarchy.
    """

    name: str
    cgroups: frozenset[str] = frozenset()


def tenants_of(processes: Iterable[Process], name_of: Callable[[Process], str]) -> list[Tenant]:
    """The tenants that processes are of; those of which nobody knows are left out."""
    found: dict[str, set[str]] = defaultdict(set)
    for process in processes:
        name = name_of(process)
        if name:
            found[name].add(process.cgroup)
    return [Tenant(name, frozenset(cgroups)) for name, cgroups in sorted(found.items())]


class Pressures:
    """The memory pressure of cgroups, each read once: to be made anew for each look at them.

    Args:
        proc: where procfs is mounted.
    """

    def __init__(self, proc: Path = PROC) -> None:
        self._mount = psi.unified_mount(proc)
        self._known: dict[str, psi.Pressure | None] = {}

    def of(self, tenant: Tenant) -> list[psi.Pressure]:
        """Of a tenant's cgroups, those that count pressure.

        What the root says is the whole machine's and nobody's in particular; a cgroup outside this process's
        cgroup namespace ("/../…") has no file here.
        """
        if self._mount is None:
            return []
        for cgroup in tenant.cgroups - self._known.keys():
            own = cgroup not in ("", "/") and "/.." not in cgroup
            self._known[cgroup] = psi.read(psi.file_of(self._mount, cgroup)) if own else None
        found = (self._known[cgroup] for cgroup in tenant.cgroups)
        return [pressure for pressure in found if pressure is not None]
