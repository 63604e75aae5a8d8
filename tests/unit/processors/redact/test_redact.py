"""What leaves: markers planted wherever a prompt may stand, and looked for in the bytes that go out."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from otel_bridge import catalog
from otel_bridge.model import Scope
from otel_bridge.testing import any_value, attributes_of, key_values, spans_of, trace_request
from otel_bridge.vocabulary import CONTENT
from otel_bridge.wire import sized

SECRET = "MARKER7f3a"


def one_span(attributes=None, **fields) -> bytes:
    return trace_request([{"attributes": attributes or {}, **fields}])


def left(data: bytes) -> dict:
    (span,) = spans_of(data)
    return attributes_of(span.attributes)


def planted() -> tuple[bytes, int]:
    """A request with a marker in every attribute of the vocabulary, in every place, of every type."""
    request = ExportTraceServiceRequest.FromString(one_span({"http.request.method": "POST"}, name="kept"))
    (resource_spans,) = request.resource_spans
    (scope_spans,) = resource_spans.scope_spans
    (span,) = scope_spans.spans
    link = span.links.add(trace_id=b"l" * 16, span_id=b"l" * 8)
    event = span.events.add(name="some.event")
    owners = {
        Scope.SPAN: span.attributes,
        Scope.RESOURCE: resource_spans.resource.attributes,
        Scope.INSTRUMENTATION: scope_spans.scope.attributes,
        Scope.EVENT: event.attributes,
        Scope.LINK: link.attributes,
    }
    shapes = itertools.cycle(
        (
            lambda text: text,
            lambda text: [{"role": "user", "parts": [{"type": "text", "content": text}]}],
            lambda text: {"content": text, "n": 1},
            lambda text: text.encode(),
            lambda text: json.dumps({"messages": [{"content": text}]}),
        )
    )
    count = 0

    def plant(attributes, key: str) -> None:
        nonlocal count
        for repetition in range(2):  # a repeated key must not get through
            count += 1
            value = any_value(next(shapes)(f"{SECRET} {count} of {repetition}"))
            attributes.append(KeyValue(key=key, value=value))

    for entry in CONTENT:
        key = f"{entry.key}0.message.content" if entry.prefix else entry.key
        if entry.event:
            plant(span.events.add(name=entry.event).attributes, key)
        elif entry.scope is Scope.EVENT:
            plant(event.attributes, key)
        else:
            for attributes in owners.values():
                plant(attributes, key)
    return request.SerializeToString(), count


@pytest.mark.parametrize("action", ["drop", "hash"])
def test_nothing_of_a_prompt_remains(step, action):
    """Not in spans, events, links, scopes, resources; not as string, bytes, list, map; not repeated."""
    data, count = planted()
    assert data.count(SECRET.encode()) == count
    redact = step(content=action)
    out = redact(data)
    assert SECRET.encode() not in out
    (span,) = spans_of(out)
    assert span.name == "kept"
    assert attributes_of(span.attributes)["http.request.method"] == "POST"
    assert redact.telemetry.value(catalog.REDACT_ATTRIBUTES, action=action) == count


def test_kept_content_is_the_same_bytes(step):
    """Keep touches nothing, where there is nothing to mask."""
    data, _ = planted()
    assert step(content="keep", patterns=[])(data) is data


def test_disabled_steps_ask_for_nothing(step):
    """Without an action the plan has no columns, so scanning costs nothing for it."""
    assert not step(content="keep", patterns=[], exceptions="keep").plan.wants


def test_a_batch_without_content_leaves_as_it_came(step):
    """The very same object: no edit is noted."""
    data = one_span({"http.request.method": "POST", "gen_ai.usage.input_tokens": 7})
    assert step()(data) is data


def test_a_shared_prefix_column_is_covered(step):
    """A key may be wanted exactly by one step and by prefix here."""
    redact = step()
    data = one_span({"gen_ai.prompt.0.content": SECRET, "gen_ai.prompt.0.role": "user"})
    assert SECRET.encode() not in redact(data)


def test_equal_prompts_have_equal_hashes(step):
    """In one process; a key makes it so across processes; another key gives other hashes."""
    data = trace_request(
        [
            {"attributes": {"gen_ai.prompt": "same", "input.value": "same"}},
            {"attributes": {"gen_ai.prompt": "other"}},
        ]
    )

    def hashes(**config):
        return [attributes_of(span.attributes) for span in spans_of(step(content="hash", **config)(data))]

    first, second = hashes(hash_key="k")
    assert first["gen_ai.prompt"] == first["input.value"] != second["gen_ai.prompt"]
    assert len(first["gen_ai.prompt"]) == 32
    assert int(first["gen_ai.prompt"], 16) >= 0
    assert hashes(hash_key="k")[0] == first
    assert hashes(hash_key="K")[0] != first
    assert hashes()[0] != hashes()[0], "without a key each process draws its own"
    assert hashes(hash_key="k" * 100)[0] != hashes(hash_key="k" * 101)[0]


def test_hashing_leaves_roles_and_ids(step):
    """The shape of a conversation says nothing of its words."""
    data = one_span(
        {
            "llm.input_messages.0.message.role": "user",
            "llm.input_messages.0.message.content": SECRET,
            "llm.input_messages.1.message.tool_call_id": "call_1",
        }
    )
    out = left(step(content="hash")(data))
    assert out["llm.input_messages.0.message.role"] == "user"
    assert out["llm.input_messages.1.message.tool_call_id"] == "call_1"
    assert SECRET not in out["llm.input_messages.0.message.content"]


def test_keys_of_ones_own(step):
    """Added by key and by prefix; a key that is allowed stays, under a prefix too."""
    redact = step(
        keys=["acme.question"], prefixes=["acme.turn."], allow=["tool.parameters", "gen_ai.prompt.0.content"]
    )
    data = one_span(
        {
            "acme.question": SECRET,
            "acme.turn.7": SECRET,
            "acme.turns": "kept",
            "tool.parameters": "kept too",
            "gen_ai.prompt.0.content": "and this",
            "gen_ai.prompt.1.content": SECRET,
        }
    )
    assert left(redact(data)) == {
        "acme.turns": "kept",
        "tool.parameters": "kept too",
        "gen_ai.prompt.0.content": "and this",
    }


def test_event_keys_mean_content_only_in_their_events(step):
    """`content` of gen_ai.user.message goes, that of a cache event stays, on one and the same span."""
    events = [
        {"name": "gen_ai.user.message", "attributes": key_values({"content": SECRET, "id": 1})},
        {"name": "cache.hit", "attributes": key_values({"content": "image/png", "message": "from disk"})},
    ]
    redact = step()
    out = redact(trace_request([{"attributes": {"a": "b"}}, {"events": events}]))
    assert SECRET.encode() not in out
    first, second = spans_of(out)[1].events
    assert attributes_of(first.attributes) == {"id": 1}
    assert attributes_of(second.attributes) == {"content": "image/png", "message": "from disk"}


def exception_span(message: str, content: dict) -> bytes:
    trace = (
        f'Traceback (most recent call last):\n  File "/app/serve.py", line 7, in chat\nValueError: {message}'
    )
    attributes = {"exception.type": "ValueError", "exception.message": message, "exception.stacktrace": trace}
    events = [{"name": "exception", "attributes": key_values(attributes)}]
    status = {"code": 2, "message": f"ValueError: {message}"}
    return one_span(content, events=events, status=status)


@pytest.mark.parametrize(
    ("message", "content"),
    [
        (f"cannot parse {SECRET} is my whole prompt", {"gen_ai.prompt": f"{SECRET} is my whole prompt"}),
        (
            f"input is {SECRET} 'quoted'\\nand more",
            {"gen_ai.prompt": f"{SECRET} 'quoted'\nand more"},
        ),
        (
            f"too long: {SECRET} and so on and on and",
            {"http.request.body": json.dumps({"prompt": f"{SECRET} and so on and on and on and on"})},
        ),
        (f"got {{'role': 'user', 'content': 'my {SECRET} text'}} for a string", {}),
        (f'unexpected "{SECRET} für Köln"', {}),
        (f"bad value '{SECRET} without an end", {}),
        (f"bad value '{SECRET}{'x' * 100}'", {}),
    ],
)
def test_exceptions_that_quote_a_prompt(step, message, content):
    """Repeated from the span's content, or quoted prose: hidden; the frames and the rest stay."""
    out = step()(exception_span(message, content))
    assert SECRET.encode() not in out
    (span,) = spans_of(out)
    (event,) = span.events
    shown = attributes_of(event.attributes)
    assert shown["exception.type"] == "ValueError"
    assert span.status.code == 2
    assert span.status.message == f"ValueError: {shown['exception.message']}"
    assert "[redacted]" in shown["exception.message"]
    assert 'File "/app/serve.py", line 7, in chat' in shown["exception.stacktrace"]


