"""Trouble that others met with GenAI spans.

What these cases say of derived metrics (spans counted once, tokens summed, histograms) is the business of
the component that derives them.
"""

from __future__ import annotations

import json
import tracemalloc

import pytest

from otel_bridge import catalog
from tests.support.enriching import enriching

TRITON = {"service.name": "triton-inference-server"}
SECOND = 1_000_000_000
START = 1_700_000_000 * SECOND


def lasting(seconds):
    return {"start_time_unix_nano": START, "end_time_unix_nano": START + round(seconds * SECOND)}


# genai-triton


@pytest.mark.parametrize("prefix", ["triton.", ""])
def test_a_triton_model_span_has_its_model_in_either_spelling(prefix):
    bridge = enriching(explain=True)
    outer, model, compute = bridge.spans(
        [
            {"name": "InferRequest", "span_id": bytes(7) + b"\1", "parent_span_id": b"remotely"},
            {
                "name": "llama3_8b",
                "span_id": bytes(7) + b"\2",
                "parent_span_id": bytes(7) + b"\1",
                "attributes": {
                    f"{prefix}model_name": "llama3_8b",
                    f"{prefix}model_version": 1,
                    f"{prefix}trace_id": 42,
                    f"{prefix}trace_parent_id": 0,
                    f"{prefix}request_id": "250",
                },
            },
            {"name": "compute", "span_id": bytes(7) + b"\3", "parent_span_id": bytes(7) + b"\2"},
        ],
        resource=TRITON,
        scope="triton-server",
    )
    assert model["gen_ai.request.model"] == "llama3_8b"
    assert model["llm.model.id"] == "llama3_8b"
    assert model["otel_bridge.enrich.llm.model.id.source"] == "span_attribute"
    assert model["triton.model_version"] == 1
    assert type(model["triton.model_version"]) is int
    # The inner and the outer span are SERVER spans too, and no requests of their own.
    assert outer == {}
    assert compute == {}
    # A counter of Triton's is no trace id and no join key.
    assert [key for key, value in model.items() if value == 42] == [f"{prefix}trace_id"]


def test_model_name_alone_is_too_common_a_key():
    assert enriching().span({"model_name": "Corolla"}) == {"model_name": "Corolla"}


# genai-vllm

VLLM = {
    "gen_ai.latency.e2e": 1.976,
    "gen_ai.latency.time_in_model_decode": 0.654,
    "gen_ai.latency.time_in_model_inference": 1.935,
    "gen_ai.latency.time_in_model_prefill": 1.281,
    "gen_ai.latency.time_in_queue": 0.001,
    "gen_ai.latency.time_to_first_token": 1.325,
    "gen_ai.request.id": "cmpl-bench-00871b8e-0-0",
    "gen_ai.request.max_tokens": 32,
    "gen_ai.request.n": 1,
    "gen_ai.request.temperature": 1.0,
    "gen_ai.request.top_p": 1.0,
    "gen_ai.usage.prompt_tokens": 384,
    "gen_ai.usage.completion_tokens": 32,
}
START_UP = (
    "Worker init", "Worker init", "Initialize model", "Load weights", "Load model", "Loading (CPU)",
    "Executor init",
    "Prepare model", "AsyncMPClient init", "Overall Loading", "Warmup (CPU)", "Allocate KV cache",
    "EngineCoreProc init",
)  # fmt: skip
QWEN = "Qwen/Qwen2.5-7B-Instruct"


def test_vllm_requests_get_the_mapped_model_and_start_up_spans_nothing():
    bridge = enriching(explain=True, models={"vllm": QWEN})
    requests = [{"name": "llm_request", "attributes": VLLM, **lasting(1.977)} for _ in range(48)]
    starting = [{"name": name, "attributes": {"code.function": "start"}} for name in START_UP]
    spans = bridge.spans([*requests, *starting], resource={"service.name": "vllm"})
    for span in spans[:48]:
        assert span["llm.model.id"] == QWEN
        assert span["otel_bridge.enrich.llm.model.id.source"] == "static_map"
        assert span["gen_ai.operation.name"] == "text_completion"
        assert span["gen_ai.response.time_to_first_chunk"] == 1.325
        assert span["gen_ai.server.prefill.duration"] == 1.281
    assert sum(span["gen_ai.usage.input_tokens"] for span in spans[:48]) == 18_432
    assert sum(span["gen_ai.usage.output_tokens"] for span in spans[:48]) == 1_536
    assert spans[48:] == [{"code.function": "start"}] * 13
    assert bridge.count(catalog.ENRICH_RESOLVED, target="llm.model.id", source="static_map") == 48


