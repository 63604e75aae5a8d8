"""What is measured: the bridge and the upstream Collector, as processes with the same work to do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import yaml

from tests.support.ports import free_port
from tests.support.processes import Bridge, Process, collector_binary

if TYPE_CHECKING:
    from collections.abc import Mapping


def bridge(
    directory: Path, transport: str, sink_port: int, *, derive: Mapping[str, Any] | None = None
) -> Bridge:
    """The bridge with its defaults, save what the Collector does not do.

    Content is kept and not searched, contexts are not checked, no rules are evaluated (rules.py measures
    them), no traces are kept for /ui, and no metrics are derived unless settings for that are given: what it
    costs is measured against the Collector's own connector (spanmetrics.py). Kernel probes are off: loaded by
    a bench that runs as root, they would weigh on every process of the machine, on the Collector, the load
    and the sinks too.
    """
    name, endpoint = _destination(transport, sink_port)
    config = {
        "kernel": {"mode": "off"},
        "rules": {"enabled": False},
        "service": {"ui": {"enabled": False}},
        "processors": {
            "redact": {"content": "keep", "patterns": []},
            "consistency": {"enabled": False},
        },
        "connectors": {"derive": {"enabled": derive is not None, **(derive or {})}},
        "exporters": {name: {"endpoint": endpoint, "compression": "none"} | _plaintext(transport)},
    }
    return Bridge(directory, config)


class Collector(Process):
    """The upstream Collector, writing the same attributes with its attributes and transform processors."""

    def __init__(
        self,
        directory: Path,
        transport: str,
        sink_port: int,
        *,
        durable: bool = False,
        spanmetrics: Mapping[str, Any] | None = None,
    ) -> None:
        """Start it.

        Args:
            directory: for its files.
            transport: "grpc" or "http", in and out.
            sink_port: where spans go.
            durable: with a persistent queue.
            spanmetrics: with this connector, whose metrics its Prometheus exporter serves.
        """
        directory.mkdir(parents=True, exist_ok=True)
        self.grpc_port, self.http_port = free_port(), free_port()
        health, metrics = free_port(), free_port()
        name, endpoint = _destination(transport, sink_port)
        exporter: dict[str, Any] = {"endpoint": endpoint, "compression": "none"} | _plaintext(transport)
        extensions: dict[str, Any] = {"health_check": {"endpoint": f"127.0.0.1:{health}"}}
        if durable:
            queue = directory / "queue"
            queue.mkdir()
            extensions["file_storage"] = {"directory": str(queue)}
            exporter["sending_queue"] = {"storage": "file_storage"}
        config: dict[str, Any] = {
            "extensions": extensions,
            "receivers": {
                "otlp": {
                    "protocols": {
                        "grpc": {"endpoint": f"127.0.0.1:{self.grpc_port}"},
                        "http": {"endpoint": f"127.0.0.1:{self.http_port}"},
                    }
                }
            },
            "processors": ENRICHMENT,
            "exporters": {name: exporter},
            "service": {
                "extensions": list(extensions),
                "telemetry": {"metrics": {"readers": [_prometheus(metrics)]}, "logs": {"level": "warn"}},
                "pipelines": {
                    "traces": {"receivers": ["otlp"], "processors": list(ENRICHMENT), "exporters": [name]}
                },
            },
        }
        if spanmetrics is not None:
            self.spanmetrics_port = free_port()
            config["connectors"] = {"spanmetrics": dict(spanmetrics)}
            config["exporters"]["prometheus"] = {
                "endpoint": f"127.0.0.1:{self.spanmetrics_port}",
                "enable_open_metrics": True,
            }
            pipelines = config["service"]["pipelines"]
            pipelines["traces"]["exporters"] = [name, "spanmetrics"]
            pipelines["metrics"] = {"receivers": ["spanmetrics"], "exporters": ["prometheus"]}
        path = directory / "collector.yaml"
        path.write_text(yaml.safe_dump(config))
        super().__init__([str(collector_binary()), f"--config={path}"], directory / "collector.log")
        self.wait_for_http(f"http://127.0.0.1:{health}/")


STATEMENTS = (
    """set(attributes["llm.prompt.len"],
           Len(ParseJSON(attributes["http.request.body"])["messages"][0]["content"]))""",
    """set(attributes["llm.inference.batch_size"],
           Int(ExtractPatterns(attributes["url.query"], "batch_size=(?P<size>[0-9]+)")["size"]))""",
    """set(attributes["llm.inference.batch_size"], 1)
       where attributes["llm.inference.batch_size"] == nil""",
)
ENRICHMENT: Mapping[str, Any] = {
    "attributes": {
        "actions": [
            {"key": "llm.model.id", "from_attribute": "http.request.header.x-model-id", "action": "insert"}
        ]
    },
    "transform": {
        "error_mode": "ignore",
        "trace_statements": [
            {
                "context": "span",
                "conditions": ["kind == SPAN_KIND_SERVER"],
                "statements": list(STATEMENTS),
            }
        ],
    },
}


def cpu_seconds(process: Process) -> float:
    """User and system time of a process so far, of all its threads and of its children."""
    root = psutil.Process(process.pid)
    times = [root.cpu_times(), *(child.cpu_times() for child in root.children(recursive=True))]
    ended = times[0].children_user + times[0].children_system
    return ended + sum(one.user + one.system for one in times)


def peak_rss(process: Process) -> int:
    """The most memory that a process has had resident, in bytes."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    (kibibytes,) = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
    return int(kibibytes) * 1024


def _destination(transport: str, port: int) -> tuple[str, str]:
    return ("otlp", f"127.0.0.1:{port}") if transport == "grpc" else ("otlphttp", f"http://127.0.0.1:{port}")


def _plaintext(transport: str) -> dict[str, Any]:
    return {"tls": {"insecure": True}} if transport == "grpc" else {}


def _prometheus(port: int) -> dict[str, Any]:
    return {"pull": {"exporter": {"prometheus": {"host": "127.0.0.1", "port": port}}}}
