"""The Kernel dashboard over a running bridge with real probes, and a real Prometheus between them."""

from __future__ import annotations

import time
import urllib.request
from pathlib import Path

import pytest

from dashboards.build import documents
from otel_bridge import catalog
from otel_bridge.testing import trace_request
from tests.support.grafana import FALLBACK, filled, panels, variables
from tests.support.kernel import span_id, trace_id
from tests.support.processes import Bridge, eventually, running
from tests.support.prometheus import Prometheus
from tests.support.sinks import GrpcSink

pytestmark = pytest.mark.slow

UNFORCED = {
    "Retransmits and resets",
    "Stalls",
    "TLS handshakes",
    "Reclaim and OOM kills",
    "Block I/O errors",
    "Block I/O in flight",
    "Block I/O latency",
    "Block I/O requests",
    "Events lost",
    "Contexts not used",
    "State lost",
}
"""Panels of what this test does not make happen: they draw a zero, or the devices that there are."""
if not Path("/proc/pressure/memory").exists():  # a kernel without CONFIG_PSI
    UNFORCED |= {"Memory pressure", "Time stalled for memory"}
WAITS = 7


def test_the_kernels_panels_show_what_the_probes_see(worker, tmp_path):
    """Sleeps of a thread under a span become events, a cause of the span, and lines on the panels."""
    kernel = {"mode": "required", "probes": {"sched": {"off_cpu_threshold": "10ms"}}}
    document = documents()["kernel"]
    with GrpcSink() as sink:
        config = {
            "exporters": {"otlp": {"endpoint": f"127.0.0.1:{sink.port}", "tls": {"insecure": True}}},
            "connectors": {"derive": {"initial_zero": 0}},
            "kernel": kernel,
        }
        with (
            running(Bridge(tmp_path / "bridge", config)) as bridge,
            running(Prometheus(tmp_path / "prometheus", {"otel-bridge": bridge.metrics_port})) as server,
        ):
            eventually("the worker is followed", lambda: bridge.total(catalog.KERNEL_PROCESSES.name))
            values = dict.fromkeys(variables(document), ".*")
            end = time.monotonic() + 60
            missing = number = None
            while missing != [] and time.monotonic() < end:
                number = 1 if number is None else number + 1
                _hit(worker, bridge, number)
                missing = [
                    panel["title"]
                    for panel in panels(document)
                    for target in panel["targets"]
                    if panel["title"] not in UNFORCED
                    and not server.line(
                        filled(target["expr"], values, step=2, scrape_interval=1).replace(FALLBACK, ""), 2
                    )
                ]
            assert missing == []
            titles = {panel["title"] for panel in panels(document)}
            assert titles > UNFORCED
            loaded = server.ask("query", query=f"{catalog.KERNEL_PROBE_LOADED.name} == 1")["result"]
            assert "sched" in {one["metric"]["probe"] for one in loaded}


def _hit(worker, bridge, number: int) -> None:
    """Some sleeps under a span, and the span as its SDK would send it."""
    ids = {"trace_id": trace_id(number).hex(), "span_id": span_id(number).hex()}
    start = time.time_ns()
    worker.do({"do": "sleep", "span": number, "seconds": 0.02, "times": WAITS, **ids})
    span = {
        "trace_id": trace_id(number),
        "span_id": span_id(number),
        "kind": 2,
        "start_time_unix_nano": start,
        "end_time_unix_nano": time.time_ns(),
    }
    request = urllib.request.Request(
        f"http://127.0.0.1:{bridge.http_port}/v1/traces",
        data=trace_request([span]),
        headers={"Content-Type": "application/x-protobuf"},
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert answer.status == 200
