"""How many events a core joins: bytes of ring buffers in, spans with what the kernel saw of them out.

Through the reader and the join that the bridge has, only the kernel is played: it cannot be made to produce
as many on a small machine. Producing, and reading and writing the spans themselves, is not in the figure.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
from rich.table import Table

from otel_bridge import catalog
from otel_bridge.batch import PlanBuilder
from otel_bridge.kernel.clock import Alignment
from otel_bridge.kernel.probes import tcp
from otel_bridge.kernel.reader import Intake
from otel_bridge.kernel.ring import HEADER_SIZE, Ring, RingMemory
from otel_bridge.model import KernelEventKind, Match
from otel_bridge.processors.join.config import JoinConfig
from otel_bridge.processors.join.join import Join
from otel_bridge.receivers.otlp.codec import NativeCodec
from otel_bridge.telemetry import Telemetry
from otel_bridge.testing import FakeClock, attributes_of, spans_of, trace_request

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from rich.console import Console

LEVEL = 200_000
"""Events a second that one core joins in a storm."""

STORM = 100
"""Events on each span that are a storm."""

PER_SPAN = (1, 10, STORM, 1000)

READ_EVERY = 0.005
"""Seconds between two reads, as by default."""

_SPANS = 500  # in a request
_RING_SIZE = 1 << 22
_TRACE = os.urandom(8)


@dataclass(frozen=True)
class Rate:
    """What came of one run.

    Attributes:
        per_span: events on each span.
        events: in all.
        read: CPU seconds of reading rings.
        joined: CPU seconds of joining.
        right: events that are in the spans' attributes.
        held: the most bytes that waited, by the join's own account.
    """

    per_span: int
    events: int
    read: float
    joined: float
    right: int
    held: int

    @property
    def per_second(self) -> float:
        """Events that one core reads and joins in a second."""
        return self.events / (self.read + self.joined)


class PlayedRing:
    """A ring buffer that the bench fills as the kernel does."""

    def __init__(self) -> None:
        self.memory = RingMemory(np.zeros(1, "<u8"), np.zeros(1, "<u8"), np.zeros(2 * _RING_SIZE, "u1"))

    def put(self, records: NDArray[np.void]) -> None:
        """Hand records over; there must be room."""
        size = HEADER_SIZE + records.dtype.itemsize
        rows = np.zeros((len(records), size), "u1")
        rows[:, :4] = np.frombuffer(np.uint32(records.dtype.itemsize).tobytes(), "u1")
        rows[:, HEADER_SIZE:] = records.view("u1").reshape(len(records), -1)
        data, position = rows.reshape(-1), int(self.memory.producer[0])
        if position + len(data) - int(self.memory.consumer[0]) > _RING_SIZE:
            raise BufferError("the ring is full: nobody reads it")
        at = position % _RING_SIZE
        # The kernel maps the data twice in a row; here both copies are written.
        for start in (at, at + _RING_SIZE, at - _RING_SIZE):
            begin, end = max(start, 0), min(start + len(data), 2 * _RING_SIZE)
            if begin < end:
                self.memory.data[begin:end] = data[begin - start : end - start]
        self.memory.producer[0] = position + len(data)


class Bridge:
    """The bridge's reader and join, with the kernel's side of the ring."""

    def __init__(self) -> None:
        telemetry, columns = Telemetry(), PlanBuilder()
        self.join = Join(JoinConfig(), columns, telemetry, FakeClock(time.time_ns()))
        self.plan, self.codec = columns.build(), NativeCodec()
        self.held = lambda: int(telemetry.value(catalog.JOIN_WAITING_BYTES))
        self.read = self.joined = 0.0
        self._ring = PlayedRing()
        self._loaded = SimpleNamespace(probe=tcp.PROBE, ring=Ring(self._ring.memory, tcp.PROBE.record))
        self._intake = Intake(self.join, Alignment(), telemetry)

    def take(self, records: NDArray[np.void]) -> None:
        """Hand records over as they come in, and read them as often as the bridge does."""
        each_read = round(LEVEL * READ_EVERY)
        for start in range(0, len(records), each_read):
            self._ring.put(records[start : start + each_read])
            before = time.process_time()
            self._intake.take_ring(self._loaded)
            self.read += time.process_time() - before

    def process(self, spans: list[dict[str, object]]) -> bytes:
        """Join spans, and let go of what waited too long."""
        batch = self.codec.scan(trace_request(spans), self.plan)
        before = time.process_time()
        self.join.process(batch)
        self.join.sweep()
        self.joined += time.process_time() - before
        return batch.splice()


def run(per_span: int, events: int) -> Rate:
    """Join so many events."""
    bridge = Bridge()
    right = done = first = held = 0
    while done < events:
        records = _records(first, per_span)
        bridge.take(records)
        right += _noted(bridge.process([_span(first + n) for n in range(_SPANS)]))
        held = max(held, bridge.held())
        done += len(records)
        first += _SPANS
    return Rate(per_span, done, bridge.read, bridge.joined, right, held)


def flood(seconds: float) -> int:
    """Events at the level's rate whose spans never come: the most bytes that waited."""
    bridge = Bridge()
    held = 0
    for number in range(round(seconds * LEVEL / _SPANS / STORM)):
        bridge.take(_records(number * _SPANS, STORM))
        bridge.join.sweep()
        held = max(held, bridge.held())
    return held


