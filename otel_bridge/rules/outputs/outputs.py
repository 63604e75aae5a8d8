"""All who are told of firings, as one part of the service."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_bridge.rules.outputs.active import ActiveAlerts
from otel_bridge.rules.outputs.alertmanager import AlertmanagerPush
from otel_bridge.rules.outputs.grafana import GrafanaAnnotations

if TYPE_CHECKING:
    from otel_bridge.contracts import Clock
    from otel_bridge.firings import Firing
    from otel_bridge.rules.config import RulesConfig
    from otel_bridge.telemetry import Telemetry


class Outputs:
    """A FiringSink, and a Component."""

    def __init__(self, config: RulesConfig, telemetry: Telemetry, clock: Clock) -> None:
        self.alerts = ActiveAlerts(telemetry, clock, limit=config.max_alerts, shortest=config.shortest_alert)
        self._grafana = (
            GrafanaAnnotations(config.grafana_annotations, telemetry, clock)
            if config.grafana_annotations is not None
            else None
        )
        push = (
            AlertmanagerPush(config.alertmanager, self.alerts, telemetry, clock)
            if config.alertmanager is not None
            else None
        )
        self._parts = [part for part in (push, self._grafana) if part is not None]
        self._started: list[AlertmanagerPush | GrafanaAnnotations] = []

    def take_firing(self, firing: Firing) -> None:
        """See `firings.FiringSink`."""
        self.alerts.take_firing(firing)
        if self._grafana is not None and not firing.again:
            self._grafana.take_firing(firing)

    async def start(self) -> None:
        """Begin to tell.

        Raises:
            StartError: a TLS file cannot be used; whatever had started is stopped again.
        """
        for part in self._parts:
            self._started.append(part)
            try:
                await part.start()
            except BaseException:
                self._started.remove(part)
                await self.stop(0.0)
                raise

    async def stop(self, deadline: float) -> None:
        """Tell what is still untold, as long as there is time."""
        while self._started:
            await self._started.pop().stop(deadline)
