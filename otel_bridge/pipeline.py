"""The data path, put together: bytes in, columns, steps, bytes out."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from otel_bridge import catalog
from otel_bridge.batch import PlanBuilder
from otel_bridge.connectors.derive.derive import Derive
from otel_bridge.contracts import Outcome
from otel_bridge.errors import RetryableError
from otel_bridge.model import Reject, Signal
from otel_bridge.processors.consistency.consistency import Consistency
from otel_bridge.processors.enrich.enrich import Enrich
from otel_bridge.processors.gpu.gpu import GpuSpans
from otel_bridge.processors.join.join import Join
from otel_bridge.processors.redact.redact import Redact
from otel_bridge.processors.sample.hold import Hold, Place
from otel_bridge.processors.sample.sample import Sample

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_bridge.batch import Batch, Plan
    from otel_bridge.connectors.derive.derive import Metrics
    from otel_bridge.contracts import Clock, Codec, Exporter, Reservation, TraceProcessor
    from otel_bridge.events import KernelEvents
    from otel_bridge.exporters.otlp.config import StorageConfig
    from otel_bridge.gpu_usage import GpuUsage
    from otel_bridge.processors.sample.hold import Held
    from otel_bridge.settings import ConnectorSettings, ProcessorSettings
    from otel_bridge.telemetry import Deferred, Telemetry
    from otel_bridge.verbosity import Verbosity

log = structlog.get_logger(__name__)

SWEEP_INTERVAL = 1.0
"""Seconds between two looks for kernel events and traces that waited long enough."""


@dataclass(frozen=True, slots=True)
class Steps:
    """What is done to each batch: replaced as a whole on reload, so that no batch sees two configurations.

    Attributes:
        plan: the columns that the processors asked for.
        processors: in order, each with the name that its metrics carry.
        join: the one among them that kernel events go to; None when it is off.
        consistency: the one among them that looks for broken contexts; None when it is off.
        sample: the one among them that drops and holds spans; None when it is off.
        derive: makes metrics of what was delivered; None when it is off.
    """

    plan: Plan
    processors: tuple[tuple[str, TraceProcessor], ...]
    join: Join | None
    consistency: Consistency | None
    sample: Sample | None
    derive: Derive | None


def build_steps(
    settings: ProcessorSettings,
    telemetry: Telemetry,
    clock: Clock,
    *,
    connectors: ConnectorSettings | None = None,
    tap: Callable[[PlanBuilder], TraceProcessor | None] = lambda _: None,
    rules: Callable[[PlanBuilder], TraceProcessor | None] = lambda _: None,
    recent: Callable[[PlanBuilder], TraceProcessor | None] = lambda _: None,
    gpu_usage: GpuUsage | None = None,
    verbosity: Verbosity | None = None,
) -> Steps:
    """Compile the processors' and connectors' configuration; without `connectors` there are none.

    `gpu_usage` knows which process used which GPU, `verbosity` how much is to be told. `tap` and `rules` make
    steps that read spans when they are enriched and complete: what the breakers go by, what rules look at.
    `recent` makes the step that keeps some spans to be looked at.

    Redaction is the last that changes anything: whatever a step before it measured or converted leaves only
    as it allows, and what is kept to be looked at is what leaves.
    """
    columns = PlanBuilder()
    processors: list[tuple[str, TraceProcessor]] = []
    if settings.enrich.enabled:
        enrich = Enrich(settings.enrich, columns, telemetry, convert_messages=settings.redact.keeps_content)
        processors.append(("enrich", enrich))
    join = Join(settings.join, columns, telemetry, clock) if settings.join.enabled else None
    if join is not None:
        processors.append(("join", join))
    processors += _gpu_spans(settings, columns, gpu_usage)
    consistency = (
        Consistency(settings.consistency, columns, telemetry, clock) if settings.consistency.enabled else None
    )
    if consistency is not None:
        processors.append(("consistency", consistency))
    processors += _onlookers(columns, control=tap, rules=rules)
    sample = (
        Sample(settings.sample, columns, telemetry, clock, verbosity) if settings.sample.enabled else None
    )
    if sample is not None:
        processors.append(("sample", sample))
    if settings.redact.enabled:
        redact = Redact(settings.redact, columns, telemetry)
        if not redact.idle:
            processors.append(("redact", redact))
    processors += _onlookers(columns, ui=recent)
    derive = None
    if connectors is not None and connectors.derive.enabled:
        derive = Derive(connectors.derive, columns, telemetry, clock)
    return Steps(columns.build(), tuple(processors), join, consistency, sample, derive)


def _onlookers(
    columns: PlanBuilder, **makers: Callable[[PlanBuilder], TraceProcessor | None]
) -> list[tuple[str, TraceProcessor]]:
    """The steps of other parts, of those that want one."""
    made = ((name, make(columns)) for name, make in makers.items())
    return [(name, step) for name, step in made if step is not None]


def _gpu_spans(
    settings: ProcessorSettings, columns: PlanBuilder, usage: GpuUsage | None
) -> list[tuple[str, TraceProcessor]]:
    return [("gpu", GpuSpans(columns, usage))] if usage is not None and settings.gpu.enabled else []


class Pipeline:
    """A Consumer that scans, processes, splices and hands over; it keeps nothing itself."""

    def __init__(
        self,
        codec: Codec,
        steps: Steps,
        exporter: Exporter,
        telemetry: Telemetry,
        clock: Clock,
        *,
        storage: StorageConfig | None = None,
    ) -> None:
        self._codec = codec
        self._steps = steps
        self._exporter = exporter
        self._clock = clock
        self._telemetry = telemetry
        self._mended = telemetry.counter(catalog.RECEIVER_MENDED_STRINGS)
        self._incoming = telemetry.deferred(catalog.PROCESSOR_INCOMING)
        self._outgoing = telemetry.deferred(catalog.PROCESSOR_OUTGOING)
        self._durations: dict[str, Deferred] = {}
        self._sweeper: asyncio.Task[None] | None = None
        self._complete_until: Callable[[int], int] = _nobody_knows
        place = Place(storage.directory / "sample", storage.fsync) if storage is not None else None
        self._hold = Hold(codec, exporter, telemetry, clock, place)
        self._hold.use(steps.sample, steps.plan)

    async def start(self) -> None:
        """Begin to look for what waited too long.

        Raises:
            StartError: spans are to wait on disk, and cannot.
        """
        await self._hold.start()
        self._sweeper = asyncio.create_task(self._sweep_for_ever())

    async def stop(self, _deadline: float) -> None:
        """Stop looking; events whose span has not come yet go to whoever gets the span."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
            self._sweeper = None
            await self._hold.stop()
            await self.sweep(everything=True)

    def hurry(self) -> None:
        """Keep no request waiting for verdicts any more: the service is about to stop."""
        self._hold.hurry()

    def follow(self, complete_until: Callable[[int], int]) -> None:
        """Say until when (unix nanoseconds) kernel events are needed, be told until when all were taken."""
        self._complete_until = complete_until

    def replace(self, steps: Steps) -> None:
        """Use other steps from the next batch on; batches under way finish with the old ones."""
        if steps.join is not None and self._steps.join is not None:
            steps.join.adopt(self._steps.join)
        if steps.consistency is not None and self._steps.consistency is not None:
            steps.consistency.adopt(self._steps.consistency)
        if steps.derive is not None and self._steps.derive is not None:
            steps.derive.adopt(self._steps.derive)
        self._hold.use(steps.sample, steps.plan)
        self._steps = steps

    @property
    def derived(self) -> Metrics | None:
        """The metrics made of spans; None when there are none."""
        derive = self._steps.derive
        return derive.metrics if derive is not None else None

    def take(self, events: KernelEvents) -> None:
        """Take kernel events (events.KernelEventSink); without a join they concern nobody."""
        join = self._steps.join
        if join is not None:
            join.take(events)

    async def consume_traces(self, data: bytes) -> Outcome:
        """Take a trace request; see `contracts.Consumer`."""
        # Room first: a request that will be refused costs nothing, and is not derived from twice.
        self._hold.check_room()
        reservation = self._exporter.reserve(len(data))
        steps = self._steps
        try:
            before = time.perf_counter()
            batch = self._codec.scan(data, steps.plan)
            self._observe("scan", before)
            if steps.join is not None:
                await steps.join.settle(batch, self._complete_until)
            with self._telemetry.span("otel_bridge.process") as span:
                self._process(batch, steps)
                held = self._hold.take(batch)
                leaving = batch.leaving
                payload = batch.splice() if leaving else b""
                if span.is_recording():
                    span.set_attributes({"otel_bridge.spans": len(batch), "otel_bridge.bytes": len(data)})
            if leaving:
                self._outgoing(leaving)
                await self._send(reservation, payload, leaving, held)
        finally:
            reservation.release()
        await self._hold.secure(held)
        if steps.derive is not None:
            # Only now: a request that could not be delivered comes again, and counts then.
            before = time.perf_counter()
            steps.derive.process(batch)
            self._observe("derive", before)
        return outcome(batch)

    async def consume(self, signal: Signal, data: bytes) -> Outcome:
        """Pass on a request of another signal as it is; see `contracts.Consumer`."""
        reservation = self._exporter.reserve(len(data))
        try:
            if signal is Signal.LOGS and self._steps.join is not None:
                self._steps.join.take_logs(data)
            items = self._codec.count_items(signal, data)
            await reservation.send(signal, data, items)
        finally:
            reservation.release()
        return Outcome(items)

    async def sweep(self, *, everything: bool = False) -> None:
        """Send on the kernel events that no span took in time, or all that wait."""
        join = self._steps.join
        data = join.sweep(everything=everything) if join is not None else None
        if data is None:
            return
        try:
            reservation = self._exporter.reserve(len(data))
            await reservation.send(Signal.LOGS, data, self._codec.count_items(Signal.LOGS, data))
        except RetryableError as error:
            log.warning("kernel events without a span could not be sent on", reason=str(error))

    async def _send(self, reservation: Reservation, payload: bytes, spans: int, held: Held) -> None:
        try:
            await reservation.send(Signal.TRACES, payload, spans)
        except RetryableError:
            self._hold.withdraw(held)
            raise

    async def _sweep_for_ever(self) -> None:
        while True:
            await self._clock.sleep(SWEEP_INTERVAL)
            if self._steps.consistency is not None:
                self._steps.consistency.sweep()
            await self.sweep()
            if self._steps.derive is not None:
                self._steps.derive.sweep()

    def _process(self, batch: Batch, steps: Steps) -> None:
        self._incoming(len(batch))
        if batch.mended:
            self._mended.inc(batch.mended)
        before = time.perf_counter()
        for name, processor in steps.processors:
            processor.process(batch)
            before = self._observe(name, before)

    def _observe(self, step: str, since: float) -> float:
        now = time.perf_counter()
        duration = self._durations.get(step)
        if duration is None:
            duration = self._telemetry.deferred(catalog.PROCESSOR_DURATION, step)
            self._durations[step] = duration
        duration(now - since)
        return now


def _nobody_knows(_wanted: int) -> int:
    return 0


def outcome(batch: Batch) -> Outcome:
    """What the sender is told: bad spans by reason, or nothing when all were taken."""
    rejected = batch.rejected
    if not rejected:
        return Outcome(len(batch))
    count = sum(rejected.values())
    return Outcome(len(batch) - count, count, "spans refused: " + describe(rejected))


def describe(rejected: dict[Reject, int]) -> str:
    """Reasons with their counts, for a person."""
    return ", ".join(f"{number} {REASONS[reason]}" for reason, number in rejected.items())


REASONS = {
    Reject.NONE: "without a reason",
    Reject.TRACE_ID_LENGTH: "with a trace id that is not 16 bytes",
    Reject.TRACE_ID_ZERO: "with an all-zero trace id",
    Reject.SPAN_ID_LENGTH: "with a span id that is not 8 bytes",
    Reject.SPAN_ID_ZERO: "with an all-zero span id",
    Reject.PARENT_ID_LENGTH: "with a parent span id that is neither empty nor 8 bytes",
    Reject.LINK_ID_LENGTH: "with a link whose ids have the wrong length",
    Reject.TOO_DEEP: "nested deeper than 100 messages",
}
