"""Finds traces whose context broke on its way: split, merged, with parents missing or wrong, or odd names."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import structlog

from otel_bridge import catalog
from otel_bridge.columns import first_text
from otel_bridge.model import Scope, SpanKind, ValueType
from otel_bridge.processors.consistency.requests import Requests, Side, ids_of
from otel_bridge.processors.consistency.roles import Services
from otel_bridge.processors.consistency.trace import Finding, Kind, SpanFacts, Trace
from otel_bridge.trace_ids import RANDOM_BITS, randomness

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from otel_bridge.batch import Batch, PlanBuilder
    from otel_bridge.contracts import Clock
    from otel_bridge.processors.consistency.config import ConsistencyConfig
    from otel_bridge.processors.consistency.roles import Service
    from otel_bridge.telemetry import Telemetry

log = structlog.get_logger(__name__)

LOG_INTERVAL = 60.0
"""Seconds between two log lines of one kind."""

_JUDGED_KEPT = 16_384
"""Traces remembered as judged: their late spans are no trace of their own."""

_REQUESTS_SHARE = 4
"""One part in so many of the memory is for request ids."""


class Example(NamedTuple):
    """What was found last of a kind and role.

    Attributes:
        finding: what.
        trace: the trace id.
        time: when it was found, unix nanoseconds.
    """

    finding: Finding
    trace: bytes
    time: int


class Consistency:
    """A TraceProcessor that only looks.

    Attributes:
        examples: the latest finding of each kind and role.
    """

    def __init__(
        self, config: ConsistencyConfig, columns: PlanBuilder, telemetry: Telemetry, clock: Clock
    ) -> None:
        self.examples: dict[tuple[Kind, str], Example] = {}
        self._config = config
        self._clock = clock
        self._service_name = columns.want("service.name", scope=Scope.RESOURCE)
        self._request_ids = [(key, columns.want(key)) for key in config.request_ids]
        self._services = Services(config.chain)
        self._least_random = np.uint64((1 << RANDOM_BITS) - round(config.share * (1 << RANDOM_BITS)))
        requests_bytes = config.max_bytes // _REQUESTS_SHARE
        self._max_bytes = config.max_bytes - requests_bytes
        self._requests = Requests(requests_bytes, config.window, config.share)
        # By the time of the last span, so that whoever is quiet longest stands first.
        self._traces: OrderedDict[bytes, Trace] = OrderedDict()
        self._judged: OrderedDict[bytes, None] = OrderedDict()
        self._cost = 0
        self._next_log: dict[Kind, float] = {}
        self._findings = telemetry.counter(catalog.CONSISTENCY_FINDINGS)
        for kind in Kind:
            for role in ("", *(role.role for role in config.chain)):
                self._findings.labels(kind.value, role)
        traces = telemetry.counter(catalog.CONSISTENCY_TRACES)
        self._outcomes = {outcome: traces.labels(outcome) for outcome in ("judged", "too_large", "evicted")}
        self._bytes = telemetry.gauge(catalog.CONSISTENCY_WAITING_BYTES)

    def process(self, batch: Batch) -> None:
        """Take the spans of the checked traces in."""
        spans = batch.spans
        if not len(batch):
            return
        now = self._clock.monotonic()
        rows = np.flatnonzero((randomness(spans) >= self._least_random) & (spans["reject"] == 0))
        asked = [(key, slot) for key, slot in self._request_ids if batch.has(slot)]
        if not len(rows) and not asked:
            return
        services = self._services_of(batch)
        if len(rows):
            self._collect(batch, rows, services, now)
        for key, slot in asked:
            self._meet(batch, key, slot, services, now)

    def sweep(self) -> None:
        """Judge the traces of which no more spans come."""
        now = self._clock.monotonic()
        while self._traces:
            trace_id, trace = next(iter(self._traces.items()))
            if now - trace.last < self._config.window:
                break
            self._close(trace_id, trace, "judged")
            self._report(trace_id, trace.findings())
        self._requests.forget(now)
        self._bytes.set(self._cost + self._requests.cost)

    def adopt(self, older: Consistency) -> None:
        """Go on with the examples of another one; traces under way begin anew, their services may differ."""
        self.examples.update(older.examples)
        self._judged = older._judged
        for trace_id in older._traces:
            self._remember(trace_id)

    def _services_of(self, batch: Batch) -> list[Service]:
        """The service of each resource."""
        services = [self._services.of(b"")] * batch.resources
        for record in batch.column(self._service_name):
            if record["type"] == ValueType.STRING:
                off, size = int(record["off"]), int(record["len"])
                services[int(record["row"])] = self._services.of(batch.data[off : off + size])
        return services

    def _collect(self, batch: Batch, rows: NDArray[np.intp], services: list[Service], now: float) -> None:
        spans = batch.spans[rows]
        columns = (
            spans[name].tolist()
            for name in (
                "trace_id",
                "span_id",
                "parent_id",
                "resource",
                "kind",
                "flags",
                "start",
                "end",
                "name_off",
                "name_len",
            )
        )
        for trace_id, span_id, parent, resource, kind, flags, start, end, off, size in zip(
            *columns, strict=True
        ):
            if trace_id in self._judged:
                continue
            service = services[resource]
            named = kind == SpanKind.SERVER and service.pattern is not None
            name = batch.data[off : off + size] if named else b""
            self._add(trace_id, span_id, SpanFacts(parent, service, kind, flags, start, end, name), now)
        self._make_room()

    def _add(self, trace_id: bytes, span_id: bytes, span: SpanFacts, now: float) -> None:
        trace = self._traces.get(trace_id)
        if trace is None:
            trace = self._traces[trace_id] = Trace(now)
        else:
            trace.last = now
            self._traces.move_to_end(trace_id)
            self._cost -= trace.cost
        trace.spans[span_id] = span
        self._cost += trace.cost
        if len(trace.spans) > self._config.max_spans:
            self._close(trace_id, trace, "too_large")

    def _make_room(self) -> None:
        while self._cost > self._max_bytes:
            trace_id, trace = next(iter(self._traces.items()))
            self._close(trace_id, trace, "evicted")

    def _close(self, trace_id: bytes, trace: Trace, outcome: str) -> None:
        del self._traces[trace_id]
        self._cost -= trace.cost
        self._remember(trace_id)
        self._outcomes[outcome].inc()

    def _remember(self, trace_id: bytes) -> None:
        self._judged[trace_id] = None
        while len(self._judged) > _JUDGED_KEPT:
            self._judged.popitem(last=False)

    def _meet(self, batch: Batch, key: str, slot: int, services: list[Service], now: float) -> None:
        for row, value in _texts(batch, slot):
            span = batch.spans[row]
            if span["reject"]:
                continue
            trace_id = span["trace_id"].tobytes()
            side = Side(trace_id, services[span["resource"]], int(span["start"]), int(span["end"]))
            other = self._requests.meet(ids_of(key, value), side, now)
            if other is None:
                continue
            # The one that comes later on the way is the one that lost the context.
            caller, callee = sorted((other, side), key=_place)
            detail = f"the same request in trace {caller.trace.hex()} of {caller.service.name}"
            finding = Finding(Kind.SPLIT, callee.service.role, callee.service.name, detail)
            self._report(callee.trace, [finding])

    def _report(self, trace_id: bytes, findings: Iterable[Finding]) -> None:
        """Count a kind once for a trace and role, whatever number of its spans show it."""
        told = set()
        for finding in findings:
            if (finding.kind, finding.role) in told:
                continue
            told.add((finding.kind, finding.role))
            exemplar = {"trace_id": trace_id.hex()}
            self._findings.labels(finding.kind.value, finding.role).inc(1, exemplar)
            example = Example(finding, trace_id, self._clock.time_ns())
            self.examples[finding.kind, finding.role] = example
            self._log(example)

    def _log(self, example: Example) -> None:
        now = self._clock.monotonic()
        finding = example.finding
        if now < self._next_log.get(finding.kind, now):
            return
        self._next_log[finding.kind] = now + LOG_INTERVAL
        log.warning(
            "a trace's context broke",
            kind=finding.kind.value,
            service=finding.service,
            trace_id=example.trace.hex(),
            detail=finding.detail,
        )


def _texts(batch: Batch, slot: int) -> Iterator[tuple[int, bytes]]:
    """Rows with a column's strings, or with the first of a list of them, as headers are written."""
    records = batch.column(slot)
    for record in records[records["type"] == ValueType.STRING]:
        off, size = int(record["off"]), int(record["len"])
        yield int(record["row"]), batch.data[off : off + size]
    lists = records[records["type"] == ValueType.ARRAY]
    if len(lists):
        found = first_text(batch.data, lists["off"], lists["len"])
        for row, off, size in zip(
            lists["row"].tolist(), found["off"].tolist(), found["len"].tolist(), strict=True
        ):
            yield row, batch.data[off : off + size]


def _place(side: Side) -> tuple[int, int]:
    """In the chain; who has no place in it is a caller. Of two the one that began first."""
    place = side.service.place
    return (-1 if place is None else place, side.start)
