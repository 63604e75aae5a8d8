"""All that takes part: the demo's engine, the bridge, nginx with the shipped configuration, who measures.

In a network namespace of the bench's own, so that ports are known and the gate is nobody else's. The engine
and its clients have one core, the bridge and nginx the other: it is the engine that is overloaded.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import yaml

from demo.environments import ENGINE
from demo.places import cache
from tests.bench.breaker.children import PATIENCE, ROOT, BenchError, Child, Log, cores
from tests.bench.breaker.load import BODY
from tests.bench.sink import Sink

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TARGET = "engine"
OTLP, DECISIONS, ENGINE_PORT, KNOCK_PORT, GATEWAY, UNGUARDED, WEBHOOK, METRICS = range(9001, 9009)
SECRET = "whsec_" + "b3RlbC1icmlkZ2UgYmVuY2ggb2YgdHJpcHM="
SLOTS = 4
"""Of the engine, which answers so many requests at once."""
LIMITED_TYPE = "chat"
"""Requests that say they are of this type are held to a rate limit."""
LIMIT = 0.4
"""The limit, as a share of what the engine bears."""
OFTEN = {"changes": 1_000_000}
"""For hundreds of trips in minutes."""


class Capacity(NamedTuple):
    """What the engine bears.

    Attributes:
        rate: requests a second, with all slots busy and nobody waiting.
        slo: seconds that a request may take.
    """

    rate: float
    slo: float

    @property
    def clients(self) -> int:
        """So many at once that each waits two and a half objectives."""
        return max(4 * SLOTS, round(2.5 * self.slo * self.rate))


class World:
    """Everything, started.

    Args:
        directory: for configurations and what programs say.
        open_time: of the breaker, in seconds.
        bare: refusals by themselves that are measured.
    """

    def __init__(self, directory: Path, open_time: float, bare: int) -> None:
        self.log = Log()
        self.open_time = open_time
        self._directory = directory
        self._bare = bare
        self._exit = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as started:
            self._exit = started
            self._start()
            self._exit = started.pop_all()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._exit.close()

    def _start(self) -> None:
        busy, quiet = cores()
        ENGINE.make()
        sink = self._exit.enter_context(Sink("grpc"))
        engine = [ENGINE.python, "-m", "demo.engine", "--port", str(ENGINE_PORT), "--spans", "http"]
        engine += ["--otlp", f"http://127.0.0.1:{OTLP}", "--models", cache() / "models"]
        self._engine = self._child("engine", engine, busy)
        _until_served(ENGINE_PORT, "/health")
        self.load = self._child("load", [sys.executable, "-m", "tests.bench.breaker.load"], busy)
        self.capacity = self._calibrate()
        self._exit.enter_context(self._instrument("receiver", WEBHOOK, "--secret", SECRET))
        self.log.wait("the webhook's receiver listens", 0, lambda words: "receiver" in words)
        file = self._directory / "bridge.yaml"
        file.write_text(yaml.safe_dump(self._settings(sink.port)))
        command = [sys.executable, "-m", "tests.bench.breaker.bridge", json.dumps(str(file))]
        self._child("bridge", command, quiet)
        self.log.wait("the bridge is ready", 0, lambda words: "ready" in words)
        nginx = self._directory / "nginx.conf"
        nginx.write_text(self._nginx())
        self._child("nginx", ["nginx", "-c", nginx, "-p", self._directory], quiet)
        _until_served(GATEWAY, "/knock")
        self.gateway = self._exit.enter_context(self._instrument("gateway", GATEWAY))

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Somebody knocks at the kernel's gate, and a client asks now and then."""
        begin = self.log.end
        steady = self._instrument("steady", GATEWAY, "--body", json.dumps(BODY))
        with self._instrument("kernel", KNOCK_PORT, "--bare", str(self._bare)), steady:
            self.log.wait("the gate's port admits", begin, lambda words: words.get("kernel") == "admitted")
            yield

    def operate(self, *words: str) -> None:
        """Say something to the breaker as an operator does."""
        command = [sys.executable, "-m", "otel_bridge", "breaker", "-c", str(self._directory / "bridge.yaml")]
        subprocess.run([*command, *words, "--reason", "bench"], check=True, capture_output=True)

    def late_decisions(self) -> int:
        """How often nginx had no answer of the bridge in time, and let the request through."""
        lines = (self._directory / "nginx.log").read_text(errors="replace").splitlines()
        return sum("timed out" in line and '"/_otel_bridge"' in line for line in lines)

    def _calibrate(self) -> Capacity:
        self.load.say(do="calibrate", port=ENGINE_PORT, workers=SLOTS, seconds=4)
        found = self.log.wait("the engine's capacity", 0, lambda words: "calibrated" in words)
        return Capacity(found["calibrated"], max(0.1, 5 * found["p95"]))

    def _child(self, name: str, command: list[Any], core: int) -> Child:
        return self._exit.enter_context(self._process(name, command, core))

    def _process(self, name: str, command: list[Any], core: int) -> Child:
        return Child(command, core, self.log, self._directory / f"{name}.log", {"PYTHONPATH": str(ROOT)})

    def _instrument(self, which: str, port: int, *words: str) -> Child:
        command = [sys.executable, "-m", "tests.bench.breaker.instruments", which, str(port), *words]
        return self._process(which, command, cores()[0])

    def _settings(self, sink: int) -> dict[str, Any]:
        action = {"targets": [TARGET], "rate_limit": OFTEN}
        gate = {**action, "pid": self._engine_pid(), "ports": [ENGINE_PORT, KNOCK_PORT]}
        # The gateway chooses the probes, so the gate must let them in.
        gate["half_open_share"] = 1
        return {
            "receivers": {
                "otlp": {
                    "protocols": {
                        "grpc": {"endpoint": f"127.0.0.1:{OTLP}"},
                        "http": {"enabled": False},
                    }
                }
            },
            "exporters": {"otlp": {"endpoint": f"127.0.0.1:{sink}"}},
            "storage": {"directory": str(self._directory / "queue")},
            "kernel": {"mode": "off"},
            "service": {"telemetry": {"metrics": {"endpoint": f"127.0.0.1:{METRICS}"}}},
            "control": {
                "enabled": True,
                "targets": {"key": ["service"]},
                "policies": [
                    {"slow_calls": {"threshold": self.capacity.slo}, "open_time": self.open_time},
                ],
                "limits": {
                    "rules": {
                        "engine": {
                            "by": ["service"],
                            "match": {"request_type": LIMITED_TYPE},
                            "amount": LIMIT * self.capacity.rate,
                            "per": "1s",
                            "burst": 2 * SLOTS,
                        }
                    }
                },
                "decisions": {"http": {"endpoint": f"127.0.0.1:{DECISIONS}", "process": "own"}},
                "operators": {"socket": str(self._directory / "operators.sock")},
                "state": {"file": str(self._directory / "control.sqlite")},
                "actions": {
                    "gates": {"engine": gate},
                    "webhooks": {
                        "gateway": {**action, "url": f"http://127.0.0.1:{WEBHOOK}/", "secret": SECRET}
                    },
                    "pins": None,
                },
            },
        }

    def _engine_pid(self) -> int:
        return self._engine.process.pid

    def _nginx(self) -> str:
        shipped = (ROOT / "otel_bridge/control/gateways/nginx.conf").read_text()
        shipped = shipped.replace("service=llama", f"service={TARGET}")
        temporary = " ".join(
            f"{name}_temp_path {self._directory}/{name};"
            for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        return f"""
            daemon off; master_process off; pid {self._directory}/nginx.pid; error_log stderr error;
            events {{ worker_connections 8192; }}
            http {{
                access_log off; {temporary} keepalive_requests 100000000;
                upstream otel_bridge {{ server 127.0.0.1:{DECISIONS}; keepalive 16;
                    keepalive_requests 100000000; }}
                upstream llama {{ server 127.0.0.1:{ENGINE_PORT}; }}
                server {{
                    listen 127.0.0.1:{GATEWAY} backlog=4096;
                    {shipped}
                    location = /knock {{
                        auth_request /_otel_bridge; error_page 403 = @refused; empty_gif;
                    }}
                }}
                server {{ listen 127.0.0.1:{UNGUARDED} backlog=4096;
                    location / {{ proxy_pass http://llama; }} }}
            }}
        """


def _until_served(port: int, path: str) -> None:
    end = time.monotonic() + PATIENCE
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5):
                return
        except OSError as error:
            if time.monotonic() > end:
                raise BenchError(f"nothing answers at port {port}{path} within {PATIENCE:g} s") from error
            time.sleep(0.05)
