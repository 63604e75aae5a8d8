"""The same prompt has the same length, whichever vocabulary recorded it."""

from __future__ import annotations

import json

import pytest

from otel_bridge import catalog
from otel_bridge.testing import any_value, attributes_of, spans_of, trace_request
from tests.support.enriching import enriching

LENGTH = "llm.prompt.len"
SYSTEM, ASKED, ANSWER = "You are brief.", "Grüße aus Köln: naïve 日本語 😀", '{"ok":true}'
BYTES = len((SYSTEM + ASKED + ANSWER).encode())
CALL = {"type": "tool_call", "id": "c1", "name": "f", "arguments": {"q": "not counted"}}

CURRENT = [
    {"role": "system", "parts": [{"type": "text", "content": SYSTEM}]},
    {
        "role": "user",
        "parts": [
            {"type": "text", "content": ASKED},
            {"type": "blob", "modality": "image", "mime_type": "image/png", "content": "aGVsbG8="},
            {"type": "uri", "modality": "image", "uri": "https://example.invalid/a.png"},
        ],
    },
    {"role": "assistant", "parts": [CALL]},
    {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": ANSWER}]},
]
OPENAI = [
    {"role": "system", "content": SYSTEM},
    {
        "role": "user",
        "content": [
            {"type": "text", "text": ASKED},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGVsbG8="}},
        ],
    },
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "function": {"name": "f", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": ANSWER},
]
ANTHROPIC = {
    "model": "m",
    "system": SYSTEM,
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": ASKED},
                {"type": "image", "source": {"type": "base64", "data": "aGVsbG8="}},
            ],
        },
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "c1", "name": "f", "input": {"q": "x"}}],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": ANSWER}]},
    ],
}
OPENINFERENCE = {
    "openinference.span.kind": "LLM",
    "llm.input_messages.0.message.role": "system",
    "llm.input_messages.0.message.content": SYSTEM,
    "llm.input_messages.1.message.role": "user",
    "llm.input_messages.1.message.contents.0.message_content.type": "text",
    "llm.input_messages.1.message.contents.0.message_content.text": ASKED,
    "llm.input_messages.1.message.contents.1.message_content.type": "image",
    "llm.input_messages.1.message.contents.1.message_content.image.image.url": "data:image/png;base64,aGk=",
    "llm.input_messages.2.message.role": "assistant",
    "llm.input_messages.2.message.tool_calls.0.tool_call.function.arguments": "{}",
    "llm.input_messages.3.message.role": "tool",
    "llm.input_messages.3.message.content": ANSWER,
    "input.value": json.dumps({"messages": OPENAI}),
    "input.mime_type": "application/json",
}
OPENLLMETRY = {
    "gen_ai.prompt.0.role": "system",
    "gen_ai.prompt.0.content": SYSTEM,
    "gen_ai.prompt.1.role": "user",
    "gen_ai.prompt.1.content": json.dumps(OPENAI[1]["content"], ensure_ascii=False),
    "gen_ai.prompt.2.tool_calls.0.arguments": "{}",
    "gen_ai.prompt.3.content": ANSWER,
}
WAYS = {
    "current, JSON": {"gen_ai.input.messages": json.dumps(CURRENT, ensure_ascii=False)},
    "current, JSON with escapes": {"gen_ai.input.messages": json.dumps(CURRENT)},
    "current, structured": {"gen_ai.input.messages": CURRENT},
    "current, content instead of parts": {"gen_ai.input.messages": json.dumps(OPENAI)},
    "current, content, structured": {"gen_ai.input.messages": OPENAI},
    "current, instructions apart": {
        "gen_ai.input.messages": json.dumps(CURRENT[1:]),
        "gen_ai.system_instructions": json.dumps([{"type": "text", "content": SYSTEM}]),
    },
    "current, plain instructions": {
        "gen_ai.input.messages": CURRENT[1:],
        "gen_ai.system_instructions": SYSTEM,
    },
    "deprecated, one JSON": {"gen_ai.prompt": json.dumps(OPENAI)},
    "OpenInference": OPENINFERENCE,
    "OpenInference, body only": {
        "openinference.span.kind": "LLM",
        "input.value": json.dumps({"messages": OPENAI}),
        "input.mime_type": "application/json",
    },
    "OpenLLMetry": OPENLLMETRY,
    "Vercel": {"ai.prompt.messages": json.dumps(OPENAI)},
    "body, OpenAI": {"http.request.body": json.dumps({"model": "m", "messages": OPENAI})},
    "body, Anthropic": {"http.request.body": json.dumps(ANTHROPIC)},
    "body, Responses": {
        "http.request.body": json.dumps(
            {
                "instructions": SYSTEM,
                "input": [
                    {"role": "user", "content": [{"type": "input_text", "text": ASKED}]},
                    {"type": "function_call_output", "call_id": "c1", "output": ANSWER},
                ],
            }
        )
    },
    "body, as bytes": {"http.request.body": json.dumps({"messages": OPENAI}).encode()},
}


