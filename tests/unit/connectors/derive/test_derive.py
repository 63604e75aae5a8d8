"""What spans become: which metrics, with which labels and values, and what is not believed."""

from __future__ import annotations

import math
from uuid import uuid4

import numpy as np
import pytest

from otel_bridge import catalog
from otel_bridge.connectors.derive.causes import EVENTS, TIMES
from otel_bridge.receivers.otlp.codec import NativeCodec, choose_codec
from otel_bridge.testing import trace_request
from tests.support.deriving import NOW, deriving

START = 1_700_000_000_000_000_000
MS = 1_000_000


def lasting(milliseconds, **fields):
    """A span of so many milliseconds."""
    return {
        "start_time_unix_nano": START,
        "end_time_unix_nano": START + round(milliseconds * MS),
        **fields,
    }


def test_every_span_has_its_rate_errors_and_duration():
    """By service, operation, kind, status and model."""
    bridge = deriving()
    bridge.spans(
        lasting(3, name="GET /", status={"code": 2}),
        lasting(70, name="GET /"),
        lasting(90, name="GET /"),
        lasting(1, name="work", kind=1, attributes={"gen_ai.request.model": "tiny"}),
        resource={"service.name": "shop"},
    )
    good = bridge.point(
        catalog.DERIVED_SPAN_DURATION, span_name="GET /", status_code="STATUS_CODE_UNSET", service_name="shop"
    )
    bad = bridge.point(catalog.DERIVED_SPAN_DURATION, span_name="GET /", status_code="STATUS_CODE_ERROR")
    inner = bridge.point(catalog.DERIVED_SPAN_DURATION, span_kind="SPAN_KIND_INTERNAL")
    assert (good.count, bad.count, inner.count) == (2, 1, 1)
    assert good.sum == pytest.approx(0.16)
    assert good.counts[catalog.DERIVED_SPAN_DURATION.buckets.index(0.1)] == 2
    assert inner.labels == ("shop", "work", "SPAN_KIND_INTERNAL", "STATUS_CODE_UNSET", "tiny")


def test_a_value_on_a_bound_is_in_the_bucket_below():
    """As Prometheus's `le` and OTLP say."""
    bridge = deriving()
    bridge.spans(lasting(2), lasting(2.001))
    assert bridge.points(catalog.DERIVED_SPAN_DURATION)[0].counts[:3] == [1, 1, 0]


def test_http_and_rpc_spans_by_either_generation_of_names():
    """Server and client apart; status as text; what failed."""
    bridge, post, failed = deriving(), {"http.route": "/a"}, {"code": 2}
    bridge.spans(
        lasting(5, attributes={**post, "http.request.method": "POST", "http.response.status_code": 200}),
        lasting(5, attributes={**post, "http.method": "POST", "http.status_code": "200"}),
        lasting(5, kind=3, status=failed, attributes={"http.request.method": "GET", "error.type": "timeout"}),
        lasting(5, kind=3, status=failed, attributes={"http.request.method": "GET"}),
        lasting(5, attributes={"rpc.system": "grpc", "rpc.method": "Infer", "rpc.grpc.status_code": 4}),
        lasting(5, kind=1, attributes={"http.request.method": "GET"}),
    )
    server = bridge.point(catalog.DERIVED_HTTP_SERVER_DURATION)
    assert server.labels == ("test", "POST", "/a", "200", "", "")
    assert server.count == 2
    assert bridge.point(catalog.DERIVED_HTTP_CLIENT_DURATION, error_type="timeout").count == 1
    assert bridge.point(catalog.DERIVED_HTTP_CLIENT_DURATION, error_type="_OTHER").count == 1
    assert bridge.point(catalog.DERIVED_RPC_SERVER_DURATION).labels == ("test", "grpc", "Infer", "4", "")


CALL = {
    "gen_ai.operation.name": "chat",
    "gen_ai.provider.name": "openai",
    "gen_ai.request.model": "tiny",
    "gen_ai.response.model": "tiny-2",
    "gen_ai.usage.input_tokens": 83,
    "gen_ai.usage.output_tokens": 11,
    "gen_ai.response.time_to_first_chunk": 0.02,
}


