"""A real Alertmanager for tests, and a webhook that it tells."""

from __future__ import annotations

import json
import threading
import urllib.request
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self

import yaml

from otel_bridge.rules.load import load_rules
from otel_bridge.rules.prometheus.build import build_files, write_files
from otel_bridge.rules.prometheus.promql import Target
from tests.support.ports import free_port
from tests.support.processes import ROOT, Process, needs_command, running
from tests.support.prometheus import Prometheus

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SHIPPED = ROOT / "alerts" / "rules" / "default.yaml"
COMPOSITE = "TlsStallWithGpuAllocationFailure"


def composite_in(directory: Path) -> Path:
    """The shipped composite rule in a file, but that it ends sooner than after a minute."""
    content = yaml.safe_load(SHIPPED.read_text())
    [rule] = [rule for rule in content["rules"] if rule["name"] == COMPOSITE]
    rule["keep_firing_for"] = "3s"
    path = directory / "rules" / "default.yaml"
    path.parent.mkdir()
    path.write_text(yaml.safe_dump({**content, "rules": [rule]}))
    return path


def rules_settings(rules: Path, alertmanager: str, metrics: int) -> dict[str, Any]:
    """`rules:` of a bridge that is scraped on a port, with the times of a test."""
    return {
        "shipped": False,
        "files": [str(rules)],
        "shortest_alert": "3s",
        "alertmanager": {
            "urls": [alertmanager],
            "labels": {"instance": f"127.0.0.1:{metrics}"},
            "resend_interval": "2s",
            "resolve_delay": "4s",
            "trace_url": "https://traces.example/trace/{trace_id}",
        },
    }


@contextmanager
def surroundings(
    directory: Path, rules: Path, metrics: int
) -> Iterator[tuple[Webhook, Alertmanager, Prometheus]]:
    """What stands around a bridge: Prometheus with what a build makes of the rules, and who is told."""
    write_files(directory / "built", build_files(load_rules([rules]), Target(scrape_interval=1.0)))
    built = directory / "built" / "generated" / "prometheus" / rules.name
    with (
        Webhook() as webhook,
        running(Alertmanager(directory / "alertmanager", webhook.port)) as alertmanager,
        running(
            Prometheus(directory / "prometheus", {"bridge": metrics}, [built], [alertmanager.port])
        ) as prometheus,
    ):
        yield webhook, alertmanager, prometheus


class Webhook:
    """Keeps what Alertmanager sends."""

    def __init__(self) -> None:
        self.payloads: list[dict[str, Any]] = []
        payloads = self.payloads

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                payloads.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def alerts(self, status: str) -> list[dict[str, Any]]:
        """All alerts of all payloads with a status."""
        return [
            alert
            for payload in list(self.payloads)
            for alert in payload["alerts"]
            if alert["status"] == status
        ]


class Alertmanager(Process):
    """Tells a webhook at once of each change."""

    def __init__(self, directory: Path, webhook: int) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        program = needs_command("prometheus-alertmanager", "prometheus-alertmanager")
        config = directory / "alertmanager.yml"
        route = {
            "receiver": "test",
            "group_by": ["alertname"],
            "group_wait": "0s",
            "group_interval": "1s",
            "repeat_interval": "1h",
        }
        receiver = {
            "name": "test",
            "webhook_configs": [{"url": f"http://127.0.0.1:{webhook}/", "send_resolved": True}],
        }
        config.write_text(yaml.safe_dump({"route": route, "receivers": [receiver]}))
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        super().__init__(
            [
                program,
                f"--config.file={config}",
                f"--storage.path={directory / 'data'}",
                f"--web.listen-address=127.0.0.1:{self.port}",
                "--cluster.listen-address=",
            ],
            directory / "alertmanager.log",
        )
        self.wait_for_http(f"{self.url}/-/ready")

    def alerts(self) -> list[dict[str, Any]]:
        """What it holds."""
        with urllib.request.urlopen(f"{self.url}/api/v2/alerts", timeout=10) as answer:
            found: list[dict[str, Any]] = json.load(answer)
        return found