@pytest.mark.parametrize("way", WAYS)
def test_the_same_prompt_has_the_same_length(way):
    assert enriching().span(WAYS[way])[LENGTH] == BYTES


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"http.request.body": '{"prompt":["first prompt","second"]}'}, 18),
        ({"http.request.body": '{"prompt":[1,2,3]}'}, None),
        ({"http.request.body": '{"input":["a","b"]}'}, 2),
        ({"http.request.body": '{"inputs":"abc","parameters":{}}'}, 3),
        ({"http.request.body": '{"text_input":"abc"}'}, 3),
        ({"http.request.body": '{"contents":[{"parts":[{"text":"abc"}]}]}'}, 3),
        ({"http.request.body": '{"messages":[]}'}, None),
        ({"http.request.body": '{"messages":[{"content":""}]}'}, 0),
        ({"http.request.body": "name=value&prompt=x"}, None),
        ({"llm.prompts.0.prompt.text": "first prompt", "llm.prompts.1.prompt.text": "second"}, 18),
        ({"llm.prompts": ["first prompt", "second"]}, 18),
        ({"embedding.embeddings.0.embedding.text": "a", "embedding.embeddings.1.embedding.text": "b"}, 2),
        ({"gen_ai.prompt": "said plainly"}, 12),
        ({"gen_ai.prompt": "[not JSON"}, 9),
        ({"gen_ai.prompt.0.content": "[not JSON"}, 9),
        ({"gen_ai.input.messages": '[{"role":"user","parts":[]}]'}, None),
        ({"input.value": "said plainly", "openinference.span.kind": "LLM"}, 12),
        ({"input.value": "said plainly", "openinference.span.kind": "CHAIN"}, None),
        ({"input.value": "no GenAI span"}, None),
    ],
)
def test_lengths(attributes, expected):
    assert enriching().span(attributes).get(LENGTH) == expected


def test_a_prompt_on_an_event_is_measured():
    request = trace_request([{"kind": 3, "attributes": {"gen_ai.request.model": "m"}}])
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    message = ExportTraceServiceRequest.FromString(request)
    event = message.resource_spans[0].scope_spans[0].spans[0].events.add(name="gen_ai.content.prompt")
    event.attributes.add(key="gen_ai.prompt", value=any_value(json.dumps(OPENAI)))
    (span,) = spans_of(enriching().request(message.SerializeToString()))
    assert attributes_of(span.attributes)[LENGTH] == BYTES


def test_a_body_cut_off_has_no_length_and_is_counted():
    bridge = enriching()
    span = bridge.span({"http.request.body": '{"model":"m","messages":[{"content":"cut of'})
    assert LENGTH not in span
    assert span["llm.model.id"] == "m"
    assert bridge.count(catalog.ENRICH_BAD_VALUES, target=LENGTH, reason="malformed") == 1


def test_a_body_cut_off_leaves_the_word_to_what_the_instrumentation_recorded():
    cut_off = {"http.request.body": '{"messages":[{"content":"cut of'}
    assert enriching().span({**cut_off, **OPENLLMETRY})[LENGTH] == BYTES
