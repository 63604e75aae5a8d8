"""Keeps the spans that wait for their trace's verdict, and sends on those that are kept."""

from __future__ import annotations

import asyncio
import math
import sqlite3
from typing import TYPE_CHECKING, NamedTuple

import structlog

from otel_bridge import catalog
from otel_bridge.batch import Plan
from otel_bridge.errors import QueueFullError, RetryableError, ShuttingDownError, StartError
from otel_bridge.model import Signal
from otel_bridge.processors.sample.journal import Journal
from otel_bridge.processors.sample.sample import held_traces
from otel_bridge.processors.sample.waiting import Waiting

if TYPE_CHECKING:
    from pathlib import Path

    from otel_bridge.batch import Batch
    from otel_bridge.contracts import Clock, Codec, Exporter
    from otel_bridge.processors.sample.sample import Sample
    from otel_bridge.processors.sample.waiting import Piece
    from otel_bridge.telemetry import Telemetry

log = structlog.get_logger(__name__)

TICK = 0.2
"""Seconds between two looks for spans whose time is over."""

_JOINED = 1 << 20
"""Bytes of pieces that leave together."""

_RETRY_AFTER = 1.0

_IDS_ONLY = Plan(())


class Place(NamedTuple):
    """Where spans may wait on disk.

    Attributes:
        directory: of the journal alone.
        fsync: whether a power loss must lose nothing either.
    """

    directory: Path
    fsync: bool


class Held(NamedTuple):
    """What of one request must be safe before it is acknowledged.

    Attributes:
        piece: its spans that wait; None when none does.
        kept: notes that traces must be kept, on their way to the disk.
    """

    piece: Piece | None
    kept: tuple[asyncio.Future[None], ...]


