"""What the probes cost: a busy server with them and without, in turns; and nanoseconds an event, by probe."""

from __future__ import annotations

import random
import statistics
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import yaml
from rich.console import Console
from rich.progress import track
from rich.table import Table

from tests.bench.join import clients, costs, machine
from tests.bench.join.children import child, make_files, peers, workplace
from tests.bench.join.children import server as serving
from tests.support.sinks import GrpcSink

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.bench.join.children import Child

LEVEL = 0.03
"""The most of a busy server's throughput that the default probes may take."""

CONFIDENCE = 0.95

_UNDISTURBED = 0.8
"""The rounds compared are those at this place among all, from the slowest on: what else goes on in a machine,
and around a virtual one, makes some slow and none fast."""

_SETTLE = 0.05
"""Seconds of load before each round: what attaching takes is no part of it."""

_WARM_UP = 2.0
_DRAWN = 2000


@dataclass(frozen=True)
class Round:
    """One round of load, to the end of exporting its spans.

    The exporter is one of the server's threads: how much of its work it gets done beside the requests is
    chance, and weighs as much as a fifth of a request. What it does afterwards counts by its CPU: nobody
    waits for it.

    Attributes:
        rate: requests a second.
        server_cpu: seconds a request, of the server's process.
        bridge_cpu: seconds a request, of the bridge's.
        pace: seconds that a piece of work takes on the server's CPU meanwhile (`pace`).
    """

    rate: float
    server_cpu: float
    bridge_cpu: float
    pace: float


@dataclass(frozen=True)
class Overhead:
    """A server's rounds with the probes and without, in turns; and what the programs took, timed.

    Attributes:
        off: without.
        on: with; each right after, or before, its companion.
        costs: by probe, in a round of its own.
    """

    off: list[Round]
    on: list[Round]
    costs: costs.Costs

    def loss(self, what: str) -> float:
        """The fraction by which the probes make it worse, at the pace of the machine meanwhile."""
        return _loss(what, self.off, self.on)

    def interval(self, what: str) -> tuple[float, float]:
        """Where it lies: drawn anew from these pairs of rounds, as often as not further out."""
        chance = random.Random(len(self.on))
        pairs = list(zip(self.off, self.on, strict=True))
        found = sorted(
            _loss(what, *(list(rounds) for rounds in zip(*chance.choices(pairs, k=len(pairs)), strict=True)))
            for _ in range(_DRAWN)
        )
        outside = int((1 - CONFIDENCE) / 2 * _DRAWN)
        return found[outside], found[-1 - outside]

    @property
    def exceeds_level(self) -> bool:
        """Whether these rounds show that more is lost than the level: few of them show nothing."""
        return self.interval("rate")[0] > LEVEL

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


def _loss(what: str, off: list[Round], on: list[Round]) -> float:
    without, with_probes = (_undisturbed(what, rounds) for rounds in (off, on))
    return 1 - with_probes / without if what == "rate" else with_probes / without - 1


def _undisturbed(what: str, rounds: list[Round]) -> float:
    if what == "rate":
        values = sorted(one.rate * one.pace for one in rounds)
    else:
        values = sorted((getattr(one, what) / one.pace for one in rounds), reverse=True)
    return values[int(len(values) * _UNDISTURBED)]


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
        bridge = stack.enter_context(child("switched_bridge", str(configuration(directory, sink))))
        process, port = stack.enter_context(serving(server, int(bridge.line()), addresses, files))
        machine.move(process.pid, for_server)
        with child("pace", str(max(for_server))) as pace:
            pace.line()
            off, on = _in_turns(Load(server, port, process, bridge, pace), rounds, seconds)
        measured = costs.measure(
            server,
            port,
            (process, bridge),
            directory=directory,
            seconds=_WARM_UP,
            after_load=lambda: machine.move(process.pid, for_server | for_others),
        )
        return Overhead(off, on, measured)


def turns(rounds: int) -> Iterator[bool]:
    """Whether it is a round with the probes: pairs, each of which begins as the last one ended."""
    for number in track(range(rounds), "rounds", transient=True, console=Console(stderr=True)):
        yield from (number % 2 == 0, number % 2 != 0)


def _in_turns(load: Load, rounds: int, seconds: float) -> tuple[list[Round], list[Round]]:
    """Without the probes and with them: whatever grows or shrinks over time meets both."""
    off: list[Round] = []
    on: list[Round] = []
    with load.probes():
        load.flood(_WARM_UP)
        for with_probes in turns(rounds):
            load.switch(with_probes=with_probes)
            (on if with_probes else off).append(load.round(seconds))
        load.switch(with_probes=True)
    return off, on


class Load:
    """Requests to a server, 64 at once, and the CPU that they take."""

    def __init__(self, server: str, port: int, process: Child, bridge: Child, pace: Child) -> None:
        self._server = server
        self._port = port
        self._process = process
        self._bridge = bridge
        self._pace = pace

    @contextmanager
    def probes(self) -> Iterator[None]:
        """Load the default ones, and unload them."""
        self._bridge.ask(f"on {self._process.pid}")
        try:
            yield
        finally:
            self._bridge.ask("off")

    def switch(self, *, with_probes: bool) -> None:
        """Attach the loaded probes to their tracepoints, or detach them."""
        self._bridge.ask("attach" if with_probes else "detach")

    def flood(self, seconds: float) -> int:
        """Requests, until their spans are exported."""
        requests = clients.flood(self._server, self._port, seconds)
        self._process.ask("flush")
        return requests

    def round(self, seconds: float) -> Round:
        """As things are."""
        self.flood(_SETTLE)
        pace, began, before = self._pace.ask("so far"), time.monotonic(), self._cpu()
        requests = clients.flood(self._server, self._port, seconds)
        took, flooded = time.monotonic() - began, self._cpu()
        self._process.ask("flush")
        after, paced = self._cpu(), self._pace.ask("so far")
        exporting = after[0] - flooded[0]
        server, bridge = ((later - earlier) / requests for earlier, later in zip(before, after, strict=True))
        return Round(
            requests / (took + exporting), server, bridge, (paced[0] - pace[0]) / (paced[1] - pace[1])
        )

    def _cpu(self) -> list[float]:
        return [machine.cpu_of(one.pid) for one in (self._process, self._bridge)]


def configuration(directory: Path, sink: GrpcSink) -> Path:
    """A bridge that takes spans and hands them to a sink; its probes are switched on later."""
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
        f"loss: at the pace of the CPU, over {len(next(iter(results.values())).on)} pairs of rounds, and "
        f"where it lies with {CONFIDENCE:.0%}; level {LEVEL:.0%} of the requests; programs: as timed"
    )
    costs.show(console, {server: result.costs for server, result in results.items()})


def _said(result: Overhead, what: str) -> str:
    low, high = result.interval(what)
    return f"{result.loss(what):+.1%} ({low:+.1%} to {high:+.1%})"


def figures_of(results: dict[str, Overhead]) -> dict[str, float]:
    """Of each server, and of the one that loses most; nanoseconds an event of each probe, over all."""
    losses = {server: result.loss("rate") for server, result in results.items()}
    return {
        **{f"kernel.throughput_loss.{server}": loss for server, loss in losses.items()},
        "kernel.throughput_loss": max(losses.values()),
        "kernel.server_cpu_loss": max(result.loss("server_cpu") for result in results.values()),
        "kernel.programs_share": max(result.share for result in results.values()),
        "kernel.bridge_us_a_request": max(result.bridge_cpu for result in results.values()) * 1e6,
    } | costs.figures_of([result.costs for result in results.values()])
