"""What the probes cost: a busy server with them and without, in turns; and nanoseconds an event, by probe."""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil
import yaml
from rich.table import Table

from tests.bench.join import clients
from tests.bench.join.children import child, make_files, peers, workplace
from tests.bench.join.children import server as serving
from tests.support.sinks import GrpcSink

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from tests.bench.join.children import Child

LEVEL = 0.03
"""The most of a busy server's throughput that the default probes may take."""


@dataclass(frozen=True)
class Round:
    """One round of load.

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
        costs: by probe, in a round of its own: nanoseconds and runs of its programs, records handed over.
        events: requests of that round.
    """

    off: list[Round]
    on: list[Round]
    costs: dict[str, tuple[int, int, int]]
    requests: int

    def loss(self, what: str) -> float:
        """Fraction by which the probes make it worse: the median over pairs."""
        ratios = [getattr(on, what) / getattr(off, what) for on, off in zip(self.on, self.off, strict=True)]
        change = statistics.median(ratios) - 1
        return -change if what == "rate" else change

    def spread(self, what: str) -> float:
        """Half the distance between the quartiles of the pairs' ratios: the machine's other work."""
        ratios = [getattr(on, what) / getattr(off, what) for on, off in zip(self.on, self.off, strict=True)]
        low, _, high = statistics.quantiles(ratios, n=4)
        return (high - low) / 2


def run(server: str, *, rounds: int, seconds: float) -> Overhead:
    """Load one server; this process must have entered a network namespace.

    Args:
        server: which.
        rounds: pairs of rounds.
        seconds: of each round.
    """
    with ExitStack() as stack:
        directory = stack.enter_context(workplace())
        files = make_files(directory)
        addresses = stack.enter_context(peers(directory))
        sink = stack.enter_context(GrpcSink())
        config = _configuration(directory, sink)
        bridge = stack.enter_context(child("switched_bridge", str(config)))
        process, port = stack.enter_context(serving(server, int(bridge.line()), addresses, files))
        load = Load(server, port, process, bridge, seconds)
        load.round()  # warms up
        off: list[Round] = []
        on: list[Round] = []
        for number in range(rounds):
            # In turns, so that whatever grows or shrinks over time meets both.
            for with_probes in (number % 2 == 0, number % 2 != 0):
                (on if with_probes else off).append(load.with_probes() if with_probes else load.round())
        costs, requests = load.timed()
        return Overhead(off, on, costs, requests)


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
        before = [_cpu(one.pid) for one in (self._process, self._bridge)]
        requests = clients.flood(self._server, self._port, self._seconds)
        after = [_cpu(one.pid) for one in (self._process, self._bridge)]
        server, bridge = ((later - earlier) / requests for earlier, later in zip(before, after, strict=True))
        return Round(requests / self._seconds, server, bridge)

    def with_probes(self) -> Round:
        """With the default probes, which are loaded before and unloaded after."""
        self._bridge.ask(f"on {self._process.pid}")
        try:
            return self.round()
        finally:
            self._bridge.ask("off")

    def timed(self) -> tuple[dict[str, tuple[int, int, int]], int]:
        """By probe, nanoseconds, runs and records of a round; and how many requests that was."""
        self._bridge.ask(f"timed {self._process.pid}")
        requests = clients.flood(self._server, self._port, self._seconds)
        costs = {name: tuple(numbers) for name, numbers in self._bridge.ask("costs").items()}
        self._bridge.ask("off")
        return costs, requests


def _cpu(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


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
        loss, cpu = (
            f"{result.loss(what):+.1%} ± {result.spread(what):.1%}" for what in ("rate", "server_cpu")
        )
        table.add_row(server, "loss", loss, cpu, end_section=True)
    console.print(table)
    table = Table("server", "probe", "ns/event", "events/request", "ns/request", "records/request")
    for server, result in results.items():
        for probe, (nanoseconds, runs, records) in result.costs.items():
            if runs:
                each, often, told = nanoseconds / runs, runs / result.requests, records / result.requests
                numbers = (f"{each:,.0f}", f"{often:,.1f}", f"{each * often:,.0f}", f"{told:,.2f}")
                table.add_row(server, probe, *numbers)
        table.add_section()
    console.print(table)


def figures_of(results: dict[str, Overhead]) -> dict[str, float]:
    """The loss of the server that loses most; nanoseconds an event of each probe, over all servers."""
    found = {"kernel.throughput_loss": max(result.loss("rate") for result in results.values())}
    for probe in sorted({probe for result in results.values() for probe in result.costs}):
        each = [result.costs[probe] for result in results.values() if probe in result.costs]
        nanoseconds, runs, _ = (sum(numbers) for numbers in zip(*each, strict=True))
        if runs:
            found[f"kernel.{probe}.ns_per_event"] = nanoseconds / runs
    return found