def test_a_call_at_its_client():
    """Duration, tokens in and out, the first chunk."""
    bridge = deriving()
    bridge.spans(lasting(300, kind=3, attributes=CALL))
    duration = bridge.point(catalog.DERIVED_CLIENT_DURATION)
    assert duration.labels == ("test", "chat", "openai", "tiny", "tiny-2", "")
    assert (duration.count, duration.sum) == (1, pytest.approx(0.3))
    assert bridge.point(catalog.DERIVED_CLIENT_TOKENS, gen_ai_token_type="input").sum == 83
    assert bridge.point(catalog.DERIVED_CLIENT_TOKENS, gen_ai_token_type="output").sum == 11
    assert bridge.point(catalog.DERIVED_CLIENT_FIRST_CHUNK).sum == pytest.approx(0.02)
    assert not bridge.points(catalog.DERIVED_SERVER_DURATION)


def test_a_call_at_its_engine():
    """As vLLM writes it, with its own time of the whole request."""
    bridge = deriving()
    engine = {
        "gen_ai.request.id": "chatcmpl-1",
        "gen_ai.request.model": "tiny",
        "gen_ai.usage.prompt_tokens": 83,
        "gen_ai.usage.completion_tokens": 11,
        "gen_ai.latency.time_to_first_token": 0.02,
        "gen_ai.latency.time_in_queue": 0.004,
        "gen_ai.latency.time_in_model_decode": 0.1,
        "gen_ai.latency.e2e": 0.13,
    }
    bridge.spans(lasting(200, attributes=engine))
    assert bridge.point(catalog.DERIVED_SERVER_DURATION, gen_ai_operation_name="chat").sum == pytest.approx(
        0.13
    )
    assert bridge.point(catalog.DERIVED_SERVER_FIRST_TOKEN).sum == pytest.approx(0.02)
    assert bridge.point(catalog.DERIVED_SERVER_QUEUE).sum == pytest.approx(0.004)
    assert bridge.point(catalog.DERIVED_SERVER_TOKEN_TIME).sum == pytest.approx(0.01)
    assert bridge.point(catalog.DERIVED_SERVER_TOKENS, gen_ai_token_type="output").sum == 11
    assert not bridge.points(catalog.DERIVED_CLIENT_DURATION)


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"gen_ai.server.time_per_output_token": 0.03}, 0.03),
        ({"gen_ai.server.decode.duration": 0.1}, 0.01),
        ({}, (0.3 - 0.02) / 10),
        ({"gen_ai.usage.output_tokens": 1}, None),
        ({"gen_ai.usage.output_tokens": 0}, None),
    ],
)
def test_time_per_output_token(attributes, expected):
    """As told, from decoding, from what followed the first token; of one token there is none."""
    bridge = deriving()
    bridge.spans(lasting(300, attributes={**CALL, **attributes}))
    points = bridge.points(catalog.DERIVED_SERVER_TOKEN_TIME)
    assert (points[0].sum if points else None) == (pytest.approx(expected) if expected else None)


def test_one_call_told_by_five_spans_counts_once_on_each_side():
    """Client library, its HTTP span, a framework around, and the engine with a wrapper of its own."""
    bridge = deriving()
    ids = {name: name.encode().ljust(8, b"\0") for name in ("frame", "chat", "http", "serve", "engine")}
    bridge.spans(
        lasting(300, kind=1, span_id=ids["frame"], attributes=CALL),
        lasting(290, kind=3, span_id=ids["chat"], parent_span_id=ids["frame"], attributes=CALL),
        lasting(
            280, kind=3, span_id=ids["http"], parent_span_id=ids["chat"], attributes={"http.method": "POST"}
        ),
        resource={"service.name": "app"},
    )
    bridge.spans(
        lasting(270, span_id=ids["serve"], parent_span_id=ids["http"], attributes=CALL),
        lasting(260, span_id=ids["engine"], parent_span_id=ids["serve"], attributes=CALL),
        resource={"service.name": "vllm"},
    )
    client, server = catalog.DERIVED_CLIENT_DURATION, catalog.DERIVED_SERVER_DURATION
    assert [(p.count, p.sum) for p in bridge.points(client)] == [(1, pytest.approx(0.29))]
    assert [(p.count, p.sum) for p in bridge.points(server)] == [(1, pytest.approx(0.26))]
    for metric in (catalog.DERIVED_CLIENT_TOKENS, catalog.DERIVED_SERVER_TOKENS):
        assert [point.sum for point in bridge.points(metric)] == [83, 11]
    assert bridge.count(catalog.DERIVE_REPEATED) == 2


def test_agents_and_tools_are_no_calls():
    """They are made of calls, and may carry the sum of their tokens."""
    bridge = deriving()
    bridge.spans(
        *(
            lasting(1, kind=1, attributes={**CALL, "gen_ai.operation.name": name})
            for name in ("invoke_agent", "execute_tool")
        )
    )
    assert not bridge.points(catalog.DERIVED_CLIENT_DURATION)
    assert not bridge.points(catalog.DERIVED_CLIENT_TOKENS)


