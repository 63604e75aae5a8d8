"""What the probes cost: a busy server with them and without, in turns; and nanoseconds an event, by probe."""

from __future__ import annotations

import math
import statistics
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import yaml
from rich.table import Table

from tests.bench.join import clients, costs, machine
from tests.bench.join.children import child, make_files, peers, workplace
from tests.bench.join.children import server as serving
from tests.support.sinks import GrpcSink

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from tests.bench.join.children import Child

LEVEL = 0.03
"""The most of a busy server's throughput that the default probes may take."""


CONFIDENCE = 0.95
_SETTLE = 0.5
"""Seconds of load before each round: what loading and unloading the probes takes is no part of it."""


@dataclass(frozen=True)
class Round:
    """One round of load, to the end of exporting its spans.

    The exporter is one of the server's threads: how much of its work it gets done beside the requests is chance, and
    weighs as much as a fifth of a request.

    Attributes:
        rate: requests a second.
        server_cpu: seconds a request, of the server's process.
        bridge_cpu: seconds a request, of the bridge's.
    """

    rate: float
    server_cpu: float
    bridge_cpu: float


@dataclass(frozen=True)
class Overhead:
    """A server's rounds with the probes and without, in pairs; and what the programs took, timed.

    Attributes:
        off: without.
        on: with; each right after, or before, its companion.
        costs: by probe, in a round of its own.
    """

    off: list[Round]
    on: list[Round]
    costs: costs.Costs

    def losses(self, what: str) -> list[float]:
        """For each pair the fraction by which the probes make it worse."""
        pairs = zip(self.on, self.off, strict=True)
        if what == "rate":
            return [1 - on.rate / off.rate for on, off in pairs]
        return [getattr(on, what) / getattr(off, what) - 1 for on, off in pairs]

    def loss(self, what: str) -> float:
        """The median of them: one round that something else disturbed does not move it."""
        return statistics.median(self.losses(what))

    @property
    def share(self) -> float:
        """What the programs take of a request's CPU, by the kernel's own timing.

        Of this a busy machine says the same as a quiet one. It lacks what they displace from caches, and has
        the timing itself.
        """
        took = sum(nanoseconds for nanoseconds, _, _ in self.costs.flood.values()) / self.costs.requests
        return took / 1e9 / statistics.median(one.server_cpu for one in self.off)

    @property
    def bridge_cpu(self) -> float:
        """Seconds a request that the bridge takes for kernel events: the median over pairs."""
        return statistics.median(
            on.bridge_cpu - off.bridge_cpu for on, off in zip(self.on, self.off, strict=True)
        )


