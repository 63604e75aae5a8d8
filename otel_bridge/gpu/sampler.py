"""Reads all GPUs in rounds, in a thread of its own, whatever happens to the driver.

When a call of the driver does not return, its GPU counts as lost, and another thread goes on with the rest.
"""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import TYPE_CHECKING

import structlog

from otel_bridge import catalog
from otel_bridge.gpu.config import PROCESSES_EVERY, STATE_EVERY
from otel_bridge.gpu.device import GpuLostError
from otel_bridge.gpu.fleet import Fleet
from otel_bridge.gpu.hang import HangWatch, Turn
from otel_bridge.gpu.nvml import NvmlError
from otel_bridge.gpu.xid import XidWatch
from otel_bridge.readings import Reading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from otel_bridge.contracts import Clock
    from otel_bridge.gpu.absent import Absences
    from otel_bridge.gpu.clock import ReadingClock
    from otel_bridge.gpu.config import GpuConfig
    from otel_bridge.gpu.device import Fast
    from otel_bridge.gpu.fleet import Member
    from otel_bridge.gpu.hub import Hub
    from otel_bridge.gpu.nvml import Nvml
    from otel_bridge.telemetry import Telemetry

    _Read = Callable[[Member], Callable[[], None]]

log = structlog.get_logger(__name__)

_SECOND = 1.0
_RELOAD_INTERVAL = 60.0
"""Seconds between two reloads of the library for the sake of some GPUs while others go on."""


