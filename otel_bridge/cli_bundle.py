"""`otel-bridge bundle`: what goes beside the bridge, written to a folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

import click

EXIT_FAILED = 1


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--check", is_flag=True, help="Write nothing; exit 1 if a file is not what would be written.")
def bundle(folder: Path, *, check: bool) -> None:
    r"""Write what goes beside the bridge to FOLDER, ready to use.

    \b
    grafana/dashboards      for Grafana's file provisioning, with grafana/provisioning
    grafana/import          the same, to be imported by hand: asks for the data source
    kubernetes/dashboards   the same, as ConfigMaps for Grafana's sidecar
    kubernetes/rules        PrometheusRule
    prometheus              alert rules, and how to scrape
    alertmanager            the breaker's route
    runbook.md              an entry for each rule
    collector               pairs of Collector and bridge configurations, by topology
    """
    # Reading and rendering them all is nothing that other commands should wait for.
    from otel_bridge.bundle.bundle import bundle as build  # noqa: PLC0415
    from otel_bridge.bundle.bundle import drift, write  # noqa: PLC0415

    try:
        made = build()
        if check:
            changed = drift(folder, made)
            if changed:
                names = "\n".join(f"  {path}" for path in changed)
                _fail(f"not what `otel-bridge bundle {folder}` writes:\n{names}")
            click.echo(f"{len(made)} files: as written")
            return
        write(folder, made)
    except OSError as error:
        _fail(str(error))
    click.echo(f"{len(made)} files in {folder}")


def _fail(message: str) -> NoReturn:
    click.echo(f"otel-bridge: {message}", err=True)
    sys.exit(EXIT_FAILED)
