"""What the operators' commands share: they ask the running bridge, and print what strangers wrote as text."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
from rich.markup import escape

from otel_bridge.control.client import OperatorError, ask
from otel_bridge.errors import ConfigError
from otel_bridge.settings import load

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from otel_bridge.control.config import OperatorsConfig

EXIT_FAILED = 1
EXIT_BAD_CONFIG = 2

as_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")


def of_running_bridge(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options that say which configuration the running bridge has."""
    command = click.option(
        "--set", "overrides", multiple=True, metavar="KEY.PATH=VALUE", help="Override one setting."
    )(command)
    return click.option(
        "-c",
        "--config",
        "path",
        type=click.Path(path_type=Path, dir_okay=False),
        envvar="OTEL_BRIDGE_CONFIG",
        help="The running bridge's YAML file; without it, embedded defaults.",
    )(command)


def operators_of(path: Path | None, overrides: tuple[str, ...]) -> OperatorsConfig:
    """Where the bridge of a configuration serves operators; exits when it is a bad one."""
    try:
        return load(path, overrides=overrides).control.operators
    except ConfigError as error:
        fail(str(error), EXIT_BAD_CONFIG)


def ask_bridge(
    config: OperatorsConfig,
    method: str,
    path: str,
    *,
    query: Mapping[str, str] | None = None,
    order: Any = None,
) -> dict[str, Any]:
    """One question or order, and its answer; exits when there is none."""
    try:
        return ask(config, method, path, query=query, order=order)
    except OperatorError as error:
        fail(str(error), EXIT_FAILED)


def literal(value: Any) -> str:
    """A text that a stranger may have chosen, kept from styling or steering the terminal."""
    return escape("".join(character if character.isprintable() else "�" for character in str(value)))


def in_seconds(seconds: float | None) -> str:
    """A time for a table."""
    return "-" if seconds is None else f"{seconds:.0f} s"


def fail(message: str, code: int) -> NoReturn:
    """Say why, and exit."""
    click.echo(f"otel-bridge: {message}", err=True)
    sys.exit(code)