def _ids(first: int, count: int) -> NDArray[np.uint64]:
    return np.arange(first + 1, first + 1 + count, dtype=">u8")


def _span(number: int) -> dict[str, object]:
    now = time.time_ns()
    return {
        "trace_id": _TRACE + (number + 1).to_bytes(8, "big"),
        "span_id": (number + 1).to_bytes(8, "big"),
        "start_time_unix_nano": now - 5_000_000_000,
        "end_time_unix_nano": now + 5_000_000_000,
    }


def _records(first: int, per_span: int) -> NDArray[np.void]:
    """Retransmits, the spans' mixed as they are when many are hit at once."""
    numbers = np.tile(_ids(first, _SPANS), per_span)
    records = np.zeros(len(numbers), tcp.PROBE.record)
    records["kind"], records["match"] = KernelEventKind.TCP_RETRANSMIT, Match.SOCKET
    records["time"] = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    ids = np.zeros((len(numbers), 16), "u1")
    ids[:, :8] = np.frombuffer(_TRACE, "u1")
    ids[:, 8:] = numbers.view("u1").reshape(-1, 8)
    records["trace_id"] = ids.view("V16").reshape(-1)
    records["span_id"] = numbers.view("V8")
    records["segments"], records["bytes"] = 1, 1448
    records["remote_port"], records["local_port"] = 8000, 40000
    return records


def _noted(payload: bytes) -> int:
    return sum(attributes_of(span.attributes).get("kernel.tcp.retransmits", 0) for span in spans_of(payload))


def show(console: Console, rates: list[Rate], flooded: int) -> None:
    """Events a core-second, by how many hit each span."""
    table = Table("events on each span", "events", "noted", "read", "joined", "events a core-second", "held")
    for rate in rates:
        each = (f"{seconds / rate.events * 1e6:.2f} µs" for seconds in (rate.read, rate.joined))
        counts = (f"{rate.per_span:,}", f"{rate.events:,}", f"{rate.right:,}")
        table.add_row(*counts, *each, f"{rate.per_second:,.0f}", f"{rate.held / 2**20:.0f} MiB")
    console.print(table)
    allowed = JoinConfig().max_bytes
    console.print(
        f"spans that never come: at {LEVEL:,} events a second at most {flooded / 2**20:.0f} MiB wait "
        f"(processors.join.max_bytes: {allowed / 2**20:.0f} MiB)"
    )


def figures_of(rates: list[Rate]) -> dict[str, float]:
    """Of the storm."""
    return {"kernel.events_per_core_second": next(r.per_second for r in rates if r.per_span == STORM)}
