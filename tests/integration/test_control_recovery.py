"""A whole bridge recovers while slow calls are still under way: what they tell afterwards trips nothing."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request

from otel_bridge.testing import trace_request
from tests.support.processes import Bridge, eventually, running

MILLISECOND = 1_000_000
PRIME = 23


def test_late_calls_do_not_trip_a_breaker_that_has_recovered(tmp_path):
    """Those that are told of as they end, and those whose span was late; then new ones trip it again."""
    config = {
        "control": {
            "enabled": True,
            "state": {"file": str(tmp_path / "control.sqlite")},
            "operators": {"socket": str(tmp_path / "s")},
            "decisions": {"http": {"enabled": False}},
            "policies": [
                {"slow_calls": {"threshold": "50ms"}, "open_time": "0.2s", "half_open": {"probes": 2}}
            ],
        }
    }
    traces = iter(range(1, 1_000_000))

    def call(start: int, end: int, count: int) -> None:
        """So many calls, told of together."""
        spans = [
            {
                "trace_id": next(traces).to_bytes(16, "big"),
                "start_time_unix_nano": start,
                "end_time_unix_nano": end,
            }
            for _ in range(count)
        ]
        request = urllib.request.Request(
            f"http://127.0.0.1:{bridge.http_port}/v1/traces",
            trace_request(spans, resource={"service.name": "llama"}),
            {"Content-Type": "application/x-protobuf"},
        )
        urllib.request.urlopen(request, timeout=30).close()

    def moves() -> list[str]:
        """The states it went through, from the audit log."""
        command = [sys.executable, "-m", "otel_bridge", "breaker", "-c", str(bridge.config)]
        command += ["history", "--json"]
        answer = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        return [entry["after"] for entry in reversed(answer["entries"]) if entry["event"] == "transition"]

    def probed() -> bool:
        now = time.time_ns()
        call(now - MILLISECOND, now, 2)
        return "closed" in moves()

    def tripped() -> bool:
        now = time.time_ns()
        call(now - 60 * MILLISECOND, now, 5)
        return moves()[3:4] == ["open"]

    with running(Bridge(tmp_path / "bridge", config)) as bridge:
        began = time.time_ns()
        call(began - 60_000 * MILLISECOND, began, 5)
        eventually("probes pass", probed)
        call(began, time.time_ns() + 60_000 * MILLISECOND, PRIME)
        call(began - 100 * MILLISECOND, began, PRIME)
        assert moves() == ["open", "half_open", "closed"]
        eventually("calls that began since trip it", tripped)
