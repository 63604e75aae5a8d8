"""The data path against the upstream Collector: the same requests, the same three attributes, in turns."""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich import box
from rich.table import Table

from tests.bench import profiler, subjects, workloads
from tests.bench.load import CLIENTS, Load
from tests.bench.sink import Sink
from tests.support.processes import running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console

    from tests.bench.workloads import Workload
    from tests.support.processes import Process

_WARM_UP = 1.0
_DRAIN = 60.0


@dataclass(frozen=True)
class Case:
    """One comparison.

    Attributes:
        workload: what is sent.
        transport: "grpc" or "http", in and out.
        durable: whether the Collector, too, must lose nothing to kill -9.
        level: the ratio to reach.
    """

    workload: Callable[[], Workload]
    transport: str
    durable: bool
    level: float

    @property
    def name(self) -> str:
        """As in figures: "small.grpc.durable"."""
        return f"{self.workload.__name__}.{self.transport}" + (".durable" if self.durable else "")


CASES = (
    Case(workloads.small, "grpc", durable=False, level=3.0),
    Case(workloads.small, "http", durable=False, level=3.0),
    Case(workloads.genai, "grpc", durable=False, level=2.0),
    Case(workloads.genai, "http", durable=False, level=2.0),
    Case(workloads.small, "grpc", durable=True, level=4.0),
)
MOST_RSS_MIB = 200


@dataclass
class Measured:
    """One subject in one case, all its rounds together."""

    cpu: float = 0.0
    spans: int = 0
    refused: int = 0
    peak_rss: int = 0
    latencies: list[float] = field(default_factory=list)

    @property
    def spans_per_cpu_second(self) -> float:
        """Spans for each second of CPU time."""
        return self.spans / self.cpu

    def percentile(self, share: float) -> float:
        """A percentile of Export's latency, seconds."""
        return float(np.percentile(self.latencies, share))


@dataclass(frozen=True)
class Result:
    """Both subjects in one case."""

    case: Case
    bridge: Measured
    collector: Measured

    @property
    def ratio(self) -> float:
        """The bridge's spans per CPU-second by the Collector's."""
        return self.bridge.spans_per_cpu_second / self.collector.spans_per_cpu_second


def run(console: Console, *, rounds: int, seconds: float, only: str = "") -> dict[str, float]:
    """Measure, print, and return the figures.

    Args:
        console: for progress and the table.
        rounds: of each subject in each case, in turns, so that a drift of the machine meets both.
        seconds: of each round.
        only: run the cases whose name contains this.

    Raises:
        SystemExit: a span was lost, invented, or left with a wrong attribute.
    """
    results = []
    for case in CASES:
        if only in case.name:
            with console.status(case.name):
                result = compare(case, rounds, seconds)
            console.print(f"{case.name}: {result.ratio:.2f} times the Collector", highlight=False)
            results.append(result)
    console.print(table(results))
    figures = {f"data_path.{result.case.name}.ratio": result.ratio for result in results}
    if results:
        figures["data_path.peak_rss_mib"] = max(result.bridge.peak_rss for result in results) / 2**20
    return figures


def profile(console: Console, *, seconds: float, only: str = "") -> None:
    """Print where the bridge spends its time in each case."""
    for case in CASES:
        if only in case.name:
            workload = case.workload()
            with ExitStack() as stack:
                directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
                load = stack.enter_context(Load(case.transport, workload))
                sink = stack.enter_context(Sink(case.transport))
                bridge = stack.enter_context(
                    running(subjects.bridge(directory / "bridge", case.transport, sink.port))
                )
                port = getattr(bridge, f"{case.transport}_port")
                load.run(port, _WARM_UP)
                with console.status(case.name), profiler.profiled(bridge.pid, directory):
                    load.run(port, seconds)
                console.rule(case.name)
                for shown in profiler.tables(directory):
                    console.print(shown)


