"""Where each target's value is looked for, in which order, and what is not believed."""

from __future__ import annotations

import json

import pytest

from otel_bridge import catalog
from otel_bridge.testing import attributes_of, spans_of, trace_request
from tests.support.enriching import enriching

MODEL = "llm.model.id"
SOURCE = "otel_bridge.enrich.llm.model.id.source"
BODY = json.dumps({"model": "from-body", "messages": [{"role": "user", "content": "Grüße"}]})


def ids(number):
    return number.to_bytes(8, "big")


ALL = {
    "http.request.header.x-model-id": ["from-header"],
    "rpc.grpc.request.metadata.x-model-id": ["from-metadata"],
    "gen_ai.request.model": "from-attribute",
    "http.request.body": BODY,
    "url.query": "model=from%2Fquery",
}


def test_sources_are_asked_in_order():
    bridge = enriching(explain=True)
    left = dict(ALL)
    found = []
    for key in ALL:
        span = bridge.span(left)
        found.append((span[SOURCE], span[MODEL]))
        del left[key]
    span = bridge.span({"gen_ai.usage.input_tokens": 1}, resource={"llm.model_name": "from-resource"})
    found.append((span[SOURCE], span[MODEL]))
    assert found == [
        ("request_header", "from-header"),
        ("grpc_metadata", "from-metadata"),
        ("span_attribute", "from-attribute"),
        ("body", "from-body"),
        ("query", "from/query"),
        ("resource", "from-resource"),
    ]
    for source, _ in found:
        assert bridge.count(catalog.ENRICH_RESOLVED, target=MODEL, source=source) == 1


@pytest.mark.parametrize(
    "attributes",
    [
        {"http.request.header.x-model-id": ["m", "other"]},
        {"http.request.header.x-model-id": "m"},
        {"http.request.header.x_model_id": ["m"]},
        {"rpc.grpc.request.metadata.x-model-id": ["m"]},
        {"rpc.request.metadata.x-model-id": ["m"]},
        {"request.body": '{"n":1,"model":"m"}'},
        {"http.request.body.content": '{"model":"m","messages":[{"content":"cut off'},
        {"http.request.body": '{"model":"\\u006d"}'},
        {"http.url": "http://h/v1?model=m"},
        {"http.target": "/v1?a=b&model=m&model=n"},
    ],
)
def test_spellings_of_sources(attributes):
    assert enriching().span(attributes)[MODEL] == "m"


def test_a_body_in_bytes_is_read_where_it_is_text():
    assert enriching().span({"http.request.body": BODY.encode()})[MODEL] == "from-body"
    broken = b'{"model":"\xff","messages":[{"content":"abc"}]}'
    span = enriching().span({"http.request.body": broken})
    assert MODEL not in span
    assert span["llm.prompt.len"] == 3


def test_a_model_with_odd_escapes():
    for raw, model in (
        ("\\u0000\\/a", "\0/a"),
        ("\0\\n", "\0\n"),
        ("\\ud83d", "\ufffd"),
        ("\\ud83d\\ude00", "😀"),
    ):
        assert enriching().span({"http.request.body": f'{{"model":"{raw}"}}'})[MODEL] == model


def test_explanation_is_off_by_default():
    assert SOURCE not in enriching().span(ALL)


def test_only_server_spans_are_asked_for_what_is_on_the_request():
    client = {"http.request.header.x-model-id": ["m"], "http.request.body": BODY, "url.query": "batch_size=2"}
    for kind in (0, 1, 3, 4, 5):
        assert enriching().span(client, kind=kind) == client


def test_kinds_are_configurable():
    bridge = enriching(targets={MODEL: {"kinds": ["consumer"]}})
    assert MODEL in bridge.span({"http.request.header.x-model-id": ["m"]}, kind=5)
    assert MODEL not in bridge.span({"http.request.header.x-model-id": ["m"]}, kind=2)


def test_a_value_already_there_stays_unless_told():
    given = {MODEL: "was", "http.request.header.x-model-id": ["header"]}
    assert enriching().span(given)[MODEL] == "was"
    bridge = enriching(targets={MODEL: {"overwrite": True}})
    (span,) = spans_of(bridge.request(trace_request([{"attributes": given}])))
    assert [one.value.string_value for one in span.attributes if one.key == MODEL] == ["header"]


def test_an_empty_header_is_absent():
    span = enriching().span({"http.request.header.x-model-id": [""], "http.request.body": BODY})
    assert span[MODEL] == "from-body"


