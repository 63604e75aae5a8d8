"""The bridge tells more while a breaker is open: its sampling rate and its log, seen from outside."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request

from otel_bridge import catalog
from otel_bridge.testing import trace_request
from tests.support.processes import Bridge, eventually, running


def test_more_traces_and_more_log_while_open(tmp_path):
    """From an operator's open to the close, and no longer."""
    config = {
        "processors": {"sample": {"enabled": True, "rate": {"curve": "fixed", "baseline": 0.05}}},
        "service": {"telemetry": {"logs": {"level": "warning", "format": "json"}}},
        "control": {
            "enabled": True,
            "state": {"file": str(tmp_path / "control.sqlite")},
            "operators": {"socket": str(tmp_path / "s")},
            "decisions": {"http": {"enabled": False}},
            "actions": {
                "verbosity": {"more": {"targets": ["llama"], "sampling_rate": 0.5, "log_level": "info"}}
            },
        },
    }

    def say(*words: str) -> list[dict]:
        command = [sys.executable, "-m", "otel_bridge", "breaker", "-c", str(bridge.config), *words, "--json"]
        answer = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        return answer.get("entries", [])

    def audited() -> int:
        return sum(entry["actor"] == "more" and entry["cause"] == "done" for entry in say("history"))

    def rate() -> float:
        """What a trace that comes now is sampled at."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{bridge.http_port}/v1/traces",
            trace_request([{}]),
            {"Content-Type": "application/x-protobuf"},
        )
        urllib.request.urlopen(request, timeout=30).close()
        return bridge.total(catalog.SAMPLE_RATE.name)

    with running(Bridge(tmp_path / "bridge", config)) as bridge:
        assert rate() == 0.05
        say("open", "llama", "--reason", "drill")
        eventually("the raise is audited", lambda: audited() == 1)
        assert rate() == 0.5
        say("open", "qwen", "--reason", "drill")  # no target of the action, but logged by now
        say("close", "llama", "--reason", "drill")
        eventually("the release is audited", lambda: audited() == 2)
        assert rate() == 0.05
        say("close", "qwen", "--reason", "drill")
        lines = [json.loads(line) for line in bridge.output().splitlines()]
        told = [(line["target"], line["state"]) for line in lines if line["event"] == "breaker"]
        assert told == [("qwen", "open/forced_open"), ("llama", "closed")]
        assert bridge.total(catalog.CONTROL_ACTIONS.name + "_total", action="more", result="done") == 2
