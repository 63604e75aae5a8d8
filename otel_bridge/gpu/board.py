"""The readings of now, as Prometheus scrapes them: what is too old is not shown."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from otel_bridge import catalog
from otel_bridge.catalog import Kind, Metric

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from otel_bridge.contracts import Clock
    from otel_bridge.readings import Reading

_METRICS = {
    entry.name: entry
    for entry in vars(catalog).values()
    if isinstance(entry, Metric) and entry.labels[:1] == ("gpu_uuid",) and entry.kind is Kind.GAUGE
}


class Board(Collector):
    """Holds the newest readings; filled by one thread, collected by any.

    Args:
        clock: tells how old a reading is.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._shown: dict[str, dict[str, tuple[Sequence[Reading], float]]] = defaultdict(dict)

    def show(self, uuid: str, group: str, readings: Sequence[Reading], lifetime: float) -> None:
        """Show some readings of a GPU from now on, in the place of those of the same group.

        Args:
            uuid: of the GPU.
            group: of readings that come together; of several of one series the last counts.
            readings: of it.
            lifetime: seconds after which they are too old.
        """
        self._shown[uuid][group] = readings, self._clock.monotonic() + lifetime

    def hide(self, uuid: str, group: str) -> None:
        """Show a group no more."""
        self._shown[uuid].pop(group, None)

    def clear(self, uuid: str) -> None:
        """Show nothing of a GPU any more."""
        self._shown.pop(uuid, None)

    def describe(self) -> Iterable[Family]:
        """Every metric there may be, so that a scrape can ask for single ones."""
        return [_family(metric) for metric in _METRICS.values()]

    def collect(self) -> Iterator[Family]:
        """What is not too old."""
        now = self._clock.monotonic()
        # Copies, which no other thread can come between.
        groups = [
            readings
            for shown in list(self._shown.values())
            for readings, until in list(shown.values())
            if until > now
        ]
        newest = {(one.metric, *one.labels.values()): one for readings in groups for one in readings}
        found: dict[str, list[Reading]] = defaultdict(list)
        for reading in newest.values():
            found[reading.metric].append(reading)
        for name, readings in found.items():
            family = _family(_METRICS[name])
            for reading in readings:
                labels = {key: value for key, value in reading.labels.items() if value}
                family.add_sample(name, labels, reading.value)
            yield family


def _family(metric: Metric) -> Family:
    return Family(metric.name, metric.description, metric.kind.value)