def test_tokens_without_an_operation_are_a_call():
    """An engine that names none; times that only an engine knows make it the server's side."""
    bridge = deriving()
    bridge.spans(
        lasting(
            9, kind=1, attributes={"gen_ai.usage.output_tokens": 7, "gen_ai.server.queue.duration": 0.001}
        )
    )
    assert bridge.point(catalog.DERIVED_SERVER_TOKENS).sum == 7


def test_batch_size_and_prompt_bytes():
    """Of requests that came in; a client's prompt apart by its kind."""
    bridge = deriving()
    body = '{"model": "tiny", "messages": [{"role": "user", "content": "Grüße"}]}'
    served = {"url.path": "/v1/chat/completions", "url.query": "batch_size=8", "http.request.body": body}
    bridge.spans(lasting(1, attributes=served), lasting(1, kind=3, attributes={**CALL, "llm.prompt.len": 7}))
    assert bridge.point(catalog.DERIVED_BATCH_SIZE).sum == 8
    assert bridge.point(catalog.DERIVED_PROMPT_BYTES, span_kind="SPAN_KIND_SERVER").sum == 7
    assert bridge.point(catalog.DERIVED_PROMPT_BYTES, span_kind="SPAN_KIND_CLIENT").sum == 7


def test_causes_are_what_the_join_wrote():
    """Times in seconds and counts, by service and model; a span that was not hit is not in them."""
    bridge = deriving()
    batch = bridge.scan(trace_request([lasting(9, attributes={"gen_ai.request.model": "tiny"}), lasting(9)]))
    first = np.array([0], "<u4")
    for cause in (*TIMES, *EVENTS):
        batch.set_ints(cause.attribute.key, first, np.array([5 * MS]))
    bridge.derive.process(batch)
    for cause in TIMES:
        point = bridge.point(catalog.DERIVED_CAUSE_TIME, cause=cause.name)
        assert (point.labels[:2], point.count, point.sum) == (("test", "tiny"), 1, pytest.approx(0.005))
    for cause in EVENTS:
        assert bridge.point(catalog.DERIVED_CAUSE_EVENTS, cause=cause.name).sum == 5 * MS


def test_what_the_gpu_did_is_a_cause_too():
    """By the attributes that the join writes of CUDA's calls."""
    bridge = deriving()
    attributes = {
        "gen_ai.request.model": "tiny",
        "kernel.cuda.alloc.time": 2_000_000_000,
        "kernel.cuda.copy.time": 3_000_000,
        "kernel.cuda.out_of_memory": 1,
        "kernel.cuda.failures": 2,
        "kernel.cuda.launch_gaps": 4,
    }
    bridge.spans(lasting(9, attributes=attributes), lasting(9))
    times, events = (
        {point.labels: point.sum for point in bridge.points(metric)}
        for metric in (catalog.DERIVED_CAUSE_TIME, catalog.DERIVED_CAUSE_EVENTS)
    )
    assert times == {
        ("test", "tiny", "cuda_alloc"): pytest.approx(2),
        ("test", "tiny", "cuda_copy"): pytest.approx(0.003),
    }
    assert events == {
        ("test", "tiny", "cuda_out_of_memory"): 1,
        ("test", "tiny", "cuda_failure"): 2,
        ("test", "tiny", "cuda_launch_gap"): 4,
    }


def test_metrics_that_are_not_wanted_are_not_made():
    """By name or pattern; the others are as they would be."""
    bridge = deriving(exclude=["http.*", "traces.span.cause.events"])
    attributes = {"http.request.method": "GET", "kernel.tcp.retransmits": 2, "kernel.block.time": 5}
    bridge.spans(lasting(3, kind=2, attributes=attributes))
    assert {metric.name for metric, _ in bridge.derive.metrics.points(None, 0.0)} == {
        "traces.span.metrics.duration",
        "traces.span.cause.duration",
    }


def test_a_metric_can_be_left_out_and_made_again_by_a_reload():
    """Those that stay go on with what they have."""
    wide, narrow = deriving(), deriving(exclude=["http.*"])
    served = lasting(3, kind=2, attributes={"http.request.method": "GET"})
    wide.spans(served)
    narrow.derive.adopt(wide.derive)
    narrow.spans(served)
    assert not narrow.points(catalog.DERIVED_HTTP_SERVER_DURATION)
    assert narrow.point(catalog.DERIVED_SPAN_DURATION).count == 2
    again = deriving()
    again.derive.adopt(narrow.derive)
    again.spans(served)
    assert again.point(catalog.DERIVED_HTTP_SERVER_DURATION).count == 1
    assert again.point(catalog.DERIVED_SPAN_DURATION).count == 3


