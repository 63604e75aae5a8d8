"""Takes events out of the kernel and hands them on, whole batches at a time.

Ring buffers have a thread of their own: what else is done every so often may wait for the kernel (taking sums
does, for some ten milliseconds), and a ring that nobody reads meanwhile would overflow.
"""

from __future__ import annotations

import select
import threading
from typing import TYPE_CHECKING

import numpy as np
import structlog

from otel_bridge import catalog
from otel_bridge.errors import BridgeError
from otel_bridge.events import KernelEvents
from otel_bridge.kernel.clock import StepNotice
from otel_bridge.kernel.records import sum_records
from otel_bridge.model import KernelEventKind, Match

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray
    from prometheus_client import Counter

    from otel_bridge.contracts import Clock
    from otel_bridge.events import KernelEventSink
    from otel_bridge.kernel.clock import Alignment
    from otel_bridge.kernel.loader import LoadedProbe
    from otel_bridge.kernel.probes.base import Probe
    from otel_bridge.telemetry import Telemetry

log = structlog.get_logger(__name__)

_TIMES = ("time", "first")
_MATCHES = len(Match)
_LONGEST_WAIT = 0.1  # seconds; so that stopping needs no descriptor of its own


class Intake:
    """Makes events of records: checked, their times put on the axis of spans, counted.

    Args:
        sink: where events go.
        alignment: boot time to unix time.
        telemetry: where events are counted.
    """

    def __init__(self, sink: KernelEventSink, alignment: Alignment, telemetry: Telemetry) -> None:
        self._sink = sink
        self._alignment = alignment
        self._events = telemetry.counter(catalog.KERNEL_EVENTS)
        self._counters: dict[tuple[str, int], Counter] = {}
        self._kinds: dict[str, NDArray[np.bool_]] = {}
        self._lock = threading.Lock()
        self.malformed: dict[str, int] = {}
        self.split: dict[str, Callable[[NDArray[np.void]], Iterable[tuple[str, NDArray[np.void]]]]] = {}
        """For a probe whose events belong to several names: makes one batch for each of its records."""

    def take_ring(self, loaded: LoadedProbe) -> int:
        """Everything that waits in a probe's ring buffer; returns how many events that was."""
        if loaded.ring is None:
            return 0
        records = loaded.ring.take()
        if len(records):
            good = self._known_kinds(loaded.probe)[records["kind"]] & (records["match"] <= Match.HEADER)
            if not good.all():
                loaded.ring.malformed += int(np.count_nonzero(~good))
                records = records[good]
        if loaded.ring.malformed:
            name = loaded.probe.name
            self.malformed[name] = self.malformed.get(name, 0) + loaded.ring.malformed
            loaded.ring.malformed = 0
        self._hand_on(loaded.probe.name, records)
        return len(records)

    def _known_kinds(self, probe: Probe) -> NDArray[np.bool_]:
        """For every number whether it is a kind of the probe's records."""
        known = self._kinds.get(probe.name)
        if known is None:
            known = self._kinds[probe.name] = np.zeros(1 << 16, np.bool_)
            known[list(probe.kinds)] = True
        return known

    def take_sums(self, loaded: LoadedProbe) -> int:
        """All rows of a probe's sums; returns how many."""
        if loaded.sums is None or loaded.probe.sums is None:
            return 0
        keys, values = loaded.sums.take()
        self._hand_on(loaded.probe.name, sum_records(loaded.probe.sums.kind, keys, values))
        return len(keys)

    def _hand_on(self, probe: str, records: NDArray[np.void]) -> None:
        if not len(records):
            return
        with self._lock:
            self._hand_on_some(probe, records)

    def _hand_on_some(self, probe: str, records: NDArray[np.void]) -> None:
        for name in _TIMES:
            if name in (records.dtype.names or ()):
                records[name] = self._alignment.to_unix(records[name])
        counts = np.bincount(records["kind"].astype(np.intp) * _MATCHES + records["match"])
        for code in np.flatnonzero(counts).tolist():
            self._counter(probe, code).inc(int(counts[code]))
        if probe in self.split:
            for name, part in self.split[probe](records):
                self._sink.take(KernelEvents(name, part))
        else:
            self._sink.take(KernelEvents(probe, records))

    def _counter(self, probe: str, code: int) -> Counter:
        counter = self._counters.get((probe, code))
        if counter is None:
            kind, match = divmod(code, _MATCHES)
            labels = (probe, KernelEventKind(kind).name.lower(), Match(match).name.lower())
            counter = self._counters[probe, code] = self._events.labels(*labels)
        return counter


