"""Joins kernel events with the very spans that they hit: by trace id and span id, within the span's time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from otel_bridge import catalog
from otel_bridge.batch import numbers
from otel_bridge.events import PROBE_OF_PROCESSES, KernelEvents
from otel_bridge.model import Match, Scope, SpanKind, ValueType
from otel_bridge.processors.join.accounts import SUMMARIES, Accounts
from otel_bridge.processors.join.found import Found
from otel_bridge.processors.join.inbox import Inbox
from otel_bridge.processors.join.logs import read_events, write_events
from otel_bridge.processors.join.processes import Processes
from otel_bridge.processors.join.store import Waiting, ids

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from otel_bridge.batch import Batch, PlanBuilder
    from otel_bridge.contracts import Clock
    from otel_bridge.processors.join.config import JoinConfig
    from otel_bridge.processors.join.found import Touched
    from otel_bridge.processors.join.store import Chunk, Group
    from otel_bridge.telemetry import Telemetry

_ASK_AGAIN = 0.02
"""Seconds between two looks whether a span's events are here."""

_NO_TRACE = np.zeros((), "V16")
_ENTRY_KINDS = (SpanKind.SERVER, SpanKind.CONSUMER)


class Join:
    """A TraceProcessor that takes kernel events from the reader's thread and spans from the pipeline.

    While no event waits, a batch costs one look at an empty queue.
    """

    def __init__(self, config: JoinConfig, columns: PlanBuilder, telemetry: Telemetry, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._slack = round(config.slack * 1e9)
        self._waiting = Waiting(config.max_bytes, config.max_age)
        self._inbox = Inbox()
        self._processes = Processes()
        self._existing = {attribute.key: columns.want(attribute.key) for attribute in SUMMARIES}
        self._pid = columns.want("process.pid", scope=Scope.RESOURCE)
        self._container = columns.want("container.id", scope=Scope.RESOURCE)
        self._outcomes = telemetry.counter(catalog.JOIN_EVENTS)
        spans = telemetry.counter(catalog.JOIN_SPANS)
        self._hits, self._misses = spans.labels("joined"), spans.labels("without")
        self._cost = telemetry.gauge(catalog.JOIN_WAITING_BYTES)
        self._count = telemetry.gauge(catalog.JOIN_WAITING_EVENTS)

    def take(self, events: KernelEvents) -> None:
        """Take events from the reader's thread (events.KernelEventSink)."""
        if events.probe == PROBE_OF_PROCESSES:
            self._processes.put(events.records)
        else:
            self._inbox.put(events, self._config.max_bytes, foreign=False)

    def take_logs(self, data: bytes) -> None:
        """Take the kernel events of an ExportLogsServiceRequest that another bridge could not join."""
        for events in read_events(data):
            # What names no span was meant for people: a process's number says nothing on another machine.
            events = KernelEvents(events.probe, events.records[events.records["trace_id"] != _NO_TRACE])  # noqa: PLW2901
            self._inbox.put(events, self._config.max_bytes, foreign=True)

    def adopt(self, older: Join) -> None:
        """Go on with what waits in the join that this one takes the place of."""
        self._inbox, self._waiting, self._processes = older._inbox, older._waiting, older._processes
        self._waiting.limit(self._config.max_bytes, self._config.max_age)

    async def settle(self, batch: Batch, complete_until: Callable[[int], int]) -> None:
        """Wait until the kernel's events of the batch's youngest span are here.

        No longer than `wait` for those of this machine, and until the span is `foreign_wait` old for those of
        other bridges. Where none of a kind ever came, none is waited for.

        Args:
            batch: spans that are to be processed next.
            complete_until: is told until when (unix nanoseconds) this machine's events are needed, and tells
                until when all were taken; 0 where nobody knows.
        """
        if not len(batch) or not (self._inbox.foreign or self._inbox.local):
            return
        end = int(batch.spans["end"].max())
        if self._inbox.foreign and (left := self._left(self._config.foreign_wait, end)) > 0:
            await self._clock.sleep(left)
        left = self._left(self._config.wait, end) if self._inbox.local else 0.0
        while left > 0 and complete_until(end) < end:
            step = min(left, _ASK_AGAIN)
            await self._clock.sleep(step)
            left -= step

    def _left(self, wait: float, end: int) -> float:
        """Seconds until a moment lies `wait` back; `wait` at the most, whatever the sender's clock says."""
        return min(wait, wait - (self._clock.time_ns() - end) / 1e9)

    def process(self, batch: Batch) -> None:
        """Note on each span what the kernel saw of it."""
        self._absorb()
        waiting = self._waiting
        if not waiting.count or not len(batch):
            return
        found = Found()
        self._find(batch, found)
        accounts = Accounts(len(batch), self._config.max_events)
        for touched in found.by_chunk():
            self._settle(batch, accounts, touched)
        hits = int(np.count_nonzero(accounts.hit))
        self._hits.inc(hits)
        self._misses.inc(len(batch) - hits)
        if hits:
            self._write(batch, accounts)

    def sweep(self, *, everything: bool = False) -> bytes | None:
        """Let go of what waited too long, or of everything.

        Returns:
            What no span took, as an ExportLogsServiceRequest for the bridge that gets the span. Events that
            name none would be found by nobody.
        """
        self._absorb()
        leaving: list[tuple[Chunk, NDArray[np.void]]] = []
        now = math.inf if everything else self._clock.monotonic()
        for chunk, reason in self._waiting.overdue(now):
            alone = chunk.records[~chunk.joined]
            if len(alone):
                self._outcomes.labels(chunk.probe, reason).inc(len(alone))
                named = alone[alone["trace_id"] != _NO_TRACE]
                if len(named) and not chunk.foreign:
                    leaving.append((chunk, named))
        self._cost.set(self._waiting.cost)
        self._count.set(self._waiting.count)
        if not leaving or not self._config.unmatched:
            return None
        return write_events((chunk.probe, records) for chunk, records in leaving)

    def _absorb(self) -> None:
        arrived, turned_away = self._inbox.fetch()
        now = self._clock.monotonic()
        self._processes.absorb(now, self._config.max_age)
        for events, foreign in arrived:
            self._waiting.add(events, now, foreign=foreign)
        for probe, count in turned_away.items():
            self._outcomes.labels(probe, "evicted").inc(count)

    def _find(self, batch: Batch, found: Found) -> None:
        """The spans' events, as far as ids and processes tell."""
        waiting = self._waiting
        if waiting.by_span:
            for row, key in enumerate(ids(batch.spans, "trace_id")):
                for group in waiting.by_span.get(key, ()):
                    found.add(row, group)
        if waiting.by_parent:
            self._by_parent(batch, found)
        if waiting.by_process and batch.has(self._pid):
            self._by_process(batch, found)

    def _by_parent(self, batch: Batch, found: Found) -> None:
        """By the caller's span, which may have called several: the one open in the event's process."""
        entries = np.flatnonzero(np.isin(batch.spans["kind"], _ENTRY_KINDS))
        spans = batch.spans[entries]
        called: dict[bytes, list[int]] = {}
        for row, trace, parent in zip(
            entries.tolist(), spans["trace_id"].tolist(), spans["parent_id"].tolist(), strict=True
        ):
            if trace + parent in self._waiting.by_parent:
                called.setdefault(trace + parent, []).append(row)
        if not called:
            return
        processes = self._processes_of_resources(batch)
        of_resource = batch.spans["resource"].tolist()
        for key, rows in called.items():
            for chunk, event in self._one_by_one(self._waiting.by_parent[key]):
                record = chunk.records[event]
                tgid = int(record["tgid"])
                own = [row for row in rows if processes.get(of_resource[row], tgid) == tgid]
                was_open = [row for row in own if self._within(batch.spans[row], record)]
                # Of several, none: which one it was cannot be told. Of none, any: it is stale for all.
                if len(was_open) == 1 or (own and not was_open):
                    found.add_one((was_open or own)[0], chunk, event, None)

    def _processes_of_resources(self, batch: Batch) -> dict[int, int]:
        """The process that a resource of the batch is, where that can be told for sure."""
        if not batch.has(self._pid):
            return {}
        return {
            resource: tgid
            for tgid, resources in self._resources_by_process(batch).items()
            for resource in resources
        }

    @staticmethod
    def _one_by_one(groups: list[Group]) -> Iterator[tuple[Chunk, int]]:
        for group in groups:
            for event in group.rows.tolist():
                yield group.chunk, event

    def _by_process(self, batch: Batch, found: Found) -> None:
        """By process only if that span was the process's one entry span open at that time."""
        entry = np.isin(batch.spans["kind"], _ENTRY_KINDS)
        start, end = batch.spans["start"], batch.spans["end"]
        of_resource = batch.spans["resource"]
        for tgid, resources in self._resources_by_process(batch).items():
            rows = np.flatnonzero(entry & np.isin(of_resource, resources))
            for chunk, event in self._one_by_one(self._waiting.by_process.get(tgid, [])):
                moment = chunk.records[event]["time"]
                open_rows = rows[(start[rows] <= moment) & (moment <= end[rows])]
                if len(open_rows) == 1:
                    found.add_one(int(open_rows[0]), chunk, event, Match.PROCESS)

    def _resources_by_process(self, batch: Batch) -> dict[int, list[int]]:
        """The batch's resources by the process that they are, where that can be told for sure."""
        containers = {
            int(record["row"]): batch.text(int(record["off"]), int(record["len"]))
            for record in batch.column(self._container)
            if record["type"] == ValueType.STRING
        }
        pids = batch.column(self._pid)
        found: dict[int, list[int]] = {}
        for resource, pid in zip(pids["row"].tolist(), np.nan_to_num(numbers(pids)).tolist(), strict=True):
            tgid = self._processes.named(int(pid), containers.get(resource, ""))
            if tgid is not None:
                found.setdefault(tgid, []).append(resource)
        return found

    def _settle(self, batch: Batch, accounts: Accounts, touched: Touched) -> None:
        """Enter a chunk's events into the spans' accounts, those that lie within their span's time."""
        chunk, rows, events, match = touched
        within = self._are_within(batch.spans[rows], chunk.records[events])
        stale = int(np.count_nonzero(~chunk.joined[events] & ~within))
        if stale:
            self._outcomes.labels(chunk.probe, "stale").inc(stale)
        rows, events = rows[within], events[within]
        if not len(events):
            return
        records = chunk.records[events]
        matches = records["match"] if match is None else np.full(len(records), match, "u1")
        for number, count in enumerate(np.bincount(matches[~chunk.joined[events]]).tolist()):
            if count:
                self._outcomes.labels(chunk.probe, Match(number).name.lower()).inc(count)
        chunk.joined[events] = True
        accounts.add(rows, records, matches, chunk.probe)

    def _are_within(self, spans: NDArray[np.void], records: NDArray[np.void]) -> NDArray[np.bool_]:
        """Whether each event touched its span's time, the clocks' error allowed for."""
        ended = records["time"].astype(np.int64)
        if "first" in (records.dtype.names or ()):
            began = records["first"].astype(np.int64)
        else:
            began = ended - records["duration"].astype(np.int64)
        start, end = spans["start"].astype(np.int64), spans["end"].astype(np.int64)
        within: NDArray[np.bool_] = (began - self._slack <= end) & (ended + self._slack >= start)
        return within

    def _within(self, span: np.void, record: np.void) -> bool:
        """`_are_within`, of one."""
        return bool(self._are_within(span.reshape(1), record.reshape(1))[0])

    def _write(self, batch: Batch, accounts: Accounts) -> None:
        for key, rows in self._existing_of(batch, accounts):
            batch.cut(rows)
            known = rows[rows["type"] == ValueType.INT]
            accounts.fold(key, known["row"], known["value"])
        for key, spans, values in accounts.summaries():
            batch.set_ints(key, spans.astype("<u4"), values)
        hit = np.flatnonzero(accounts.hit)
        for match in np.unique(accounts.match[hit]).tolist():
            rows = hit[accounts.match[hit] == match].astype("<u4")
            batch.set_text(catalog.KERNEL_MATCH.key, rows, Match(match).name.lower())
        order = np.argsort(accounts.rows, kind="stable").tolist()
        batch.append_fields(
            np.array([accounts.rows[n] for n in order], "<u4"), [accounts.events[n] for n in order]
        )

    def _existing_of(self, batch: Batch, accounts: Accounts) -> Iterator[tuple[str, NDArray[np.void]]]:
        """What an earlier bridge noted on the spans of what is known here too."""
        for key, rows, _ in list(accounts.summaries()):
            slot = self._existing.get(key)
            if slot is not None and batch.has(slot):
                column = batch.column(slot)
                yield key, column[np.isin(column["row"], rows)]
