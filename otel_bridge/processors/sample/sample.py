"""Sampling: which traces go on, how many others each of them stands for, and who waits until it is known."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from otel_bridge import catalog
from otel_bridge.processors.sample import tracestate
from otel_bridge.processors.sample.environments import Environments
from otel_bridge.processors.sample.reasons import KEEP, Reason, Reasons, first_of
from otel_bridge.processors.sample.verdicts import ALWAYS, UNWANTED, Verdicts
from otel_bridge.trace_ids import halves, randomness
from otel_bridge.verbosity import Verbosity

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from otel_bridge.batch import Batch, PlanBuilder
    from otel_bridge.contracts import Clock
    from otel_bridge.processors.sample.config import SampleConfig
    from otel_bridge.processors.sample.verdicts import Verdict
    from otel_bridge.telemetry import Telemetry
    from otel_bridge.trace_ids import U8

_KEPT, _DROPPED, _OPEN = 0, 1, 2


class _Arrived(NamedTuple):
    """What the spans bring along.

    Attributes:
        randomness: of each span's trace.
        states: the tracestates, by row, of the spans that have one.
        thresholds: by row, with which a span was sampled so far, where its tracestate says it.
        inconsistent: rows of spans that their own threshold should have dropped.
    """

    randomness: U8
    states: dict[int, bytes]
    thresholds: dict[int, int]
    inconsistent: set[int]


class _Runs(NamedTuple):
    """Spans of one trace that stand next to each other, so that a trace is looked up once for all of them.

    Attributes:
        rows: of all spans that are not refused.
        starts: where in `rows` each run begins.
        lens: how many spans each has.
        traces: their trace ids.
    """

    rows: NDArray[np.intp]
    starts: NDArray[np.intp]
    lens: NDArray[np.intp]
    traces: list[bytes]

    @property
    def first(self) -> NDArray[np.intp]:
        """The first row of each run."""
        return self.rows[self.starts]


class Sample:
    """A TraceProcessor that drops spans, holds those whose trace is open, and writes `ot=th` on the others.

    What it holds is for `hold.Hold` to keep, which asks for the verdicts in the end.

    Attributes:
        config: what a user said.
    """

    def __init__(
        self,
        config: SampleConfig,
        columns: PlanBuilder,
        telemetry: Telemetry,
        clock: Clock,
        verbosity: Verbosity | None = None,
    ) -> None:
        self.config = config
        self._clock = clock
        verbosity = verbosity or Verbosity("info")
        self._environments = Environments(config, columns, telemetry, clock.monotonic(), verbosity)
        self._reasons = Reasons(config.keep, columns)
        self._verdicts = Verdicts(config.remembered_traces)
        counter = telemetry.counter(catalog.SAMPLE_SPANS)
        self._kept = {reason: counter.labels("kept", reason.label) for reason in (*ALWAYS, Reason.NONE)}
        self._dropped = {
            reason: counter.labels("dropped", reason.label) for reason in (Reason.UNWANTED, Reason.NONE)
        }
        late = telemetry.counter(catalog.SAMPLE_LATE)
        self._late = {reason: late.labels(reason.label) for reason in ALWAYS}
        self._inconsistent = telemetry.counter(catalog.SAMPLE_INCONSISTENT)

    def adopt(self, older: Sample) -> None:
        """Go on with the traces and the traffic that another one has seen."""
        self._environments.adopt(older._environments)
        self._verdicts = older._verdicts
        self._verdicts.limit(self.config.remembered_traces)

    def process(self, batch: Batch) -> None:
        """Decide what can be decided, hold the rest."""
        if not len(batch):
            return
        now = self._clock.monotonic()
        environments = self._environments.of(batch)
        self._environments.observe(batch, environments, now)
        thresholds = self._environments.thresholds(now)[environments]
        arrived = self._arrived(batch)
        self._inconsistent.inc(len(arrived.inconsistent))
        reasons = self._reasons.of(batch)
        if self.config.keep is None:
            self._judge_spans(batch, environments, thresholds, arrived, reasons)
        else:
            runs = _runs(batch)
            self._apply(batch, runs, self._see(runs, thresholds, arrived, reasons), arrived)

    def newly_kept(self) -> dict[bytes, Reason]:
        """Traces of which spans may wait, and which must be kept since the last call."""
        kept, self._verdicts.newly_kept = self._verdicts.newly_kept, {}
        return kept

    def must_keep(self, trace: bytes, reason: int) -> None:
        """Keep a trace, as an earlier process has decided; a reason that it did not know does not matter."""
        self._verdicts.decide(trace, ALWAYS.get(first_of(reason & KEEP), ALWAYS[Reason.ERROR]))

    def recall(self, batch: Batch) -> list[bytes]:
        """Take in again what waiting spans say of their traces; the traces' ids."""
        environments = self._environments.of(batch)
        thresholds = self._environments.thresholds(self._clock.monotonic())[environments]
        runs = _runs(batch)
        self._see(runs, thresholds, self._arrived(batch), self._reasons.of(batch))
        return distinct(runs.traces)

    def drops_all(self, traces: Iterable[bytes], spans: int) -> bool:
        """Close traces of which `spans` spans have waited together; whether all of them are dropped.

        If not, `settle` is needed.
        """
        verdicts = [self._verdicts.close(trace) for trace in traces]
        if not all(verdict is not None and not verdict.kept for verdict in verdicts):
            return False
        # Their spans are not told apart here: what was dropped at somebody's wish counts so if all was.
        wished = all(verdict is UNWANTED for verdict in verdicts)
        self._dropped[Reason.UNWANTED if wished else Reason.NONE].inc(spans)
        return True

    def settle(self, batch: Batch) -> None:
        """Work the verdicts into spans that have waited."""
        runs = _runs(batch)
        arrived = self._arrived(batch)
        threshold = int(self._environments.thresholds(self._clock.monotonic())[0])
        verdicts: list[Verdict | None] = [
            self._verdicts.close(trace) or self._verdicts.by_rate(random, threshold)
            for trace, random in zip(runs.traces, arrived.randomness[runs.first].tolist(), strict=True)
        ]
        self._apply(batch, runs, verdicts, arrived)

    # Verdicts by trace.

    def _see(
        self, runs: _Runs, thresholds: U8, arrived: _Arrived, reasons: NDArray[np.uint8]
    ) -> list[Verdict | None]:
        if not runs.traces:
            return []
        first = runs.first
        said = np.bitwise_or.reduceat(reasons[runs.rows], runs.starts).tolist()
        verdicts = [
            self._verdicts.see(*known)
            for known in zip(
                runs.traces, arrived.randomness[first].tolist(), thresholds[first].tolist(), said, strict=True
            )
        ]
        for verdict, why in zip(verdicts, said, strict=True):
            if why & KEEP and verdict is not None and not verdict.kept:
                self._late[first_of(why & KEEP)].inc()
        return verdicts

    def _apply(
        self, batch: Batch, runs: _Runs, verdicts: Sequence[Verdict | None], arrived: _Arrived
    ) -> None:
        fates = np.array(
            [_OPEN if verdict is None else _DROPPED - verdict.kept for verdict in verdicts], np.uint8
        )
        thresholds = np.array([0 if verdict is None else verdict.threshold for verdict in verdicts], "<u8")
        for verdict, count in zip(verdicts, runs.lens.tolist(), strict=True):
            if verdict is not None:
                (self._kept if verdict.kept else self._dropped)[verdict.reason].inc(count)
        fates = np.repeat(fates, runs.lens)
        kept = fates == _KEPT
        self._mark(batch, runs.rows[kept], np.repeat(thresholds, runs.lens)[kept], arrived)
        for fate, do in ((_DROPPED, batch.drop), (_OPEN, batch.hold)):
            rows = runs.rows[fates == fate]
            if len(rows):
                do(rows.astype("<u4"))

    # Verdicts by span.

    def _judge_spans(
        self,
        batch: Batch,
        environments: NDArray[np.intp],
        thresholds: U8,
        arrived: _Arrived,
        reasons: NDArray[np.uint8],
    ) -> None:
        """By randomness alone, in whole columns; traces that are not the same at every rate are looked up."""
        random, bounds = arrived.randomness, self._environments
        kept = random >= thresholds
        special = (random >= bounds.widest[environments]) & (random < bounds.narrowest[environments])
        alive = batch.spans["reject"] == 0
        told = np.flatnonzero(alive & (reasons > 0))
        for row, why in zip(told.tolist(), reasons[told].tolist(), strict=True):
            trace = batch.spans["trace_id"][row].tobytes()
            if self._verdicts.get(trace) is None:
                self._verdicts.decide(trace, ALWAYS[first_of(why & KEEP)] if why & KEEP else UNWANTED)
        if self._verdicts.wishes:
            special[:] = True
        counts = {True: 0, False: 0}
        rows = np.flatnonzero(special & alive)
        if len(rows):
            verdicts = self._look_up(batch, rows, thresholds, random)
            kept[rows] = [verdict.kept for verdict in verdicts]
            thresholds[rows] = [verdict.threshold for verdict in verdicts]
            for verdict in verdicts:
                if verdict.reason is not Reason.NONE:
                    counts[verdict.kept] += 1
        rows, dropped = np.flatnonzero(kept & alive), np.flatnonzero(~kept & alive)
        self._kept[Reason.PRIORITY].inc(counts[True])
        self._kept[Reason.NONE].inc(len(rows) - counts[True])
        self._dropped[Reason.UNWANTED].inc(counts[False])
        self._dropped[Reason.NONE].inc(len(dropped) - counts[False])
        self._mark(batch, rows, thresholds[rows], arrived)
        if len(dropped):
            batch.drop(dropped.astype("<u4"))

    def _look_up(self, batch: Batch, rows: NDArray[np.intp], thresholds: U8, random: U8) -> list[Verdict]:
        verdicts = []
        for trace, value, threshold in zip(
            batch.spans["trace_id"][rows].tolist(),
            random[rows].tolist(),
            thresholds[rows].tolist(),
            strict=True,
        ):
            verdict = self._verdicts.get(trace)
            if verdict is None:
                verdict = self._verdicts.decide(trace, self._verdicts.by_rate(value, threshold))
            verdicts.append(verdict)
        return verdicts

    # What spans bring along, and what they leave with.

    def _arrived(self, batch: Batch) -> _Arrived:
        spans = batch.spans
        random = randomness(spans)
        states: dict[int, bytes] = {}
        thresholds: dict[int, int] = {}
        inconsistent: set[int] = set()
        rows = np.flatnonzero(spans["state_len"])
        if len(rows):
            data = batch.data
            offs, lens = spans["state_off"][rows].tolist(), spans["state_len"][rows].tolist()
            for row, off, size in zip(rows.tolist(), offs, lens, strict=True):
                states[row] = data[off : off + size]
                said = tracestate.read(states[row])
                if said.randomness is not None:
                    random[row] = said.randomness
                if said.threshold is None:
                    continue
                if said.threshold > int(random[row]):
                    inconsistent.add(row)
                else:
                    thresholds[row] = said.threshold
        return _Arrived(random, states, thresholds, inconsistent)

    def _mark(self, batch: Batch, rows: NDArray[np.intp], thresholds: U8, arrived: _Arrived) -> None:
        """Write on kept spans with which threshold they were sampled; it never falls."""
        if arrived.states:
            has_state = batch.spans["state_len"][rows] > 0
            self._change(batch, rows[has_state], thresholds[has_state], arrived)
            rows, thresholds = rows[~has_state], thresholds[~has_state]
        while len(rows):
            same = thresholds == thresholds[0]
            tracestate.put_first(batch, rows[same], int(thresholds[0]))
            rows, thresholds = rows[~same], thresholds[~same]

    def _change(self, batch: Batch, rows: NDArray[np.intp], thresholds: U8, arrived: _Arrived) -> None:
        changed: list[int] = []
        states: list[bytes] = []
        for row, own in zip(rows.tolist(), thresholds.tolist(), strict=True):
            before = arrived.states[row]
            threshold = None if row in arrived.inconsistent else max(own, arrived.thresholds.get(row, 0))
            after = tracestate.write(before, threshold)
            if after != before:
                changed.append(row)
                states.append(after)
        if changed:
            tracestate.put(batch, changed, states)


def distinct(traces: Iterable[bytes]) -> list[bytes]:
    """Each once, in order."""
    return list(dict.fromkeys(traces))


def held_traces(batch: Batch) -> list[bytes]:
    """The ids of the traces of which spans are held."""
    return distinct(_runs(batch, batch.held).traces)


def _runs(batch: Batch, wanted: NDArray[np.bool_] | None = None) -> _Runs:
    spans = batch.spans
    taken = spans["reject"] == 0 if wanted is None else wanted & (spans["reject"] == 0)
    rows = np.flatnonzero(taken)
    if not len(rows):
        return _Runs(rows, rows, rows, [])
    high, low = (half[rows] for half in halves(spans))
    begins = np.ones(len(rows), np.bool_)
    begins[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
    starts = np.flatnonzero(begins)
    lens = np.diff(starts, append=len(rows))
    return _Runs(rows, starts, lens, spans["trace_id"][rows[starts]].tolist())