def test_rtp_llm_s_units_are_its_own():
    bridge = enriching()
    span = bridge.span(
        {
            "gen_ai.system": "rtp_llm",
            "gen_ai.latency.time_in_model_prefill": 1_281_000_000,
            "gen_ai.response.time_to_first_token": 1325,
            "gen_ai.usage.prompt_tokens": 384,
            "gen_ai.usage.input_tokens": 384,
        },
        **lasting(1.976),
    )
    assert span["gen_ai.server.prefill.duration"] == 1.281
    assert span["gen_ai.response.time_to_first_chunk"] == 1.325
    assert span["gen_ai.usage.input_tokens"] == 384
    assert bridge.count(catalog.ENRICH_CONFLICTS, target="gen_ai.usage.input_tokens") == 0


def test_a_time_longer_than_its_span_is_not_believed():
    bridge = enriching()
    span = bridge.span({"gen_ai.latency.time_in_model_prefill": 1_281_000_000}, **lasting(1.976))
    assert "gen_ai.server.prefill.duration" not in span
    labels = {"target": "gen_ai.server.prefill.duration", "reason": "implausible"}
    assert bridge.count(catalog.ENRICH_BAD_VALUES, **labels) == 1


# genai-openinference-contents

CONTENTS = {
    "openinference.span.kind": "LLM",
    "llm.model_name": "anthropic.claude-3-haiku-20240307-v1:0",
    "llm.input_messages.10.message.role": "user",
    "llm.input_messages.10.message.content": "last",
    "llm.input_messages.0.message.role": "user",
    "llm.input_messages.0.message.contents.0.message_content.type": "text",
    "llm.input_messages.0.message.contents.0.message_content.text": "Hello",
    "llm.input_messages.0.message.contents.1.message_content.type": "image",
    "llm.input_messages.0.message.contents.1.message_content.image.image.url": "https://example.invalid/a.png",
    "llm.input_messages.2.message.role": "tool",
    "llm.input_messages.2.message.tool_call_id": "call_1",
    "llm.input_messages.2.message.content": '{"ok":true}',
    "llm.output_messages.0.message.role": "assistant",
    "llm.output_messages.0.message.tool_calls.0.tool_call.id": "call_2",
    "llm.output_messages.0.message.tool_calls.0.tool_call.function.name": "get_time",
    "llm.output_messages.0.message.tool_calls.0.tool_call.function.arguments": '{"tz":"UTC"}',
}


def test_openinference_messages_keep_their_content_in_order():
    odd = {"llm.input_messages.2.message.something_new": "kept"}
    span = enriching(vocabulary={"originals": "remove"}).span({**CONTENTS, **odd}, kind=1)
    assert json.loads(span["gen_ai.input.messages"]) == [
        {
            "role": "user",
            "parts": [
                {"type": "text", "content": "Hello"},
                {"type": "uri", "modality": "image", "uri": "https://example.invalid/a.png"},
            ],
        },
        {
            "role": "tool",
            "parts": [{"type": "tool_call_response", "id": "call_1", "response": '{"ok":true}'}],
        },
        {"role": "user", "parts": [{"type": "text", "content": "last"}]},
    ]
    assert json.loads(span["gen_ai.output.messages"]) == [
        {
            "role": "assistant",
            "parts": [{"type": "tool_call", "id": "call_2", "name": "get_time", "arguments": {"tz": "UTC"}}],
        }
    ]
    assert span["gen_ai.operation.name"] == "chat"
    assert span["llm.prompt.len"] == len("Hello") + len('{"ok":true}') + len("last")
    left = {key for key in span if key.startswith("llm.") and key not in {"llm.model.id", "llm.prompt.len"}}
    assert left == set(odd)


def test_a_huge_index_makes_one_message_and_no_large_allocation():
    bridge = enriching()
    key = "llm.input_messages.4000000000.message.content"
    tracemalloc.start()
    try:
        span = bridge.span({"openinference.span.kind": "LLM", key: "far"})
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert json.loads(span["gen_ai.input.messages"]) == [
        {"role": "user", "parts": [{"type": "text", "content": "far"}]}
    ]
    assert peak < 4_000_000


# genai-both-generations

