"""The command line: the only place that prints for people and exits."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click
import yaml
from rich.console import Console

from otel_bridge import __version__
from otel_bridge.cli_breaker import breaker
from otel_bridge.cli_bundle import bundle
from otel_bridge.cli_limits import limits
from otel_bridge.cli_rules import rules
from otel_bridge.errors import BridgeError, ConfigError
from otel_bridge.memory import prepare_to_serve
from otel_bridge.rules.load import load_configured
from otel_bridge.settings import Settings, effective, load
from otel_bridge.telemetry import configure_logging
from otel_bridge.units import Endpoint

if TYPE_CHECKING:
    from otel_bridge.service import Service

EXIT_FAILED = 1
EXIT_BAD_CONFIG = 2


class _Commands(click.Group):
    """Groups print commands in the order they are most used, not by the alphabet."""

    def list_commands(self, _context: click.Context) -> list[str]:
        return list(self.commands)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="otel-bridge")
def main() -> None:
    r"""Stand beside an OpenTelemetry Collector and say why an LLM request was slow.

    The bridge takes OTLP in, gives GenAI spans one vocabulary, a model, a prompt length and a batch size,
    and hands them on. Without a configuration it listens on 127.0.0.1:4317 (gRPC) and :4318 (HTTP), sends to
    127.0.0.1:14317, and serves /metrics on 127.0.0.1:9464.

    \b
    Try:
      otel-bridge run                        on embedded defaults
      otel-bridge print-config > bridge.yaml a file to start from
      otel-bridge check -c bridge.yaml       every mistake in it at once
      otel-bridge run -c bridge.yaml
    """


_config = click.option(
    "-c",
    "--config",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="OTEL_BRIDGE_CONFIG",
    help="The YAML file; without it, embedded defaults.",
)
_set = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY.PATH=VALUE",
    help="Override one setting, the value in YAML; may be repeated.",
)
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")


@main.command()
@_config
@_set
def run(path: Path | None, overrides: tuple[str, ...]) -> None:
    """Serve until SIGTERM; SIGHUP reloads the processors without dropping a connection."""
    settings = _loaded(path, overrides)
    logs = settings.service.telemetry.logs
    configure_logging(level=logs.level, json={"auto": None, "json": True, "console": False}[logs.format])
    prepare_to_serve()
    # The service brings in gRPC and the codec; `check` and `--help` answer without them.
    from otel_bridge.service import run as serve  # noqa: PLC0415

    try:
        asyncio.run(serve(lambda: load(path, overrides=overrides), announce=_announce))
    except ConfigError as error:
        _fail(str(error), EXIT_BAD_CONFIG)
    except BridgeError as error:
        _fail(str(error), EXIT_FAILED)


@main.command()
@_config
@_set
@_json
def check(path: Path | None, overrides: tuple[str, ...], *, as_json: bool) -> None:
    """Report every problem of a configuration and its rules at once, each with its place; exit 2 if any."""
    try:
        settings = load(path, overrides=overrides)
        load_configured(settings.rules)
    except ConfigError as error:
        if as_json:
            problems = [
                {"path": p.path, "found": p.found, "expected": p.expected, "hint": p.hint}
                for p in error.problems
            ]
            click.echo(json.dumps({"ok": False, "source": error.source, "problems": problems}))
            sys.exit(EXIT_BAD_CONFIG)
        _fail(str(error), EXIT_BAD_CONFIG)
    if as_json:
        click.echo(json.dumps({"ok": True, "source": str(path or "embedded defaults"), "problems": []}))
    else:
        click.echo(f"{path or 'embedded defaults'}: good")


@main.command()
@_config
@_set
@_json
def doctor(path: Path | None, overrides: tuple[str, ...], *, as_json: bool) -> None:
    """Say what this machine lets probes and gates do, and for each miss the command that mends it.

    Exit 1 if a probe or gate that is on cannot work.
    """
    settings = _loaded(path, overrides)
    config = settings.kernel
    # Looking means loading libbpf and walking /proc, which no other command needs.
    from otel_bridge.control.gate.preflight import look  # noqa: PLC0415
    from otel_bridge.findings import Verdict  # noqa: PLC0415
    from otel_bridge.gpu.preflight import look as look_at_gpus  # noqa: PLC0415
    from otel_bridge.kernel.doctor import render  # noqa: PLC0415
    from otel_bridge.kernel.preflight import judge, survey  # noqa: PLC0415

    report = judge(survey(headers=config.bcc.headers), config)
    gates = look(settings.control.actions)
    gpus = look_at_gpus(settings.gpu)
    ready = report.ready and all(finding.verdict is not Verdict.MISSING for finding in (*gates, gpus))
    if as_json:
        click.echo(
            json.dumps(
                report.as_dict()
                | {"ready": ready, "gates": [finding.as_dict() for finding in gates], "gpus": gpus.as_dict()}
            )
        )
    else:
        Console().print(render(report, gates, [gpus]))
    sys.exit(0 if ready else EXIT_FAILED)


@main.command("print-config")
@_config
@_set
@_json
@click.option("--schema", is_flag=True, help="Print the JSON schema of the file instead, for editors.")
def print_config(path: Path | None, overrides: tuple[str, ...], *, as_json: bool, schema: bool) -> None:
    """Print the effective configuration: defaults filled in, secrets masked."""
    if schema:
        click.echo(json.dumps(Settings.model_json_schema(), indent=2))
        return
    text = effective(_loaded(path, overrides))
    click.echo(json.dumps(yaml.safe_load(text), indent=2) if as_json else text, nl=as_json)


main.add_command(breaker)
main.add_command(limits)
main.add_command(rules)
main.add_command(bundle)


def _loaded(path: Path | None, overrides: tuple[str, ...]) -> Settings:
    try:
        return load(path, overrides=overrides)
    except ConfigError as error:
        _fail(str(error), EXIT_BAD_CONFIG)


def _announce(service: Service) -> None:
    """Where it listens, for a person at a terminal; logs say it to everybody else."""
    console = Console(stderr=True)
    if not console.is_terminal:
        return
    protocols, receiver = service.settings.receivers.otlp.protocols, service.receiver
    for name, host, port in (
        ("OTLP/gRPC", protocols.grpc.endpoint.host, receiver.grpc_port),
        ("OTLP/HTTP", protocols.http.endpoint.host, receiver.http_port),
    ):
        if port is not None:
            console.print(f"  {name:<10} {Endpoint(host, port)}")
    for name, exporter in service.settings.exporters.items():
        console.print(f"  {'sends to':<10} {exporter.endpoint} ({name})")
    if service.telemetry_server is not None:
        metrics = service.settings.service.telemetry.metrics
        base = f"{'https' if metrics.tls else 'http'}://127.0.0.1:{service.telemetry_server.port}"
        console.print(f"  {'metrics':<10} {base}/metrics")
        if service.ui is not None:
            console.print(f"  {'pages':<10} {base}/ui")
    console.print("  Stop with Ctrl-C; what is not delivered by then stays on disk.")


def _fail(message: str, code: int) -> NoReturn:
    click.echo(f"otel-bridge: {message}", err=True)
    sys.exit(code)