class Sampler:
    """The thread.

    Args:
        config: intervals.
        nvml: the library, not yet open.
        hub: takes what is read.
        absences: told of what is absent.
        reading_clock: times the readings.
        telemetry: for metrics.
        clock: for intervals.
    """

    def __init__(
        self,
        config: GpuConfig,
        nvml: Nvml,
        hub: Hub,
        *,
        absences: Absences,
        reading_clock: ReadingClock,
        telemetry: Telemetry,
        clock: Clock,
    ) -> None:
        self._config = config
        self._nvml = nvml
        self._hub = hub
        self._clock = clock
        self._reading_clock = reading_clock
        self.fleet = Fleet(nvml, absences, reading_clock)
        self._watch: XidWatch | None = None
        self._rounds = telemetry.counter(catalog.GPU_SAMPLES)
        self._missed = telemetry.counter(catalog.GPU_MISSED_SAMPLES)
        self._cpu = telemetry.counter(catalog.GPU_SAMPLING_TIME)
        self._reloads = telemetry.counter(catalog.GPU_REINITIALIZATIONS)
        clock_error = telemetry.gauge(catalog.GPU_CLOCK_ERROR)
        self._mean_error, self._max_error = clock_error.labels("mean"), clock_error.labels("max")
        self._every = max(1, round(config.slow_interval / config.interval))
        self._round = 0
        self._look_at = self._second_at = self._reload_at = 0.0
        self._spent = 0.0
        self._failure = ""
        self._stopping = threading.Event()
        self._turn = Turn()
        self._hangs = HangWatch(config.call_timeout, clock, self._go_on_without)
        self._thread = self._make_thread()

    def open(self) -> None:
        """Load the library now, so that its absence is known at the start.

        Raises:
            NvmlError: there is no driver, or it refuses.
        """
        self._open()

    def start(self) -> None:
        """Begin; a driver that is not there is looked for again and again."""
        self._thread.start()
        self._hangs.start()

    def stop(self) -> None:
        """End the thread and unload the library, unless a call of the driver does not return."""
        self._stopping.set()
        self._hangs.stop()
        if self._thread.is_alive():
            self._thread.join(self._config.call_timeout)
        if self._thread.is_alive() or self._hangs.stuck or not self._close():
            log.warning("the driver's library stays loaded: a call of it has not returned")

    def _make_thread(self) -> threading.Thread:
        return threading.Thread(target=self._run, args=(self._turn,), name="gpu-sampler", daemon=True)

    def _go_on_without(self, member: Member) -> None:
        """Lose a GPU whose call does not return, and leave its thread to wait for it."""
        self.fleet.lose(member, "hangs")
        self._hub.lose(member.uuid)
        self._turn = Turn()
        self._thread = self._make_thread()
        self._thread.start()

    def _run(self, turn: Turn) -> None:
        self._hangs.follow(turn)
        due = self._clock.monotonic()
        while not (self._stopping.is_set() or turn.over):
            try:
                self.step()
            except Exception as error:  # noqa: BLE001 (said below; the next round may go better)
                self._say_failed(error)
            wait = self._config.interval if self.fleet.is_open else self._config.retry_interval
            due += wait
            now = self._clock.monotonic()
            if due <= now:
                late = int((now - due) / wait) + 1
                self._missed.inc(late)
                due += late * wait
            self._stopping.wait(due - now)
        self._hangs.returned(turn)

    def _say_failed(self, error: Exception) -> None:
        """Once for each kind of failure: rounds are many."""
        if repr(error) != self._failure:
            self._failure = repr(error)
            log.error("a round of GPU readings failed", exc_info=error)

    def step(self) -> None:
        """One round."""
        if not self.fleet.is_open:
            self._try_to_open()
            return
        now, turn = self._clock.monotonic(), self._turn
        if not self._ask_all(turn, self._read_fast):
            return
        # Those who wait for these readings need not wait for the others.
        self._hub.flush()
        if self._round % self._every == 0:
            # All in one round: code that has just run is in the processor's caches.
            for read in self._due(self._round // self._every):
                if not self._ask_all(turn, read):
                    return
        self._round += 1
        self._rounds.inc()
        if now >= self._second_at:
            self._second_at = now + _SECOND
            self._each_second()
        if now >= self._look_at and not self._hangs.stuck:
            self._look_at = now + self._config.retry_interval
            self._look_for_changes(now)
        self._hub.flush()

    # The library

    def _open(self) -> None:
        self.fleet.open()
        self._failure = ""
        self._look_at = self._clock.monotonic() + self._config.retry_interval
        for member in self.fleet.members.values():
            self._greet(member)
        self._watch_for_xids()
        log.info("GPUs", found=[member.uuid for member in self.fleet.members.values()])

    def _close(self) -> bool:
        """Unload the library; False when that cannot be, since the watch's call of it has not returned."""
        if self._watch is not None and not self._watch.stop(self._config.call_timeout):
            return False
        self._watch = None
        self.fleet.close()
        return True

    def _watch_for_xids(self) -> None:
        """Watch the cards that answer now, in a new thread where the last one has ended."""
        if self._watch is not None and self._watch.is_waiting:
            self._watch.follow(self.fleet.cards)
            return
        self._watch = XidWatch(self._nvml, self._hub.xids.add)
        self._watch.follow(self.fleet.cards)
        self._watch.start()

    def _try_to_open(self) -> None:
        try:
            self._open()
        except NvmlError as error:
            if str(error) != self._failure:
                self._failure = str(error)
                log.info("no GPU readings", reason=self._failure)

    def _reload(self) -> bool:
        gone = set(self.fleet.members)
        if not self._close():
            return False
        self._reloads.inc()
        self._try_to_open()
        # One that is not found again is lost for good until it is.
        for uuid in gone - set(self.fleet.members):
            self._hub.lose(uuid)
        return True

    def _look_for_changes(self, now: float) -> None:
        """GPUs that were lost, came back, or were divided anew."""
        before = dict(self.fleet.members)
        lost = [member for member in before.values() if member.lost]
        if before and len(lost) == len(before) and self._reload():
            return
        if lost and now >= self._reload_at:
            due, self._reload_at = bool(self._reload_at), now + _RELOAD_INTERVAL
            if due and self._reload():
                return
        elif not lost:
            self._reload_at = 0.0
        try:
            self.fleet.look()
        except NvmlError as error:
            log.warning("GPUs cannot be counted", reason=str(error))
            return
        for uuid, member in self.fleet.members.items():
            if before.get(uuid) is not member:
                self._greet(member)
        for uuid in before.keys() - self.fleet.members.keys():
            self._hub.forget(uuid)

    def _greet(self, member: Member) -> None:
        self._hub.greet(member.uuid, member.device.name, member.device.parent)

    # Reading

    def _ask_all(self, turn: Turn, read: _Read) -> bool:
        """Read something of each GPU; False when another thread has taken this one's place meanwhile."""
        for member in list(self.fleet.members.values()):
            self._ask(turn, member, read)
            if turn.over:
                return False
        return True

    def _ask(self, turn: Turn, member: Member, read: _Read) -> None:
        """Read something of a GPU, then hand it on, unless that has taken too long."""
        if member.lost:
            return
        turn.begin(member, self._clock.monotonic())
        try:
            hand_on = read(member)
        except GpuLostError as error:
            if turn.end():
                self.fleet.lose(member, error.reason)
                self._hub.lose(member.uuid)
        else:
            if turn.end():
                hand_on()

    def _due(self, number: int) -> Iterator[_Read]:
        """What is read at a slow reading: what most change, and the others in turn."""
        yield self._read_activity
        if number % PROCESSES_EVERY == 0:
            yield self._read_processes
        if number % STATE_EVERY == 1:
            yield self._read_state

    def _read_fast(self, member: Member) -> Callable[[], None]:
        fast = member.device.read_fast()
        return partial(self._take_fast, member, fast)

    def _take_fast(self, member: Member, fast: Fast) -> None:
        uuid, hub = member.uuid, self._hub
        member.used = fast.used
        if fast.memory:
            hub.take_memory(uuid, fast.memory)
        else:
            hub.miss_memory(uuid)
        if fast.steady:
            hub.take_slow(uuid, "memory_size", fast.steady)
        if fast.utilization:
            hub.take_utilization(uuid, fast.utilization)

    def _read_state(self, member: Member) -> Callable[[], None]:
        return partial(self._hub.take_state, member.uuid, member.device.read_slow())

    def _read_processes(self, member: Member) -> Callable[[], None]:
        return partial(self._hub.take_processes, member.uuid, member.device.read_processes(), member.used)

    def _read_activity(self, member: Member) -> Callable[[], None]:
        if member.slices and not member.device.is_instance:
            return partial(self._take_divided, member)
        return partial(self._take_activity, member, member.gpm.read())

    def _take_activity(self, member: Member, activity: dict[str, Reading]) -> None:
        self._greet(member)
        self._hub.take_slow(member.uuid, "activity", list(activity.values()))
        if member.device.is_instance:
            member.activity = activity.get(catalog.GPU_SM_ACTIVE_RATIO.name)

    def _take_divided(self, card: Member) -> None:
        """The activity of a card with MIG on: that of its instances, by their slices; the others idle."""
        self._greet(card)
        instances = [one for one in self.fleet.members.values() if one.device.parent == card.uuid]
        known = [(one.slices, one.activity) for one in instances if one.activity is not None]
        if not known or len(known) < len(instances):
            return
        share = sum(slices * activity.value for slices, activity in known) / card.slices
        newest = max(activity.time for _, activity in known)
        metric = catalog.GPU_SM_ACTIVE_RATIO
        self._hub.take_slow(
            card.uuid, "activity", [Reading(metric.name, {"gpu_uuid": card.uuid}, share, newest)]
        )

    def _each_second(self) -> None:
        self._hub.second()
        self._watch_for_xids()
        mean, largest = self._reading_clock.error()
        self._mean_error.set(mean)
        self._max_error.set(largest)
        self._reading_clock.align()
        spent = time.thread_time()
        self._cpu.inc(max(0.0, spent - self._spent))
        self._spent = spent