class Timer:
    """Says when something that is done every so often is due."""

    def __init__(self, clock: Clock, interval: float, act: Callable[[], None]) -> None:
        self._clock = clock
        self._interval = interval
        self._act = act
        self._last = clock.monotonic()
        self._due = self._last + interval

    def hurry(self, least: float) -> None:
        """Be due `least` seconds after the last time, if that is sooner than it would be."""
        self._due = min(self._due, self._last + least)

    def wait(self) -> float:
        """Seconds until it is due."""
        return max(0.0, self._due - self._clock.monotonic())

    def run_if_due(self) -> None:
        """Do it when it is time; the next time is counted from now, so that delays do not pile up."""
        if self.wait() == 0.0:
            self._act()
            self._last = self._clock.monotonic()
            self._due = self._last + self._interval


class Ticker:
    """A thread for what is done every so often."""

    def __init__(self, timers: list[Timer]) -> None:
        self._timers = timers
        self._stopping = False
        self._woken = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kernel-ticker", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, once what is being done is done."""
        self._stopping = True
        self.wake()
        if self._thread.is_alive():
            self._thread.join()

    def wake(self) -> None:
        """Look again what is due; from any thread."""
        self._woken.set()

    def _run(self) -> None:
        while True:
            self._woken.wait(min(timer.wait() for timer in self._timers))
            self._woken.clear()
            if self._stopping:
                return
            for timer in self._timers:
                timer.run_if_due()


class Reader:
    """The thread that reads ring buffers.

    A first event after silence is read at once; after that, reads are `interval` apart, so that under load
    each takes many events at a time.

    Args:
        intake: makes events.
        alignment: is sampled again when somebody sets the wall clock.
        interval: seconds between two reads.
    """

    def __init__(self, intake: Intake, alignment: Alignment, *, interval: float) -> None:
        self._intake = intake
        self._alignment = alignment
        self._interval = interval
        self._probes: dict[int, LoadedProbe] = {}
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._epoll = select.epoll()
        self._steps = self._step_notice()
        self._thread = threading.Thread(target=self._run, name="kernel-reader", daemon=True)

    def _step_notice(self) -> StepNotice | None:
        try:
            notice = StepNotice()
        except BridgeError as error:
            log.warning("a set wall clock is noticed late", error=str(error))
            return None
        self._epoll.register(notice.fd, select.EPOLLIN)
        return notice

    def add(self, loaded: LoadedProbe) -> None:
        """Read a probe's ring buffer from now on; replaces the probe that had the same ring buffer."""
        if loaded.ring is None:
            return
        with self._lock:
            known = loaded.ring_fd in self._probes
            self._probes[loaded.ring_fd] = loaded
        if not known:
            self._epoll.register(loaded.ring_fd, select.EPOLLIN)

    def remove(self, loaded: LoadedProbe) -> None:
        """Read a probe's ring buffer no more."""
        with self._lock:
            known = self._probes.pop(loaded.ring_fd, None)
        if known is not None:
            self._epoll.unregister(loaded.ring_fd)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def stop(self) -> None:
        """Read what is left, then end."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._steps is not None:
            self._steps.close()
        self._epoll.close()

    def _run(self) -> None:
        while not self._stopping.is_set():
            ready = [fd for fd, _ in self._epoll.poll(_LONGEST_WAIT)]
            if self._steps is not None and self._steps.fd in ready and self._steps.acknowledge():
                self._alignment.sample()
            if self._read(ready):
                self._stopping.wait(self._interval)
        self.read_all()

    def read_all(self) -> None:
        """Hand on what waits in any ring."""
        self._read(list(self._probes))

    def _read(self, ready: list[int]) -> int:
        # Held while reading: who removes a probe may read the rest of its ring afterwards.
        with self._lock:
            probes = [self._probes[fd] for fd in ready if fd in self._probes]
            return sum(self._intake.take_ring(loaded) for loaded in probes)
