"""Alertmanager's webhook payload, version 4, read into alerts; and what each means for a breaker.

Alerts are told apart by fingerprint, or by their sorted labels where a sender gives none. The breaker's
holds are the last applied status of each, on disk: a firing that is held already is a repeat and renews the
lease, a resolve of what is not held is a duplicate. So it does not matter that Alertmanager fires again
with the same startsAt after it has resolved.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import orjson
import structlog

from otel_bridge import catalog
from otel_bridge.control.machine import Cause
from otel_bridge.control.patterns import compile_pattern
from otel_bridge.control.sources import identity
from otel_bridge.errors import MalformedRequestError
from otel_bridge.targets import key_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_bridge.contracts import Clock
    from otel_bridge.control.board import Board
    from otel_bridge.control.config import AlertmanagerConfig, RouteConfig
    from otel_bridge.control.sources import Sources
    from otel_bridge.telemetry import Telemetry

log = structlog.get_logger(__name__)

OUTCOMES = (
    "opened",
    "renewed",
    "resolved",
    "duplicate",
    "unmatched",
    "unknown_target",
    "replayed",
    "disabled",
    "malformed",
    "truncated",
)
_MOST_LABELS = 64
_NS = 1_000_000_000
_STAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9})\d*)?(Z|[+-]\d\d:\d\d)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert of a payload.

    Attributes:
        firing: whether it fires; else it has resolved.
        labels: all of them.
        hold: its identity.
        starts_at: unix nanoseconds; 0 when it does not say.
        ends_at: the same; 0 when it has not ended.
        summary: for people.
    """

    firing: bool
    labels: Mapping[str, str]
    hold: str
    starts_at: int
    ends_at: int
    summary: str


@dataclass(frozen=True, slots=True)
class Payload:
    """One webhook.

    Attributes:
        alerts: what could be read.
        malformed: how many could not.
        truncated: how many Alertmanager left out.
        receiver: the receiver's name in Alertmanager.
    """

    alerts: tuple[Alert, ...]
    malformed: int
    truncated: int
    receiver: str


def read_payload(body: bytes) -> Payload:
    """Read a webhook.

    Raises:
        MalformedRequestError: it is none of version 4.
    """
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise MalformedRequestError(f"the body is no JSON: {error}") from error
    if not isinstance(document, dict) or document.get("version") != "4":
        found = document.get("version") if isinstance(document, dict) else type(document).__name__
        raise MalformedRequestError(
            f'expected an Alertmanager webhook with version "4", found {str(found)[:40]!r}'
        )
    listed = document.get("alerts")
    if not isinstance(listed, list):
        raise MalformedRequestError("the webhook has no list of alerts")
    read = [read_alert(item) for item in listed]
    alerts = tuple(alert for alert in read if alert is not None)
    truncated = document.get("truncatedAlerts")
    return Payload(
        alerts,
        len(read) - len(alerts),
        truncated if isinstance(truncated, int) and truncated > 0 else 0,
        str(document.get("receiver", "")),
    )


def read_alert(item: Any) -> Alert | None:
    """One alert of a webhook, by its own status and labels; None when it is none."""
    if not isinstance(item, dict) or item.get("status") not in {"firing", "resolved"}:
        return None
    return make_alert(item, firing=item["status"] == "firing")


def make_alert(item: Mapping[str, Any], *, firing: bool) -> Alert | None:
    """An alert of a webhook, or of Alertmanager's API, which share labels and times."""
    labels = item.get("labels")
    if not isinstance(labels, dict) or not labels or len(labels) > _MOST_LABELS:
        return None
    if not all(isinstance(value, str) for value in labels.values()):
        return None
    fingerprint = item.get("fingerprint")
    if not isinstance(fingerprint, str) or not fingerprint:
        fingerprint = identity(labels)
    annotations = item.get("annotations")
    summary = annotations.get("summary", "") if isinstance(annotations, dict) else ""
    return Alert(
        firing,
        labels,
        "alert:" + fingerprint[:64],
        unix_ns(item.get("startsAt")),
        unix_ns(item.get("endsAt")),
        str(summary)[:200],
    )


