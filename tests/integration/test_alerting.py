"""Real Prometheus and Alertmanager beside the bridge: one alert, told once, and that it ended."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from otel_bridge.events import COMMON, KernelEvents
from otel_bridge.rules.vocabulary import KIND_NUMBERS
from otel_bridge.service import Service
from otel_bridge.settings import load
from tests.support.alertmanager import COMPOSITE, composite_in, rules_settings, surroundings
from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TRACE = bytes(range(16))
ENOMEM = -12


async def until(what: str, check: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Wait, beside the loop, until something is true; returns it."""
    end = time.monotonic() + seconds
    while not (found := await asyncio.to_thread(check)):
        assert time.monotonic() < end, f"not within {seconds:g} s: {what}"
        await asyncio.sleep(0.1)
    return found


def settings(directory: Path, rules: dict[str, Any], metrics: int):
    """A bridge that takes kernel events from nobody but the test."""
    protocols = {name: {"endpoint": f"127.0.0.1:{free_port()}"} for name in ("grpc", "http")}
    document = {
        "receivers": {"otlp": {"protocols": protocols}},
        "storage": {"directory": str(directory / "queue")},
        "kernel": {"mode": "off"},
        "service": {"telemetry": {"metrics": {"endpoint": f"127.0.0.1:{metrics}"}}},
        "rules": rules,
    }
    path = directory / "bridge.yaml"
    path.write_text(yaml.safe_dump(document))
    return load(path)


def handshakes(*seconds: float) -> KernelEvents:
    """Handshakes that ended one after the other."""
    records = np.zeros(len(seconds), COMMON)
    records["kind"] = KIND_NUMBERS["tls_handshake"]
    now = time.time_ns()
    for place, lasted in enumerate(seconds):
        records[place]["time"] = now - (len(seconds) - place) * 1_000_000
        records[place]["duration"] = round(lasted * 1e9)
        records[place]["trace_id"] = TRACE
    return KernelEvents("tls", records)


def failed_allocation() -> KernelEvents:
    """One, now."""
    records = np.zeros(1, COMMON)
    records["kind"], records["time"] = KIND_NUMBERS["cuda_alloc"], time.time_ns()
    records["error"] = ENOMEM
    return KernelEvents("cuda", records)


async def test_the_composite_reaches_a_webhook_once_and_resolves(tmp_path):
    """Pushed by the bridge, fired by Prometheus too: to Alertmanager one alert."""
    rules, metrics = composite_in(tmp_path), free_port()
    with surroundings(tmp_path, rules, metrics) as (webhook, alertmanager, prometheus):
        service = Service(settings(tmp_path, rules_settings(rules, alertmanager.url, metrics), metrics))
        await service.start()
        try:
            await until("Prometheus scrapes the bridge", lambda: prometheus.values("up == 1"))
            # Two slow ones and a quick one between them are no three in a row.
            service.rules.take(handshakes(0.6, 0.1, 0.6))
            service.rules.take(failed_allocation())
            await asyncio.sleep(2)
            assert not webhook.payloads
            service.rules.take(failed_allocation())
            service.rules.take(handshakes(0.6, 0.7))
            [alert] = await until("the webhook is told", lambda: webhook.alerts("firing"))
            instance = f"127.0.0.1:{metrics}"
            assert alert["labels"] == {"alertname": COMPOSITE, "severity": "critical", "instance": instance}
            assert alert["annotations"]["trace_ids"] == TRACE.hex()
            assert alert["annotations"]["traces"] == f"https://traces.example/trace/{TRACE.hex()}"
            firing = f'ALERTS{{alertname="{COMPOSITE}", alertstate="firing"}}'
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
