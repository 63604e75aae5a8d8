"""The demo's breaker: its settings, what operators say to it, what gateways ask it."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from demo.places import ROOT
from otel_bridge.control.client import ask
from otel_bridge.control.config import OperatorsConfig

if TYPE_CHECKING:
    from demo.stack import Addresses

TARGET = "engine"
GATE = "engine"
RULES = ROOT / "demo" / "trip" / "rules.yaml"
OPEN_TIME = 2.0
TOKEN = "demo"  # noqa: S105 (of this run's loopback port)


@dataclass(frozen=True)
class Answer:
    """What the decision API said: whether the request may go on, and when else to come again."""

    allow: bool
    state: str
    retry_after: str


def environment(at: Addresses) -> dict[str, str]:
    """Settings laid over the sidecar's file, as the environment gives them to the bridge."""
    control = {
        "enabled": True,
        "targets": {"key": ["service"]},
        # The rule decides, and nothing else.
        "policies": [
            {"slow_calls": {"consecutive": None}, "errors": {"rate": None}, "open_time": OPEN_TIME},
        ],
        "decisions": {"http": {"endpoint": f"127.0.0.1:{at.decisions}"}},
        "operators": operators(at),
        "state": {"file": None},
        # The decision API chooses the probes, so the gate must let them in.
        "actions": {
            "gates": {GATE: {"targets": [TARGET], "ports": [at.engine], "half_open_share": 1}}
            if os.geteuid() == 0
            else {},
            "pins": None,
        },
    }
    return {
        "OTEL_BRIDGE__CONTROL": json.dumps(control),
        "OTEL_BRIDGE__RULES__FILES": json.dumps([str(RULES)]),
    }


def operators(at: Addresses) -> dict[str, Any]:
    """Where operators are served: a socket's path must be short, which the demo's folder may not be."""
    return {"socket": None, "endpoint": f"127.0.0.1:{at.operators}", "auth": {"bearer_tokens": [TOKEN]}}


def order(at: Addresses, action: str, reason: str) -> None:
    """As `otel-bridge breaker ACTION engine --reason …`."""
    words = {"target": TARGET, "action": action, "reason": reason, "name": "demo"}
    ask(OperatorsConfig.model_validate(operators(at)), "POST", "/v1/breaker", order=words)


def history(at: Addresses) -> list[dict[str, Any]]:
    """As `otel-bridge breaker history engine`, the oldest entry first."""
    config = OperatorsConfig.model_validate(operators(at))
    entries: list[dict[str, Any]] = ask(config, "GET", "/v1/history", query={"target": TARGET})["entries"]
    return sorted(entries, key=lambda entry: entry["time"])


def decide(at: Addresses, trace: str) -> Answer:
    """As a gateway asks before it lets a request through."""
    url = f"{at.decisions_url}/v1/decision?service={TARGET}&trace_id={trace}"
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            found = json.load(answer)
            return Answer(found["allow"], found["state"], "")
    except urllib.error.HTTPError as refusal:
        with refusal:
            found = json.load(refusal)
            return Answer(found["allow"], found["state"], refusal.headers["Retry-After"])
