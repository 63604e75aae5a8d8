"""Kernel events that known requests caused, looked for on the spans that come out of a real bridge."""

from __future__ import annotations

import random
import statistics
import time
from collections import Counter
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from otel_bridge import catalog
from otel_bridge.model import KernelEventKind, Signal
from otel_bridge.processors.join.logs import read_events
from tests.bench.join import clients, machine
from tests.bench.join.causes import BLOCK, LONG_WAIT, SPARSE_FILE, Caused, Job, Kind
from tests.bench.join.children import make_files, peers, workplace
from tests.bench.join.children import server as serving
from tests.bench.join.ledger import EVENT_NAMES, Ledger, Seen, Tally
from tests.support.cgroups import MIB, MemoryCgroup
from tests.support.processes import Bridge, running
from tests.support.sinks import GrpcSink

if TYPE_CHECKING:
    from tests.bench.join.children import Child

SERVERS = ("threads", "asyncio", "grpc")
LEVEL = 0.99
"""Of the events that were caused, on the right span; and none on a wrong one."""

_LOST_PER_MILLE = 60
_HOGS = 2
_READ_THROUGH = 8 * MIB
_ROOM = 64 * MIB
"""Of page cache, before it must be reclaimed."""

_FOLLOWED_WITHIN = 20.0


@dataclass(frozen=True)
class Result:
    """One server's.

    Attributes:
        tallies: by kind.
        lost_spans: that did not come out of the bridge at all.
        logged: events of the server's process that left as log records, by kind and match.
        stale: by probe, events that came too late for their span.
        publisher: what the server's publisher counted.
        seconds: until a new server's events were on its spans.
    """

    tallies: dict[Kind, Tally]
    lost_spans: int
    logged: Counter[str]
    stale: Counter[str]
    publisher: str
    seconds: float

    @property
    def right(self) -> float:
        """Fraction of caused events on the right span; each kind counts the same, however often it came."""
        return statistics.mean(tally.right / tally.caused for tally in self.tallies.values())

    @property
    def wrong(self) -> int:
        """Events on a span that did not cause them."""
        return sum(tally.wrong for tally in self.tallies.values())

    @property
    def passes(self) -> bool:
        """Whether the level is met."""
        return self.right >= LEVEL and self.wrong == 0

    @property
    def details(self) -> list[str]:
        """Of the first events that are not right, by kind."""
        return [f"{kind}: {detail}" for kind, tally in self.tallies.items() for detail in tally.details[:3]]


def jobs(each: int, seed: int) -> tuple[list[Job], list[Job]]:
    """The mixed ones, in a random order, and those that have the memory to themselves."""
    chance = random.Random(seed)
    mixed = [
        job
        for number in range(each)
        for job in (
            Job(Kind.RETRANSMIT, times=1 + number % 2, size=chance.randrange(30_000, 120_000)),
            Job(Kind.HANDSHAKE, times=1 + number % 3),
            Job(Kind.SLEEP, times=1 + number % 2, seconds=LONG_WAIT),
            Job(Kind.HOG, seconds=0.008),
            Job(Kind.READ, times=1 + number % 7, size=BLOCK * (1 + number % 3)),
        )
    ]
    chance.shuffle(mixed)
    regions = range(0, SPARSE_FILE, _READ_THROUGH)
    return mixed, [
        Job(Kind.RECLAIM, size=_READ_THROUGH, offset=regions[n % len(regions)]) for n in range(each)
    ]


def run(server: str, each: int) -> Result:
    """Run one server; this process must have entered a network namespace.

    Args:
        server: which.
        each: requests of each kind.
    """
    with ExitStack() as stack:
        directory = stack.enter_context(workplace())
        files = make_files(directory)
        addresses = stack.enter_context(peers(directory))
        machine.lose_packets(addresses.upstream, _LOST_PER_MILLE)
        sink = stack.enter_context(GrpcSink())
        bridge = stack.enter_context(running(Bridge(directory / "bridge", _configuration(sink))))
        cgroup = MemoryCgroup(f"otel-bridge-bench-{bridge.pid}", None)
        stack.callback(cgroup.remove)
        trace = stack.enter_context(closing(machine.ReclaimTrace()))
        process, port = stack.enter_context(serving(server, bridge.grpc_port, addresses, files))
        cgroup.add(process.pid)
        began = time.monotonic()
        early = _warm_up(server, port, sink)
        seconds = time.monotonic() - began
        mixed, alone = jobs(each, seed=len(server))
        with machine.hogs(_HOGS):
            causes = clients.run(server, port, mixed)
        cgroup.limit(cgroup.usage + _ROOM)
        causes += clients.run(server, port, alone)
        cgroup.limit(1 << 40)
        publisher = _finish(process)
        stale = _stale(bridge)
        bridge.stop()
        warm_up = {caused.span_id for caused in early}
        spans = [span for span in sink.spans() if span.span_id.hex() not in warm_up]
        ledger = Ledger(causes, spans, trace.read(), addresses.upstream)
        return Result(
            ledger.judge(), ledger.lost_spans, _logged(sink, process.pid), stale, publisher, seconds
        )


def _configuration(sink: GrpcSink) -> dict[str, Any]:
    """The defaults, save that every reclaim is told, and that no span runs out of room or time for events.

    On a busy machine a round of sums may take longer than a request waits for it.
    """
    return {
        "exporters": {"otlp": {"endpoint": f"127.0.0.1:{sink.port}"}},
        "processors": {"join": {"max_age": "20s", "wait": "8s", "max_events": 100_000}},
        "kernel": {"mode": "required", "probes": {"memory": {"reclaim_threshold": 0}}},
    }


def _finish(process: Child) -> str:
    """End a server, so that its last spans are exported; answers what its publisher counted."""
    process.end_input()
    said = process.line()
    process.wait()
    return said


def _warm_up(server: str, port: int, sink: GrpcSink) -> list[Caused]:
    """Ask for sleeps and handshakes until both are on spans: the bridge has found the process and its libssl.

    Answers what was caused meanwhile, seen or not.
    """
    begin = time.monotonic()
    missing = {Kind.SLEEP, Kind.HANDSHAKE}
    causes: list[Caused] = []
    while missing:
        if time.monotonic() - begin > _FOLLOWED_WITHIN:
            raise TimeoutError(f"after {_FOLLOWED_WITHIN:g} s no span has its {sorted(missing)}")
        causes += clients.run(server, port, [Job(kind, seconds=LONG_WAIT) for kind in missing])
        # Whatever the others need from the disk is read once.
        causes += clients.run(server, port, [Job(Kind.READ, size=BLOCK), Job(Kind.RETRANSMIT, size=1)])
        time.sleep(0.5)
        names = {name for span in sink.spans() for name in Seen.of(span).events}
        missing = {kind for kind in missing if EVENT_NAMES[kind] not in names}
    return causes


def _stale(bridge: Bridge) -> Counter[str]:
    probes = ("tcp", "tls", "sched", "block", "memory")
    name = f"{catalog.JOIN_EVENTS.name}_total"
    return Counter({probe: int(bridge.total(name, outcome="stale", probe=probe)) for probe in probes})


def _logged(sink: GrpcSink, pid: int) -> Counter[str]:
    found: Counter[str] = Counter()
    for signal, data in sink.requests:
        if signal == Signal.LOGS.value:
            for events in read_events(data):
                mine = events.records[events.records["tgid"] == pid]
                found.update(KernelEventKind(kind).name.lower() for kind in mine["kind"].tolist())
    return found
