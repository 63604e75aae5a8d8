"""Alerts pushed to Alertmanagers: sent again while they fire, and that they ended.

Nothing queues up: an Alertmanager that was away is told what holds when it is back.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import structlog

from otel_bridge import catalog
from otel_bridge.backoff import RetryPolicy
from otel_bridge.errors import PermanentError, RetryableError
from otel_bridge.rules.outputs.active import links
from otel_bridge.rules.outputs.client import JsonClient

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_bridge.contracts import Clock
    from otel_bridge.rules.outputs.active import ActiveAlert, ActiveAlerts, Labels
    from otel_bridge.rules.outputs.config import AlertmanagerConfig
    from otel_bridge.telemetry import Telemetry

log = structlog.get_logger(__name__)

SETTING = "rules.alertmanager"
PATH = "/api/v2/alerts"
MOST_IN_REQUEST = 64
"""Alerts in one request; as Prometheus does."""
LIVES = 4
"""An alert that fires ends after so many times resend_interval without news; as Prometheus does."""


class AlertmanagerPush:
    """Tells several Alertmanagers of the alerts; a Component.

    Each has a task of its own, so that one that is down holds nobody up.
    """

    def __init__(
        self, config: AlertmanagerConfig, alerts: ActiveAlerts, telemetry: Telemetry, clock: Clock
    ) -> None:
        self._alerts = alerts
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pushers = [_Pusher(url, config, alerts, telemetry, clock) for url in config.urls]
        self._tasks: list[asyncio.Task[None]] = []
        alerts.listen(self._wake)

    async def start(self) -> None:
        """Begin to push.

        Raises:
            StartError: a TLS file cannot be used.
        """
        self._loop = asyncio.get_running_loop()
        for pusher in self._pushers:
            await pusher.client.start()
            self._tasks.append(asyncio.create_task(pusher.run()))

    async def stop(self, deadline: float) -> None:
        """Stop pushing; what changed last is tried once more, alerts that fire end by their age."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        self._loop = None
        try:
            async with asyncio.timeout(deadline):
                await asyncio.gather(*(pusher.push() for pusher in self._pushers))
        except TimeoutError:
            log.warning("Alertmanagers were not told of the last changes")
        finally:
            for pusher in self._pushers:
                await pusher.client.stop()

    def _wake(self) -> None:
        loop = self._loop
        if loop is None:
            return
        try:
            loop.call_soon_threadsafe(self._wake_all)
        except RuntimeError:  # The loop closed between two lines: nobody is left to be woken.
            return

    def _wake_all(self) -> None:
        for pusher in self._pushers:
            pusher.changed.set()


@dataclass(frozen=True, slots=True)
class _Told:
    """What an Alertmanager heard last of an alert: which version, whether it ended, and when it was told."""

    version: int
    resolved: bool
    at: float


class _Pusher:
    """One Alertmanager, and what it was told."""

    def __init__(
        self,
        url: str,
        config: AlertmanagerConfig,
        alerts: ActiveAlerts,
        telemetry: Telemetry,
        clock: Clock,
    ) -> None:
        self._config = config
        self._alerts = alerts
        self._clock = clock
        self._policy = RetryPolicy(config.retry)
        self._told: dict[Labels, _Told] = {}
        self._failures = 0
        self.changed = asyncio.Event()
        attempts = telemetry.counter(catalog.ALERTMANAGER_ATTEMPTS)
        self.client = JsonClient(url, config, SETTING, lambda code: attempts.labels(url, code).inc())
        self._sent = telemetry.counter(catalog.ALERTMANAGER_SENT).labels(url)
        self._refused = telemetry.counter(catalog.ALERTMANAGER_DROPPED).labels("refused")
        for code in ("200", "400", "500", "503", "timeout", "connection"):
            attempts.labels(url, code)

    async def run(self) -> None:
        """Push whenever something changed or is due."""
        while True:
            self.changed.clear()
            wait = await self.push()
            await self._sleep(wait)

    async def push(self) -> float:
        """Send what is due; returns seconds until something may be due again."""
        now = self._clock.monotonic()
        every = self._alerts.snapshot()
        known = {alert.labels for alert in every}
        self._told = {labels: told for labels, told in self._told.items() if labels in known}
        due = [alert for alert in every if self._due_at(alert) <= now]
        for begin in range(0, len(due), MOST_IN_REQUEST):
            try:
                await self._send(due[begin : begin + MOST_IN_REQUEST], now)
            except RetryableError as error:
                return self._failed(error)
        if due and self._failures:
            log.warning("Alertmanager takes alerts again", url=self.client.url)
        self._failures = 0
        later = [self._due_at(alert) for alert in every]
        return max(0.0, min([*later, now + self._config.resend_interval]) - now)

    def _due_at(self, alert: ActiveAlert) -> float:
        """When an alert is to be sent, on the monotonic clock."""
        told = self._told.get(alert.labels)
        if alert.ended:
            if told is None or (told.resolved and told.version != alert.version):
                return 0.0  # Over before this Alertmanager heard that it began.
            return float("inf") if told.resolved else alert.ended_at + self._config.resolve_delay
        if told is None or told.version != alert.version:
            return 0.0
        return told.at + self._config.resend_interval

    async def _send(self, alerts: Sequence[ActiveAlert], now: float) -> None:
        wall = self._clock.time_ns()
        try:
            await self.client.send("POST", PATH, [self._as_json(alert, now, wall) for alert in alerts])
        except PermanentError as error:
            self._refused.inc(len(alerts))
            log.error("Alertmanager refuses alerts", url=self.client.url, error=str(error))  # noqa: TRY400 (no bug of ours)
        else:
            self._sent.inc(len(alerts))
        for alert in alerts:
            self._told[alert.labels] = _Told(alert.version, self._is_resolved(alert, now), now)

    def _is_resolved(self, alert: ActiveAlert, now: float) -> bool:
        return bool(alert.ended) and now >= alert.ended_at + self._config.resolve_delay

    def _as_json(self, alert: ActiveAlert, now: float, wall: int) -> dict[str, Any]:
        firing, config = alert.firing, self._config
        lives = round(LIVES * config.resend_interval * 1e9)
        out = {
            "labels": {**dict(alert.labels), **config.labels},
            "annotations": {**firing.annotations, **links(firing, config.trace_url)},
            "startsAt": _rfc3339(alert.began),
            "endsAt": _rfc3339(alert.ended if self._is_resolved(alert, now) else wall + lives),
        }
        if config.generator_url:
            out["generatorURL"] = config.generator_url
        return out

    def _failed(self, error: RetryableError) -> float:
        self._failures += 1
        if self._failures == 1:
            log.warning("Alertmanager cannot be told of alerts", url=self.client.url, error=str(error))
        return self._policy.delay(self._failures, error.retry_after or 0.0)

    async def _sleep(self, seconds: float) -> None:
        """Wait; a change ends the wait unless a failure is waited out."""
        if self._failures:
            await self._clock.sleep(seconds)
            return
        sleeping = asyncio.ensure_future(self._clock.sleep(seconds))
        waking = asyncio.ensure_future(self.changed.wait())
        try:
            await asyncio.wait({sleeping, waking}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sleeping, waking):
                task.cancel()
            await asyncio.gather(sleeping, waking, return_exceptions=True)


def _rfc3339(nanoseconds: int) -> str:
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"