@pytest.mark.parametrize(
    "message",
    [
        "The model `meta-llama/Llama-3.1-8B-Instruct` does not exist.",
        "Can't connect to host 'backend-7.example.com': the server didn't answer",
        "[Errno 2] No such file or directory: '/models/llama.gguf'",
        "This model's maximum context length is 4096 tokens; you requested 5000",
    ],
)
def test_exceptions_that_explain_themselves_stay(step, message):
    """Paths, names of models and hosts are what an operator needs."""
    data = exception_span(message, {})
    assert step()(data) is data


def test_exceptions_can_be_kept_or_dropped(step):
    """Keep leaves all of it, drop leaves the type."""
    data = exception_span(f'saw "{SECRET} and more"', {})
    assert step(exceptions="keep")(data) is data
    (span,) = spans_of(step(exceptions="drop")(data))
    assert attributes_of(span.events[0].attributes) == {"exception.type": "ValueError"}
    assert (span.status.code, span.status.message) == (2, "")


def test_an_exception_amid_endless_content_is_dropped(step):
    """Comparing every message with every piece could cost more than it is worth."""
    content = {f"gen_ai.prompt.{n}.content": f"piece number {n}" for n in range(12_000)}
    out = step()(exception_span("piece number 11999", content))
    (event,) = spans_of(out)[0].events
    assert attributes_of(event.attributes) == {"exception.type": "ValueError"}


