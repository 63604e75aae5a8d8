"""Other names turned into current ones: types, units, conflicts, originals."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_bridge import catalog
from otel_bridge.processors.enrich.vocabulary import FACTS, OPERATION, SPAN_KIND
from otel_bridge.receivers.otlp.codec import choose_codec
from otel_bridge.testing import attributes_of, spans_of, trace_request
from otel_bridge.vocabulary import CONTENT
from tests.support.enriching import enriching


def spans(bridge, attributes, **fields):
    """Every attribute of the one span, repeated keys included."""
    (span,) = spans_of(bridge.request(trace_request([{"attributes": attributes, "kind": 3, **fields}])))
    return [(one.key, attributes_of([one])[one.key]) for one in span.attributes]


VALUES = {"string": "text", "int": 7, "double": 0.25, "bool": True}


@pytest.mark.parametrize(
    ("fact", "old"),
    [(fact, old) for fact in FACTS for old in fact.old if not (old.path or old.beside or fact.words)],
    ids=lambda one: one.key,
)
def test_each_old_name_becomes_the_current_one(fact, old):
    value = VALUES[fact.type]
    given = "250ms" if old.text_only else value * 1000 if old.unit == "ms" else value
    out = dict(spans(enriching(), {old.key: given}))
    assert out[fact.key] == value
    assert type(out[fact.key]) is type(value)
    assert out[old.key] == given


@pytest.mark.parametrize(
    ("fact", "old"), [(fact, old) for fact in FACTS for old in fact.old if old.path], ids=lambda one: one.key
)
def test_each_value_in_json_becomes_the_current_attribute(fact, old):
    value = VALUES[fact.type]
    text = {"string": '"te\\u0078t"', "int": "7", "double": "0.25", "bool": "true"}[fact.type]
    out = dict(spans(enriching(), {old.key: f'{{"other": [1], "{old.path}": {text}}}'}))
    assert out[fact.key] == value


@pytest.mark.parametrize(
    ("key", "given", "expected"),
    [
        ("gen_ai.usage.input_tokens", "57", 57),
        ("gen_ai.usage.input_tokens", 57.0, 57),
        ("gen_ai.usage.prompt_tokens", "57.0", 57),
        ("gen_ai.request.temperature", 1, 1.0),
        ("gen_ai.request.temperature", "0.5", 0.5),
        ("gen_ai.request.stream", "true", True),
        ("gen_ai.request.stream", "False", False),
        ("gen_ai.request.stream", 1, True),
        ("gen_ai.response.finish_reasons", "stop", ["stop"]),
        ("gen_ai.response.finish_reasons", '["stop","length"]', ["stop", "length"]),
        ("gen_ai.response.finish_reasons", '["odd"]', ["odd"]),
        ("gen_ai.request.model", ["m"], "m"),
        ("gen_ai.provider.name", "OpenAI", "openai"),
        ("gen_ai.provider.name", "az.ai.openai", "azure.ai.openai"),
        ("gen_ai.provider.name", "Somebody Else", "Somebody Else"),
    ],
)
def test_the_current_name_gets_its_type(key, given, expected):
    current = {"gen_ai.usage.prompt_tokens": "gen_ai.usage.input_tokens"}.get(key, key)
    found = [value for name, value in spans(enriching(), {key: given}) if name == current]
    assert found == [expected]
    assert type(found[0]) is type(expected)


@pytest.mark.parametrize(
    ("key", "given", "reason"),
    [
        ("gen_ai.usage.input_tokens", "many", "not_a_number"),
        ("gen_ai.usage.prompt_tokens", -1, "negative"),
        ("gen_ai.usage.prompt_tokens", 2**40, "out_of_range"),
        ("gen_ai.usage.prompt_tokens", 1.5, "not_whole"),
        ("gen_ai.usage.prompt_tokens", True, "wrong_type"),
        ("gen_ai.usage.prompt_tokens", float("nan"), "not_whole"),
    ],
)
def test_what_cannot_be_right_is_left_and_counted(key, given, reason):
    bridge = enriching()
    out = spans(bridge, {key: given})
    assert [name for name, _ in out] == [key]
    labels = {"target": "gen_ai.usage.input_tokens", "reason": reason}
    assert bridge.count(catalog.ENRICH_BAD_VALUES, **labels) == 1


@pytest.mark.parametrize(
    ("attributes", "operation"),
    [
        ({"llm.request.type": "completion", "gen_ai.request.model": "m"}, "text_completion"),
        ({"llm.request.type": "embedding"}, "embeddings"),
        ({SPAN_KIND: "LLM"}, "chat"),
        ({SPAN_KIND: "LLM", "llm.prompts.0.prompt.text": "x"}, "text_completion"),
        ({SPAN_KIND: "EMBEDDING"}, "embeddings"),
        ({SPAN_KIND: "TOOL"}, "execute_tool"),
        ({SPAN_KIND: "CHAIN"}, None),
        ({"traceloop.span.kind": "agent"}, "invoke_agent"),
        ({"gen_ai.request.id": "chatcmpl-1", "gen_ai.request.n": 1}, "chat"),
        ({"gen_ai.request.id": "mine-1", "gen_ai.request.n": 1}, None),
        ({"gen_ai.request.model": "m", "url.path": "/v1/embeddings"}, "embeddings"),
        (
            {
                "gen_ai.request.model": "m",
                "url.full": "http://h/v1beta/models/m:streamGenerateContent?alt=sse",
            },
            "generate_content",
        ),
        ({"url.path": "/v1/chat/completions"}, None),
        ({"gen_ai.operation.name": "chat", SPAN_KIND: "EMBEDDING"}, "chat"),
    ],
)
def test_operations(attributes, operation):
    assert dict(spans(enriching(), attributes)).get("gen_ai.operation.name") == operation


def test_tgi_writes_times_for_people():
    tgi = {"total_time": "1.5s", "queue_time": "450µs", "inference_time": "1.2s", "time_per_token": "12.5ms"}
    out = dict(spans(enriching(), tgi, start_time_unix_nano=10**18, end_time_unix_nano=10**18 + 2 * 10**9))
    assert out["gen_ai.server.request.duration"] == pytest.approx(1.5)
    assert out["gen_ai.server.queue.duration"] == pytest.approx(0.00045)
    assert out["gen_ai.server.inference.duration"] == pytest.approx(1.2)
    assert out["gen_ai.server.time_per_output_token"] == pytest.approx(0.0125)


@pytest.mark.parametrize(("start", "end"), [(0, 0), (10**18, 10**18 - 1), (0, 10**18)])
def test_a_span_without_sane_times_is_no_measure(start, end):
    times = {"start_time_unix_nano": start, "end_time_unix_nano": end}
    out = dict(spans(enriching(), {"gen_ai.latency.e2e": 3.0}, **times))
    assert out["gen_ai.server.request.duration"] == 3.0
    assert "gen_ai.server.request.duration" not in dict(
        spans(enriching(), {"gen_ai.latency.e2e": 1e6}, **times)
    )


def test_removing_originals_takes_only_what_was_converted():
    given = {
        "gen_ai.system": "openai",
        "gen_ai.usage.prompt_tokens": 5,
        "gen_ai.usage.completion_tokens": "many",
        "llm.usage.prompt_tokens": 6,
        "llm.usage.total_tokens": 11,
        "llm.finish_reason": "stop",
        "llm.invocation_parameters": '{"temperature":0.5}',
        "openinference.span.kind": "LLM",
    }
    out = dict(spans(enriching(vocabulary={"originals": "remove"}), given))
    left = given.keys() & out.keys()
    assert left == {
        "gen_ai.usage.completion_tokens",  # not believed
        "llm.usage.prompt_tokens",  # says something else
        "llm.usage.total_tokens",  # has no current name
        "llm.invocation_parameters",  # says more
        "openinference.span.kind",
    }
    assert (out["gen_ai.usage.input_tokens"], out["gen_ai.provider.name"]) == (5, "openai")


@pytest.mark.parametrize(
    ("attributes", "target", "conflicts"),
    [
        ({"gen_ai.request.model": "A", "llm.request.model": "b"}, "gen_ai.request.model", 1),
        ({"gen_ai.request.model": "a", "llm.request.model": "A"}, "gen_ai.request.model", 0),
        ({"gen_ai.request.model": "a", "llm.model_name": "a-2024"}, "gen_ai.request.model", 0),
        ({"gen_ai.provider.name": "openai", "gen_ai.system": "OpenAI"}, "gen_ai.provider.name", 0),
        ({"gen_ai.provider.name": "openai", "gen_ai.system": "azure"}, "gen_ai.provider.name", 1),
        ({"gen_ai.operation.name": "chat", "llm.request.type": "completion"}, "gen_ai.operation.name", 1),
        (
            {"gen_ai.request.temperature": 0.3, "llm.temperature": 0.30000000001},
            "gen_ai.request.temperature",
            0,
        ),
        ({"llm.usage.prompt_tokens": 1, "llm.token_count.prompt": 2}, "gen_ai.usage.input_tokens", 1),
    ],
)
def test_conflicts(attributes, target, conflicts):
    bridge = enriching()
    spans(bridge, attributes)
    assert bridge.count(catalog.ENRICH_CONFLICTS, target=target) == conflicts


def test_further_keys_can_be_registered():
    bridge = enriching(
        vocabulary={
            "extra": [
                {
                    "key": "llm.prompt.template",
                    "from": ["llm.prompt_template.template", "traceloop.prompt.template"],
                },
                {"key": "gen_ai.request.temperature", "type": "double", "from": ["my.temperature"]},
                {"key": "my.wait", "type": "double", "from": ["my.wait_ms"], "unit": "ms"},
            ]
        }
    )
    out = dict(
        spans(bridge, {"traceloop.prompt.template": "Hi {name}", "my.temperature": 1, "my.wait_ms": 250})
    )
    assert out["llm.prompt.template"] == "Hi {name}"
    assert out["gen_ai.request.temperature"] == 1.0
    assert out["my.wait"] == 0.25


def test_the_vocabulary_can_be_left_as_it_is():
    bridge = enriching(vocabulary={"enabled": False})
    given = {"gen_ai.usage.prompt_tokens": 5, "gen_ai.request.model": "m"}
    assert dict(spans(bridge, given)) == {**given, "llm.model.id": "m"}


def test_content_that_is_measured_is_known_as_content():
    """Whatever enrichment reads prompts from, redaction must know."""
    bridge = enriching()
    known = {(one.key, one.prefix) for one in CONTENT}
    for want in bridge.plan.build().wants:
        if want.prefix or want.key in {"input.value", "output.value", "gen_ai.input.messages", "ai.prompt"}:
            assert (want.key, want.prefix) in known


KEYS = sorted(
    {old.key for fact in (*FACTS, OPERATION) for old in fact.old}
    | {fact.key for fact in FACTS}
    | {
        "http.request.header.x-model-id",
        "http.request.body",
        "url.query",
        "url.full",
        "gen_ai.input.messages",
    }
    | {
        "llm.input_messages.1.message.content",
        "gen_ai.prompt.0.content",
        "llm.finish_reason",
        "gen_ai.request.id",
    }
    | {
        "gen_ai.completion.0.finish_reason",
        "gen_ai.completion.x.finish_reason",
        "gen_ai.prompt.",
        "llm.prompts.9",
    }
)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=8)
    | st.sampled_from(
        ["LLM", "openai", "chat", '{"model":"m"}', "[", '{"a":', "1.2ms", "57", "rtp_llm", "?batch_size=2"]
    )
)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "attributes": st.dictionaries(st.sampled_from(KEYS), anything, max_size=8),
                "kind": st.integers(0, 5),
                "parent_span_id": st.sampled_from([b"", bytes(7) + b"\1"]),
                "end_time_unix_nano": st.integers(0, 2**64 - 1),
            }
        ),
        max_size=4,
    ),
    st.sampled_from(["keep", "remove"]),
)
@settings(deadline=None)
def test_whatever_a_span_contains_it_comes_out(given_spans, originals):
    """Nothing raises, both codecs agree, and without removal nothing that was there is lost."""
    data = trace_request(given_spans)
    outs = []
    for name in ("native", "reference"):
        bridge = enriching(
            codec=choose_codec(name)[0],
            explain=True,
            vocabulary={"originals": originals},
            models={"test": "m"},
        )
        outs.append(spans_of(bridge.request(data)))
    assert [one.SerializeToString() for one in outs[0]] == [one.SerializeToString() for one in outs[1]]
    assert len(outs[0]) == len(given_spans)
    current = {fact.key for fact in (*FACTS, OPERATION)}
    for before, after in zip(spans_of(data), outs[0], strict=True):
        kept = {one.key for one in after.attributes}
        keys = {one.key for one in before.attributes}
        if originals == "keep":
            assert keys <= kept
        repeated = [one.key for one in after.attributes if one.key in current]
        assert len(repeated) == len(set(repeated))