def unix_ns(text: Any) -> int:
    """Unix nanoseconds of an RFC 3339 time with up to nine digits; 0 for Go's zero time and what is none."""
    match = _STAMP.fullmatch(text) if isinstance(text, str) else None
    if match is None or text.startswith("0001-"):
        return 0
    whole, fraction, zone = match.groups()
    try:
        seconds = datetime.fromisoformat(whole + zone.replace("Z", "+00:00")).timestamp()
    except (ValueError, OverflowError):
        return 0
    return int(seconds) * _NS + int((fraction or "0").ljust(9, "0"))


class AlertBook:
    """Does to the breakers what alerts say."""

    def __init__(
        self, config: AlertmanagerConfig, board: Board, sources: Sources, telemetry: Telemetry, clock: Clock
    ) -> None:
        self._config = config
        self._board = board
        self._sources = sources
        self._clock = clock
        self._routes = [_Route(route) for route in config.routes]
        self._skew = round(config.clock_skew * _NS)
        self._outcomes = telemetry.counter(catalog.CONTROL_ALERTS)
        for outcome in OUTCOMES:
            self._outcomes.labels(outcome)

    def note_incomplete(self, payload: Payload) -> None:
        """Say what a payload lacked."""
        if payload.malformed:
            self._outcomes.labels("malformed").inc(payload.malformed)
            log.warning("alerts without a status or labels were passed over", count=payload.malformed)
        if payload.truncated:
            self._outcomes.labels("truncated").inc(payload.truncated)
            reason = (
                f"Alertmanager left {payload.truncated} alerts out; set max_alerts: 0 in its webhook_config, "
                "or control.alertmanager.api"
            )
            log.warning("a webhook is incomplete", reason=reason)
            self._board.audit("", "alert", "truncated", reason)

    def apply(self, alert: Alert, event: int) -> str:
        """Apply one; says what became of it, one of OUTCOMES."""
        outcome = self._apply(alert, event)
        self._outcomes.labels(outcome).inc()
        return outcome

    def _apply(self, alert: Alert, event: int) -> str:
        key = self._target(alert)
        if key is None:
            return "unmatched"
        if not key:
            return self._refuse("", alert, "unknown_target", "the route's first label is missing or empty")
        now = self._clock.time_ns()
        if alert.firing:
            if alert.starts_at > now + self._skew:
                return self._refuse(key, alert, "replayed", "it starts in the future")
            outcome = self._sources.hold(
                key, alert.hold, self._config.lease, Cause.ALERT, _reason(alert), event=event
            )
            return outcome or self._refuse(key, alert, "unknown_target", "control.targets does not allow it")
        applied = self._sources.applied(key, alert.hold)
        if not applied:
            self._sources.release(key, alert.hold)
            return "duplicate"
        if alert.ends_at and alert.ends_at < applied - self._skew:
            return self._refuse(key, alert, "replayed", "it ended before it was last applied")
        self._sources.release(key, alert.hold)
        return "resolved"

    def _target(self, alert: Alert) -> str | None:
        for route in self._routes:
            if route.fits(alert.labels):
                return route.key(alert.labels)
        return None

    def _refuse(self, key: str, alert: Alert, outcome: str, why: str) -> str:
        name = alert.labels.get("alertname", "")[:100]
        log.warning("an alert was refused", alert=name, target=key, outcome=outcome, reason=why)
        self._board.audit(key, "alert", outcome, f"alert {name}: {why}")
        return outcome


class _Route:
    """One route, compiled."""

    def __init__(self, config: RouteConfig) -> None:
        self._match = [(label, compile_pattern(pattern)) for label, pattern in config.match.items()]
        self._parts = config.target.split("/")

    def fits(self, labels: Mapping[str, str]) -> bool:
        return all(pattern.fullmatch(labels.get(label, "")) for label, pattern in self._match)

    def key(self, labels: Mapping[str, str]) -> str:
        """The target, its label values quoted; empty when the first part is."""
        parts = [_filled(part, labels) for part in self._parts]
        return key_of(parts) if parts[0] else ""


def _filled(part: str, labels: Mapping[str, str]) -> str:
    return re.sub(r"\{([^{}]*)\}", lambda match: labels.get(match.group(1), ""), part)


def _reason(alert: Alert) -> str:
    name = alert.labels.get("alertname", "")[:100]
    return f"alert {name}: {alert.summary}" if alert.summary else f"alert {name}"
