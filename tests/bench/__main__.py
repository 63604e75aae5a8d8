"""Every benchmark: `python -m tests.bench [NAME …]`; figures go to results.json."""

from __future__ import annotations

import argparse
import json

from rich.console import Console

from tests.bench import data_path, figures


def main() -> None:
    """Run what was asked for, print it, keep the figures."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--only", default="", help="cases whose name contains this, e.g. small.grpc")
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
    if options.json:
        print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
