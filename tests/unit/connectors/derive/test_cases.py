"""What the GenAI cases say of metrics: each call once, its tokens once, no empty or made-up name."""

from __future__ import annotations

import pytest

from otel_bridge import catalog
from tests.support.deriving import Deriving, deriving
from tests.unit.processors.enrich.test_cases import BOTH, START_UP, STREAM, TRITON, VLLM, lasting


def span_id(number: int) -> bytes:
    return number.to_bytes(8, "big")


def count(bridge: Deriving, metric: catalog.DerivedMetric) -> int:
    return sum(point.count for point in bridge.points(metric))


def tokens(bridge: Deriving, metric: catalog.DerivedMetric) -> dict[str, tuple[int, float]]:
    """By type of token, how many observations and their sum."""
    place = bridge.derive.metrics.labels[metric].index("gen_ai.token.type")
    return {point.labels[place]: (point.count, point.sum) for point in bridge.points(metric)}


# genai-triton


def triton_span(number: int, parent: int, name: str, **attributes: object) -> dict[str, object]:
    return {
        "name": name,
        "span_id": span_id(number),
        "parent_span_id": span_id(parent),
        "attributes": attributes,
        **lasting(1),
    }


def model(prefix: str, name: str, own: int, around: int) -> dict[str, object]:
    found = {"model_name": name, "model_version": 1, "trace_id": own, "trace_parent_id": around}
    return {f"{prefix}{key}": value for key, value in found.items()}


@pytest.mark.parametrize("prefix", ["triton.", ""])
@pytest.mark.parametrize("ensemble", [False, True])
def test_triton_one_inference_a_trace(prefix, ensemble):
    """Each of its spans is a SERVER span; one request is one, models of an ensemble included."""
    bridge = deriving()
    spans = [
        triton_span(1, 99, "InferRequest"),
        triton_span(2, 1, "llama3_8b", **model(prefix, "llama3_8b", 42, 0)),
        triton_span(3, 2, "compute"),
    ]
    if ensemble:
        spans += [
            triton_span(4, 2, "tokenize", **model(prefix, "tokenize", 43, 42)),
            triton_span(5, 2, "generate", **model(prefix, "generate", 44, 42)),
            triton_span(6, 5, "compute"),
        ]
    bridge.spans(*spans, resource=TRITON, scope="triton-server")
    calls = bridge.point(catalog.DERIVED_SERVER_DURATION)
    assert calls.count == 1
    assert "llama3_8b" in calls.labels
    assert count(bridge, catalog.DERIVED_BATCH_SIZE) == 1
    assert count(bridge, catalog.DERIVED_SPAN_DURATION) == len(spans), "spans are counted as spans"
    # The number that Triton counts its traces by is no label.
    labels = [
        label for _, points in bridge.derive.metrics.points(None, 0.0) for p in points for label in p.labels
    ]
    assert not {"42", "43", "44", "1"} & set(labels)


def test_triton_inference_with_spans_in_requests_of_their_own():
    """The inner spans end, and arrive, first."""
    bridge = deriving()
    bridge.spans(triton_span(5, 2, "generate", **model("triton.", "generate", 44, 42)), resource=TRITON)
    assert not count(bridge, catalog.DERIVED_SERVER_DURATION)
    bridge.spans(triton_span(2, 1, "ensemble", **model("triton.", "ensemble", 42, 0)), resource=TRITON)
    assert count(bridge, catalog.DERIVED_SERVER_DURATION) == 1
    assert count(bridge, catalog.DERIVED_BATCH_SIZE) == 1


# genai-vllm


def test_vllm_requests_are_measured_and_start_up_spans_are_not():
    bridge = deriving()
    requests = [
        {
            "name": "llm_request",
            "span_id": span_id(number),
            "trace_id": number.to_bytes(16, "big"),
            "attributes": {
                **VLLM,
                "gen_ai.request.id": f"cmpl-bench-{number:08x}-0-0",
                "gen_ai.request.model": "Qwen",
            },
            **lasting(1.977),
        }
        for number in range(1, 49)
    ]
    starting = [{"name": name, "span_id": span_id(100 + n), "kind": 1} for n, name in enumerate(START_UP)]
    bridge.spans(*requests, *starting, resource={"service.name": "vllm"})
    assert count(bridge, catalog.DERIVED_SERVER_DURATION) == 48
    assert tokens(bridge, catalog.DERIVED_SERVER_TOKENS) == {"input": (48, 18_432), "output": (48, 1_536)}
    first = bridge.point(catalog.DERIVED_SERVER_FIRST_TOKEN)
    assert (first.count, first.sum) == (48, pytest.approx(48 * 1.325))
    by_model = [point for point in bridge.points(catalog.DERIVED_SPAN_DURATION) if "Qwen" in point.labels]
    assert sum(point.count for point in by_model) == 48
    assert count(bridge, catalog.DERIVED_BATCH_SIZE) == 48


