"""How exact the join is, what the probes cost, and how much the join takes: `python -m tests.bench.join`.

Needs root, and loads probes for the whole machine while it runs.
"""

from __future__ import annotations

import argparse
import json
import sys

from rich.console import Console

from tests.bench import figures
from tests.bench.join import exactness, machine, overhead, rate, report, steps
from tests.bench.namespace import enter_network_namespace

_FLOOD = 5.0
"""Seconds of events whose spans never come."""

_STEP_ROUNDS = 40
"""Pairs, some 0.3 s each."""

PARTS = ("exactness", "overhead", "steps", "rate")


def main() -> None:
    """Run what was asked for, print it, keep the figures; ends with 1 where a level is not met."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.join", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--servers", default=",".join(exactness.SERVERS), help="default: %(default)s")
    parser.add_argument("--requests", type=int, default=96, help="of each kind, to each server (default 96)")
    parser.add_argument(
        "--rounds", type=int, default=120, help="pairs of load, with probes and without (default 120)"
    )
    parser.add_argument("--seconds", type=float, default=0.3, help="of each round (default 0.3)")
    parser.add_argument("--events", type=int, default=200_000, help="joined at each density (default 200000)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON, nothing else")
    parser.add_argument("--no-results", action="store_true", help="leave results.json as it is")
    options = parser.parse_args()
    unknown = set(options.parts) - set(PARTS)
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: the parts are {', '.join(PARTS)}")
    console = Console(stderr=options.json)
    lacking = machine.lacking()
    if lacking:
        console.print(f"not run: {lacking}")
        return
    enter_network_namespace(machine.MTU)
    found: dict[str, float] = {}
    passed = True
    if not options.parts or "exactness" in options.parts:
        results = {server: exactness.run(server, options.requests) for server in options.servers.split(",")}
        report.show(console, results)
        found |= {f"join.{server}.right": result.right for server, result in results.items()}
        found["join.wrong"] = sum(result.wrong for result in results.values())
        passed &= all(result.passes for result in results.values())
    if not options.parts or "overhead" in options.parts:
        costs = {
            server: overhead.run(server, rounds=options.rounds, seconds=options.seconds)
            for server in options.servers.split(",")
        }
        overhead.show(console, costs)
        found |= overhead.figures_of(costs)
        passed &= not any(cost.exceeds_level for cost in costs.values())
    if not options.parts or "steps" in options.parts:
        timed = steps.run(_STEP_ROUNDS)
        steps.show(console, timed)
        found |= steps.figures_of(timed)
    if not options.parts or "rate" in options.parts:
        rates = [rate.run(per_span, options.events) for per_span in rate.PER_SPAN]
        rate.show(console, rates, rate.flood(_FLOOD))
        found |= rate.figures_of(rates)
    if not options.no_results:
        figures.merge(found)
    if options.json:
        print(json.dumps(found, indent=2))
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
