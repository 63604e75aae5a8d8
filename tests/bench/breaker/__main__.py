"""From an overload to a refused connection and back, over hundreds of trips; and goodput. Needs root.

    make bench-breaker
    python -m tests.bench.breaker [--trips N] [--rounds N] [--seconds S]

The demo's engine is overloaded by its clients, time after time. Its spans go to the bridge, whose breaker
trips by the default rule: five calls in a row slower than the objective. README.md says what is measured.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from tests.bench import figures
from tests.bench.breaker import goodput, trips
from tests.bench.breaker.children import BenchError
from tests.bench.breaker.world import World
from tests.bench.namespace import enter_network_namespace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.bench.breaker.goodput import Counts

OPEN_TIME = 0.5


def show_trips(console: Console, found: trips.Trips) -> None:
    """Beside E4's figures."""
    table = Table(title=f"{len(found.decision)} trips", title_justify="left")
    for name in ("", "P50", "P99", "E4"):
        table.add_column(name, justify="left" if not name else "right")
    for name, seconds, level in (
        ("decision, from the arrival of the deciding spans", found.decision, "≤ 1 ms"),
        (
            "first connection refused by the kernel, from the decision",
            found.kernel,
            "≤ 1 ms (published: 2.1 ms)",
        ),
        ("first 429 of nginx, from the decision", found.gateway, ""),
        ("BACKPRESSURE_HIGH at its receiver, from the arrival", found.backpressure, "≤ 11 ms"),
        ("first answer after the overload, beyond the open time", found.recovery, "≤ 2 s"),
        ("a refusal by itself", found.bare, ""),
    ):
        p50, p99 = np.percentile(seconds, [50, 99]) * 1e3
        table.add_row(name, f"{p50:.3f} ms", f"{p99:.3f} ms", level)
    console.print(table)
    console.print(f"{found.reopened} times it opened once more, the engine being still busy with what it had")


def show_goodput(
    console: Console, guarded: Sequence[Counts], alone: Sequence[Counts], seconds: float
) -> float:
    """Both sides; the ratio of the good."""
    table = Table(
        title=f"Requests a second, {goodput.OVERLOAD:g} times what the engine bears", title_justify="left"
    )
    for name in ("", "good", "late", "refused", "failed"):
        table.add_column(name, justify="left" if not name else "right")
    for name, rounds in (("breaker and limits", guarded), ("without", alone)):
        rates = [
            sum(counts[kind] for counts in rounds) / (seconds * len(rounds))
            for kind in ("good", "late", "refused", "failed")
        ]
        table.add_row(name, *(f"{rate:.1f}" for rate in rates))
    console.print(table)
    # One request at least, so that nothing is divided by nothing.
    return sum(counts["good"] for counts in guarded) / max(1, sum(counts["good"] for counts in alone))


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.breaker",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--trips", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=2, help="of goodput, each with and without (default 2)")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each such round (default 10)")
    parser.add_argument("--no-results", action="store_true", help="leave results.json as it is")
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("bench-breaker shuts gates in the kernel, which takes root: sudo make bench-breaker")
    enter_network_namespace()
    console = Console()
    measured: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as directory, Progress(console=console) as progress:
        steps = progress.add_task("starting", total=options.trips + 2 * options.rounds)
        try:
            with World(Path(directory), OPEN_TIME, bare=options.trips) as world:
                rate, slo = world.capacity
                console.print(
                    f"the engine bears {rate:.0f} requests a second; objective {slo * 1e3:.0f} ms; overload "
                    f"by {world.capacity.clients} clients; open time {OPEN_TIME:g} s"
                )
                progress.update(steps, description="trips")
                found = trips.measure(world, options.trips, lambda: progress.advance(steps))
                progress.update(steps, description="goodput")
                guarded, alone = goodput.measure(
                    world, options.rounds, options.seconds, lambda: progress.advance(steps)
                )
                late = world.late_decisions()
        except BenchError as error:
            logs = "".join(
                f"\n{file.name}:\n{file.read_text(errors='replace')[-2000:]}"
                for file in Path(directory).glob("*.log")
                if file.stat().st_size
            )
            sys.exit(f"{error}{logs}")
    if late:
        console.print(
            f"[yellow]{late} decisions came later than the 50 ms that nginx waits, and their requests were "
            "let through: this machine is not quiet, and the figures say nothing[/yellow]"
        )
    show_trips(console, found)
    for name, seconds in (
        ("decision", found.decision),
        ("first_refused", found.kernel),
        ("gateway_refused", found.gateway),
        ("backpressure", found.backpressure),
        ("bare_refused", found.bare),
    ):
        measured[f"breaker.{name}_p99_ms"] = float(np.percentile(seconds, 99)) * 1e3
    measured["breaker.first_refused_p50_ms"] = float(np.percentile(found.kernel, 50)) * 1e3
    measured["breaker.recovery_s"] = float(max(found.recovery))
    if options.rounds:
        ratio = show_goodput(console, guarded, alone, options.seconds)
        console.print(f"goodput: {ratio:.1f} times that without")
        measured["goodput.ratio"] = ratio
    if not options.no_results:
        figures.merge(measured)


if __name__ == "__main__":
    main()
