"""A change in the words of whoever is told: one function a receiver.

What stands in a URL or names an object comes from the configuration; of the change only its state does. The
plain form alone carries its texts, as data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import orjson

from otel_bridge.breakers import State

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_bridge.breakers import Change
    from otel_bridge.control.actions.config import WebhookConfig

EVENTS = {
    State.OPEN: "BACKPRESSURE_HIGH",
    State.HALF_OPEN: "BACKPRESSURE_PROBING",
    State.CLOSED: "BACKPRESSURE_RELEASED",
}


@dataclass(frozen=True, slots=True)
class Message:
    """What is sent.

    Attributes:
        method: HTTP's.
        url: whole.
        body: JSON, or empty.
    """

    method: str
    url: str
    body: bytes = b""


def plain(change: Change, config: WebhookConfig, lease: float) -> Message:
    """Everything, for receivers that are made for it."""
    document: dict[str, Any] = {
        "type": EVENTS[change.state],
        "timestamp": change.time // 1_000_000,
        "data": {
            "target": change.target,
            "state": change.state.value,
            "before": change.before.value,
            "cause": change.cause,
            "reason": change.reason,
            "lease_ms": round(lease * 1000),
            "probes": change.probes if change.state is State.HALF_OPEN else 0,
            "traces": [trace.hex() for trace in change.evidence],
        },
    }
    return Message("POST", config.url, orjson.dumps(document))


def envoy_ai_gateway(change: Change, config: WebhookConfig, _lease: float) -> Message:
    """Envoy's admin API sets the share of requests that its fault filter refuses (`/runtime_modify`)."""
    share = {State.OPEN: 100, State.HALF_OPEN: config.half_open_percent, State.CLOSED: 0}[change.state]
    query = urlencode({config.runtime_key: share})
    return Message("POST", f"{config.url.rstrip('/')}/runtime_modify?{query}")


def litellm(change: Change, config: WebhookConfig, _lease: float) -> Message:
    """LiteLLM's proxy takes a deployment out (`/model/block`) and in again; it knows no half."""
    verb = "block" if change.state is State.OPEN else "unblock"
    body = orjson.dumps({"model_id": config.model_id})
    return Message("POST", f"{config.url.rstrip('/')}/model/{verb}", body)


def kong(change: Change, config: WebhookConfig, _lease: float) -> Message:
    """Kong's admin API switches a request-termination plugin on and off; the URL is the plugin's."""
    return Message("PATCH", config.url, orjson.dumps({"enabled": change.state is State.OPEN}))


TEMPLATES: dict[str, Callable[[Change, WebhookConfig, float], Message]] = {
    "plain": plain,
    "envoy_ai_gateway": envoy_ai_gateway,
    "litellm": litellm,
    "kong": kong,
}