def test_patterns_are_masked_in_kept_content(step):
    """In strings, JSON, lists and maps; on spans, events and resources."""
    redact = step(content="keep")
    messages = [{"role": "user", "parts": [{"type": "text", "content": "I am anna@example.com"}]}]
    events = [{"name": "e", "attributes": key_values({"gen_ai.prompt": "key sk-abcdefghijklmnop1234"})}]
    data = trace_request(
        [
            {
                "attributes": {
                    "gen_ai.input.messages": json.dumps(messages),
                    "gen_ai.output.messages": messages,
                    "gen_ai.prompt": "nothing to see",
                    "input.value": b"4111 1111 1111 1111",
                },
                "events": events,
            }
        ],
        resource={"service.name": "test", "input": "bearer abcdefghijk"},
    )
    out = redact(data)
    attributes = left(out)
    masked = [{"role": "user", "parts": [{"type": "text", "content": "I am [email]"}]}]
    assert json.loads(attributes["gen_ai.input.messages"]) == masked
    assert attributes["gen_ai.output.messages"] == masked
    assert attributes["gen_ai.prompt"] == "nothing to see"
    assert attributes["input.value"] == b"[card]"
    request = ExportTraceServiceRequest.FromString(out)
    assert attributes_of(request.resource_spans[0].resource.attributes)["input"] == "[bearer]"
    assert attributes_of(spans_of(out)[0].events[0].attributes) == {"gen_ai.prompt": "key [api_key]"}
    value = redact.telemetry.value
    assert [value(catalog.REDACT_PATTERN_HITS, pattern=name) for name in redact.config.patterns] == [
        2,
        1,
        1,
        0,
        1,
        0,
    ]
    assert value(catalog.REDACT_ATTRIBUTES, action="mask") == 5


def test_credentials_are_masked_where_they_turn_up(step):
    """Headers come as lists; a repeated one is no way around."""
    redact = step(pattern_attributes=["http.request.header.authorization", "url.full"])
    data = ExportTraceServiceRequest.FromString(
        one_span(
            {
                "http.request.header.authorization": ["Bearer abcdefgh.ijklmnop"],
                "url.full": "https://api.example.com/v1?key=AIza" + "x" * 35,
                "url.path": "/anna@example.com",
            }
        )
    )
    again = data.resource_spans[0].scope_spans[0].spans[0].attributes.add(key="url.full")
    again.value.string_value = "https://x.example.com/?token=sk-abcdefghijklmnop1234"
    (span,) = spans_of(redact(data.SerializeToString()))
    assert [any_to_plain(item.value) for item in span.attributes] == [
        ["[bearer]"],
        "https://api.example.com/v1?key=[api_key]",
        "/anna@example.com",
        "https://x.example.com/?token=[api_key]",
    ]


def any_to_plain(value: AnyValue):
    return attributes_of([KeyValue(key="x", value=value)])["x"]


def test_a_capped_prompt_ends_with_a_whole_character(step):
    """cases.md otlp-utf8, second part, with how long it was told beside it."""
    prompt = "你好" * 40_000
    redact = step(content="keep", patterns=[], max_attribute_bytes=65_536)
    body = json.dumps({"messages": [{"role": "user", "content": prompt}]}, ensure_ascii=False)
    out = left(redact(one_span({"gen_ai.prompt": prompt, "http.request.body": body, "short": "x" * 65_536})))
    assert len(out["gen_ai.prompt"].encode()) == 65_535
    assert prompt.startswith(out["gen_ai.prompt"])
    assert out["otel_bridge.truncated.gen_ai.prompt"] == 240_000
    capped = json.loads(out["http.request.body"])
    assert len(out["http.request.body"].encode()) in range(65_530, 65_537)
    assert prompt.startswith(capped["messages"][0]["content"])
    assert len(out["short"]) == 65_536
    assert "otel_bridge.truncated.short" not in out
    assert redact.telemetry.value(catalog.REDACT_ATTRIBUTES, action="truncate") == 2


