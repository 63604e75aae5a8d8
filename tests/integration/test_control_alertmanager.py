"""A real Alertmanager with the shipped route: cases.md am-lease and am-refire, in seconds."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
import urllib.request
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Self

import pytest
import yaml

from otel_bridge import catalog
from otel_bridge.contracts import SystemClock
from otel_bridge.control.config import ControlConfig
from otel_bridge.control.control import Control
from otel_bridge.telemetry import Telemetry
from tests.support.ports import free_port
from tests.support.processes import ROOT, Process

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
pytestmark = pytest.mark.skipif(
    PROGRAM is None, reason="no Alertmanager: apt-get install prometheus-alertmanager"
)
LEASE = 4.0


class Site:
    """Alertmanager and a bridge's control part."""

    def __init__(self, directory: Path, *, repeat: str = "1s", **alertmanager: Any) -> None:
        self.directory = directory
        self.port = free_port()
        webhook = free_port()
        token = directory / "token"
        token.write_text("a-token-for-the-breaker")
        shipped = yaml.safe_load((ROOT / "otel_bridge/control/gateways/alertmanager.yml").read_text())
        (route,) = shipped["route"]["routes"]
        route |= {"group_interval": "1s", "repeat_interval": repeat}
        (hook,) = shipped["receivers"][1]["webhook_configs"]
        hook["url"] = hook["url"].replace("9467", str(webhook))
        hook["http_config"]["authorization"]["credentials_file"] = str(token)
        (directory / "am.yml").write_text(yaml.safe_dump(shipped))
        self.telemetry = Telemetry()
        self.control = Control(
            ControlConfig.model_validate(
                {
                    "enabled": True,
                    "state": {"file": None},
                    "operators": {"socket": None},
                    "decisions": {"http": {"enabled": False}},
                    "alertmanager": {
                        "endpoint": f"127.0.0.1:{webhook}",
                        "auth": {"bearer_token_file": str(token)},
                        "lease": LEASE,
                        **alertmanager,
                    },
                }
            ),
            self.telemetry,
            SystemClock(),
        )
        self.alertmanager: Process | None = None

    async def __aenter__(self) -> Self:
        await self.control.start()
        await self.start_alertmanager()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await asyncio.to_thread(self.stop_alertmanager)
        await self.control.stop(1)

    async def start_alertmanager(self) -> None:
        storage = self.directory / f"data-{time.monotonic_ns()}"
        self.alertmanager = Process(
            [
                str(PROGRAM),
                f"--config.file={self.directory}/am.yml",
                f"--storage.path={storage}",
                f"--web.listen-address=127.0.0.1:{self.port}",
                "--cluster.listen-address=",
            ],
            self.directory / "am.log",
        )
        await asyncio.to_thread(self.alertmanager.wait_for_http, f"http://127.0.0.1:{self.port}/-/ready")

    def stop_alertmanager(self) -> None:
        if self.alertmanager is not None:
            self.alertmanager.stop()
            self.alertmanager = None

    async def alert(self, *, lasts: float) -> None:
        """Post the alert, as Prometheus does: it ends by itself after so many seconds."""
        now = datetime.now(UTC)
        await self._post(
            "/api/v2/alerts",
            [
                {
                    "labels": {"alertname": "Stall", "service": "llama", "breaker": "true"},
                    "annotations": {"summary": "kernel stalls"},
                    "startsAt": now.isoformat(),
                    "endsAt": (now + timedelta(seconds=lasts)).isoformat(),
                }
            ],
        )

    async def silence(self) -> None:
        now = datetime.now(UTC)
        await self._post(
            "/api/v2/silences",
            {
                "matchers": [{"name": "alertname", "value": "Stall", "isRegex": False, "isEqual": True}],
                "startsAt": now.isoformat(),
                "endsAt": (now + timedelta(hours=1)).isoformat(),
                "createdBy": "test",
                "comment": "test",
            },
        )

    async def _post(self, path: str, document: Any) -> None:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            json.dumps(document).encode(),
            {"Content-Type": "application/json"},
        )
        await asyncio.to_thread(lambda: urllib.request.urlopen(request, timeout=60).close())

    @property
    def state(self) -> str:
        breaker = self.control.board.find("llama")
        return breaker.record.state.value if breaker is not None else "none"

    async def until(self, state: str, seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while self.state != state:
            if time.monotonic() > end:
                pytest.fail(f"still {self.state}: {self.words}")
            await asyncio.sleep(0.02)

    @property
    def words(self) -> list[str]:
        return [entry.cause for entry in reversed(self.control.store.history("llama", 100))]


async def test_an_alert_that_goes_on_is_open_throughout(tmp_path):
    """(a) for three leases; then its resolve half-opens."""
    async with Site(tmp_path) as site:
        await site.alert(lasts=3 * LEASE)
        await site.until("open")
        end = time.monotonic() + 3 * LEASE - 1
        while time.monotonic() < end:
            assert site.state == "open"
            await asyncio.sleep(0.05)
        await site.until("half_open")
        assert site.words == ["alert", "resolved"]


async def test_a_silenced_alert_ends_by_its_lease(tmp_path):
    """(b) no resolve ever comes."""
    async with Site(tmp_path) as site:
        await site.alert(lasts=600)
        await site.until("open")
        await site.silence()
        await site.until("half_open")
        assert site.words == ["alert", "lease_ended"]


async def test_a_resolve_lost_with_alertmanager_is_healed(tmp_path):
    """(c) Alertmanager stops, the cause ends, Alertmanager starts and knows nothing."""
    async with Site(tmp_path) as site:
        await site.alert(lasts=600)
        await site.until("open")
        await asyncio.to_thread(site.stop_alertmanager)
        await site.start_alertmanager()
        await site.until("half_open")
        assert site.words == ["alert", "lease_ended"]


async def test_a_long_repeat_interval_with_the_api(tmp_path):
    """(d) renewed from Alertmanager's API; without a gap."""
    port = None
    site = Site(tmp_path, repeat="4h")
    port = site.port
    site = Site(tmp_path, repeat="4h", api={"url": f"http://127.0.0.1:{port}"})
    site.port = port
    async with site:
        await site.alert(lasts=600)
        await site.until("open")
        end = time.monotonic() + 3 * LEASE
        while time.monotonic() < end:
            assert site.state == "open"
            await asyncio.sleep(0.05)


async def test_firing_again_after_a_resolve_opens_again(tmp_path):
    """am-refire, as Alertmanager itself does it: resolved by a late evaluation, then firing."""
    async with Site(tmp_path) as site:
        await site.alert(lasts=3)
        await site.until("open")
        await site.until("half_open")
        await site.alert(lasts=600)
        await site.until("open")
        assert site.words == ["alert", "resolved", "alert"]
        assert site.telemetry.value(catalog.CONTROL_ALERTS, outcome="opened") == 2