def test_other_requests_get_nothing():
    bridge = enriching(models={"test": "m"})
    health = {"http.request.method": "GET", "url.path": "/health"}
    posted = {"url.path": "/orders", "http.request.body": '{"items":[1,2]}'}
    assert bridge.spans([{"attributes": health}, {"attributes": posted}]) == [health, posted]


# Batch size


@pytest.mark.parametrize(
    ("query", "size", "reason"),
    [
        ("batch_size=8", 8, None),
        ("batch_size=8&batch_size=9", 8, None),
        ("batch_size=%2B8", 8, None),
        ("batch_size=0", 1, "out_of_range"),
        ("batch_size=-4", 1, "negative"),
        ("batch_size=many", 1, "not_a_number"),
        ("batch_size=65537", 1, "out_of_range"),
        ("batch_size=99999999999999999999", 1, "out_of_range"),
        ("batch_size=", 1, None),
        ("other=3", 1, None),
    ],
)
def test_batch_size_comes_from_the_query_or_is_one(query, size, reason):
    bridge = enriching()
    span = bridge.span({"url.query": query, "gen_ai.request.model": "m"})
    assert span["llm.inference.batch_size"] == size
    assert type(span["llm.inference.batch_size"]) is int
    if reason:
        labels = {"target": "llm.inference.batch_size", "reason": reason}
        assert bridge.count(catalog.ENRICH_BAD_VALUES, **labels) == 1


@pytest.mark.parametrize("key", ["url.full", "http.target", "http.url"])
def test_batch_size_from_a_url(key):
    assert enriching().span({key: "http://h/p?batch_size=3#x"})["llm.inference.batch_size"] == 3


def test_bad_headers_fall_through_to_the_next_source():
    bridge = enriching()
    for value, reason in (("-1", "negative"), ("long", "not_a_number"), (str(1 << 31), "out_of_range")):
        span = bridge.span({"http.request.header.x-prompt-len": [value], "http.request.body": BODY})
        assert span["llm.prompt.len"] == 7
        labels = {"target": "llm.prompt.len", "reason": reason}
        assert bridge.count(catalog.ENRICH_BAD_VALUES, **labels) == 1


def test_an_absurd_model_name_is_not_believed():
    bridge = enriching()
    span = bridge.span({"http.request.header.x-model-id": ["x" * 257], "http.request.body": BODY})
    assert span[MODEL] == "from-body"
    assert bridge.count(catalog.ENRICH_BAD_VALUES, target=MODEL, reason="too_long") == 1


def test_a_number_is_no_model():
    bridge = enriching()
    assert MODEL not in bridge.span({"http.request.header.x-model-id": 7})
    assert bridge.count(catalog.ENRICH_BAD_VALUES, target=MODEL, reason="wrong_type") == 1


# Inheritance


def trace(*spans):
    """Spans given as (id, parent, kind, attributes)."""
    return trace_request(
        [
            {
                "span_id": ids(own),
                "parent_span_id": ids(parent) if parent else b"",
                "kind": kind,
                "attributes": given,
            }
            for own, parent, kind, given in spans
        ]
    )


def models(data):
    return {
        int.from_bytes(span.span_id): attributes_of(span.attributes).get(MODEL) for span in spans_of(data)
    }


ENGINE = {"gen_ai.usage.prompt_tokens": 3}


def test_the_parent_s_model_reaches_the_engine_through_other_spans():
    bridge = enriching(explain=True)
    # The engine stands before its ancestors, as exporters order them.
    data = bridge.request(
        trace(
            (3, 2, 2, ENGINE), (2, 1, 3, {"http.url": "http://h"}), (1, 0, 3, {"gen_ai.request.model": "m"})
        )
    )
    assert models(data) == {3: "m", 2: None, 1: "m"}
    assert attributes_of(spans_of(data)[0].attributes)[SOURCE] == "parent_span"


def test_the_parent_may_have_come_in_an_earlier_request():
    bridge = enriching()
    bridge.request(trace((1, 0, 3, {"gen_ai.request.model": "m"}), (2, 1, 3, {})))
    assert models(bridge.request(trace((3, 2, 2, ENGINE)))) == {3: "m"}


def test_generations_are_bounded():
    bridge = enriching(
        targets={MODEL: {"sources": [{"attribute": "m", "kinds": ["client"]}, {"parent_span": 2}]}}
    )
    bridge.request(trace((1, 0, 3, {"m": "m"}), (2, 1, 3, {}), (3, 2, 3, {})))
    assert models(bridge.request(trace((4, 2, 2, ENGINE), (5, 3, 2, ENGINE)))) == {4: "m", 5: None}