def test_any_attribute_of_any_type_and_place_is_capped(step):
    """Lists and maps become JSON, bytes base64, as OTLP/JSON shows them; never more than the cap."""
    redact = step(max_attribute_bytes=100)
    values = {"a": "é" * 200, "b": [f"item {n}" for n in range(100)], "c": {"k": "v" * 300}, "d": b"\0" * 500}
    events = [{"name": "e", "attributes": key_values(values)}]
    data = trace_request([{"attributes": values, "events": events}], resource=values)
    out = redact(data)
    (resource_spans,) = ExportTraceServiceRequest.FromString(out).resource_spans
    (span,) = resource_spans.scope_spans[0].spans
    for attributes in (resource_spans.resource.attributes, span.attributes, span.events[0].attributes):
        found = attributes_of(attributes)
        assert len(found) == 8
        for key in values:
            assert len(found[key].encode()) <= 100
            assert found[f"otel_bridge.truncated.{key}"] > 100
        assert found["a"] == "é" * 50
        assert json.loads(found["b"])[:2] == ["item 0", "item 1"]
        assert json.loads(found["c"])["k"].startswith("vvv")


def test_what_is_dropped_is_not_capped_and_what_is_masked_is(step):
    """One attribute, one edit: masked whole before it is cut, so no half of a key survives the cut."""
    key = "sk-abcdefghijklmnop1234"
    redact = step(content="keep", max_attribute_bytes=64)
    out = left(redact(one_span({"gen_ai.prompt": "x" * 50 + f" {key} " + "y" * 100})))
    assert out["gen_ai.prompt"] == "x" * 50 + " [api_key] " + "yyy"
    dropped = step(max_attribute_bytes=64)
    data = one_span({"gen_ai.prompt": "x" * 200, "http.request.method": "POST"})
    assert left(dropped(data)) == {"http.request.method": "POST"}
    assert dropped.telemetry.value(catalog.REDACT_ATTRIBUTES, action="truncate") == 0


def test_secrets_of_rejected_spans_do_not_leave_either(step):
    """A span with a bad id is refused whole; its neighbours are redacted."""
    data = trace_request(
        [
            {"trace_id": b"", "attributes": {"gen_ai.prompt": SECRET}},
            {"attributes": {"gen_ai.prompt": SECRET, "k": "v"}},
        ]
    )
    out = step()(data)
    assert SECRET.encode() not in out
    assert left(out) == {"k": "v"}


def added(batch) -> None:
    """What a step before may add: copies of content under a key of content, and harmless things."""
    rows = np.arange(2, dtype="<u4")
    body = batch.data.index(SECRET.encode())
    length = len(SECRET) + len(" a@example.com")
    batch.set_text("llm.prompt.template", rows, f"{SECRET} a@example.com")
    batch.set_texts("gen_ai.prompt.0.content", rows, [f"{SECRET} a@example.com", "你" * 40])
    batch.set_slices("input.value", rows[:1], np.array([body], "<u4"), np.array([length], "<u4"))
    batch.set_text("llm.model.id", rows, "tiny")
    batch.set_ints("llm.prompt.len", rows, np.array([7, 8], "<i8"))


TWO_SPANS = trace_request([{"attributes": {"acme.note": f"{SECRET} a@example.com"}}, {}])


@pytest.mark.parametrize("action", ["drop", "hash", "keep"])
def test_what_other_steps_added_is_treated_alike(step, action):
    """Content does not slip out under a name that an earlier step gave it."""
    redact = step(content=action, max_attribute_bytes=64, keys=["acme.note"])
    first, second = (attributes_of(span.attributes) for span in spans_of(redact(TWO_SPANS, added)))
    assert first["llm.model.id"] == "tiny"
    assert (first["llm.prompt.len"], second["llm.prompt.len"]) == (7, 8)
    content = {"llm.prompt.template", "gen_ai.prompt.0.content", "input.value"}
    if action == "drop":
        assert not content & (first.keys() | second.keys())
    elif action == "hash":
        assert len({first[key] for key in (*content, "acme.note")}) == 1
        assert SECRET not in str(first) + str(second)
    else:
        assert {first[key] for key in content} == {f"{SECRET} [email]"}
        assert second["gen_ai.prompt.0.content"] == "你" * 21


def test_a_status_in_parts_hides_nothing(step):
    """Protobuf merges repeated messages; every part is on the wire all the same."""
    request = ExportTraceServiceRequest.FromString(one_span({"gen_ai.prompt": f"{SECRET} and more"}))
    (span,) = request.resource_spans[0].scope_spans[0].spans
    first, second = (
        sized(15, Status(code=2, message=f"{word} {SECRET} and more").SerializeToString())
        for word in ("ValueError:", "RuntimeError:")
    )
    data = sized(1, sized(2, sized(2, span.SerializeToString() + first + second)))
    out = step()(data)
    assert SECRET.encode() not in out
    assert spans_of(out)[0].status.message == "RuntimeError: [redacted]"
