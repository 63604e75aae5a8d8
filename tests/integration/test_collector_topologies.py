"""Each topology of collector-config/, with the real Collector and the bridge beside it."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from typing import TYPE_CHECKING

import pytest

from otel_bridge.testing import attributes_of, spans_of, trace_request
from tests.support.processes import ROOT, collector_binary, eventually
from tests.support.sinks import GrpcSink
from tests.support.topologies import export, site

if TYPE_CHECKING:
    from collections.abc import Iterator

TOPOLOGIES = ("sidecar", "node-agent", "gateway")
TRACES = 23

pytestmark = pytest.mark.collector


@pytest.fixture
def backend() -> Iterator[GrpcSink]:
    """What the Collector's second pipeline sends to."""
    with GrpcSink() as sink:
        yield sink


def server_span(trace: int, span: int) -> dict[str, object]:
    """A span as an HTTP server writes it for an LLM request."""
    return {
        "trace_id": trace.to_bytes(16, "big"),
        "span_id": span.to_bytes(8, "big"),
        "name": "POST /v1/completions",
        "attributes": {
            "http.request.header.x-model-id": ["llama-3"],
            "http.request.body.content": '{"model":"llama-3","prompt":"Grüße"}',
            "url.query": "batch_size=4",
        },
    }


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_the_files_are_valid(topology):
    """The Collector and the bridge each accept their half as it stands, without a word of warning."""
    files = ROOT / "collector-config" / topology
    for command in (
        [collector_binary(), "validate", "--config", files / "collector.yaml"],
        [sys.executable, "-m", "otel_bridge", "check", "-c", files / "bridge.yaml"],
    ):
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr
        assert "warn" not in ended.stderr.lower()
        assert "deprecat" not in ended.stderr.lower()


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_a_span_goes_through(topology, backend, tmp_path):
    """In at the Collector, through the bridge, out at the Collector: enriched, its prompt gone."""
    with site(topology, tmp_path, backend.port) as (replica,):
        export(replica.otlp, trace_request([server_span(1, 1)]))
        (span,) = eventually("the span at the backend", backend.spans)
    attributes = attributes_of(span.attributes)
    assert attributes["llm.model.id"] == "llama-3"
    assert attributes["llm.prompt.len"] == len("Grüße".encode())
    assert attributes["llm.inference.batch_size"] == 4
    assert "Grüße" not in str(attributes)


def test_node_agent_derives_metrics_by_model(backend, tmp_path):
    """RED metrics for Prometheus carry the model that the bridge wrote, and spans the node's name."""
    with site("node-agent", tmp_path, backend.port) as (replica,):
        export(replica.otlp, trace_request([server_span(1, number) for number in range(1, 1 + TRACES)]))
        eventually("the spans at the backend", lambda: len(backend.spans()) == TRACES)

        def scraped() -> str:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{replica.prometheus}/metrics", timeout=5
            ) as answer:
                return answer.read().decode()

        def calls() -> float:
            """Calls of the model that Prometheus sees; 0 before the first are counted."""
            lines = [
                line for line in scraped().splitlines() if line.startswith("traces_span_metrics_calls_total{")
            ]
            return sum(
                float(line.split("} ")[1].split()[0]) for line in lines if 'llm_model_id="llama-3"' in line
            )

        eventually("each call counted under its model", lambda: calls() == TRACES)
        requests = [data for signal, data in backend.requests if signal == "traces"]
        assert all(b"k8s.node.name" in data and b"node-7" in data for data in requests)


def test_gateway_brings_a_trace_together(backend, tmp_path):
    """Halves of a trace that reach different Collectors leave through the same bridge."""
    with GrpcSink() as other, site("gateway", tmp_path, backend.port, other.port) as replicas:
        for half, replica in enumerate(replicas):
            spans = [server_span(trace, 2 * trace + half) for trace in range(1, 1 + TRACES)]
            export(replica.otlp, trace_request(spans))
        eventually(
            "every span at one of the backends",
            lambda: len(backend.spans()) + len(other.spans()) == 2 * TRACES,
        )
    by_backend = [sorted(span.trace_id for span in sink.spans()) for sink in (backend, other)]
    assert not set(by_backend[0]) & set(by_backend[1])
    assert by_backend[0]
    assert by_backend[1]


def test_a_load_generator_nobody_here_wrote(backend, tmp_path):
    """What telemetrygen sends arrives whole."""
    with site("sidecar", tmp_path, backend.port) as (replica,):
        command = [collector_binary("telemetrygen"), "traces", "--otlp-insecure", "--traces", str(TRACES)]
        command += ["--rate", "0", "--child-spans", "2", "--otlp-endpoint", f"127.0.0.1:{replica.otlp}"]
        subprocess.run(
            command,
            check=True,
            capture_output=True,
            timeout=60,
        )
        eventually("telemetrygen's spans", lambda: len(backend.spans()) == 3 * TRACES)
    assert len(set(backend.span_ids())) == 3 * TRACES
    assert len({span.trace_id for signal, data in backend.requests for span in spans_of(data)}) == TRACES
