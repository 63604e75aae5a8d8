"""Services, and the place that each has on the way of a request."""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_bridge.processors.consistency.config import RoleConfig

_MOST_SERVICES = 4096
_MOST_NAMES = 1024


@dataclass(slots=True, eq=False)
class Service:
    """One service, the same object for the same name.

    Attributes:
        name: its service.name.
        role: empty when it has none.
        place: of the role in the chain; None when it has none.
        pattern: what its entry spans are called; None: anything.
    """

    name: str
    role: str = ""
    place: int | None = None
    pattern: re.Pattern[str] | None = None
    _known: dict[bytes, bool] = field(default_factory=dict)

    def names(self, name: bytes) -> bool:
        """Whether an entry span may be called so."""
        if self.pattern is None:
            return True
        known = self._known.get(name)
        if known is None:
            if len(self._known) >= _MOST_NAMES:
                self._known.clear()
            known = self.pattern.fullmatch(name.decode(errors="replace")) is not None
            self._known[name] = known
        return known


class Services:
    """All services seen, each looked up in the chain once."""

    def __init__(self, chain: Sequence[RoleConfig]) -> None:
        self._chain = [
            (
                role.role,
                re.compile("|".join(fnmatch.translate(glob) for glob in role.services), re.IGNORECASE),
                re.compile("|".join(f"(?:{name})" for name in role.names)) if role.names else None,
            )
            for role in chain
        ]
        self._services: dict[bytes, Service] = {}

    def of(self, name: bytes) -> Service:
        """The service of this name; an empty one is a service without a name."""
        service = self._services.get(name)
        if service is None:
            if len(self._services) >= _MOST_SERVICES:
                self._services.clear()
            service = self._services[name] = self._find(name.decode(errors="replace"))
        return service

    def _find(self, name: str) -> Service:
        for place, (role, globs, pattern) in enumerate(self._chain):
            if globs.match(name):
                return Service(name, role, place, pattern)
        return Service(name)
