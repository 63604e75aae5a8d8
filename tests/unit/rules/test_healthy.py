"""The shipped rules are on by default, so a node in good health must not make one fire."""

from __future__ import annotations

import random

import pytest

from otel_bridge import catalog
from otel_bridge.rules.config import RulesConfig
from otel_bridge.rules.load import load_configured
from tests.support.rules import MS, Bench

MINUTES = 60
STEP = 5
"""Seconds: how often an SDK exports; so much later than they ended spans arrive."""
GPU = {"gpu_uuid": "GPU-1"}
QUIET = (
    (catalog.EXPORTER_DROPPED, {"exporter": "otlp", "signal": "traces", "reason": "full"}),
    (catalog.EXPORTER_REFUSED, {"exporter": "otlp"}),
    (catalog.KERNEL_DROPPED, {"probe": "tls", "cpu": "0", "reason": "full"}),
    (catalog.RULES_EVICTED, {"rule": "OomKill"}),
    (catalog.RULES_IGNORED, {"reason": "late"}),
    (catalog.DERIVE_OVERFLOW, {"metric": "http.server.request.duration"}),
    (catalog.GPU_XID_ERRORS, {**GPU, "xid": "79"}),
)
"""Counters that stand still."""


def requests(chance: random.Random, since: int) -> list[dict]:
    """Four requests a second, as they come; answers of some seconds and some hundred tokens, as LLMs give."""
    out: list[dict] = []
    at = since + chance.expovariate(4.0)
    while at < since + STEP:
        tokens = min(4096, round(chance.lognormvariate(5.3, 0.8)))
        failed = {"error": True, "message": "client gone"} if chance.random() < 0.0005 else {}
        attributes = {"gen_ai.usage.output_tokens": tokens}
        out.append({"at": at, "seconds": 0.2 + 0.02 * tokens, "attributes": attributes, **failed})
        at += chance.expovariate(4.0)
    return out


def background(chance: random.Random, second: int) -> list[tuple[str, float, dict]]:
    """What the kernel tells of a node that works: now and then a wait, a retransmit, a slow handshake."""
    often = {
        "tcp_retransmit": (0.5, {}),
        "sched_wait": (0.2, {"run_queue_ns": chance.randint(1, 80) * MS, "tgid": 7}),
        "block_io": (0.9, {"queue_depth": chance.randint(1, 200), "major": 259}),
        "tls_handshake": (0.5, {"duration": round(chance.lognormvariate(3, 1)) * MS}),
        "cuda_alloc": (0.5, {"error": 0}),
        "reclaim": (0.01, {"comm": b"vllm"}),
    }
    return [
        (kind, second + chance.random(), fields)
        for kind, (likely, fields) in often.items()
        if chance.random() < likely
    ]


@pytest.mark.parametrize("seed", [1, 2])
def test_no_shipped_rule_fires_on_a_healthy_node(seed):
    """An engine that holds 91 % of its GPU from the start, whose load and answers differ as they do."""
    chance = random.Random(seed)
    bench = Bench(loaded=load_configured(RulesConfig()))
    gauges = {
        catalog.GPU_MEMORY_USED_RATIO: lambda: 0.91,
        catalog.GPU_UTILIZATION_RATIO: lambda: chance.uniform(0.5, 1.0),
        catalog.GPU_SAWTOOTH_SWING_RATIO: lambda: 0.0,
    }
    for second in range(0, MINUTES * 60, STEP):
        now = second + STEP
        bench.at(now)
        bench.events([one for each in range(second, now) for one in background(chance, each)])
        for metric, value in gauges.items():
            bench.reading(metric.name, now, value(), **GPU)
        gap = chance.uniform(0, 0.3)
        bench.reading(catalog.GPU_PREEMPTION_GAP_RATIO.name, now, gap, **GPU, tenant_id="a")
        bench.reading(catalog.KERNEL_CLOCK_ERROR.name, now, 0.0005)
        for metric, labels in QUIET:
            bench.reading(metric.name, now, 0, **labels)
        bench.spans(requests(chance, second), {"service.name": "vllm"})
    assert bench.firings == []
