"""What the probes add to a send, a receive and a switch, one at a time and with cold caches.

A server's throughput says what users lose, and on a machine with neighbours only to a few per cent. Here
each step is timed alone, hundreds of times, so that a tenth of a microsecond shows.
"""

from __future__ import annotations

import statistics
import subprocess
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from tests.bench.join import machine
from tests.bench.join.children import child, program, workplace
from tests.bench.join.overhead import configuration, turns
from tests.support.sinks import GrpcSink

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

STEPS = ("send", "receive", "receive at no span", "switch", "switch at no span")
"""As steps.c has them: TCP on the loopback device, whose send is a segment received as well."""

_SOURCE = Path(__file__).with_suffix(".c")
_WARM_UP, _COUNT = 50, 200


@dataclass(frozen=True)
class Steps:
    """Rounds of each step, without the probes and with them, in turns; nanoseconds.

    Attributes:
        off: by step, the median of each round, without.
        on: with.
    """

    off: dict[str, list[float]]
    on: dict[str, list[float]]

    def added(self, step: str) -> list[float]:
        """Nanoseconds more in each pair of rounds."""
        return [on - off for on, off in zip(self.on[step], self.off[step], strict=True)]

    def share(self, step: str) -> float:
        """The fraction by which a step takes longer."""
        return statistics.median(self.added(step)) / statistics.median(self.off[step])


def run(rounds: int) -> Steps:
    """Time the steps of a process that publishes spans; this process must have entered a network namespace.

    Args:
        rounds: pairs, without the probes and with them.
    """
    with ExitStack() as stack:
        for_steps, _ = stack.enter_context(machine.two_places())
        directory = stack.enter_context(workplace())
        sink = stack.enter_context(GrpcSink())
        bridge = stack.enter_context(child("switched_bridge", str(configuration(directory, sink))))
        bridge.line()
        binary = str(directory / "steps")
        subprocess.run(["cc", "-O2", "-pthread", "-rdynamic", _SOURCE, "-o", binary], check=True)
        process = stack.enter_context(program(binary, str(max(for_steps))))
        bridge.ask(f"on {process.pid}")
        off: list[list[float]] = []
        on: list[list[float]] = []
        for with_probes in turns(rounds):
            bridge.ask("attach" if with_probes else "detach")
            process.ask(str(_WARM_UP))
            (on if with_probes else off).append(process.ask(str(_COUNT)))
        return Steps(_by_step(off), _by_step(on))


def _by_step(rounds: Sequence[Sequence[float]]) -> dict[str, list[float]]:
    return {step: [one[place] for one in rounds] for place, step in enumerate(STEPS)}


def show(console: Console, steps: Steps) -> None:
    """Each step without and with the probes."""
    table = Table("step", "ns, probes off", "on", "added", "half of the rounds", "share")
    for step in STEPS:
        added = steps.added(step)
        low, middle, high = statistics.quantiles(added, n=4)
        table.add_row(
            step,
            f"{statistics.median(steps.off[step]):,.0f}",
            f"{statistics.median(steps.on[step]):,.0f}",
            f"{middle:+,.0f}",
            f"{low:+,.0f} to {high:+,.0f}",
            f"{steps.share(step):.1%}",
        )
    console.print(table)


def figures_of(steps: Steps) -> dict[str, float]:
    """The fraction by which each step takes longer."""
    return {f"kernel.step.{step.replace(' ', '_')}": steps.share(step) for step in STEPS}
