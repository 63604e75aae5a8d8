"""What each probe's programs take, timed by the kernel, while a server does all that they are for."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.table import Table

from tests.bench.join import clients
from tests.bench.join.causes import BLOCK, Job, Kind
from tests.bench.join.children import child
from tests.support.cgroups import MIB, MemoryCgroup
from tests.support.gpu import build

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from rich.console import Console

    from tests.bench.join.children import Child

_EACH = 64
"""Requests of each kind, after those that ask for nothing in particular."""

_READ_THROUGH = 8 * MIB
_ROOM = 32 * MIB
_ALLOCATIONS = 20_000
_COVERED_WITHIN = 20.0
_OF_LIBRARIES = ("cuda", "user")
"""Probes that take their time to find the library."""


@dataclass(frozen=True)
class Costs:
    """What programs took.

    Attributes:
        by_probe: nanoseconds and runs of its programs, and records handed over.
        flood: the same, of the requests that ask for nothing in particular.
        requests: how many those were.
    """

    by_probe: dict[str, tuple[int, int, int]]
    flood: dict[str, tuple[int, int, int]]
    requests: int


def measure(
    server: str,
    port: int,
    children: tuple[Child, Child],
    *,
    directory: Path,
    seconds: float,
    after_load: Callable[[], None],
) -> Costs:
    """Load all probes into a bridge, and have a server that it follows do one thing after the other.

    Args:
        server: which.
        port: of it.
        children: the server, which ends with this, and a `switched_bridge`.
        directory: for the stand-in of CUDA.
        seconds: of load.
        after_load: is called between requests that ask for nothing in particular and those that do.
    """
    process, bridge = children
    with ExitStack() as stack:
        libraries = directory / "cuda"
        libraries.mkdir()
        cuda = stack.enter_context(child("allocations", str(build(libraries))))
        cgroup = MemoryCgroup(f"otel-bridge-bench-{os.getpid()}", None)
        stack.callback(cgroup.remove)
        cgroup.add(process.pid)
        bridge.ask(f"timed {process.pid}")
        stack.callback(bridge.ask, "off")
        requests = clients.flood(server, port, seconds)
        flood = _costs(bridge)
        after_load()
        clients.run(server, port, [Job(Kind.HANDSHAKE, times=3) for _ in range(_EACH)])
        clients.run(server, port, [Job(Kind.READ, times=7, size=BLOCK) for _ in range(_EACH)])
        cgroup.limit(cgroup.usage + _ROOM)
        reclaims = [
            Job(Kind.RECLAIM, size=_READ_THROUGH, offset=number * _READ_THROUGH) for number in range(_EACH)
        ]
        clients.run(server, port, reclaims)
        cgroup.limit(1 << 40)
        _allocate(cuda, bridge)
        found = Costs(_costs(bridge), flood, requests)
        cuda.end_input()
        cuda.wait()
        process.end_input()
        process.wait()
        return found


def _allocate(cuda: Child, bridge: Child) -> None:
    """Until the probes are seen to have found the library, then as often as is to be measured."""
    begin = time.monotonic()
    while missing := [probe for probe in _OF_LIBRARIES if not _costs(bridge)[probe][1]]:
        if time.monotonic() - begin > _COVERED_WITHIN:
            raise TimeoutError(f"after {_COVERED_WITHIN:g} s {missing} have seen nothing")
        cuda.ask("1")
    cuda.ask(str(_ALLOCATIONS))


def _costs(bridge: Child) -> dict[str, tuple[int, int, int]]:
    return {name: tuple(numbers) for name, numbers in bridge.ask("costs").items()}


def show(console: Console, results: dict[str, Costs]) -> None:
    """By server and probe."""
    table = Table("server", "probe", "ns/event", "events/request", "ns/request", "records/request")
    for server, result in results.items():
        for probe, (nanoseconds, runs, _) in result.by_probe.items():
            if not runs:
                continue
            of_flood, often, told = (number / result.requests for number in result.flood[probe])
            numbers = (f"{nanoseconds / runs:,.0f}", f"{often:,.1f}", f"{of_flood:,.0f}", f"{told:,.2f}")
            table.add_row(server, probe, *numbers)
        table.add_section()
    console.print(table)
    console.print(
        "by request: of those that ask for nothing in particular; user and tls_requests are not on by default"
    )


def figures_of(results: Sequence[Costs]) -> dict[str, float]:
    """Nanoseconds an event of each probe, over all servers.

    Raises:
        RuntimeError: a probe has not run at all, so that nothing can be said of it.
    """
    found = {}
    for probe in sorted({probe for result in results for probe in result.by_probe}):
        each = [result.by_probe[probe] for result in results if probe in result.by_probe]
        nanoseconds, runs, _ = (sum(numbers) for numbers in zip(*each, strict=True))
        if not runs:
            raise RuntimeError(f"probe {probe} has seen none of the events that it is for")
        found[f"kernel.{probe}.ns_per_event"] = nanoseconds / runs
    return found
