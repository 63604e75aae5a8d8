"""The topologies of collector-config/, up and running."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import grpc

from tests.support.ports import free_port
from tests.support.processes import ROOT, Process, collector_binary, running
from tests.support.sinks import SERVICES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


@dataclass(frozen=True)
class Replica:
    """One Collector and one bridge, as the topology's two files have them.

    Attributes:
        backend: the port that the Collector's last pipeline sends to.
    """

    backend: int
    otlp: int = field(default_factory=free_port)
    http: int = field(default_factory=free_port)
    from_bridge: int = field(default_factory=free_port)
    health: int = field(default_factory=free_port)
    prometheus: int = field(default_factory=free_port)
    bridge: int = field(default_factory=free_port)
    bridge_metrics: int = field(default_factory=free_port)

    def environment(self, storage: Path, first: Replica, last: Replica) -> dict[str, str]:
        """What its two files read; `first` and `last` are the gateway's two replicas, this one among them."""
        ports = {
            "OTLP_GRPC": self.otlp,
            "OTLP_HTTP": self.http,
            "FROM_BRIDGE": self.from_bridge,
            "HEALTH": self.health,
            "PROMETHEUS": self.prometheus,
            "BRIDGE": self.bridge,
            "BRIDGE_A": first.bridge,
            "BRIDGE_B": last.bridge,
            "BRIDGE_METRICS": self.bridge_metrics,
            "BACKEND": self.backend,
        }
        return {
            **os.environ,
            **{name: f"127.0.0.1:{port}" for name, port in ports.items()},
            "BRIDGE_STORAGE": str(storage),
            "NODE_NAME": "node-7",
            "DECISION_WAIT": "1s",
            "FLUSH_INTERVAL": "1s",
            "SAMPLING_PERCENTAGE": "100",
        }


@contextmanager
def site(
    topology: str, directory: Path, *backends: int, overrides: Sequence[str] = ()
) -> Iterator[list[Replica]]:
    """A topology up and running, one replica for each backend: bridges first, then the Collectors.

    Args:
        topology: its folder in collector-config/.
        directory: for logs and queues.
        backends: ports that the replicas send to.
        overrides: KEY.PATH=VALUE, over the bridges' file.
    """
    directory.mkdir(exist_ok=True)
    files = ROOT / "collector-config" / topology
    replicas = [Replica(backend) for backend in backends]
    environments = [
        replica.environment(directory / f"queue-{number}", replicas[0], replicas[-1])
        for number, replica in enumerate(replicas)
    ]
    bridge = [sys.executable, "-m", "otel_bridge", "run", "-c", str(files / "bridge.yaml")]
    for override in overrides:
        bridge += ["--set", override]
    collector = [str(collector_binary()), "--config", str(files / "collector.yaml")]
    with ExitStack() as stack:
        for name, command in (("bridge", bridge), ("collector", collector)):
            processes = [
                stack.enter_context(
                    running(Process(command, directory / f"{name}-{number}.log", environment))
                )
                for number, environment in enumerate(environments)
            ]
            for process, replica in zip(processes, replicas, strict=True):
                ready = f"{replica.bridge_metrics}/readyz" if name == "bridge" else f"{replica.health}/"
                process.wait_for_http(f"http://127.0.0.1:{ready}")
        yield replicas


def export(port: int, request: bytes) -> None:
    """One OTLP/gRPC export, as an application makes it."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(f"/{SERVICES['traces']}/Export")
        call(request, timeout=120, wait_for_ready=True)
