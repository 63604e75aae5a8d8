"""`otel-bridge rules …`: rule sets checked, explained, and tried on recordings."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from otel_bridge.cli_rules_build import build
from otel_bridge.errors import BridgeError, ConfigError
from otel_bridge.model import Signal
from otel_bridge.rules.config import RulesConfig
from otel_bridge.rules.load import load_rules, rule_files
from otel_bridge.rules.sentences import sentence
from otel_bridge.shipped import folder

if TYPE_CHECKING:
    from otel_bridge.firings import Firing
    from otel_bridge.rules.load import LoadedRule

EXIT_FAILED = 1
EXIT_BAD_RULES = 2


def _shipped() -> tuple[Path, ...]:
    """Wherever the bridge was installed."""
    try:
        return (folder("alerts/rules"),)
    except FileNotFoundError as error:
        raise click.UsageError(f"{error}, or name a rule set") from None


@click.group()
def rules() -> None:
    """Check, explain and try composite rules."""


_files = click.option(
    "-r",
    "--rules",
    "paths",
    type=click.Path(path_type=Path, exists=True),
    multiple=True,
    default=_shipped,
    show_default="those that ship with the bridge",
    help="A rule set, or a folder of them; may be repeated.",
)
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")


@rules.command()
@click.argument("paths", type=click.Path(path_type=Path, exists=True), nargs=-1)
@_json
def check(paths: tuple[Path, ...], *, as_json: bool) -> None:
    """Report every mistake of rule sets (those that ship by default) at its line; exit 2 if there is one."""
    paths = paths or _shipped()
    try:
        found = load_rules(paths)
    except ConfigError as error:
        if as_json:
            problems = [{"place": p.path, "found": p.found, "expected": p.expected} for p in error.problems]
            click.echo(json.dumps({"ok": False, "problems": problems}))
            sys.exit(EXIT_BAD_RULES)
        _fail(str(error), EXIT_BAD_RULES)
    if as_json:
        click.echo(json.dumps({"ok": True, "problems": [], "rules": [item.rule.name for item in found]}))
    else:
        files = len(rule_files(paths))
        click.echo(f"{len(found)} rules in {files} file{'s' if files != 1 else ''}: good")


@rules.command()
@click.argument("name", required=False)
@_files
@_json
def explain(name: str | None, paths: tuple[Path, ...], *, as_json: bool) -> None:
    """Say in a sentence what a rule fires on; without a name, every rule."""
    found = _loaded(paths)
    if name is not None:
        chosen = [item for item in found if item.rule.name == name]
        if not chosen:
            _fail(f"no rule {name!r}; there are {', '.join(item.rule.name for item in found)}", EXIT_FAILED)
        found = chosen
    if as_json:
        click.echo(
            json.dumps(
                [
                    {
                        "rule": item.rule.name,
                        "sentence": sentence(item.rule),
                        "file": item.file,
                        "line": item.line,
                    }
                    for item in found
                ]
            )
        )
        return
    for item in found:
        click.echo(sentence(item.rule))


@rules.command()
@click.argument("recording", type=click.File("rb"))
@_files
@click.option("--then", default="0s", show_default=True, help="How much quiet time follows the recording.")
@click.option("--lateness", default="30s", show_default=True, help="As rules.lateness in the configuration.")
@_json
def replay(recording: Any, paths: tuple[Path, ...], then: str, lateness: str, *, as_json: bool) -> None:
    """Run a recording (JSON lines) through rules and print when each fires."""
    from otel_bridge.receivers.otlp.codec import choose_codec  # noqa: PLC0415 (the codec, which others do without)
    from otel_bridge.receivers.otlp.otlp_json import convert  # noqa: PLC0415
    from otel_bridge.rules.replay import Replay  # noqa: PLC0415
    from otel_bridge.units import parse_duration  # noqa: PLC0415

    codec, _ = choose_codec("auto")
    try:
        config = RulesConfig(lateness=parse_duration(lateness))
        quiet = parse_duration(then)
        player = Replay(_loaded(paths), config, codec, lambda body: convert(body, Signal.TRACES).data)
        replayed = player.run(recording, then=quiet)
    except (BridgeError, ValueError) as error:
        _fail(f"{recording.name}: {error}", EXIT_FAILED)
    if as_json:
        firings = [_as_dict(firing) for firing in replayed.firings]
        click.echo(json.dumps({"records": replayed.records, "firings": firings}))
        return
    for firing in replayed.firings:
        click.echo(_line(firing))
    began = sum(firing.active for firing in replayed.firings)
    click.echo(f"{replayed.records} records, {began} firings")


rules.add_command(build)


@rules.command()
def schema() -> None:
    """Print the JSON schema of rule sets, for editors."""
    from otel_bridge.rules.schema import schema as rule_schema  # noqa: PLC0415

    click.echo(rule_schema(), nl=False)


@rules.command()
def events() -> None:
    """List the kinds of kernel and GPU events, with their fields and units."""
    from otel_bridge.rules.vocabulary import EVENTS  # noqa: PLC0415

    for kind, fields in EVENTS.items():
        shown = (f"{name} ({field.unit})" if field.unit else name for name, field in fields.items())
        click.echo(f"{kind}: {', '.join(shown)}")


def _line(firing: Firing) -> str:
    moment = datetime.fromtimestamp(firing.since / 1e9, UTC).isoformat(timespec="milliseconds")
    labels = ", ".join(f"{name}={value}" for name, value in firing.labels.items())
    evidence = f"  {', '.join(item.hex() for item in firing.evidence[:3])}" if firing.evidence else ""
    state = "fires" if firing.active else "resolved"
    return f"{moment}  {state:<8}  {firing.rule}  {{{labels}}}{evidence}"


def _as_dict(firing: Firing) -> dict[str, Any]:
    return {
        "rule": firing.rule,
        "active": firing.active,
        "time_unix_nano": firing.since,
        "labels": dict(firing.labels),
        "annotations": dict(firing.annotations),
        "evidence": [item.hex() for item in firing.evidence],
        "target": firing.target,
    }


def _loaded(paths: tuple[Path, ...]) -> list[LoadedRule]:
    try:
        return load_rules(paths)
    except ConfigError as error:
        _fail(str(error), EXIT_BAD_RULES)


def _fail(message: str, code: int) -> NoReturn:
    click.echo(f"otel-bridge: {message}", err=True)
    sys.exit(code)
