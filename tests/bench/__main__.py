"""Every benchmark: `python -m tests.bench [NAME …]`; figures go to results.json."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

from rich.console import Console

from tests.bench import data_path, figures

PARTS = (
    "micro_codec",
    "micro_context",
    "micro_enrich",
    "micro_gpu",
    "micro_receiver",
    "micro_sample",
    "micro_ui",
    "spanmetrics",
    "join",
    "decision_api",
    "breaker",
    "rules",
)
"""Benches of single parts; each is a program of its own and keeps its own figures."""


def main() -> None:
    """Run what was asked for, print it, keep the figures."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument(
        "--only", default="", help="cases of the data path whose name contains this, and nothing else"
    )
    parser.add_argument("--rounds", type=int, default=4, help="of each subject in each case (default 4)")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each round (default 4)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON, nothing else")
    parser.add_argument("--no-results", action="store_true", help="leave results.json as it is")
    parser.add_argument("--profile", action="store_true", help="print where the bridge's time goes instead")
    options = parser.parse_args()
    console = Console(stderr=options.json)
    if options.profile:
        data_path.profile(console, seconds=options.seconds, only=options.only)
        return
    found = data_path.run(console, rounds=options.rounds, seconds=options.seconds, only=options.only)
    if not options.no_results:
        figures.merge(found)
    if not options.only and not options.no_results:
        for part in PARTS:
            console.rule(part)
            subprocess.run(
                [sys.executable, "-m", f"tests.bench.{part}"],
                check=True,
                stdout=sys.stderr if options.json else None,
            )
    if options.json:
        print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