BOTH = {
    "gen_ai.system": "OpenAI",
    "llm.request.type": "chat",
    "gen_ai.request.model": "gpt-4o",
    "gen_ai.usage.input_tokens": 57,
    "gen_ai.usage.prompt_tokens": 57,
    "gen_ai.usage.output_tokens": 19,
    "gen_ai.usage.completion_tokens": 19,
    "gen_ai.usage.cached_tokens": 0,
    "gen_ai.usage.reasoning_tokens": 0,
    "llm.usage.total_tokens": 76,
    "gen_ai.prompt.0.role": "system",
    "gen_ai.prompt.0.content": "Think harder.",
    "gen_ai.prompt.1.role": "user",
    "gen_ai.prompt.1.content": '[{"type":"text","text":"What is the weather in Barcelona?"}]',
    "gen_ai.completion.0.role": "assistant",
    "gen_ai.completion.0.finish_reason": "tool_calls",
    "gen_ai.completion.0.tool_calls.0.id": "fake-tool-call-id-1",
    "gen_ai.completion.0.tool_calls.0.name": "get_weather",
    "gen_ai.completion.0.tool_calls.0.arguments": '{"location": "Barcelona"}',
}


def test_two_generations_on_one_span_become_one():
    bridge = enriching()
    span = bridge.span(BOTH, kind=3)
    expected = {
        "gen_ai.provider.name": "openai",
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "gpt-4o",
        "gen_ai.usage.input_tokens": 57,
        "gen_ai.usage.output_tokens": 19,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.usage.reasoning.output_tokens": 0,
        "gen_ai.response.finish_reasons": ["tool_calls"],
        "llm.prompt.len": len("Think harder.") + len("What is the weather in Barcelona?"),
    }
    assert {key: span[key] for key in expected} == expected
    assert json.loads(span["gen_ai.input.messages"]) == [
        {"role": "system", "parts": [{"type": "text", "content": "Think harder."}]},
        {"role": "user", "parts": [{"type": "text", "content": "What is the weather in Barcelona?"}]},
    ]
    (answer,) = json.loads(span["gen_ai.output.messages"])
    assert answer == {
        "role": "assistant",
        "parts": [
            {
                "type": "tool_call",
                "id": "fake-tool-call-id-1",
                "name": "get_weather",
                "arguments": {"location": "Barcelona"},
            }
        ],
        "finish_reason": "tool_calls",
    }
    assert bridge.count(catalog.ENRICH_CONFLICTS, target="gen_ai.usage.input_tokens") == 0


def test_the_current_name_wins_and_the_conflict_is_counted():
    bridge = enriching()
    span = bridge.span({**BOTH, "gen_ai.usage.prompt_tokens": 60}, kind=3)
    assert span["gen_ai.usage.input_tokens"] == 57
    assert bridge.count(catalog.ENRICH_CONFLICTS, target="gen_ai.usage.input_tokens") == 1


# genai-stream

STREAM = {
    "llm.is_streaming": True,
    "gen_ai.request.model": "",
    "gen_ai.response.model": "gpt-4o-2024-08-06",
}


@pytest.mark.parametrize("kind", [2, 3])
def test_a_stream_without_usage_or_request_model(kind):
    span = enriching().span(STREAM, name="chat ", kind=kind)
    assert span["gen_ai.request.stream"] is True
    assert span["llm.model.id"] == "gpt-4o-2024-08-06"
    assert not [key for key in span if "usage" in key]


def test_usage_of_zero_is_kept():
    usage = {"gen_ai.usage.prompt_tokens": 0, "gen_ai.usage.completion_tokens": 0}
    span = enriching().span({**STREAM, **usage}, kind=3)
    assert (span["gen_ai.usage.input_tokens"], span["gen_ai.usage.output_tokens"]) == (0, 0)


def test_a_client_that_went_away_leaves_a_server_span_that_counts_as_one_request():
    span = enriching().span({"http.request.method": "POST", "url.path": "/v1/chat/completions"})
    assert span["llm.inference.batch_size"] == 1
    assert not [key for key in span if key.startswith("gen_ai.")]


# otlp-utf8, the second


def test_a_long_prompt_is_measured_in_bytes():
    body = json.dumps({"messages": [{"role": "user", "content": "你好" * 40_000}]}, ensure_ascii=False)
    assert enriching().span({"http.request.body": body})["llm.prompt.len"] == 240_000
