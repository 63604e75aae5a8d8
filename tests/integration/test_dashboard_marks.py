"""What happens once is marked: the first firing of a rule, the first opening of a breaker.

Prometheus's `increase` starts at a counter's first sample, so a series that begins with 1 says nothing.
"""

from __future__ import annotations

import time
import urllib.request

import pytest
import yaml

from dashboards.build import documents
from otel_bridge import catalog
from otel_bridge.testing import trace_request
from tests.support.grafana import annotations, filled, variables
from tests.support.processes import Bridge, eventually, running
from tests.support.prometheus import Prometheus
from tests.support.sinks import GrpcSink

pytestmark = pytest.mark.slow

MARKED = ("OomKill", "CudaOutOfMemory", "NcclTimeout")
"""Rules whose firings are marked; shipped ones, made anew on a span that fails."""
MS = 1_000_000


def _send(bridge: Bridge, number: int) -> None:
    """One slow call of an engine that fails."""
    now = time.time_ns()
    span = {
        "trace_id": number.to_bytes(16, "big"),
        "start_time_unix_nano": now - 3000 * MS,
        "end_time_unix_nano": now,
        "attributes": {"gen_ai.request.model": "llama", "gen_ai.operation.name": "chat"},
        "status": {"code": 2},
    }
    request = urllib.request.Request(
        f"http://127.0.0.1:{bridge.http_port}/v1/traces",
        data=trace_request([span], resource={"service.name": "engine"}),
        headers={"Content-Type": "application/x-protobuf"},
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert answer.status == 200


def test_what_happens_once_is_marked(tmp_path):
    """On every panel of the dashboards: one OOM kill, one CUDA out of memory, one NCCL timeout, one trip."""
    failed = {"span": "any", "is": {"status": "error"}, "count": 1, "within": "1s"}
    more = {"severity": "info", "summary": "a span failed", "keep_firing_for": "1h"}
    rules = [{"name": name, "when": failed, **more} for name in MARKED]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"rules": rules}))
    document = documents()["golden"]
    values = dict.fromkeys(variables(document), ".*")
    asked = {
        one.place: filled(one.expr, values, step=15, scrape_interval=15) for one in annotations(document)
    }
    assert len(asked) == 4
    with GrpcSink() as sink:
        config = {
            "exporters": {"otlp": {"endpoint": f"127.0.0.1:{sink.port}"}},
            "rules": {"shipped": False, "files": [str(tmp_path / "rules.yaml")]},
            "control": {
                "enabled": True,
                "policies": [{"slow_calls": {"threshold": "2s", "consecutive": 1}, "open_time": "1h"}],
                "state": {"file": None},
                "operators": {"socket": str(tmp_path / "operators.sock")},
                "decisions": {"http": {"enabled": False}},
            },
        }
        with (
            running(Bridge(tmp_path / "bridge", config)) as bridge,
            running(Prometheus(tmp_path / "prometheus", {"otel-bridge": bridge.metrics_port})) as server,
        ):
            firings = f"{catalog.RULES_FIRINGS.name}_total"
            # The windows hold a minute, so that a scrape that a busy machine misses changes nothing.
            eventually("two scrapes", lambda: server.values(f"count_over_time({firings}[1m]) >= 2"))
            assert [place for place, expr in asked.items() if server.line(expr, 1, over=60)] == []
            _send(bridge, 1)
            for place, expr in asked.items():
                eventually(place, lambda expr=expr: server.line(expr, 1, over=60))
            assert {bridge.total(firings, rule=rule) for rule in MARKED} == {1}
            assert bridge.total(f"{catalog.CONTROL_TRANSITIONS.name}_total") == 1
