"""`otel-bridge breaker …`: what operators see of the breakers and say to them."""

from __future__ import annotations

import getpass
import json
from datetime import UTC, datetime
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
from otel_bridge.units import parse_duration

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from otel_bridge.control.config import OperatorsConfig

_COLOURS = {"closed": "green", "half_open": "yellow", "open": "red"}


@click.group()
@of_running_bridge
@click.pass_context
def breaker(context: click.Context, path: Path | None, overrides: tuple[str, ...]) -> None:
    """See and steer the circuit breakers of the running bridge."""
    context.obj = operators_of(path, overrides)


_target = click.argument("target")


@breaker.command("list")
@as_json_option
@click.pass_obj
def list_(config: OperatorsConfig, *, as_json: bool) -> None:
    """Every breaker, those that refuse first."""
    answer = ask_bridge(config, "GET", "/v1/breakers")
    if as_json:
        click.echo(json.dumps(answer))
        return
    table = Table("target", "state", "mode", "for", "ends in", "alerts", "why", box=None)
    for found in answer["breakers"]:
        table.add_row(
            literal(found["target"]),
            _state(found["state"]),
            found["mode"],
            in_seconds(found["for_seconds"]),
            in_seconds(found["ends_in_seconds"]),
            str(found["alerts"]),
            literal(found["reason"]),
        )
    Console().print(table if answer["breakers"] else "No target has a breaker yet.")


@breaker.command()
@_target
@as_json_option
@click.pass_obj
def show(config: OperatorsConfig, target: str, *, as_json: bool) -> None:
    """One breaker, with the alerts that hold it open."""
    answer = ask_bridge(config, "GET", "/v1/breaker", query={"target": target})
    if as_json:
        click.echo(json.dumps(answer))
        return
    _print(answer)


def _order(action: str, doc: str, *, timed: bool = False) -> None:
    def command(
        config: OperatorsConfig,
        target: str,
        reason: str,
        name: str,
        *,
        as_json: bool,
        seconds: float | None = None,
    ) -> None:
        order: dict[str, Any] = {"target": target, "action": action, "reason": reason, "name": name}
        if seconds is not None:
            order["seconds"] = seconds
        answer = ask_bridge(config, "POST", "/v1/breaker", order=order)
        if as_json:
            click.echo(json.dumps(answer))
        else:
            _print(answer)

    command.__doc__ = doc
    decorated: Callable[..., Any] = click.pass_obj(command)
    decorated = as_json_option(decorated)
    decorated = click.option(
        "--name", default=getpass.getuser, help="Who you are, for the audit log; else your user name."
    )(decorated)
    decorated = click.option("--reason", required=True, help="Why, for the audit log.")(decorated)
    if timed:
        decorated = click.option(
            "--for",
            "seconds",
            type=_Duration(),
            help="Open for so long (10m), then let probes decide. Without it: open until somebody says "
            "otherwise, at most control.operators.forced_open_lease.",
        )(decorated)
    breaker.command(action)(_target(decorated))


class _Duration(click.ParamType[float]):
    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> float:
        try:
            return parse_duration(float(value) if str(value).replace(".", "", 1).isdigit() else value)
        except ValueError as error:
            self.fail(str(error), param, context)


_order("open", "Refuse a target's requests.", timed=True)
_order("close", "Let requests through; alerts that fire now are overruled until they resolve.")
_order("disable", "Let requests through, and nothing trip, until `auto`.")
_order("observe", "Decide and record, but refuse nothing, until `auto`.")
_order("auto", "Give the decision back to the machine.")


@breaker.command()
@click.argument("target", required=False)
@click.option(
    "--limit", default=50, show_default=True, type=click.IntRange(1, 10_000), help="Entries at most."
)
@as_json_option
@click.pass_obj
def history(config: OperatorsConfig, target: str | None, limit: int, *, as_json: bool) -> None:
    """The audit log, the newest entry first."""
    query = {"limit": str(limit)} | ({"target": target} if target else {})
    answer = ask_bridge(config, "GET", "/v1/history", query=query)
    if as_json:
        click.echo(json.dumps(answer))
        return
    table = Table("time", "target", "event", "from", "to", "cause", "who", "why", box=None)
    for entry in answer["entries"]:
        when = datetime.fromtimestamp(entry["time"] / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
        columns = ("target", "event", "before", "after", "cause", "actor", "reason")
        table.add_row(when, *(literal(entry[column]) for column in columns))
    Console().print(table)


def _print(found: dict[str, Any]) -> None:
    table = Table(box=None, show_header=False)
    for key, value in found.items():
        if key == "holds":
            continue
        table.add_row(key, literal(value if value is not None else "-"))
    for hold in found.get("holds", ()):
        table.add_row("alert", literal(hold))
    Console().print(table)


def _state(state: str) -> str:
    return f"[{_COLOURS[state]}]{state}[/]"
