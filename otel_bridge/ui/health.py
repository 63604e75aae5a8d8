"""How probes and destinations are, read off the bridge's own metrics."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from otel_bridge import catalog
from otel_bridge.ui.shown import byte_size

if TYPE_CHECKING:
    from otel_bridge.catalog import Metric
    from otel_bridge.telemetry import Telemetry


@dataclass(frozen=True, slots=True)
class Destination:
    """Where spans go.

    Attributes:
        name: of the exporter.
        word: delivering, waiting, full or losing.
        sent: items that it took.
        waits: what waits, as text.
        room: the most that may wait, as text.
        refused: requests whose senders were told to come again.
        lost: items lost for good.
        failures: tries that failed, by code.
    """

    name: str
    word: str
    sent: int
    waits: str
    room: str
    refused: int
    lost: int
    failures: dict[str, int]

    @property
    def good(self) -> bool:
        """Whether that is as it should be."""
        return self.word == "delivering"


@dataclass(frozen=True, slots=True)
class Probe:
    """A kernel probe.

    Attributes:
        name: its name.
        loaded: whether it is at work.
        events: read and handed on.
        lost: events dropped.
    """

    name: str
    loaded: bool
    events: int
    lost: int


class Health:
    """Reads these metrics alone, since others may take a while."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry

    def destinations(self) -> list[Destination]:
        """All exporters."""
        queued = self._by(catalog.EXPORTER_QUEUE_BYTES, "exporter")
        room = self._by(catalog.EXPORTER_QUEUE_CAPACITY, "exporter")
        sent = self._by(catalog.EXPORTER_SENT, "exporter")
        refused = self._by(catalog.EXPORTER_REFUSED, "exporter")
        lost = self._by(catalog.EXPORTER_DROPPED, "exporter")
        failures: dict[str, dict[str, int]] = defaultdict(dict)
        for labels, value in self._telemetry.values(catalog.EXPORTER_SEND_FAILED):
            codes = failures[labels["exporter"]]
            if value:
                codes[labels["code"]] = codes.get(labels["code"], 0) + int(value)
        out = []
        for name in sorted(queued.keys() | sent.keys() | refused.keys()):
            waits, full = queued.get(name, 0.0), room.get(name, 0.0)
            word = "delivering"
            if lost.get(name):
                word = "losing"
            elif full and waits >= 0.9 * full:
                word = "full"
            elif waits:
                word = "waiting"
            out.append(
                Destination(
                    name=name,
                    word=word,
                    sent=int(sent.get(name, 0)),
                    waits=byte_size(waits),
                    room=byte_size(full),
                    refused=int(refused.get(name, 0)),
                    lost=int(lost.get(name, 0)),
                    failures=failures.get(name, {}),
                )
            )
        return out

    def probes(self) -> list[Probe]:
        """All probes that are configured; none where the kernel side is off."""
        events = self._by(catalog.KERNEL_EVENTS, "probe")
        lost = self._by(catalog.KERNEL_DROPPED, "probe")
        return [
            Probe(name, bool(loaded), int(events.get(name, 0)), int(lost.get(name, 0)))
            for name, loaded in sorted(self._by(catalog.KERNEL_PROBE_LOADED, "probe").items())
        ]

    def accepted(self) -> int:
        """Items taken in."""
        return int(sum(value for _, value in self._telemetry.values(catalog.RECEIVER_ACCEPTED)))

    def rules_of_prometheus(self) -> int:
        """Rules that Prometheus alone evaluates."""
        found = self._by(catalog.RULES_LOADED, "engine")
        return int(found.get("prometheus", 0))

    def _by(self, metric: Metric, label: str) -> dict[str, float]:
        sums: dict[str, float] = {}
        for labels, value in self._telemetry.values(metric):
            sums[labels[label]] = sums.get(labels[label], 0.0) + value
        return sums
