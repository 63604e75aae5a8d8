"""What the programs count about themselves, as metrics: nothing is lost unseen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import structlog

from otel_bridge import catalog
from otel_bridge.kernel.records import Counter

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_bridge.contracts import Clock
    from otel_bridge.kernel.time_wait import TimeWait
    from otel_bridge.telemetry import Telemetry

log = structlog.get_logger(__name__)

QUIET_SECONDS = 10.0
_DROPS = {Counter.DROPPED: "full", Counter.LIMITED: "limited"}
_BAD_CONTEXTS = {
    Counter.ZERO_IDS: "zero",
    Counter.TORN: "torn",
    Counter.UNREADABLE: "unreadable",
    Counter.BAD_HEADER: "header",
}


class DeviceAccounts:
    """Block devices' totals, which only grow, as metrics."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._requests = telemetry.counter(catalog.KERNEL_DEVICE_REQUESTS)
        self._errors = telemetry.counter(catalog.KERNEL_DEVICE_ERRORS)
        self._latency = telemetry.counter(catalog.KERNEL_DEVICE_LATENCY)
        self._in_flight = telemetry.gauge(catalog.KERNEL_DEVICE_IN_FLIGHT)
        self._seen: dict[str, NDArray[np.void]] = {}

    def update(self, devices: dict[str, NDArray[np.void]]) -> None:
        """Take in the totals of each device (dtype BLOCK_TOTALS, shape ()), by its name."""
        for name, now in devices.items():
            before = self._seen.get(name, np.zeros((), now.dtype))
            self._requests.labels(name).inc(int(now["requests"] - before["requests"]))
            self._errors.labels(name).inc(int(now["errors"] - before["errors"]))
            self._latency.labels(name).inc(int(now["latency_ns"] - before["latency_ns"]) / 1e9)
            # Requests that were under way when the probe came are seen to end, not to begin.
            self._in_flight.labels(name).set(max(0, int(now["in_flight"])))
            self._seen[name] = now


class TimeWaitAccounts:
    """Connections in TIME_WAIT, as metrics."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._sockets = telemetry.gauge(catalog.KERNEL_TIME_WAIT_SOCKETS)
        self._limit = telemetry.gauge(catalog.KERNEL_TIME_WAIT_LIMIT)
        self._ports = telemetry.gauge(catalog.KERNEL_LOCAL_PORTS)
        self._overflows = telemetry.counter(catalog.KERNEL_TIME_WAIT_OVERFLOWS)
        self._seen: int | None = None

    def update(self, now: TimeWait) -> None:
        """Take in how matters stand; overflows count from the first time on."""
        self._sockets.set(now.sockets)
        self._limit.set(now.limit)
        self._ports.set(now.ports)
        self._overflows.inc(max(0, now.overflows - (now.overflows if self._seen is None else self._seen)))
        self._seen = now.overflows


class Accounts:
    """Turns counters, which only grow, into metrics and at most one log line in ten seconds.

    Args:
        telemetry: where the metrics are.
        clock: for the log line.
    """

    def __init__(self, telemetry: Telemetry, clock: Clock) -> None:
        self._clock = clock
        self._produced = telemetry.counter(catalog.KERNEL_PRODUCED)
        self._dropped = telemetry.counter(catalog.KERNEL_DROPPED)
        self._bad = telemetry.counter(catalog.KERNEL_BAD_CONTEXTS)
        self._lost = telemetry.counter(catalog.KERNEL_LOST_STATE)
        self._seen: dict[str, NDArray[np.uint64]] = {}
        self._unsaid: dict[str, int] = {}
        self._spoke_at = -QUIET_SECONDS

    def open(self, probe: str, cpus: int) -> None:
        """Have every counter of a probe there at 0, so that the first loss is seen as an increase."""
        self._seen.setdefault(probe, np.zeros((len(Counter), cpus), "<u8"))
        self._produced.labels(probe)
        self._lost.labels(probe)
        for reason in _BAD_CONTEXTS.values():
            self._bad.labels(probe, reason)
        for cpu in range(cpus):
            for reason in _DROPS.values():
                self._dropped.labels(probe, cpu, reason)
        self._dropped.labels(probe, "", "malformed")

    def update(self, probe: str, counters: NDArray[np.uint64], *, malformed: int = 0) -> int:
        """Take in a probe's counters.

        Args:
            probe: which.
            counters: as they stand now, shape (len(Counter), CPUs).
            malformed: records thrown away since the last time because they were none.

        Returns:
            Events lost since the last time.
        """
        increase = counters - self._seen[probe]
        self._seen[probe] = counters
        total = increase.sum(axis=1)
        self._produced.labels(probe).inc(int(total[Counter.PRODUCED]))
        self._lost.labels(probe).inc(int(total[Counter.LOST_STATE]))
        for which, reason in _BAD_CONTEXTS.items():
            self._bad.labels(probe, reason).inc(int(total[which]))
        for which, reason in _DROPS.items():
            for cpu in np.flatnonzero(increase[which]):
                self._dropped.labels(probe, int(cpu), reason).inc(int(increase[which, cpu]))
        if malformed:
            self._dropped.labels(probe, "", "malformed").inc(malformed)
        lost = malformed + sum(int(total[which]) for which in _DROPS)
        self._speak(probe, lost)
        return lost

    def _speak(self, probe: str, lost: int) -> None:
        if lost:
            self._unsaid[probe] = self._unsaid.get(probe, 0) + lost
        now = self._clock.monotonic()
        if self._unsaid and now - self._spoke_at >= QUIET_SECONDS:
            log.warning(
                "kernel events were lost; raise kernel.probes.<probe>.ring_size or kernel.max_spans",
                **self._unsaid,
            )
            self._unsaid.clear()
            self._spoke_at = now