def test_a_metric_that_does_not_exist_cannot_be_left_out():
    """The nearest name is told."""
    with pytest.raises(ValueError, match=r"is no derived metric; expected 'llm\.prompt\.len'"):
        deriving(exclude=["llm.promt.len"])


def test_dimensions_come_from_the_span_or_its_resource():
    """Of any type; a dimension that a metric has already is not there twice."""
    bridge = deriving(dimensions=["tenant.id", "retry", "http.route"])
    bridge.spans(
        lasting(1, attributes={"tenant.id": "acme", "retry": True, "http.request.method": "GET"}),
        lasting(1, attributes={"tenant.id": 7, "http.route": "/x"}),
        lasting(1, attributes={"retry": False, "tenant.id": 0.5}),
        resource={"tenant.id": "shared"},
    )
    bridge.spans(lasting(1), resource={"tenant.id": "shared", "retry": True})
    labels = bridge.derive.metrics.labels
    assert labels[catalog.DERIVED_SPAN_DURATION][-3:] == ("tenant.id", "retry", "http.route")
    assert labels[catalog.DERIVED_HTTP_SERVER_DURATION].count("http.route") == 1
    assert labels[catalog.DERIVED_CAUSE_TIME][-1] == "cause"
    assert {point.labels[-3:] for point in bridge.points(catalog.DERIVED_SPAN_DURATION)} == {
        ("acme", "true", ""),
        ("7", "", "/x"),
        ("0.5", "false", ""),
        ("shared", "true", ""),
    }


def test_rejected_spans_do_not_count_and_dropped_ones_do():
    """The sender is told of the first; the second are what sampling leaves out."""
    bridge = deriving()
    batch = bridge.scan(trace_request([lasting(1), lasting(1, span_id=bytes(8)), lasting(1)]))
    batch.drop(np.array([0], "<u4"))
    bridge.derive.process(batch)
    assert bridge.point(catalog.DERIVED_SPAN_DURATION).count == 2


def test_what_redaction_takes_away_is_no_label():
    """Cut or replaced after enrichment read it."""
    bridge = deriving(dimensions=["user.id"])
    values = ("a@example.com", True, 7)
    batch = bridge.scan(trace_request([lasting(1, attributes={"user.id": value}) for value in values]))
    batch.cut_column(bridge.plan.want("user.id"))
    bridge.derive.process(batch)
    assert bridge.point(catalog.DERIVED_SPAN_DURATION).labels[-1] == ""


# Bad input


def test_times_that_are_missing_or_reversed_count_as_nothing():
    """The span is still a span."""
    bridge = deriving()
    bridge.spans(
        {"start_time_unix_nano": START, "end_time_unix_nano": START - 5},
        {"start_time_unix_nano": 0},
        {"end_time_unix_nano": 0},
        {"start_time_unix_nano": 2**64 - 1, "end_time_unix_nano": 1},
        {"start_time_unix_nano": 0, "end_time_unix_nano": 0},
    )
    point = bridge.point(catalog.DERIVED_SPAN_DURATION)
    assert (point.count, point.sum) == (5, 0.0)
    name = catalog.DERIVED_SPAN_DURATION.name
    assert bridge.count(catalog.DERIVE_BAD_VALUES, metric=name, reason="reversed_time") == 2
    assert bridge.count(catalog.DERIVE_BAD_VALUES, metric=name, reason="missing_time") == 3


def test_a_span_from_the_future_has_an_exemplar_of_now():
    """Prometheus refuses exemplars that are ahead of time."""
    bridge = deriving()
    bridge.spans({"start_time_unix_nano": START, "end_time_unix_nano": 2**64 - 1})
    (exemplar,) = [one for one in bridge.point(catalog.DERIVED_SPAN_DURATION).exemplars if one]
    assert exemplar.time == NOW


@pytest.mark.parametrize("value", [-1, 2**63 - 1, -(2**63), math.nan, math.inf, -math.inf, "many", True])
def test_tokens_that_cannot_be(value):
    """Not observed, and nothing breaks."""
    bridge = deriving()
    bridge.spans(lasting(5, attributes={**CALL, "gen_ai.usage.input_tokens": value}))
    found = [p.sum for p in bridge.points(catalog.DERIVED_SERVER_TOKENS)]
    assert found == ([1, 11] if value is True else [11])