def test_another_trace_is_another_matter():
    bridge = enriching()
    bridge.request(trace((1, 0, 3, {"gen_ai.request.model": "m"})))
    other = {"trace_id": (2).to_bytes(16), "span_id": ids(2), "parent_span_id": ids(1), "attributes": ENGINE}
    assert models(bridge.request(trace_request([other]))) == {2: None}


@pytest.mark.parametrize(
    ("request_id", "response_id", "paired"),
    [
        ("chatcmpl-1", "chatcmpl-1", True),
        ("cmpl-1-0", "cmpl-1", True),
        ("cmpl-1-12", "cmpl-1", True),
        ("resp_1_0", "resp_1", True),
        ("cmpl-1-x", "cmpl-1", False),
        ("cmpl-2", "cmpl-1", False),
    ],
)
def test_the_other_side_is_found_by_the_response_s_id(request_id, response_id, paired):
    bridge = enriching(explain=True)
    client = {"gen_ai.response.model": "m", "gen_ai.response.id": response_id}
    bridge.request(trace_request([{"kind": 3, "trace_id": (9).to_bytes(16), "attributes": client}]))
    span = bridge.span({**ENGINE, "gen_ai.request.id": request_id})
    assert span.get(MODEL) == ("m" if paired else None)
    assert span.get(SOURCE) == ("paired_span" if paired else None)


def test_memory_of_spans_is_bounded():
    bridge = enriching(lineage={"capacity": 100})
    bridge.request(trace((1, 0, 3, {"gen_ai.request.model": "m"})))
    bridge.request(trace(*((number, 0, 3, {}) for number in range(1000, 2000))))
    assert models(bridge.request(trace((3, 1, 2, ENGINE)))) == {3: None}


def test_inheritance_is_not_for_other_spans():
    bridge = enriching()
    assert models(bridge.request(trace((1, 0, 3, {"gen_ai.request.model": "m"}), (2, 1, 2, {})))) == {
        1: "m",
        2: None,
    }


def test_a_resource_s_model_is_for_each_of_its_spans():
    bridge = enriching(models={"test": "static"})
    spans = bridge.spans([{"attributes": ENGINE}] * 3, resource={"service.name": "test", "llm.model.id": "r"})
    assert [span[MODEL] for span in spans] == ["r"] * 3
    assert [span[MODEL] for span in bridge.spans([{"attributes": ENGINE}])] == ["static"]


# Targets of one's own


def test_further_targets_of_every_type():
    bridge = enriching(
        targets={
            "tenant": {"sources": [{"header": "X-Tenant"}, {"resource": "tenant"}, {"default": "none"}]},
            "priority": {"type": "int", "sources": [{"body": "priority"}, {"default": 3}]},
            "weight": {
                "type": "double",
                "maximum": 1,
                "sources": [{"body": ["a.weight", "weight"]}, {"query": "weight"}],
            },
            "cached": {"type": "bool", "sources": [{"body": "cached"}, {"attribute": "cache.hit"}]},
        }
    )
    span = bridge.span(
        {
            "http.request.header.x-tenant": ["acme"],
            "http.request.body": '{"model":"m","priority":"7","weight":0.25,"cached":true}',
        }
    )
    assert (span["tenant"], span["priority"], span["weight"], span["cached"]) == ("acme", 7, 0.25, True)
    span = bridge.span({"gen_ai.request.model": "m", "url.query": "weight=2", "cache.hit": "False"})
    assert (span["tenant"], span["priority"], span["cached"]) == ("none", 3, False)
    assert "weight" not in span
    assert bridge.count(catalog.ENRICH_BAD_VALUES, target="weight", reason="out_of_range") == 1


def test_numbers_are_inherited_too():
    bridge = enriching(
        targets={"llm.prompt.len": {"sources": [{"messages": True, "kinds": ["client"]}, {"parent_span": 4}]}}
    )
    data = bridge.request(
        trace((1, 0, 3, {"input.value": "abc", "openinference.span.kind": "LLM"}), (2, 1, 2, ENGINE))
    )
    assert [attributes_of(span.attributes)["llm.prompt.len"] for span in spans_of(data)] == [3, 3]


def test_a_default_target_can_be_left_out():
    bridge = enriching(targets={"llm.inference.batch_size": None})
    assert "llm.inference.batch_size" not in bridge.span({"gen_ai.request.model": "m"})


def test_nothing_to_do_leaves_the_bytes_alone():
    data = trace_request([{"attributes": {"db.system.name": "postgresql"}}])
    assert enriching().request(data) is data