def interval(values: list[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Where the median of what the values were drawn from lies, whatever its distribution.

    By the binomial distribution of how many values lie below it; fewer than six are too few for 95 %, and it
    lies among them with less.
    """
    ordered, count = sorted(values), len(values)
    outside, left_out = 0.0, 0
    while left_out < count // 2:
        outside += 2 * math.comb(count, left_out) / 2**count
        if outside > 1 - confidence:
            break
        left_out += 1
    left_out = max(0, left_out - 1)
    return ordered[left_out], ordered[count - 1 - left_out]


def run(server: str, *, rounds: int, seconds: float) -> Overhead:
    """Load one server; this process must have entered a network namespace.

    The server has a CPU to itself where there are two, so that it is the server that the probes slow down.

    Args:
        server: which.
        rounds: pairs of rounds.
        seconds: of each round.
    """
    with ExitStack() as stack:
        for_server, for_others = stack.enter_context(machine.two_places())
        directory = stack.enter_context(workplace())
        files = make_files(directory)
        addresses = stack.enter_context(peers(directory))
        sink = stack.enter_context(GrpcSink())
        config = _configuration(directory, sink)
        bridge = stack.enter_context(child("switched_bridge", str(config)))
        process, port = stack.enter_context(serving(server, int(bridge.line()), addresses, files))
        machine.move(process.pid, for_server)
        load = Load(server, port, process, bridge, seconds)
        off: list[Round] = []
        on: list[Round] = []
        for number in range(rounds):
            # In turns, so that whatever grows or shrinks over time meets both.
            for with_probes in (number % 2 == 0, number % 2 != 0):
                (on if with_probes else off).append(load.with_probes() if with_probes else load.round())
        measured = costs.measure(
            server,
            port,
            (process, bridge),
            directory=directory,
            seconds=seconds,
            after_load=lambda: machine.move(process.pid, for_server | for_others),
        )
        return Overhead(off, on, measured)


class Load:
    """Requests to a server, 64 at once, and the CPU that they take."""

    def __init__(self, server: str, port: int, process: Child, bridge: Child, seconds: float) -> None:
        self._server = server
        self._port = port
        self._process = process
        self._bridge = bridge
        self._seconds = seconds

    def round(self) -> Round:
        """As things are."""
        self._flood(_SETTLE)
        began, before = time.monotonic(), self._cpu()
        requests = self._flood(self._seconds)
        took, after = time.monotonic() - began, self._cpu()
        server, bridge = ((later - earlier) / requests for earlier, later in zip(before, after, strict=True))
        return Round(requests / took, server, bridge)

    def _flood(self, seconds: float) -> int:
        requests = clients.flood(self._server, self._port, seconds)
        self._process.ask("flush")
        return requests

    def _cpu(self) -> list[float]:
        return [machine.cpu_of(one.pid) for one in (self._process, self._bridge)]

    def with_probes(self) -> Round:
        """With the default probes, which are loaded before and unloaded after."""
        self._bridge.ask(f"on {self._process.pid}")
        try:
            return self.round()
        finally:
            self._bridge.ask("off")


def _configuration(directory: Path, sink: GrpcSink) -> Path:
    document = {
        "receivers": {"otlp": {"protocols": {"grpc": {"endpoint": "127.0.0.1:0"}, "http": None}}},
        "exporters": {"otlp": {"endpoint": f"127.0.0.1:{sink.port}", "tls": {"insecure": True}}},
        "storage": {"directory": str(directory / "queue")},
        "kernel": {"mode": "off"},
        "service": {"telemetry": {"metrics": {"endpoint": "127.0.0.1:0"}}},
    }
    path = directory / "bridge.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def show(console: Console, results: dict[str, Overhead]) -> None:
    """Throughput and CPU with the probes against without, then what each probe's programs took."""
    table = Table("server", "probes", "requests/s", "server CPU/request", "bridge CPU/request")
    for server, result in results.items():
        for name, rounds in (("off", result.off), ("on", result.on)):
            medians = [
                statistics.median(getattr(one, what) for one in rounds)
                for what in ("rate", "server_cpu", "bridge_cpu")
            ]
            table.add_row(
                server, name, f"{medians[0]:,.0f}", *(f"{cpu * 1e6:,.0f} µs" for cpu in medians[1:])
            )
        cells = (_said(result, "rate"), _said(result, "server_cpu"), f"{result.bridge_cpu * 1e6:+,.0f} µs")
        table.add_row(server, "loss", *cells)
        table.add_row(server, "programs", "", f"{result.share:.1%}", "", end_section=True)
    console.print(table)
    console.print(
        f"loss: median of {len(next(iter(results.values())).on)} pairs, and where it lies with "
        f"{CONFIDENCE:.0%}; level {LEVEL:.0%} of the requests; programs: what the kernel timed of them"
    )
    costs.show(console, {server: result.costs for server, result in results.items()})


def _said(result: Overhead, what: str) -> str:
    low, high = interval(result.losses(what))
    return f"{result.loss(what):+.1%} ({low:+.1%} to {high:+.1%})"


def figures_of(results: dict[str, Overhead]) -> dict[str, float]:
    """Of the server that loses most; nanoseconds an event of each probe, over all servers."""
    return {
        "kernel.throughput_loss": max(result.loss("rate") for result in results.values()),
        "kernel.server_cpu_loss": max(result.loss("server_cpu") for result in results.values()),
        "kernel.programs_share": max(result.share for result in results.values()),
        "kernel.bridge_us_a_request": max(result.bridge_cpu for result in results.values()) * 1e6,
    } | costs.figures_of([result.costs for result in results.values()])
