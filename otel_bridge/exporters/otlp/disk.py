"""The queue on disk as the event loop sees it: one thread does all the work, nothing here blocks."""

from __future__ import annotations

import asyncio
import queue
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from otel_bridge.exporters.otlp.disk_error import DiskError
from otel_bridge.exporters.otlp.record import Append
from otel_bridge.exporters.otlp.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from otel_bridge.contracts import Clock
    from otel_bridge.exporters.otlp.config import StorageConfig
    from otel_bridge.exporters.otlp.loss import Loss
    from otel_bridge.exporters.otlp.record import Record
    from otel_bridge.model import Signal


@dataclass(slots=True)
class _Job:
    kind: str
    argument: Any
    future: asyncio.Future[Any]


class DiskQueue:
    """Requests of one destination on disk, oldest first.

    Writes that come while one is under way are committed together.

    Attributes:
        on_change: called after each round of work, on the event loop.
        on_loss: called with each loss, on the event loop.
        bytes: size of the files.
        requests: requests not delivered yet.
        waiting: of those, the ones that no consumer has.
        writing: bytes on their way to the disk.
    """

    def __init__(self, directory: Path, config: StorageConfig, clock: Clock) -> None:
        self._store = Store(directory, config, clock)
        self._config = config
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._outstanding: set[asyncio.Future[Any]] = set()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._to_come = 0
        self.on_change: Callable[[], None] = _nothing
        self.on_loss: Callable[[Loss], None] = _ignore
        self.bytes = 0
        self.requests = 0
        self.waiting = 0
        self.writing = 0

    @property
    def max_size(self) -> int:
        """The configured bound, bytes."""
        return self._config.max_size

    @property
    def backlogged(self) -> bool:
        """Whether requests wait on disk, or are being written to wait there."""
        return self.waiting > 0 or self._to_come > 0

    def has_room(self, size: int) -> bool:
        """Whether so many more bytes fit."""
        if self._config.when_full == "drop_oldest":
            return size <= self.max_size
        return self.bytes + self.writing + size <= self.max_size

    async def open(self) -> None:
        """Take possession of the directory; what the last process left is delivered first.

        Raises:
            DiskError: it cannot be used.
        """
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="disk-queue", daemon=True)
        self._thread.start()
        try:
            await self._submit("open", None)
        except DiskError:
            await self.close()
            raise

    async def close(self) -> None:
        """Finish what was asked for, also by what it leads to, and let go of the directory."""
        while self._outstanding:
            await asyncio.wait(self._outstanding)
            await asyncio.sleep(0)
        await self._submit("close", None)
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
            self._thread = None

    def append(
        self, signal: Signal, payload: bytes, items: int, received_ns: int, *, taken: bool
    ) -> asyncio.Future[int]:
        """Write a request; the future gives its number once it is safe, or a DiskError."""
        self.writing += len(payload)
        if not taken:
            self._to_come += 1
        return self._submit("append", Append(signal, payload, items, received_ns, taken))

    def take(
        self, limit: int, *, skip: frozenset[int] = frozenset(), alone: frozenset[int] = frozenset()
    ) -> asyncio.Future[list[Record]]:
        """The oldest requests, see `Store.take`."""
        return self._submit("take", (limit, skip, alone))

    def untake(self, numbers: list[int]) -> asyncio.Future[None]:
        """Put requests back."""
        return self._submit("untake", numbers)

    def done(self, numbers: list[int]) -> asyncio.Future[None]:
        """Forget requests; never fails: what cannot be noted now is noted with the next ones."""
        return self._submit("done", numbers)

    def _submit(self, kind: str, argument: Any) -> asyncio.Future[Any]:
        assert self._loop is not None
        future = self._loop.create_future()
        self._outstanding.add(future)
        future.add_done_callback(self._outstanding.discard)
        self._jobs.put(_Job(kind, argument, future))
        return future

    # On the thread.

    def _run(self) -> None:
        assert self._loop is not None
        closing = False
        while not closing:
            jobs = [self._jobs.get()]
            while not self._jobs.empty():
                jobs.append(self._jobs.get_nowait())
            results = self._work(jobs)
            closing = any(job.kind == "close" for job in jobs)
            losses, self._store.losses = self._store.losses, []
            figures = (self._store.bytes, self._store.requests, self._store.waiting)
            try:
                self._loop.call_soon_threadsafe(self._answer, jobs, results, losses, figures)
            except RuntimeError:
                return  # the event loop was closed without us: nobody is left to tell

    def _work(self, jobs: list[_Job]) -> list[Any]:
        """Do all jobs: appends first and together, then the rest in order; an exception is a result."""
        results: list[Any] = [None] * len(jobs)
        appends = [place for place, job in enumerate(jobs) if job.kind == "append"]
        if appends:
            try:
                written: list[Any] = list(self._store.append([jobs[place].argument for place in appends]))
            except Exception as error:  # noqa: BLE001 (a thread that dies would hang every sender)
                written = [_as_disk_error(error)] * len(appends)
            for place, result in zip(appends, written, strict=True):
                results[place] = result
        for place, job in enumerate(jobs):
            if job.kind != "append":
                try:
                    results[place] = self._do(job)
                except Exception as error:  # noqa: BLE001 (as above)
                    results[place] = _as_disk_error(error)
        return results

    def _do(self, job: _Job) -> Any:
        match job.kind:
            case "take":
                return self._store.take(*job.argument)
            case "untake":
                return self._store.untake(job.argument)
            case "done":
                return self._store.done(job.argument)
            case "open":
                return self._store.open()
            case _:
                return self._store.close()

    # Back on the event loop.

    def _answer(
        self, jobs: list[_Job], results: list[Any], losses: list[Loss], figures: tuple[int, int, int]
    ) -> None:
        self.bytes, self.requests, self.waiting = figures
        for job, result in zip(jobs, results, strict=True):
            if job.kind == "append":
                self.writing -= len(job.argument.payload)
                if not job.argument.taken:
                    self._to_come -= 1
            if job.future.done():
                continue
            if isinstance(result, DiskError) and job.kind not in {"done", "untake", "close"}:
                job.future.set_exception(result)
            else:
                job.future.set_result(None if isinstance(result, DiskError) else result)
        for loss in losses:
            self.on_loss(loss)
        self.on_change()


def _as_disk_error(error: Exception) -> DiskError:
    return error if isinstance(error, DiskError) else DiskError(f"the queue on disk failed: {error!r}")


def _nothing() -> None:
    return


def _ignore(loss: Loss) -> None:
    del loss
