"""Rules in the running bridge: from a span that comes in to an alert that fires, also over a reload."""

from __future__ import annotations

import signal
import time
from contextlib import closing

import yaml

from otel_bridge.testing import trace_request
from tests.integration.test_service import channel_to, export, to
from tests.support.processes import Bridge, eventually, running
from tests.support.rules import rule
from tests.support.sinks import GrpcSink

FIRINGS = "otel_bridge_rules_firings_total"


def failed(model: str) -> bytes:
    """A request with one span that failed just now, whose model enrichment finds."""
    now = time.time_ns()
    span = {
        "status": {"code": 2},
        "start_time_unix_nano": now - 1,
        "end_time_unix_nano": now,
        "attributes": {"http.request.header.x-model-id": [model]},
    }
    return trace_request([span])


def written(directory, *rules) -> None:
    (directory / "set.yaml").write_text(yaml.safe_dump({"rules": list(rules)}))


def test_a_rule_sees_what_enrichment_found_and_a_reload_brings_new_rules(tmp_path):
    """The model's name stands in no attribute under that key when the span comes in."""
    rules = tmp_path / "rules"
    rules.mkdir()
    when = {"span": "server", "is": {"status": "error", "llm.model.id": "llama"}, "count": 2, "within": "60s"}
    written(rules, rule(when, name="First"))
    with (
        GrpcSink() as sink,
        running(Bridge(tmp_path, to(sink, rules={"files": [str(rules)]}))) as bridge,
        closing(channel_to(bridge)) as channel,
    ):
        for model in ("qwen", "llama", "llama"):
            assert bridge.total(FIRINGS, rule="First") == 0
            export(channel, failed(model))
        assert bridge.total(FIRINGS, rule="First") == 1
        written(rules, rule(when, name="First"), rule({"span": "any", "within": "60s"}, name="Second"))
        bridge.child.send_signal(signal.SIGHUP)
        eventually("the new rule is there", lambda: any('rule="Second"' in name for name in bridge.metrics()))
        export(channel, failed("qwen"))
        assert bridge.total(FIRINGS, rule="Second") == 1
        assert bridge.total(FIRINGS, rule="First") == 1
