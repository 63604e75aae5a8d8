"""Readings that are not there: counted by reason, and said once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from otel_bridge import catalog

if TYPE_CHECKING:
    from otel_bridge.telemetry import Telemetry

log = structlog.get_logger(__name__)

BLANK = "blank"
STALE = "stale"
RESET = "counter_reset"


class Absences:
    """Where readers of all GPUs leave what they could not read."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._counter = telemetry.counter(catalog.GPU_ABSENT_READINGS)
        self._said: set[tuple[str, str, str]] = set()

    def note(self, uuid: str, reading: str, reason: str) -> None:
        """A reading is absent."""
        self._counter.labels(uuid, reading, reason).inc()
        key = uuid, reading, reason
        if key not in self._said:
            self._said.add(key)
            log.info("a GPU reading is absent", gpu_uuid=uuid, reading=reading, reason=reason)
