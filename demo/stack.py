"""Everything that has to run: the Collector, the bridge between its pipelines, and the engine."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from demo.environments import ENGINE
from demo.errors import DemoError
from demo.places import ROOT, cache
from demo.programs import Program, free_ports, running
from demo.trip import control

if TYPE_CHECKING:
    from collections.abc import Callable

SIDECAR = ROOT / "collector-config" / "sidecar"
MODELS = "processors.enrich.models={engine: tiny}"
"""The last resort for vLLM's spans, as an operator says it: a client's span may come after the server's."""
KERNEL = "kernel.mode=auto"
"""Kernel events where this user may load programs; nothing where not."""
BUILD = ROOT / "collector-config" / "build.sh"


def collector_binary(*, build: bool) -> Path | None:
    """The upstream Collector; built first if asked, else None where it is not built yet.

    Raises:
        DemoError: it could not be built.
    """
    found = subprocess.run([BUILD, "--print", "otelcol"], stdout=subprocess.PIPE, text=True, check=False)
    if found.returncode != 0:
        if not build:
            return None
        if subprocess.run([BUILD], stdout=subprocess.DEVNULL, check=False).returncode != 0:
            raise DemoError(
                "the Collector could not be built", "the lines above say why; `make collector` tries again"
            )
    return Path(found.stdout.strip())


@dataclass(frozen=True)
class Addresses:
    """Where everything listens, on loopback."""

    collector_grpc: int
    collector_http: int
    collector_health: int
    bridge: int
    bridge_metrics: int
    from_bridge: int
    engine: int
    decisions: int
    operators: int

    @classmethod
    def free(cls) -> Self:
        """On ports that nobody has, so that the demo runs beside a Collector of the user's own."""
        return cls(*free_ports(9))

    @property
    def otlp(self) -> str:
        """Where applications send spans."""
        return f"http://127.0.0.1:{self.collector_grpc}"

    @property
    def openai(self) -> str:
        """The engine's API."""
        return f"http://127.0.0.1:{self.engine}/v1"

    @property
    def metrics(self) -> str:
        """The bridge's own metrics."""
        return f"http://127.0.0.1:{self.bridge_metrics}/metrics"

    @property
    def decisions_url(self) -> str:
        """The bridge's decision API."""
        return f"http://127.0.0.1:{self.decisions}"

    def environment(self, run: Path) -> dict[str, str]:
        """What collector-config/sidecar/*.yaml and demo/collector.yaml read."""
        return {
            "OTLP_GRPC": f"127.0.0.1:{self.collector_grpc}",
            "OTLP_HTTP": f"127.0.0.1:{self.collector_http}",
            "HEALTH": f"127.0.0.1:{self.collector_health}",
            "BRIDGE": f"127.0.0.1:{self.bridge}",
            "BRIDGE_METRICS": f"127.0.0.1:{self.bridge_metrics}",
            "BRIDGE_STORAGE": str(run / "queue"),
            "FROM_BRIDGE": f"127.0.0.1:{self.from_bridge}",
            "EXPLAIN": "true",
            "BEFORE_FILE": str(run / "before.jsonl"),
            "AFTER_FILE": str(run / "after.jsonl"),
            "KERNEL_FILE": str(run / "kernel.jsonl"),
        }


class Stack:
    """The three programs, started in the order in which each can hand on what it gets.

    Args:
        run: folder for logs and files.
        collector: the Collector's binary.
        spans: the engine's span shape; see demo/engine/tracing.py.
    """

    def __init__(self, run: Path, collector: Path, spans: str) -> None:
        self.run = run
        self.addresses = Addresses.free()
        self.programs: list[Program] = []
        self.spans = spans
        self._collector = collector
        self._exit = ExitStack()

    def start(self, tell: Callable[[str, str], None]) -> None:
        """Start all; `tell` hears of each that is ready, and where.

        Raises:
            DemoError: one did not start.
        """
        at = self.addresses
        environment = at.environment(self.run)
        self._start(
            "Collector",
            [
                self._collector,
                "--config",
                SIDECAR / "collector.yaml",
                "--config",
                ROOT / "demo" / "collector.yaml",
            ],
            f"http://127.0.0.1:{at.collector_health}/",
            environment,
        )
        tell(
            "Collector",
            f"OTLP on 127.0.0.1:{at.collector_grpc}, from the bridge on 127.0.0.1:{at.from_bridge}",
        )
        self._start(
            "bridge",
            [
                *(sys.executable, "-m", "otel_bridge", "run", "-c", SIDECAR / "bridge.yaml"),
                *("--set", MODELS, "--set", KERNEL),
            ],
            f"http://127.0.0.1:{at.bridge_metrics}/readyz",
            environment | control.environment(at),
        )
        # A machine under load is no overload: until its part of the demo nothing may trip.
        control.order(at, "disable", "until its part of the demo")
        tell(
            "bridge",
            f"OTLP on 127.0.0.1:{at.bridge}, metrics on {at.metrics}, decisions on {at.decisions_url}",
        )
        engine: list[str | Path] = [
            ENGINE.python,
            "-m",
            "demo.engine",
            "--port",
            str(at.engine),
            "--otlp",
            at.otlp,
        ]
        engine += ["--spans", self.spans, "--models", cache() / "models"]
        self._start("engine", engine, f"http://127.0.0.1:{at.engine}/health", {})
        tell("engine", f"OpenAI API on {at.openai}")

    def check(self) -> None:
        """Raise DemoError if one of them has ended."""
        for program in self.programs:
            program.check()

    def stop(self) -> None:
        """Stop all, the last one first."""
        self._exit.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop()

    def _start(self, name: str, command: list[str | Path], ready: str, environment: dict[str, str]) -> None:
        program = Program(name, command, self.run / f"{name.lower()}.log", environment)
        self.programs.append(self._exit.enter_context(running(program)))
        program.wait_until_ready(ready)