class Hold:
    """One for the life of a pipeline; the sampling it works for may be replaced."""

    def __init__(
        self, codec: Codec, exporter: Exporter, telemetry: Telemetry, clock: Clock, place: Place | None
    ) -> None:
        """Begin with nothing.

        Args:
            codec: reads what has waited.
            exporter: where it goes.
            telemetry: where it is counted.
            clock: when its time is over.
            place: where it may wait on disk; None: `hold: disk` is as `sender`.
        """
        self._codec = codec
        self._exporter = exporter
        self._clock = clock
        self._place = place
        self._sample: Sample | None = None
        self._plan = _IDS_ONLY
        self._waiting = Waiting(0, 0.0)
        self._leaving: dict[int, Piece] = {}
        self._leaving_cost = 0
        self._releasing = asyncio.Lock()
        self._journal: Journal | None = None
        self._opening = asyncio.Lock()
        self._hurried = False
        self._task: asyncio.Task[None] | None = None
        self._bytes = telemetry.gauge(catalog.SAMPLE_WAITING_BYTES)
        self._spans = telemetry.gauge(catalog.SAMPLE_WAITING_SPANS)
        early = telemetry.counter(catalog.SAMPLE_EARLY)
        self._early = {reason: early.labels(reason) for reason in ("memory", "stop")}
        self._failures = telemetry.counter(catalog.SAMPLE_JOURNAL_FAILURES)
        self._recovered = telemetry.counter(catalog.SAMPLE_RECOVERED)
        self._outgoing = telemetry.counter(catalog.PROCESSOR_OUTGOING)

    def use(self, sample: Sample | None, plan: Plan) -> None:
        """Work for this sampling from now on; without one, what waits is still decided by the last."""
        if sample is None:
            return
        if self._sample is not None:
            sample.adopt(self._sample)
        self._sample, self._plan = sample, plan
        keep = sample.config.keep
        self._waiting.limit(sample.config.max_waiting, keep.wait if keep is not None else 0.0)

    async def start(self) -> None:
        """Take over what an earlier process acknowledged and did not decide.

        Raises:
            StartError: the journal is needed and cannot be used.
        """
        if self._place is not None and (self._wants_disk or Journal.exists(self._place.directory)):
            await self._open(self._place)
        self._task = asyncio.create_task(self._release_for_ever())

    async def stop(self) -> None:
        """Decide everything now and send it on; what the exporter does not take stays in the journal."""
        if self._task is not None:
            async with self._releasing:  # what is being sent would be sent again
                self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        self._hurried = True
        await self.release()
        for piece in self._leaving.values():
            if not piece.settled.done():
                piece.settled.set_exception(ShuttingDownError("stopped before the verdict", retry_after=1.0))
                piece.settled.exception()  # perhaps nobody waits for it
        if self._journal is not None:
            await self._journal.close()
            self._journal = None

    def hurry(self) -> None:
        """Let nothing wait any more: the service is about to stop."""
        self._hurried = True

    def check_room(self) -> None:
        """Refuse a request before work is spent on it.

        Raises:
            QueueFullError: too many spans wait, and the exporter does not take those that are decided.
        """
        if self._sample is not None and self._waiting.is_full(self._leaving_cost):
            raise QueueFullError(
                "spans that wait for their trace's verdict fill processors.sample.max_waiting",
                retry_after=_RETRY_AFTER,
            )

    def take(self, batch: Batch) -> Held:
        """Take the held spans of a batch that went through all steps."""
        sample, journal = self._sample, self._journal
        newly = sample.newly_kept() if sample is not None else {}
        kept: tuple[asyncio.Future[None], ...] = ()
        if journal is not None:
            kept = tuple(journal.keep(trace, int(why), self._waiting.last) for trace, why in newly.items())
        if batch.held is None:
            return Held(None, kept)
        spans = int((batch.held & (batch.spans["reject"] == 0)).sum())
        piece = self._waiting.add(batch.splice_held(), spans, held_traces(batch), self._clock.monotonic())
        return Held(piece, kept)

    async def secure(self, held: Held) -> None:
        """Return when nothing of it can be lost any more, as far as `hold` promises that.

        Raises:
            ShuttingDownError: the service stopped before it could be.
        """
        for note in held.kept:
            try:
                await asyncio.shield(note)
            except (OSError, sqlite3.Error) as error:
                self._failures.inc()
                log.warning("a trace's verdict is not on disk", error=str(error))
        piece = held.piece
        mode = self._sample.config.hold if self._sample is not None else "memory"
        if piece is None or mode == "memory" or (mode == "disk" and await self._written(piece)):
            return
        await asyncio.shield(piece.settled)

    def withdraw(self, held: Held) -> None:
        """Forget spans whose sender will come again."""
        if held.piece is not None and self._waiting.remove(held.piece):
            self._done(held.piece)

    async def release(self) -> None:
        """Decide the traces whose time is over and send on what is kept of them."""
        async with self._releasing:
            if self._sample is not None:
                self._decide_due(self._sample)
            await self._deliver()
        self._bytes.set(self._waiting.cost + self._leaving_cost)
        self._spans.set(self._waiting.spans)

    def _decide_due(self, sample: Sample) -> None:
        now = math.inf if self._hurried else self._clock.monotonic()
        for piece, early in self._waiting.due(now):
            if self._hurried or early:
                self._early["stop" if self._hurried else early].inc(piece.spans)
            self._decide(sample, piece)

    def _decide(self, sample: Sample, piece: Piece) -> None:
        if sample.drops_all(piece.traces, piece.spans):
            self._done(piece)
            return
        batch = self._codec.scan(piece.payload, _IDS_ONLY)
        sample.settle(batch)
        piece.spans = batch.leaving
        if not piece.spans:
            self._done(piece)
            return
        piece.payload = batch.splice()
        self._leave(piece)

    def _leave(self, piece: Piece) -> None:
        self._leaving[piece.number] = piece
        self._leaving_cost += piece.cost

    async def _deliver(self) -> None:
        """Send what was decided; what the exporter does not take is tried again at the next tick."""
        groups: list[list[Piece]] = []
        size = 0
        for piece in self._leaving.values():
            if not groups or size + len(piece.payload) > _JOINED:
                groups.append([])
                size = 0
            groups[-1].append(piece)
            size += len(piece.payload)
        await asyncio.gather(*(self._send(group) for group in groups))

    async def _send(self, group: list[Piece]) -> None:
        # Requests are joined by writing them one after the other: so protobuf defines it.
        payload = b"".join(piece.payload for piece in group)
        spans = sum(piece.spans for piece in group)
        try:
            reservation = self._exporter.reserve(len(payload))
            await reservation.send(Signal.TRACES, payload, spans)
        except RetryableError as error:
            log.debug("spans that waited are sent later", spans=spans, reason=str(error))
            return
        self._outgoing.inc(spans)
        for piece in group:
            del self._leaving[piece.number]
            self._leaving_cost -= piece.cost
            self._done(piece)

    def _done(self, piece: Piece) -> None:
        if piece.journaled and self._journal is not None:
            self._journal.forget(piece.number)
        if not piece.settled.done():
            piece.settled.set_result(None)

    async def _release_for_ever(self) -> None:
        while True:
            await self._clock.sleep(TICK)
            try:
                await self.release()
            except Exception:
                # A bug: the request concerned stays on disk, or with its sender; all others must go on.
                log.exception("spans that wait could not be decided")

    # The journal.

    @property
    def _wants_disk(self) -> bool:
        config = self._sample.config if self._sample is not None else None
        return config is not None and config.keep is not None and config.hold == "disk"

    async def _open(self, place: Place) -> Journal:
        async with self._opening:
            if self._journal is None:
                journal = Journal(place.directory, fsync=place.fsync)
                left = await journal.open()
                self._journal = journal
                for trace, reason in left.kept.items():
                    if self._sample is not None:
                        self._sample.must_keep(trace, reason)
                for number, payload in left.pieces.items():
                    self._recover(number, payload)
            return self._journal

    def _recover(self, number: int, payload: bytes) -> None:
        """Let spans wait again that an earlier process left; without sampling all of them go on."""
        batch = self._codec.scan(payload, self._plan)
        traces = self._sample.recall(batch) if self._sample is not None else []
        piece = self._waiting.add(payload, len(batch), traces, self._clock.monotonic(), number)
        piece.journaled = True
        self._recovered.inc(piece.spans)
        if self._sample is None:
            self._waiting.remove(piece)
            self._leave(piece)

    async def _written(self, piece: Piece) -> bool:
        """Whether a piece is on disk, or was settled before it had to be."""
        if piece.settled.done():
            return True
        if self._place is None or self._hurried:
            return False
        try:
            journal = self._journal or await self._open(self._place)
            if piece.settled.done():
                return True
            piece.journaled = True
            await asyncio.shield(journal.put(piece.number, piece.payload))
        except (StartError, OSError, sqlite3.Error) as error:
            piece.journaled = False
            self._failures.inc()
            log.warning("waiting spans are not on disk; acknowledged after the verdict", error=str(error))
            return False
        return True
