"""Messages in the current form."""

from __future__ import annotations

import json

import pytest

from otel_bridge.processors.enrich.messages import messages_of, parts_of
from tests.support.enriching import enriching

TEXT = {"type": "text", "content": "hi"}


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ("hi", [TEXT]),
        ('[{"type":"text","text":"hi"}]', [TEXT]),
        ("[1, 2]", [{"type": "text", "content": "[1, 2]"}]),
        ("[not JSON", [{"type": "text", "content": "[not JSON"}]),
        ([{"type": "input_text", "text": "hi"}, "hi"], [TEXT, TEXT]),
        (
            [{"type": "image_url", "image_url": {"url": "https://example.invalid/a.png"}}],
            [{"type": "uri", "modality": "image", "uri": "https://example.invalid/a.png"}],
        ),
        (
            [{"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}],
            [{"type": "blob", "modality": "image", "mime_type": "image/png", "content": "aGk="}],
        ),
        (
            [{"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}}],
            [{"type": "tool_call", "id": "c", "name": "f", "arguments": {"a": 1}}],
        ),
        (
            [{"type": "tool_result", "tool_use_id": "c", "content": "ok"}],
            [{"type": "tool_call_response", "id": "c", "response": "ok"}],
        ),
        ([{"type": "thinking", "thinking": "hm"}], [{"type": "reasoning", "content": "hm"}]),
        ([{"type": "new_kind", "x": 1}], [{"type": "new_kind", "x": 1}]),
        (None, []),
    ],
)
def test_parts(content, parts):
    assert parts_of(content) == parts


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        ("hi", [{"role": "user", "parts": [TEXT]}]),
        ('[{"role":"system","content":"hi"}]', [{"role": "system", "parts": [TEXT]}]),
        ('{"messages":[{"role":"user","content":"hi"}]}', [{"role": "user", "parts": [TEXT]}]),
        ('[{"role":"user","parts":[{"type":"text","content":"hi"}]}]', [{"role": "user", "parts": [TEXT]}]),
        ('{"a": 1}', [{"role": "user", "parts": [{"type": "text", "content": '{"a": 1}'}]}]),
        (
            '[{"role":"tool","tool_call_id":"c","content":"ok"}]',
            [{"role": "tool", "parts": [{"type": "tool_call_response", "id": "c", "response": "ok"}]}],
        ),
        (
            '[{"role":"assistant","content":null,"tool_calls":[{"id":"c","function":{"name":"f","arguments":"{}"}}]}]',
            [
                {
                    "role": "assistant",
                    "parts": [{"type": "tool_call", "id": "c", "name": "f", "arguments": {}}],
                }
            ],
        ),
    ],
)
def test_whole_texts(text, messages):
    assert messages_of(text, "user") == messages


def test_arguments_that_are_no_json_stay_text():
    span = enriching().span(
        {"gen_ai.completion.0.tool_calls.0.name": "f", "gen_ai.completion.0.tool_calls.0.arguments": "{"}
    )
    (message,) = json.loads(span["gen_ai.output.messages"])
    assert message["role"] == "assistant"
    assert message["parts"][0]["arguments"] == "{"


def test_messages_already_there_are_left():
    own = json.dumps([{"role": "user", "parts": []}])
    span = enriching().span({"gen_ai.input.messages": own, "gen_ai.prompt.0.content": "hi"})
    assert span["gen_ai.input.messages"] == own


def test_nothing_is_converted_where_content_is_not_kept():
    span = enriching(convert_messages=False).span(
        {"gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": "hi"}
    )
    assert "gen_ai.input.messages" not in span
    assert span["llm.prompt.len"] == 2


def test_a_message_of_which_nothing_is_understood_does_not_lose_it():
    given = {"gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.new_content.0": "hi"}
    span = enriching(vocabulary={"originals": "remove"}).span(given)
    assert span["gen_ai.prompt.0.new_content.0"] == "hi"
    assert "gen_ai.input.messages" not in span


@pytest.mark.parametrize("index", ["9" * 5000, "٣", "-1", ""])
def test_an_index_that_is_none_is_left_alone(index):
    given = {
        f"gen_ai.prompt.{index}.content": "a",
        f"gen_ai.completion.{index}.finish_reason": "stop",
        f"llm.input_messages.{index}.message.content": "b",
        f"llm.input_messages.0.message.contents.{index}.message_content.text": "c",
        f"llm.input_messages.0.message.tool_calls.{index}.tool_call.id": "d",
    }
    span = enriching(vocabulary={"originals": "remove"}).span(given)
    assert given.items() <= span.items()
    assert "gen_ai.input.messages" not in span


@pytest.mark.parametrize("depth", [100, 250, 900, 20_000])
def test_arguments_of_any_depth_are_kept(depth):
    arguments = "[" * depth + "]" * depth
    span = enriching().span({"gen_ai.completion.0.tool_calls.0.arguments": arguments})
    text = span["gen_ai.output.messages"]
    assert arguments in text
    assert (f'"{arguments}"' in text) is (depth > 128)


def test_a_deep_prompt_is_text():
    prompt = "[" * 5000
    span = enriching().span({"gen_ai.prompt": prompt, "gen_ai.completion.0.content": prompt})
    assert json.loads(span["gen_ai.input.messages"])[0]["parts"] == [{"type": "text", "content": prompt}]
    assert span["llm.prompt.len"] == 5000