@pytest.mark.parametrize("value", [-0.5, 1e9, math.nan, math.inf])
def test_times_that_cannot_be(value):
    """Also of attributes that are current already and left as they came."""
    bridge = deriving()
    bridge.spans(lasting(5, attributes={**CALL, "gen_ai.response.time_to_first_chunk": value}))
    assert not bridge.points(catalog.DERIVED_SERVER_FIRST_TOKEN)
    bad = bridge.count(
        catalog.DERIVE_BAD_VALUES,
        metric=catalog.DERIVED_SERVER_FIRST_TOKEN.name,
        reason="negative" if value < 0 else "too_large",
    )
    assert bad == (0 if math.isnan(value) else 1)


def test_labels_are_cut_to_whole_characters():
    """A name of a megabyte, one that ends within a character, and one that is empty."""
    bridge = deriving(max_label_bytes=5)
    bridge.spans(lasting(1, name="x" * 1_000_000), lasting(1, name="üüüü"), lasting(1, name=""))
    names = {point.labels[1] for point in bridge.points(catalog.DERIVED_SPAN_DURATION)}
    assert names == {"xxxxx", "üü", ""}


def test_nothing_and_no_resource():
    """An empty request, and spans without a service."""
    bridge = deriving()
    bridge.request(b"")
    bridge.spans(lasting(1), resource={"host.name": "h"})
    assert bridge.point(catalog.DERIVED_SPAN_DURATION).labels[0] == ""


def test_a_flood_of_label_values():
    """Case rule-labels (b): sums exact, honest series go on, memory bounded, the overflow counted."""
    bridge = deriving(max_series=50)
    header = "http.request.header.x-model-id"
    honest = [
        lasting(1, name="POST", attributes={header: [f"honest {n}"], "llm.prompt.len": 7}) for n in range(10)
    ]
    bridge.spans(*honest)
    for block in range(20):
        bridge.spans(
            *(
                lasting(
                    1,
                    name=f"GET /api/recommendations?productIds=&sessionId={uuid4()}&currencyCode=CHF",
                    attributes={header: [f"model {(block * 5000 + n) % 50_000}"], "llm.prompt.len": 7},
                )
                for n in range(5000)
            )
        )
    bridge.spans(*honest)
    for metric in (catalog.DERIVED_SPAN_DURATION, catalog.DERIVED_PROMPT_BYTES, catalog.DERIVED_BATCH_SIZE):
        points = bridge.points(metric)
        assert len(points) == 51
        assert sum(point.count for point in points) == 100_020
        assert all(bridge.point(metric, gen_ai_request_model=f"honest {n}").count == 2 for n in range(10))
        overflow = bridge.overflow(metric).count
        assert 100_000 - 40 * 2 <= overflow <= 100_000 - 40
        assert bridge.count(catalog.DERIVE_OVERFLOW, metric=metric.name) == overflow
    for series in bridge.derive.metrics.series.values():
        assert len(series) <= 51
        assert series.rows <= 51
        assert (
            sum(
                one is not None
                for point in bridge.points(catalog.DERIVED_SPAN_DURATION)
                for one in point.exemplars
            )
            <= 51
        )
    assert 'otel_metric_overflow="true"' in bridge.scrape()


# facts/semconv.md, written out.
BUCKETS = {
    "gen_ai.client.token.usage": (
        *(1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864),
    ),
    "gen_ai.client.operation.duration": (
        *(0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92),
    ),
    "gen_ai.server.request.duration": (
        *(0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92),
    ),
    "gen_ai.server.time_to_first_token": (
        *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10),
    ),
    "gen_ai.server.time_per_output_token": (
        *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5),
    ),
}


@pytest.mark.parametrize("name", BUCKETS)
def test_buckets_are_those_of_the_conventions(name):
    """Dashboards of others count on them."""
    (metric,) = [one for one in catalog.DERIVED if one.name == name]
    assert metric.buckets == BUCKETS[name]


def test_the_reference_codec_derives_the_same():
    """Nothing depends on who read the bytes."""
    native, other = deriving(), deriving()
    data = trace_request([lasting(5, attributes=CALL), lasting(7, kind=3, attributes=CALL)])
    native.derive.process(NativeCodec().scan(data, native.plan.build()))
    other.derive.process(choose_codec("reference")[0].scan(data, other.plan.build()))
    for metric in catalog.DERIVED:
        assert native.points(metric) == other.points(metric)
