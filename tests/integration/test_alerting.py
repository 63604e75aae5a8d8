"""Real Prometheus and Alertmanager beside the bridge: one alert, told once, and that it ended."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import numpy as np
import pytest
import yaml

from otel_bridge.events import COMMON, KernelEvents
from otel_bridge.model import KernelEventKind
from otel_bridge.rules.load import load_rules
from otel_bridge.rules.prometheus.build import build_files, write_files
from otel_bridge.rules.prometheus.promql import Target
from otel_bridge.rules.vocabulary import KIND_NUMBERS
from otel_bridge.service import Service
from otel_bridge.settings import load
from tests.support.alertmanager import Alertmanager, Webhook
from tests.support.processes import free_port, running
from tests.support.prometheus import Prometheus

SHIPPED = Path(__file__).parents[2] / "alerts" / "rules" / "default.yaml"
NAME = "TlsStallWithGpuAllocationFailure"
TRACE = bytes(range(16))
ENOMEM = -12


async def until(what: str, check, seconds: float = 30.0):
    """Wait off the loop's back until something is true; returns it."""
    end = time.monotonic() + seconds
    while not (found := await asyncio.to_thread(check)):
        assert time.monotonic() < end, f"not within {seconds:g} s: {what}"
        await asyncio.sleep(0.1)
    return found


def rules_in(directory: Path) -> Path:
    """The shipped composite, which ends sooner than after a minute."""
    content = yaml.safe_load(SHIPPED.read_text())
    (rule,) = [rule for rule in content["rules"] if rule["name"] == NAME]
    rule["keep_firing_for"] = "3s"
    path = directory / "rules" / "default.yaml"
    path.parent.mkdir()
    path.write_text(yaml.safe_dump({**content, "rules": [rule]}))
    return path


def settings(directory: Path, rules: Path, metrics: int, alertmanager: str):
    """A bridge that takes kernel events from nobody but the test."""
    protocols = {name: {"endpoint": f"127.0.0.1:{free_port()}"} for name in ("grpc", "http")}
    document = {
        "receivers": {"otlp": {"protocols": protocols}},
        "storage": {"directory": str(directory / "queue")},
        "kernel": {"mode": "off"},
        "service": {"telemetry": {"metrics": {"endpoint": f"127.0.0.1:{metrics}"}}},
        "rules": {
            "files": [str(rules)],
            "shortest_alert": "3s",
            "alertmanager": {
                "urls": [alertmanager],
                "labels": {"instance": f"127.0.0.1:{metrics}"},
                "resend_interval": "2s",
                "resolve_delay": "4s",
                "trace_url": "https://traces.example/trace/{trace_id}",
            },
        },
    }
    path = directory / "bridge.yaml"
    path.write_text(yaml.safe_dump(document))
    return load(path)


def handshakes(*seconds: float) -> KernelEvents:
    """Handshakes that ended one after the other."""
    records = np.zeros(len(seconds), COMMON)
    records["kind"] = KernelEventKind.TLS_HANDSHAKE
    now = time.time_ns()
    for place, lasted in enumerate(seconds):
        records[place]["time"] = now - (len(seconds) - place) * 1_000_000
        records[place]["duration"] = round(lasted * 1e9)
        records[place]["trace_id"] = TRACE
    return KernelEvents("tls", records)


def failed_allocation() -> KernelEvents:
    """One, now."""
    records = np.zeros(1, COMMON)
    records["kind"] = KIND_NUMBERS.get("cuda_alloc", KernelEventKind.USER)
    records["time"], records["error"] = time.time_ns(), ENOMEM
    return KernelEvents("cuda_alloc", records)


@pytest.mark.timeout(180)
async def test_the_composite_reaches_a_webhook_once_and_resolves(tmp_path):
    """Pushed by the bridge, fired by Prometheus too: to Alertmanager one alert."""
    rules, metrics = rules_in(tmp_path), free_port()
    write_files(tmp_path / "built", build_files(load_rules([rules]), Target(scrape_interval=1.0)))
    built = tmp_path / "built" / "generated" / "prometheus" / "default.yaml"
    with (
        Webhook() as webhook,
        running(Alertmanager(tmp_path / "am", webhook.port)) as alertmanager,
        running(
            Prometheus(tmp_path / "prometheus", {"bridge": metrics}, [built], [alertmanager.port])
        ) as prometheus,
    ):
        service = Service(settings(tmp_path, rules, metrics, alertmanager.url))
        await service.start()
        try:
            await until("Prometheus scrapes the bridge", lambda: prometheus.values("up == 1"))
            # Two slow ones and a quick one between them are no three in a row.
            service.rules.take(handshakes(0.6, 0.1, 0.6))
            service.rules.take(failed_allocation())
            service.rules.take(handshakes(0.6, 0.7))
            [alert] = await until("the webhook is told", lambda: webhook.alerts("firing"))
            assert alert["labels"] == {
                "alertname": NAME,
                "severity": "critical",
                "instance": f"127.0.0.1:{metrics}",
            }
            assert alert["annotations"]["trace_ids"] == TRACE.hex()
            assert alert["annotations"]["traces"] == f"https://traces.example/trace/{TRACE.hex()}"
            firing = f'ALERTS{{alertname="{NAME}", alertstate="firing"}}'
            await until("Prometheus fires it as well", lambda: prometheus.values(firing))
            await until("Prometheus told Alertmanager", lambda: prometheus.notifications() > 0)
            [held] = await asyncio.to_thread(alertmanager.alerts)
            assert held["labels"] == alert["labels"]
            await until("the webhook is told that it ended", lambda: webhook.alerts("resolved"))
            # Time for whoever would fire it anew.
            await asyncio.sleep(5)
            assert [len(webhook.alerts(status)) for status in ("firing", "resolved")] == [1, 1]
            assert not await asyncio.to_thread(prometheus.values, firing)
        finally:
            await service.stop()
