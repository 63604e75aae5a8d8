"""What a rule says whose window saw losses (case ebpf-drops), in the running bridge."""

from __future__ import annotations

import mmap

import yaml

from tests.support.processes import Bridge, eventually, running
from tests.support.rules import rule

STORM = 10_007
REFUSED = "otel_bridge_rules_firings_total"
INCOMPLETE = "otel_bridge_rules_incomplete_firings_total"
OTHERS = ("sched", "block", "memory", "requests", "tls", "tls_requests", "cuda", "user")


def test_an_alert_whose_window_saw_losses_says_so(worker, closed_port, tmp_path):
    """A ring of one page and a storm: the rule fires on what came through, and is counted as incomplete."""
    probes = {**{name: {"enabled": False} for name in OTHERS}, "tcp": {"ring_size": mmap.PAGESIZE}}
    kernel = {"mode": "required", "drop_privileges": False, "probes": probes, "read_interval": "2s"}
    rules = tmp_path / "rules.yaml"
    refused = rule({"event": "tcp_connect", "within": "60s", "count": 40}, name="Refused")
    rules.write_text(yaml.safe_dump({"rules": [refused]}))
    config = {"kernel": kernel, "rules": {"shipped": False, "files": [str(rules)]}}
    with running(Bridge(tmp_path / "bridge", config)) as bridge:
        dropped = "otel_bridge_kernel_dropped_events_total"
        # Not at 0 still: every process of a busy machine has a part in so small a ring.
        assert any(name.startswith(f"{dropped}{{") and 'reason="full"' in name for name in bridge.metrics())

        def lost():
            worker.do({"do": "refuse", "span": 1, "port": closed_port, "times": STORM})
            return bridge.total(dropped, probe="tcp", reason="full")

        eventually("events are lost", lost)
        eventually("the rule fires over them", lambda: bridge.total(REFUSED, rule="Refused"))
        eventually("the alert says so", lambda: bridge.total(INCOMPLETE, rule="Refused"))
