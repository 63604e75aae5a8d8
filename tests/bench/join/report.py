"""The exactness bench's tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from tests.bench.join.exactness import LEVEL

if TYPE_CHECKING:
    from collections import Counter

    from rich.console import Console

    from tests.bench.join.exactness import Result

_NUMBERS = ("caused", "right", "wrong", "unmatched")


def show(console: Console, results: dict[str, Result]) -> None:
    """Per server and kind, then what else there is to say of each server."""
    table = Table("server", "kind", *_NUMBERS, "match", "wrong by match")
    for server, result in results.items():
        for kind, tally in result.tallies.items():
            numbers = (tally.caused, tally.right, tally.wrong, tally.unmatched)
            matches = (", ".join(sorted(+tally.matches)), _listed(tally.wrong_matches))
            table.add_row(server, kind.value, *map(str, numbers), *matches)
        table.add_section()
    console.print(table)
    for server, result in results.items():
        verdict = (
            "[green]level met[/]" if result.passes else f"[red]below the level ({LEVEL:.0%}, 0 wrong)[/]"
        )
        console.print(
            f"{server}: {result.right:.2%} right, {result.wrong} wrong: {verdict}. "
            f"First event on a span after {result.seconds:.1f} s; publisher: {result.publisher}; "
            f"late for their span: {_listed(result.stale)}; sent on as logs: {_listed(result.logged)}"
        )
        for detail in result.details:
            console.print(f"  {detail}", style="dim", highlight=False)


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items() if count) or "none"
