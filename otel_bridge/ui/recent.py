"""A few of the traces that pass, kept for a while as the bytes that they leave as.

The last step of the data path: behind the join and behind redaction, so that what is kept is what leaves. Of
each batch it compares trace ids, a column at a time; what it spends beyond that is limited by the second.
Nothing is decoded before somebody looks.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from otel_bridge import catalog
from otel_bridge.allowance import Allowance
from otel_bridge.model import StatusCode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from otel_bridge.batch import Batch, PlanBuilder
    from otel_bridge.contracts import Clock
    from otel_bridge.telemetry import Telemetry
    from otel_bridge.ui.config import UiConfig

PIECES_PER_SECOND = 50.0
"""Further pieces of traces that are kept already: what long traces may cost at most."""
MOST_TRACES = 512
_LARGEST_SHARE = 8
"""One trace has at most this part of all the room."""
_OVERHEAD = 256
"""Bytes that a piece takes beside its own."""
_ERROR = bytes((StatusCode.ERROR,))
_MATCH_KEY = catalog.KERNEL_MATCH.key.encode()


@dataclass(slots=True)
class KeptTrace:
    """Bytes of one trace.

    Attributes:
        trace_id: 16 bytes.
        seen: unix nanoseconds when its first spans came.
        marked: whether a span of it failed, or has kernel events.
        began: the earliest start of its spans, unix nanoseconds.
        ended: the latest end.
        pieces: requests (ExportTraceServiceRequest) with spans of this trace alone.
        size: their bytes.
        cut: whether spans were left out for want of room or time.
    """

    trace_id: bytes
    seen: int
    marked: bool = False
    began: int = 0
    ended: int = 0
    pieces: list[bytes] = field(default_factory=list)
    size: int = 0
    cut: bool = False


class RecentTraces:
    """The traces that are kept, and the step that keeps them; lives as long as the service."""

    def __init__(self, config: UiConfig, telemetry: Telemetry, clock: Clock) -> None:
        self._clock = clock
        self._max_bytes = config.max_bytes
        self._largest = config.max_bytes // _LARGEST_SHARE
        self._new = {marked: _saving(config.traces_per_second) for marked in (False, True)}
        self._more = _saving(PIECES_PER_SECOND)
        # Those that somebody looks for have half the room to themselves: others do not push them out.
        self._plain: OrderedDict[bytes, KeptTrace] = OrderedDict()
        self._marked: OrderedDict[bytes, KeptTrace] = OrderedDict()
        self._sizes = {False: 0, True: 0}
        self._kept_keys: set[int] = set()
        self._bytes = telemetry.gauge(catalog.UI_KEPT_BYTES)
        self._traces = telemetry.gauge(catalog.UI_KEPT_TRACES)

    def tap(self, columns: PlanBuilder) -> Step:
        """The step of a new data path."""
        return Step(self, columns.want(catalog.KERNEL_MATCH.key))

    def find(self, trace_id: bytes) -> KeptTrace | None:
        """One trace; None when it is not kept, or not any more."""
        return self._marked.get(trace_id) or self._plain.get(trace_id)

    def newest(self, *, marked_only: bool = False) -> Iterator[KeptTrace]:
        """All traces, those seen last first."""
        kept = [*reversed(self._marked.values()), *(() if marked_only else reversed(self._plain.values()))]
        return iter(sorted(kept, key=lambda trace: -trace.seen))

    def slowest(self, count: int | None = None, *, marked_only: bool = False) -> list[KeptTrace]:
        """The traces that lasted longest, or all of them in that order."""
        kept = [*self.newest(marked_only=marked_only)]
        most = len(kept) if count is None else count
        return heapq.nlargest(most, kept, key=lambda trace: trace.ended - trace.began)

    def take(self, batch: Batch, slot: int) -> None:
        """Keep what belongs to traces that are kept already, and a new trace or two."""
        now = self._clock.monotonic()
        keys = _keys(batch)
        goes_on = self._more.ready(now) and not self._kept_keys.isdisjoint(keys.tolist())
        remarkable = _remarkable(batch, slot) if goes_on or self._new[True].ready(now) else None
        if not goes_on and remarkable is None and not self._new[False].ready(now):
            return
        shown = _shown(batch)
        chosen = self._choose(keys, shown, remarkable, now)
        for key, row in chosen.items():
            rows = shown & (keys == key)
            trace_id = batch.spans["trace_id"][row].tobytes()
            marked = remarkable is not None and bool((remarkable & rows).any())
            began, ended = (batch.spans[name][rows] for name in ("start", "end"))
            trace = self._kept(trace_id, key, int(began.min()))
            trace.began = min(trace.began, int(began.min()))
            trace.ended = max(trace.ended, int(ended.max()))
            self._keep(trace, batch.splice_only(rows), marked=marked)
        if chosen:
            self._bytes.set(sum(self._sizes.values()))
            self._traces.set(len(self._kept_keys))

    def _choose(
        self,
        keys: NDArray[np.uint64],
        shown: NDArray[np.bool_],
        remarkable: NDArray[np.bool_] | None,
        now: float,
    ) -> dict[int, int]:
        """The traces to keep: a row of each, by its key."""
        known = shown & np.fromiter((key in self._kept_keys for key in keys.tolist()), np.bool_, len(keys))
        fresh = shown & ~known
        chosen = _choose(keys, known, self._more, now)
        if remarkable is not None:
            chosen |= _choose(keys, fresh & remarkable, self._new[True], now)
        for key in chosen:
            fresh &= keys != key
        return chosen | _choose(keys, fresh, self._new[False], now)

    def _kept(self, trace_id: bytes, key: int, began: int) -> KeptTrace:
        trace = self.find(trace_id)
        if trace is None:
            trace = self._plain[trace_id] = KeptTrace(trace_id, self._clock.time_ns(), began=began)
            self._kept_keys.add(key)
        return trace

    def _keep(self, trace: KeptTrace, piece: bytes, *, marked: bool) -> None:
        size = len(piece) + _OVERHEAD
        if trace.size + size > self._largest:
            trace.cut = True
        else:
            trace.pieces.append(piece)
            trace.size += size
            self._sizes[trace.marked] += size
        if marked and not trace.marked:
            self._mark(trace)
        self._make_room()

    def _mark(self, trace: KeptTrace) -> None:
        trace.marked = True
        del self._plain[trace.trace_id]
        self._marked[trace.trace_id] = trace
        self._sizes[False] -= trace.size
        self._sizes[True] += trace.size

    def _make_room(self) -> None:
        """Forget the oldest, until what is left fits."""
        while (
            sum(self._sizes.values()) > self._max_bytes or len(self._plain) + len(self._marked) > MOST_TRACES
        ):
            # Half the room is for the marked ones alone.
            crowded = self._sizes[True] > self._max_bytes // 2 or len(self._marked) > MOST_TRACES // 2
            trace_id, gone = (self._marked if crowded or not self._plain else self._plain).popitem(last=False)
            self._sizes[gone.marked] -= gone.size
            self._kept_keys.discard(int.from_bytes(trace_id[8:], "little"))


class Step:
    """A step of one data path (contracts.TraceProcessor)."""

    def __init__(self, recent: RecentTraces, slot: int) -> None:
        self._recent = recent
        self._slot = slot

    def process(self, batch: Batch) -> None:
        """Keep some of it; nothing is changed."""
        if len(batch):
            self._recent.take(batch, self._slot)


def _saving(a_second: float) -> Allowance:
    """What two seconds leave over is not lost: traces come in bursts."""
    return Allowance(a_second, max(1.0, 2 * a_second))


def _shown(batch: Batch) -> NDArray[np.bool_]:
    """Spans that go on, now or later."""
    shown: NDArray[np.bool_] = batch.spans["reject"] == 0
    if batch.dropped is not None:
        shown &= ~batch.dropped if batch.held is None else ~batch.dropped | batch.held
    return shown


def _keys(batch: Batch) -> NDArray[np.uint64]:
    """The second half of each trace id: that is where chance is, and compares faster than the whole."""
    return np.ascontiguousarray(batch.spans["trace_id"]).view("<u8")[1::2]


def _remarkable(batch: Batch, slot: int) -> NDArray[np.bool_] | None:
    """Spans that failed, or have kernel events; None when there are none."""
    hits = [insert.rows for insert in batch.inserts if insert.key == _MATCH_KEY]
    if batch.has(slot):
        hits.append(batch.column(slot)["row"])
    status = batch.spans["status"]
    if not hits and _ERROR not in status.tobytes():
        return None
    found: NDArray[np.bool_] = status == StatusCode.ERROR
    for rows in hits:
        found[rows] = True
    return found


def _choose(
    keys: NDArray[np.uint64], rows: NDArray[np.bool_], allowance: Allowance, now: float
) -> dict[int, int]:
    """Of the traces among some rows as many as are allowed: a row of each, by its key."""
    numbers = np.flatnonzero(rows)
    found, first = np.unique(keys[numbers], return_index=True)
    chosen = {}
    for index in np.argsort(first).tolist():
        if not allowance.take(now):
            break
        chosen[int(found[index])] = int(numbers[first[index]])
    return chosen
