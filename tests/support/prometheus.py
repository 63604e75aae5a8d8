"""A real Prometheus for tests."""

from __future__ import annotations

import json
import math
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING, Any

import yaml

from tests.support.ports import free_port
from tests.support.processes import Process, needs_command

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


class Prometheus(Process):
    """Scrapes each second; exemplars on.

    Args:
        directory: for its data and configuration.
        ports: what is scraped on loopback, by job.
        rules: rule files.
        alertmanagers: ports of those that are told of alerts.
    """

    def __init__(
        self,
        directory: Path,
        ports: Mapping[str, int],
        rules: list[Path] | None = None,
        alertmanagers: Sequence[int] = (),
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        program = needs_command("prometheus", "prometheus")
        config = directory / "prometheus.yml"
        jobs = [
            {"job_name": job, "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
            for job, port in ports.items()
        ]
        times = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
        told = [{"targets": [f"127.0.0.1:{port}"]} for port in alertmanagers]
        config.write_text(
            yaml.safe_dump(
                {
                    "global": times,
                    "rule_files": [str(one) for one in rules or []],
                    "scrape_configs": jobs,
                    "alerting": {"alertmanagers": [{"static_configs": told}] if told else []},
                }
            )
        )
        self.port = free_port()
        super().__init__(
            [
                program,
                f"--config.file={config}",
                f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address=127.0.0.1:{self.port}",
                "--enable-feature=exemplar-storage",
            ],
            directory / "prometheus.log",
        )
        self.wait_for_http(f"http://127.0.0.1:{self.port}/-/ready")

    def ask(self, path: str, **parameters: Any) -> Any:
        """The data of one answer of the API.

        Raises:
            ValueError: Prometheus did not take the question; says why.
        """
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(parameters, doseq=True)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise ValueError(json.load(error).get("error", str(error))) from None

    def notifications(self) -> float:
        """How many alerts it sent to Alertmanagers."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        return sum(
            float(line.rpartition(" ")[2])
            for line in lines
            if line.startswith("prometheus_notifications_sent_total")
        )

    def values(self, expr: str) -> list[float]:
        """What an expression is now, by series; without those that are no number."""
        result = self.ask("query", query=expr)["result"]
        return _numbers([one["value"] for one in result])

    def by_labels(self, expr: str, at: float) -> dict[str, float]:
        """What an expression was at a time (unix seconds), by the labels of its series, as JSON."""
        result = self.ask("query", query=expr, time=at)["result"]
        return {json.dumps(one["metric"], sort_keys=True): float(one["value"][1]) for one in result}

    def line(self, expr: str, step: float, over: float = 10.0) -> list[float]:
        """What an expression was in the last `over` seconds, as a panel asks for it; all series together."""
        now = time.time()
        result = self.ask("query_range", query=expr, start=now - over, end=now, step=step)["result"]
        return _numbers([point for one in result for point in one["values"]])


def _numbers(points: list[list[Any]]) -> list[float]:
    return [value for _, text in points if not math.isnan(value := float(text))]