def compare(case: Case, rounds: int, seconds: float) -> Result:
    """Measure both subjects in one case."""
    workload = case.workload()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        load = stack.enter_context(Load(case.transport, workload))
        sinks = {name: stack.enter_context(Sink(case.transport)) for name in ("bridge", "collector")}
        processes: dict[str, Process] = {
            "bridge": stack.enter_context(
                running(subjects.bridge(directory / "bridge", case.transport, sinks["bridge"].port))
            ),
            "collector": stack.enter_context(
                running(
                    subjects.Collector(
                        directory / "collector",
                        case.transport,
                        sinks["collector"].port,
                        durable=case.durable,
                    )
                )
            ),
        }
        measured = {name: Measured() for name in processes}
        for name, span in _turns(list(processes), rounds, seconds):
            before = subjects.cpu_seconds(processes[name])
            port = getattr(processes[name], f"{case.transport}_port")
            sent = load.run(port, span)
            expected = sent.requests * workload.spans
            _await(f"{case.name} {name}", sinks[name], expected)
            cpu = subjects.cpu_seconds(processes[name]) - before
            _verify(f"{case.name} {name}", sinks[name].samples())
            into = measured[name]
            into.peak_rss = subjects.peak_rss(processes[name])
            if span == seconds:
                into.cpu += cpu
                into.spans += expected
                into.refused += sent.refused
                into.latencies += sent.latencies
    return Result(case, measured["bridge"], measured["collector"])


def table(results: list[Result]) -> Table:
    """The figures beside the levels to reach."""
    out = Table(
        title=f"Data path, {CLIENTS} closed-loop clients; CPU of the process alone",
        caption=f"ratio: spans per CPU-second, bridge by Collector, and the level to reach; "
        f"RSS: peak, to stay within {MOST_RSS_MIB} MiB; P50, P99: of Export, at the client",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    for heading in ("case", "", "µs/span", "spans/CPU-s", "RSS MiB", "P50 ms", "P99 ms", "ratio"):
        out.add_column(heading, justify="left" if heading in ("case", "") else "right", no_wrap=True)
    for result in results:
        for name, one in (("bridge", result.bridge), ("Collector", result.collector)):
            ours = one is result.bridge
            good = result.ratio >= result.case.level
            colour = "green" if good else "red"
            light = one.peak_rss <= MOST_RSS_MIB * 2**20
            rss = f"{one.peak_rss / 2**20:.0f}"
            out.add_row(
                result.case.name if ours else "",
                name,
                f"{1e6 * one.cpu / one.spans:.2f}",
                f"{one.spans_per_cpu_second:,.0f}",
                f"[{'green' if light else 'red'}]{rss}[/]" if ours else rss,
                f"{1e3 * one.percentile(50):.1f}",
                f"{1e3 * one.percentile(99):.1f}",
                f"[{colour}]{result.ratio:.2f}[/] ≥ {result.case.level:g}" if ours else "",
            )
    return out


def _turns(names: list[str], rounds: int, seconds: float) -> Iterator[tuple[str, float]]:
    """A short round each to warm up, then A B A B and so on."""
    for length in (_WARM_UP, *[seconds] * rounds):
        for name in names:
            yield name, length


def _await(what: str, sink: Sink, expected: int) -> None:
    """Wait for what was acknowledged before it was delivered."""
    end = time.monotonic() + _DRAIN
    while (arrived := sink.count()) < expected and time.monotonic() < end:
        time.sleep(0.05)
    if arrived != expected:
        raise SystemExit(f"{what}: {expected} spans were sent and {arrived} arrived")


def _verify(what: str, samples: list[bytes]) -> None:
    """Hold a sample of what arrived to what was sent."""
    if not samples:
        raise SystemExit(f"{what}: nothing arrived to be looked at")
    wrong = [problem for data in samples for problem in workloads.wrong(data)]
    if wrong:
        raise SystemExit(f"{what}: {len(wrong)} spans are wrong, the first: {wrong[0]}")
