"""The alerts that fire: one entry each, for those who show them and those who send them on."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from otel_bridge import catalog
from otel_bridge.catalog import prometheus_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from otel_bridge.contracts import Clock
    from otel_bridge.firings import Firing
    from otel_bridge.telemetry import Telemetry

Labels = tuple[tuple[str, str], ...]
"""What identifies an alert: names as Prometheus allows them, no empty values, in order."""

FORGET_AFTER = 900.0
"""Seconds for which an alert that ended is kept for those who could not be told yet; as Prometheus does."""


@dataclass(frozen=True, slots=True)
class ActiveAlert:
    """One alert.

    Attributes:
        labels: what identifies it.
        firing: what began it, or the latest to begin it anew.
        version: grows with each change.
        began: when it began, unix nanoseconds.
        shown_since: the same on the monotonic clock, seconds.
        ended: when it ended, or will have been shown for long enough, unix nanoseconds; 0: it fires.
        ended_at: the same on the monotonic clock, seconds.
    """

    labels: Labels
    firing: Firing
    version: int
    began: int
    shown_since: float
    ended: int = 0
    ended_at: float = 0.0

    def fires(self, now: float) -> bool:
        """Whether it fires at a time of the monotonic clock."""
        return not self.ended or now < self.ended_at


class ActiveAlerts(Collector):
    """A FiringSink, and what a scrape finds of it: a series as Prometheus's ALERTS.

    Args:
        limit: alerts kept at once; those beyond are not shown, and counted.
        shortest: seconds that an alert is shown at least; one that ends at once would be over before a
            scrape sees it.
    """

    def __init__(self, telemetry: Telemetry, clock: Clock, *, limit: int, shortest: float) -> None:
        self._clock = clock
        self._limit = limit
        self._shortest = shortest
        self._lock = threading.Lock()
        self._alerts: dict[Labels, ActiveAlert] = {}
        self._listeners: list[Callable[[], None]] = []
        self._versions = 0
        self._dropped = telemetry.counter(catalog.ALERTMANAGER_DROPPED).labels("full")
        telemetry.registry.register(self)

    def listen(self, listener: Callable[[], None]) -> None:
        """Tell somebody of each change, in the thread that made it."""
        self._listeners.append(listener)

    def take_firing(self, firing: Firing) -> None:
        """See `firings.FiringSink`."""
        labels = identity(firing)
        with self._lock:
            kept = self._begin(labels, firing) if firing.active else self._end(labels, firing)
        if kept:
            for listener in self._listeners:
                listener()

    def snapshot(self) -> list[ActiveAlert]:
        """All that fire, and those that ended a while ago."""
        now = self._clock.monotonic()
        with self._lock:
            self._forget(now)
            return list(self._alerts.values())

    def describe(self) -> Iterable[Family]:
        """The family, so that its name is taken."""
        return [self._family()]

    def collect(self) -> Iterator[Family]:
        """One sample for each alert that fires."""
        family = self._family()
        now = self._clock.monotonic()
        for alert in self.snapshot():
            if alert.fires(now):
                family.add_sample(family.name, dict(alert.labels), 1.0)
        yield family

    def _family(self) -> Family:
        return Family(catalog.RULES_ALERTS.name, catalog.RULES_ALERTS.description, "gauge")

    def _begin(self, labels: Labels, firing: Firing) -> bool:
        known = self._alerts.get(labels)
        now = self._clock.monotonic()
        self._versions += 1
        if known is not None and known.fires(now):
            self._alerts[labels] = replace(known, firing=firing, version=self._versions, ended=0)
            return True
        if firing.again:
            return False
        if known is None and len(self._alerts) >= self._limit:
            self._forget(now)
            if len(self._alerts) >= self._limit and not self._drop_ended(now):
                self._dropped.inc()
                return False
        self._alerts.pop(labels, None)
        self._alerts[labels] = ActiveAlert(labels, firing, self._versions, firing.since, now)
        return True

    def _end(self, labels: Labels, firing: Firing) -> bool:
        known = self._alerts.get(labels)
        if known is None or known.ended:
            return False
        now = self._clock.monotonic()
        rest = max(0.0, known.shown_since + self._shortest - now)
        self._versions += 1
        self._alerts[labels] = replace(
            known,
            version=self._versions,
            ended=max(firing.since, known.began + 1) + round(rest * 1e9),
            ended_at=now + rest,
        )
        return True

    def _forget(self, now: float) -> None:
        gone = [
            labels
            for labels, alert in self._alerts.items()
            if alert.ended and now > alert.ended_at + FORGET_AFTER
        ]
        for labels in gone:
            del self._alerts[labels]

    def _drop_ended(self, now: float) -> bool:
        oldest = next((labels for labels, alert in self._alerts.items() if not alert.fires(now)), None)
        if oldest is None:
            return False
        del self._alerts[oldest]
        return True


def identity(firing: Firing) -> Labels:
    """What makes two firings the same alert: no trace ids or values, which would make a new one each time."""
    labels = {"alertname": firing.rule}
    labels |= {prometheus_name(name): value for name, value in firing.labels.items() if value}
    return tuple(sorted(labels.items()))


def links(firing: Firing, trace_url: str | None) -> Mapping[str, str]:
    """The evidence as annotations: trace ids, and links to them where a template is given."""
    if not firing.evidence:
        return {}
    ids = [trace_id.hex() for trace_id in firing.evidence]
    out = {"trace_ids": ", ".join(ids)}
    if trace_url is not None:
        out["traces"] = "\n".join(trace_url.replace("{trace_id}", trace_id) for trace_id in ids)
    return out
