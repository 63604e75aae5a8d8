"""What the queue on disk could not keep."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from otel_bridge.model import Signal

_LAST_NS = 253_402_300_799 * 10**9
"""The end of the year 9999, beyond which datetime has no dates."""


@dataclass(slots=True)
class Loss:
    """Requests that were on disk and are gone, or a file that was set aside.

    Attributes:
        reason: the label value.
        path: the file they were in.
        aside: where the damaged file lies now; None when it is not kept.
        requests: how many were lost.
        recovered: how many of the damaged file were whole and still to be sent.
        items: lost items by signal.
        first_ns: when the oldest lost one was received, unix nanoseconds.
        last_ns: the youngest.
    """

    reason: str
    path: Path
    aside: Path | None = None
    requests: int = 0
    recovered: int = 0
    items: Counter[Signal] = field(default_factory=Counter)
    first_ns: int = 0
    last_ns: int = 0

    def add(self, signal: Signal, items: int, received_ns: int) -> None:
        """Count one request; what it says of itself may be damaged."""
        self.requests += 1
        self.items[signal] += max(0, items)
        received_ns = min(max(0, received_ns), _LAST_NS)
        self.first_ns = min(self.first_ns or received_ns, received_ns)
        self.last_ns = max(self.last_ns, received_ns)

    @property
    def text(self) -> str:
        """What happened, for a log."""
        if self.reason == "disk_full":
            return "the queue on disk is full: the oldest requests made room"
        aside = "it was set aside, " if self.aside is not None else ""
        return f"a file of the queue on disk is damaged: {aside}its whole requests will be delivered"

    def details(self) -> dict[str, str | int]:
        """The rest of the log line."""
        details: dict[str, str | int] = {
            "path": str(self.path),
            "requests_lost": self.requests,
            "items_lost": self.items.total(),
            "requests_recovered": self.recovered,
        }
        if self.aside is not None:
            details["kept_at"] = str(self.aside)
        if self.requests and self.first_ns:
            details["lost_from"] = _iso(self.first_ns)
            details["lost_to"] = _iso(self.last_ns)
        return details


def _iso(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns / 1e9, UTC).isoformat(timespec="milliseconds")