def test_rtp_llm_tokens_and_times_are_counted_once_in_seconds():
    bridge = deriving()
    bridge.spans(
        {
            "attributes": {
                "gen_ai.system": "rtp_llm",
                "gen_ai.latency.time_in_model_prefill": 1_281_000_000,
                "gen_ai.response.time_to_first_token": 1325,
                "gen_ai.usage.prompt_tokens": 384,
                "gen_ai.usage.input_tokens": 384,
            },
            **lasting(1.976),
        }
    )
    assert tokens(bridge, catalog.DERIVED_SERVER_TOKENS) == {"input": (1, 384)}
    assert bridge.point(catalog.DERIVED_SERVER_FIRST_TOKEN).sum == pytest.approx(1.325)


# genai-both-generations


@pytest.mark.parametrize("older", [57, 60])
def test_both_generations_of_names_count_tokens_once(older):
    """The current name's value, also where the older one says otherwise; the provider in one spelling."""
    bridge = deriving()
    bridge.spans({"kind": 3, "attributes": {**BOTH, "gen_ai.usage.prompt_tokens": older}})
    assert tokens(bridge, catalog.DERIVED_CLIENT_TOKENS) == {"input": (1, 57), "output": (1, 19)}
    call = bridge.point(catalog.DERIVED_CLIENT_DURATION)
    assert "openai" in call.labels
    assert not {"OpenAI", ""} & set(call.labels[:4])


# genai-stream


@pytest.mark.parametrize(("kind", "side"), [(3, "client"), (2, "server")])
def test_a_stream_without_usage_is_a_call_without_tokens(kind, side):
    bridge = deriving()
    bridge.spans({"name": "chat ", "kind": kind, "attributes": STREAM})
    duration = {"client": catalog.DERIVED_CLIENT_DURATION, "server": catalog.DERIVED_SERVER_DURATION}[side]
    call = bridge.point(duration)
    labels = dict(zip(bridge.derive.metrics.labels[duration], call.labels, strict=True))
    assert (call.count, labels["gen_ai.request.model"]) == (1, "gpt-4o-2024-08-06")
    assert not tokens(bridge, catalog.DERIVED_CLIENT_TOKENS)
    assert not tokens(bridge, catalog.DERIVED_SERVER_TOKENS)
    for known in ("client", "server"):
        assert bridge.count(catalog.DERIVE_WITHOUT_USAGE, side=known) == (known == side)


def test_usage_of_zero_is_observed():
    bridge = deriving()
    usage = {"gen_ai.usage.prompt_tokens": 0, "gen_ai.usage.completion_tokens": 0}
    bridge.spans({"name": "chat ", "kind": 3, "attributes": {**STREAM, **usage}})
    assert tokens(bridge, catalog.DERIVED_CLIENT_TOKENS) == {"input": (1, 0), "output": (1, 0)}
    assert bridge.count(catalog.DERIVE_WITHOUT_USAGE, side="client") == 0


def test_a_call_that_failed_owes_no_usage():
    bridge = deriving()
    bridge.spans({"kind": 3, "attributes": {"gen_ai.operation.name": "chat"}, "status": {"code": 2}})
    assert count(bridge, catalog.DERIVED_CLIENT_DURATION) == 1
    assert bridge.count(catalog.DERIVE_WITHOUT_USAGE, side="client") == 0


def test_a_client_that_went_away_leaves_one_request_with_its_kernel_events():
    bridge = deriving()
    attributes = {
        "http.request.method": "POST",
        "url.path": "/v1/chat/completions",
        "kernel.tcp.retransmits": 3,
    }
    bridge.spans({"attributes": attributes})
    assert count(bridge, catalog.DERIVED_HTTP_SERVER_DURATION) == 1
    assert count(bridge, catalog.DERIVED_BATCH_SIZE) == 1
    assert bridge.point(catalog.DERIVED_CAUSE_EVENTS).sum == 3
