"""A real Alertmanager for tests, and a webhook that it tells."""

from __future__ import annotations

import json
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self

import yaml

from tests.support.processes import Process, free_port, needs_command

if TYPE_CHECKING:
    from pathlib import Path


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
