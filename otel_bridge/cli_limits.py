"""`otel-bridge limits …`: what operators see of the rate limits."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table

from otel_bridge.cli_operators import (
    as_json_option,
    ask_bridge,
    in_seconds,
    literal,
    of_running_bridge,
    operators_of,
)

if TYPE_CHECKING:
    from pathlib import Path

    from otel_bridge.control.config import OperatorsConfig


@click.group()
@of_running_bridge
@click.pass_context
def limits(context: click.Context, path: Path | None, overrides: tuple[str, ...]) -> None:
    """See the rate limits of the running bridge."""
    context.obj = operators_of(path, overrides)


@limits.command("list")
@click.option(
    "--buckets", default=5, show_default=True, type=click.IntRange(1, 10_000), help="Of each limit at most."
)
@as_json_option
@click.pass_obj
def list_(config: OperatorsConfig, *, buckets: int, as_json: bool) -> None:
    """Every limit, with the buckets that hold least; users and API keys are digests."""
    answer = ask_bridge(config, "GET", "/v1/limits", query={"limit": str(buckets)})
    if as_json:
        click.echo(json.dumps(answer))
        return
    console = Console()
    if not answer["limits"]:
        console.print("There are no limits; control.limits.rules makes them.")
        return
    if answer["degraded"]:
        console.print("[yellow]Redis cannot be reached: these are this bridge's own buckets.[/]")
    table = Table("limit", "allows", "bucket", "holds", "full in", "reserved", box=None)
    for limit in answer["limits"]:
        _add(table, limit)
    console.print(table)


def _add(table: Table, limit: dict[str, Any]) -> None:
    allows = f"{limit['amount']:g} {limit['unit']} in {limit['per_seconds']:g} s, {limit['burst']:g} at once"
    if limit["dry_run"]:
        allows += " (dry run)"
    table.add_row(literal(limit["name"]), literal(allows), f"{limit['buckets']} in use", "", "", "")
    for found in limit["emptiest"]:
        table.add_row(
            "",
            "",
            literal(found["bucket"]),
            f"{found['level']:g}",
            in_seconds(found["full_in_seconds"]),
            str(found["reservations"]),
        )
