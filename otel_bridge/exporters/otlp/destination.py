"""One destination: its queue, its consumers, what it is known to take, and what becomes of each request."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import deque
from typing import TYPE_CHECKING

import structlog

from otel_bridge import catalog
from otel_bridge.backoff import RetryPolicy
from otel_bridge.errors import BridgeError, RetryableError
from otel_bridge.exporters.otlp.answer import Delivered, Failed
from otel_bridge.exporters.otlp.queue import Alarm, Item, MemoryQueue
from otel_bridge.exporters.otlp.retry import Health, Suspects
from otel_bridge.exporters.otlp.size_limit import SizeLimit
from otel_bridge.exporters.otlp.split import Part, split
from otel_bridge.exporters.otlp.throttle import Throttle
from otel_bridge.model import Signal

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from otel_bridge.contracts import Clock, Codec
    from otel_bridge.exporters.otlp.answer import Answer, Sender
    from otel_bridge.exporters.otlp.config import ExporterConfig
    from otel_bridge.exporters.otlp.disk import DiskQueue
    from otel_bridge.exporters.otlp.loss import Loss
    from otel_bridge.exporters.otlp.record import Record
    from otel_bridge.telemetry import Deferred, Telemetry

_log = structlog.get_logger("otel_bridge.exporters.otlp")

HIGH_WATER = 0.8
"""From this share of the memory on, requests go to disk at once."""
DISK_PAUSE = 10.0
"""After a failure the disk is left alone for so long, seconds."""
DRAIN_SHARE = 0.7
"""The part of the time to stop in that is spent on delivering; the rest is for the disk."""
DROP_REASONS = ("refused", "oversize", "damaged", "disk_full")


class Destination:
    """Takes requests, and settles each one: delivered, on disk, dropped for a reason, or handed back."""

    def __init__(
        self,
        name: str,
        config: ExporterConfig,
        sender: Sender,
        *,
        codec: Codec,
        clock: Clock,
        telemetry: Telemetry,
        disk: DiskQueue | None = None,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """`draw` gives numbers in [0, 1) for the jitter."""
        self.name = name
        self._config = config
        self._queue_config = config.sending_queue
        self._sender = sender
        self._codec = codec
        self._clock = clock
        self._draw = draw
        self._disk = disk
        self._disk_paused_until = 0.0
        policy = RetryPolicy(config.retry_on_failure, draw)
        self._health = Health(policy)
        self._suspects = Suspects(policy)
        self._limit = SizeLimit(config.max_request_size, clock)
        self._queue = MemoryQueue()
        self._order = itertools.count()
        self._holding: deque[Item] = deque()
        self._hold_alarm = Alarm(clock, self._expire)
        self._gate_alarm = Alarm(clock, self._pump)
        self._remaining: dict[int, deque[Part]] = {}
        self._running = 0
        self._taking = False
        self._take_at = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._memory_bytes = 0
        self._reserved = 0
        self._draining = False
        self._closing = False
        self._drained: asyncio.Future[None] | None = None
        self._throttle = Throttle(clock)
        self._log = _log.bind(exporter=name)
        self._metrics(telemetry)

    def _metrics(self, telemetry: Telemetry) -> None:
        name = self.name

        def by_signal(metric: catalog.Metric) -> dict[Signal, Deferred]:
            return {signal: telemetry.deferred(metric, name, signal.value) for signal in Signal}

        self._sent = by_signal(catalog.EXPORTER_SENT)
        self._rejected = by_signal(catalog.EXPORTER_REJECTED)
        self._dropped = telemetry.counter(catalog.EXPORTER_DROPPED)
        self._failures = telemetry.counter(catalog.EXPORTER_SEND_FAILED)
        for signal in Signal:
            for reason in DROP_REASONS:
                self._dropped.labels(name, signal.value, reason)
            for code in self._sender.codes:
                self._failures.labels(name, signal.value, code)
        self._refusals = telemetry.counter(catalog.EXPORTER_REFUSED).labels(name)
        self._duration = by_signal(catalog.EXPORTER_DURATION)
        sizes = telemetry.gauge(catalog.EXPORTER_QUEUE_BYTES)
        sizes.labels(name, "memory").set_function(lambda: self._memory_bytes)
        requests = telemetry.gauge(catalog.EXPORTER_QUEUE_REQUESTS)
        requests.labels(name, "memory").set_function(lambda: len(self._queue))
        capacity = telemetry.gauge(catalog.EXPORTER_QUEUE_CAPACITY)
        capacity.labels(name, "memory").set(self._queue_config.queue_size)
        sizes.labels(name, "disk").set_function(lambda: self._disk.bytes if self._disk else 0)
        requests.labels(name, "disk").set_function(lambda: self._disk.requests if self._disk else 0)
        capacity.labels(name, "disk").set_function(lambda: self._disk.max_size if self._disk else 0)

    # What the exporter calls.

    async def start(self) -> None:
        """Open the transport and the disk queue; a disk that cannot be used is logged and done without.

        Raises:
            StartError: a TLS file cannot be read.
        """
        await self._sender.start()
        if self._disk is not None:
            self._disk.on_change = self._pump
            self._disk.on_loss = self._lost
            try:
                await self._disk.open()
            except BridgeError as error:
                self._log.error("going on without a queue on disk", error=str(error))
                self._disk = None
        self._pump()

    def wait_for_room(self, size: int) -> float | None:
        """Seconds after which to ask again for room for a request; None: there is room now."""
        now = self._clock.monotonic()
        blocked = max(self._health.open_at - now, 0.0)
        if self._disk_usable:
            in_memory = not self._to_disk_at_once and self._memory_has_room(size)
            room = in_memory or self._disk_has_room(size)
        else:
            room = self._memory_has_room(size) and blocked <= self._queue_config.hold
        if room:
            return None
        self._refusals.inc()
        return max(blocked, 1.0) * (1.0 + 0.5 * self._draw())

    def reserve(self, size: int) -> None:
        """Hold room."""
        self._reserved += size

    def unreserve(self, size: int) -> None:
        """Give it back."""
        self._reserved -= size

    def submit(self, item: Item) -> None:
        """Take a request that somebody waits for; its ticket is settled sooner or later."""
        item.deadline = self._clock.monotonic() + self._queue_config.hold
        item.order = next(self._order)
        item.counted = True
        self._memory_bytes += len(item.payload)
        if self._disk_usable and self._to_disk_at_once:
            self._spill(item)
        else:
            self._enqueue(item)

    async def stop(self, deadline: float) -> None:
        """Deliver what is in memory, put the rest on disk, close; within `deadline` seconds."""
        self._draining = True
        if self._busy:
            self._drained = asyncio.get_running_loop().create_future()
            alarm = Alarm(self._clock, self._stop_draining)
            alarm.set(self._clock.monotonic() + deadline * DRAIN_SHARE)
            await self._drained
            alarm.cancel()
        self._closing = True
        self._hold_alarm.cancel()
        self._gate_alarm.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._give_back(self._queue.take_all())
        if self._disk is not None:
            await self._disk.close()
        await self._sender.close()

    # Where requests wait.

    @property
    def _disk_usable(self) -> bool:
        return self._disk is not None and self._clock.monotonic() >= self._disk_paused_until

    @property
    def _to_disk_at_once(self) -> bool:
        """Whether waiting in memory is pointless: older requests are on disk, or nobody takes them."""
        return (
            (self._disk is not None and self._disk.backlogged)
            or self._health.down
            or self._clock.monotonic() < self._health.open_at
            or self._memory_bytes > HIGH_WATER * self._queue_config.queue_size
        )

    def _memory_has_room(self, size: int) -> bool:
        used = self._memory_bytes + self._reserved
        return not used or used + size <= self._queue_config.queue_size

    def _disk_has_room(self, size: int) -> bool:
        disk = self._disk
        return (
            disk is not None
            and disk.has_room(self._reserved + size)
            and (not disk.writing or disk.writing + size <= self._queue_config.queue_size)
        )

    def _enqueue(self, item: Item) -> None:
        self._queue.push(item)
        self._holding.append(item)
        self._hold_alarm.set(item.deadline)
        self._pump()

    def _expire(self) -> None:
        """Senders that have waited long enough: their requests go to disk, or back to them."""
        now = self._clock.monotonic()
        while self._holding:
            item = self._holding[0]
            if item.ticket is not None and not item.spilling and item.deadline > now:
                self._hold_alarm.set(item.deadline)
                return
            self._holding.popleft()
            if item.ticket is None or item.spilling:
                continue
            if self._disk_usable:
                if not item.held:
                    self._queue.discard(item)
                self._spill(item)
            elif not item.held:
                self._queue.discard(item)
                self._let_go(item)
            # Else it is in flight and nothing can hold it but memory: its answer decides, within the timeout.
            # Handing it back now would have it sent twice whenever that answer is good.

    def _spill(self, item: Item) -> None:
        assert self._disk is not None
        item.spilling = True
        payload, items = item.payload, item.items
        if item.parts is not None and not item.held:
            payload, items = b"".join(part.payload for part in item.parts), sum(p.items for p in item.parts)
        future = self._disk.append(item.signal, payload, items, item.received_ns, taken=item.held)
        future.add_done_callback(lambda done: self._spilled(item, done))

    def _spilled(self, item: Item, future: asyncio.Future[int]) -> None:
        assert self._disk is not None
        item.spilling = False
        error = future.exception()
        if error is not None:
            self._disk_failed(error)
            if item.done or item.held:
                return
            if self._closing or item.deadline <= self._clock.monotonic():
                self._let_go(item)
            else:
                self._enqueue(item)
            return
        item.record = future.result()
        item.settle()
        if item.done:
            self._disk.done([item.record])
        elif not item.held:
            self._give_back([item])
        self._pump()

    def _disk_failed(self, error: BaseException) -> None:
        self._disk_paused_until = self._clock.monotonic() + DISK_PAUSE
        left_out = self._throttle.due("disk")
        if left_out is not None:
            self._log.error(
                "the queue on disk failed; going on in memory", error=str(error), left_out=left_out
            )

    # Consumers.

    def _pump(self) -> None:
        """Give work to as many consumers as may run."""
        if self._closing:
            return
        now = self._clock.monotonic()
        allowed = self._health.allowed(self._queue_config.num_consumers, now)
        while self._running < allowed:
            if self._disk_has_work(now):
                if not self._taking:
                    self._taking = True
                    self._run(self._work_from_disk())
                return
            if not self._queue:
                break
            self._run(self._work(self._queue.take(self._batch_size)))
        if now < self._health.open_at:
            self._gate_alarm.set(self._health.open_at)
        elif now < self._take_at:
            self._gate_alarm.set(self._take_at)

    @property
    def _batch_size(self) -> int:
        """Up to which size requests are joined; a probe is a single one."""
        return 0 if self._health.down else min(self._queue_config.batch_size, self._limit.bytes)

    def _run(self, work: Coroutine[None, None, None]) -> None:
        self._running += 1
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ran)

    def _ran(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._running -= 1
        self._pump()
        if not self._busy:
            self._stop_draining()

    def _disk_has_work(self, now: float) -> bool:
        # While stopping, what is on disk is safe there.
        return (
            self._disk is not None and self._disk.waiting > 0 and now >= self._take_at and not self._draining
        )

    async def _work_from_disk(self) -> None:
        assert self._disk is not None
        try:
            resting = self._suspects.resting(self._clock.monotonic())
            records = await self._disk.take(self._batch_size, skip=resting, alone=self._suspects.known)
        except BridgeError as error:
            records = []
            self._disk_failed(error)
        finally:
            self._taking = False
        if not records:
            self._take_at = self._clock.monotonic() + 1.0
            return
        batch = [self._from_disk(record) for record in records]
        self._pump()
        await self._work(batch)

    def _from_disk(self, record: Record) -> Item:
        return Item(
            record.signal,
            record.payload,
            record.items,
            record.received_ns,
            record=record.number,
            parts=self._remaining.pop(record.number, None),
        )

    async def _work(self, batch: list[Item]) -> None:
        for item in batch:
            item.held = True
        try:
            # Another consumer may have found the destination down since this one was started.
            if self._clock.monotonic() >= self._health.open_at:
                await self._deliver(batch)
        except Exception:  # noqa: BLE001 (a bug in one request's handling must not lose the others)
            self._health.failed(self._health.era, self._clock.monotonic(), None)
            self._log.exception("a consumer failed; its requests will be tried again")
        finally:
            self._give_back([item for item in batch if not item.done])
            on_disk = [item.record for item in batch if item.done and item.record is not None]
            noted = self._disk.done(on_disk) if on_disk and self._disk is not None else None
        if noted is not None:
            # Waiting here bounds what is sent twice after a kill by what is in flight.
            await noted

    async def _deliver(self, batch: list[Item]) -> None:
        if len(batch) > 1:
            # Concatenated messages are the merged message: protobuf defines it so.
            joined = Part(b"".join(item.payload for item in batch), sum(item.items for item in batch))
            answer = await self._try(batch[0].signal, joined)
            if isinstance(answer, Delivered):
                for item in batch:
                    self._finish(item)
                return
            if answer.retryable:
                return
            if answer.oversize:
                self._limit.refused(len(joined.payload), answer.limit)
            # One of them may be to blame for all: from here on each stands for itself.
        for item in batch:
            if not await self._deliver_one(item):
                return

    async def _deliver_one(self, item: Item) -> bool:
        """Send a request, in parts if it must be; False when it has to be tried again."""
        parts = item.parts if item.parts is not None else deque([_whole(item)])
        limit = self._limit.bytes
        while parts:
            part = parts[0]
            if len(part.payload) > limit and part.divisible:
                parts.popleft()
                parts.extendleft(reversed(split(item.signal, part, limit, self._codec)))
                item.parts = parts
                continue
            limit = self._limit.bytes
            if self._limit.forbids(len(part.payload)):
                self._drop(item.signal, part, "oversize", f"{len(part.payload)} bytes, the limit is {limit}")
                parts.popleft()
                continue
            answer = await self._try(item.signal, part, item.record)
            if isinstance(answer, Failed):
                if answer.retryable:
                    return False
                if answer.oversize:
                    limit = min(limit, self._limit.refused(len(part.payload), answer.limit))
                    pieces = split(item.signal, part, limit, self._codec) if part.divisible else []
                    if len(pieces) > 1:
                        parts.popleft()
                        parts.extendleft(reversed(pieces))
                        item.parts = parts
                        continue
                    self._drop(item.signal, part, "oversize", answer.message)
                else:
                    self._drop(item.signal, part, "refused", f"{answer.code}: {answer.message}")
            parts.popleft()
        self._finish(item)
        return True

    async def _try(self, signal: Signal, part: Part, record: int | None = None) -> Answer:
        started, era = self._clock.monotonic(), self._health.era
        answer = await self._sender.send(signal, part.payload)
        now = self._clock.monotonic()
        self._duration[signal](now - started)
        if isinstance(answer, Delivered):
            if self._health.down and self._throttle.due("up") is not None:
                self._log.info("the destination takes requests again")
            self._health.succeeded()
            self._suspects.delivered(record)
            self._limit.delivered(len(part.payload))
            self._delivered(signal, part, answer)
            return answer
        self._failures.labels(self.name, signal.value, answer.code).inc()
        if answer.retryable:
            suspected = answer.doubtful and record is not None and self._suspects.failed(record, now)
            if not suspected:
                self._health.failed(era, now, answer.retry_after)
            left_out = self._throttle.due("down")
            if left_out is not None:
                self._log.warning(
                    "a try failed; requests wait",
                    code=answer.code,
                    error=answer.message,
                    next_try_in_s=round(self._health.open_at - now, 3),
                    left_out=left_out,
                )
        return answer

    # What becomes of a request.

    def _delivered(self, signal: Signal, part: Part, answer: Delivered) -> None:
        rejected = min(answer.rejected, part.items)
        self._sent[signal](part.items - rejected)
        if rejected:
            self._rejected[signal](rejected)
        if not (answer.rejected or answer.message or answer.garbled):
            return
        kind = "garbled" if answer.garbled else "partial"
        left_out = self._throttle.due(kind)
        if left_out is not None:
            text = (
                "the destination said success in an answer that cannot be read; counted as sent"
                if answer.garbled
                else "the destination refused a part for good"
                if rejected
                else "the destination took everything, with a warning"
            )
            self._log.warning(
                text, signal=signal.value, rejected=rejected, message=answer.message, left_out=left_out
            )

    def _drop(self, signal: Signal, part: Part, reason: str, why: str) -> None:
        self._dropped.labels(self.name, signal.value, reason).inc(part.items)
        left_out = self._throttle.due(reason)
        if left_out is not None:
            self._log.error(
                "dropped for good",
                signal=signal.value,
                items=part.items,
                reason=reason,
                error=why,
                left_out=left_out,
            )

    def _lost(self, loss: Loss) -> None:
        """Data that was on disk and is gone."""
        for signal, items in loss.items.items():
            self._dropped.labels(self.name, signal.value, loss.reason).inc(items)
        self._log.error(loss.text, **loss.details())

    def _finish(self, item: Item) -> None:
        item.done = True
        item.held = False
        self._uncount(item)
        item.settle()

    def _give_back(self, items: list[Item]) -> None:
        """Requests that were not delivered: to the disk, to the front of the queue, or to their senders."""
        on_disk = []
        for item in items:
            item.held = False
            if item.record is not None:
                self._uncount(item)
                if item.parts is not None:
                    self._remaining[item.record] = item.parts
                on_disk.append(item.record)
            elif item.spilling:
                continue
            elif self._disk_usable:
                self._spill(item)
            elif self._closing or item.deadline <= self._clock.monotonic():
                self._let_go(item)
            else:
                self._queue.push_back(item)
        if on_disk and self._disk is not None:
            self._disk.untake(on_disk)

    def _let_go(self, item: Item) -> None:
        item.done = True
        self._uncount(item)
        wait = max(self._health.open_at - self._clock.monotonic(), 1.0)
        item.settle(
            RetryableError(
                f"exporter {self.name}: not delivered in time and no disk to keep it on",
                retry_after=wait * (1.0 + 0.5 * self._draw()),
            )
        )

    def _uncount(self, item: Item) -> None:
        if item.counted:
            item.counted = False
            self._memory_bytes -= len(item.payload)
            # Those that hold the item for its deadline must not hold its bytes too.
            item.payload = b""
            if not self._busy:
                self._stop_draining()

    @property
    def _busy(self) -> bool:
        return bool(self._memory_bytes or self._tasks)

    def _stop_draining(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)


def _whole(item: Item) -> Part:
    return Part(item.payload, item.items, divisible=item.items > 1)
