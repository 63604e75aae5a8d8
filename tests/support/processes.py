"""Real processes for tests: the bridge as users start it, the upstream Collector, free ports."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
import yaml

from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T", bound="Process")
ROOT = Path(__file__).parents[2]
START_TIMEOUT = 60.0


def eventually(what: str, check: Callable[[], Any], timeout: float = START_TIMEOUT) -> Any:
    """Wait until `check` gives something true, and return it."""
    end = time.monotonic() + timeout
    while True:
        result = check()
        if result:
            return result
        if time.monotonic() > end:
            pytest.fail(f"not within {timeout:g} s: {what}")
        time.sleep(0.02)


class Process:
    """A child with its output in a file."""

    def __init__(self, command: list[str], log: Path, env: dict[str, str] | None = None) -> None:
        self.log = log
        with log.open("ab") as out:
            self.child = subprocess.Popen(
                command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=env
            )

    @property
    def pid(self) -> int:
        """The process id."""
        return self.child.pid

    def output(self) -> str:
        """All that it printed."""
        return self.log.read_text(errors="replace")

    def wait_for_http(self, url: str) -> None:
        """Wait until `url` answers 200, or fail with what the process printed."""
        end = time.monotonic() + START_TIMEOUT
        while time.monotonic() < end:
            if self.child.poll() is not None:
                pytest.fail(f"{self.child.args} ended with {self.child.returncode}:\n{self.output()}")
            try:
                with urllib.request.urlopen(url, timeout=10):
                    return
            except OSError:
                time.sleep(0.05)
        pytest.fail(f"{url} did not answer within {START_TIMEOUT:g} s:\n{self.output()}")

    def stop(self, number: signal.Signals = signal.SIGTERM, timeout: float = START_TIMEOUT) -> int:
        """Send a signal and wait for the end; a process that does not obey fails the test."""
        if self.child.poll() is None:
            self.child.send_signal(number)
            try:
                self.child.wait(timeout)
            except subprocess.TimeoutExpired:
                self.child.kill()
                self.child.wait()
                pytest.fail(
                    f"{self.child.args} did not end {timeout:g} s after {number.name}:\n{self.output()}"
                )
        return self.child.returncode


class Bridge(Process):
    """`otel-bridge run` on free ports, with a configuration written for this run."""

    def __init__(self, directory: Path, config: dict[str, Any], *, metrics_port: int | None = None) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.grpc_port, self.http_port = free_port(), free_port()
        self.metrics_port = free_port() if metrics_port is None else metrics_port
        protocols = {
            "grpc": {"endpoint": f"127.0.0.1:{self.grpc_port}"},
            "http": {"endpoint": f"127.0.0.1:{self.http_port}"},
        }
        document: dict[str, Any] = {
            "receivers": {"otlp": {"protocols": protocols}},
            "storage": {"directory": str(directory / "queue")},
            # What loads programs into the kernel says so.
            "kernel": {"mode": "off"},
            "service": {"telemetry": {"metrics": {"endpoint": f"127.0.0.1:{self.metrics_port}"}}},
        }
        self.config = directory / "bridge.yaml"
        self.config.write_text(yaml.safe_dump(merged(document, config)))
        super().__init__(
            [sys.executable, "-m", "otel_bridge", "run", "-c", str(self.config)], directory / "bridge.log"
        )
        self.wait_for_http(f"http://127.0.0.1:{self.metrics_port}/readyz")

    def metrics(self) -> dict[str, float]:
        """Every sample of /metrics by its name with labels, as exposed."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        lines = (line.rpartition(" ") for line in text.splitlines() if line and line[0] != "#")
        return {name: float(value) for name, _, value in lines}

    def total(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that carry these labels."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        return sum(
            value
            for sample, value in self.metrics().items()
            if sample.partition("{")[0] == name and all(label in sample for label in wanted)
        )


def merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Two configurations as one, the second winning."""
    out = dict(base)
    for key, value in over.items():
        if isinstance(value, dict) and isinstance(out.get(key), dict):
            out[key] = merged(out[key], value)
        else:
            out[key] = value
    return out


def collector_binary(name: str = "otelcol") -> Path:
    """The upstream Collector (or telemetrygen) that `make collector` built; skips with the command."""
    build = ROOT / "collector-config" / "build.sh"
    found = subprocess.run([build, "--print", name], capture_output=True, text=True, check=False)
    path = Path(found.stdout.strip()) if found.returncode == 0 else None
    if path is None or not os.access(path, os.X_OK):
        pytest.skip(f"{name} is not built here: make collector")
    return path


@contextmanager
def running(process: T) -> Iterator[T]:
    """Stop the process when the block ends."""
    try:
        yield process
    finally:
        if process.child.poll() is None:
            process.child.kill()
            process.child.wait()


def needs_root() -> None:
    """Skip for anyone but root."""
    if os.geteuid() != 0:
        pytest.skip("needs root: sudo make test")


def needs_command(name: str, package: str) -> str:
    """The path of a command, or skip with the Debian package that brings it."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"needs {name}: apt-get install {package}")
    return path
