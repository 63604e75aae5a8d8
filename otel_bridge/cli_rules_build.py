"""`otel-bridge rules build`: rule sets as Prometheus rules, with tests for promtool."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

import click

from otel_bridge.errors import ConfigError
from otel_bridge.rules.load import load_rules
from otel_bridge.rules.prometheus.build import build_files, compile_rules, drift, write_files
from otel_bridge.rules.prometheus.promql import Target
from otel_bridge.units import parse_duration

EXIT_DRIFT = 1
EXIT_BAD_RULES = 2
SHIPPED = Path("alerts/rules")


def _seconds(_context: click.Context, _parameter: click.Parameter, value: str) -> float:
    try:
        seconds = parse_duration(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    if seconds < 1:
        raise click.BadParameter(f"found {value}; expected 1s or more")
    return seconds


@click.command()
@click.argument("paths", type=click.Path(path_type=Path, exists=True), nargs=-1)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("alerts"),
    show_default=True,
    help="Rules go to generated/ below it, tests to tests/.",
)
@click.option("--check", is_flag=True, help="Write nothing; exit 1 if a file is not what would be written.")
@click.option(
    "--scrape-interval",
    default="15s",
    show_default=True,
    callback=_seconds,
    help="How often Prometheus scrapes the bridge, and evaluates the rules.",
)
@click.option(
    "--keep",
    multiple=True,
    default=("instance",),
    show_default=True,
    metavar="LABEL",
    help="Label of the scrape that tells one bridge from another; may be repeated.",
)
@click.option(
    "--dimension",
    "dimensions",
    multiple=True,
    metavar="KEY",
    help="Attribute of connectors.derive.dimensions, so a label of derived metrics; may be repeated.",
)
@click.option(
    "--runbook-url", default="runbook.md", show_default=True, help="The page with a heading for each rule."
)
def build(
    paths: tuple[Path, ...],
    out: Path,
    *,
    check: bool,
    scrape_interval: float,
    keep: tuple[str, ...],
    dimensions: tuple[str, ...],
    runbook_url: str,
) -> None:
    """Compile rule sets (alerts/rules by default) to Prometheus rules and their promtool tests.

    Rules that Prometheus cannot decide as the bridge does follow the bridge's own alerts; they are listed.
    """
    target = Target(scrape_interval, keep, dimensions, runbook_url)
    try:
        rules = load_rules(paths or (SHIPPED,))
        files = build_files(rules, target)
    except ConfigError as error:
        _fail(str(error), EXIT_BAD_RULES)
    if check:
        changed = drift(out, files)
        if changed:
            names = "\n".join(f"  {path}" for path in changed)
            _fail(f"not what `otel-bridge rules build` writes:\n{names}", EXIT_DRIFT)
        click.echo(f"{len(files)} files: as built")
        return
    write_files(out, files)
    followed = [one for one in compile_rules(rules, target).values() if one.streaming_only]
    click.echo(f"{len(rules)} rules, {len(files)} files; {len(followed)} follow the bridge's own alerts:")
    for one in followed:
        click.echo(f"  {one.rule.name}: {one.streaming_only}")


def _fail(message: str, code: int) -> NoReturn:
    click.echo(f"otel-bridge: {message}", err=True)
    sys.exit(code)
