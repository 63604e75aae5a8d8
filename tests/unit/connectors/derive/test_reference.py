"""Property: the totals are those of a plain loop over the spans, whatever they are."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_bridge import catalog
from otel_bridge.model import SpanKind, StatusCode
from otel_bridge.testing import attributes_of, trace_request
from tests.support.deriving import NOW, deriving

TIMES = st.sampled_from([0, 1, NOW - 5_000_000_000, NOW - 2_000_000, NOW - 1_999_999, NOW, NOW + 10**18])
ATTRIBUTES = st.fixed_dictionaries(
    {},
    optional={
        "http.request.method": st.sampled_from(["GET", "POST"]),
        "http.response.status_code": st.sampled_from([200, 500]),
        "gen_ai.operation.name": st.sampled_from(["chat", "invoke_agent"]),
        "gen_ai.request.model": st.sampled_from(["tiny", "日本"]),
        "gen_ai.usage.output_tokens": st.sampled_from([0, 1, 16, 17, -1, 10**12]),
        "kernel.tcp.retransmits": st.integers(0, 3),
        "error.type": st.just("timeout"),
    },
)
SPANS = st.lists(
    st.fixed_dictionaries(
        {
            "name": st.sampled_from(["a", "b"]),
            "kind": st.integers(0, 5),
            "status": st.sampled_from([{}, {"code": 1}, {"code": 2}]),
            "start_time_unix_nano": TIMES,
            "end_time_unix_nano": TIMES,
            "attributes": ATTRIBUTES,
        }
    ),
    min_size=1,
    max_size=12,
)
REQUESTS = st.lists(st.tuples(st.sampled_from(["app", "vllm"]), SPANS), min_size=1, max_size=4)


def requests_of(drawn):
    """Encoded requests; every span a trace of its own, so that no two tell of one call."""
    number = 0
    for service, spans in drawn:
        given = []
        for span in spans:
            number += 1
            given.append(
                {**span, "trace_id": number.to_bytes(16, "big"), "span_id": number.to_bytes(8, "big")}
            )
        yield trace_request(given, resource={"service.name": service})


class Loop:
    """What a plain loop makes of spans: by metric and labels all values, each with its trace."""

    def __init__(self):
        self.values = defaultdict(list)

    def add(self, data):
        for resource in ExportTraceServiceRequest.FromString(data).resource_spans:
            service = attributes_of(resource.resource.attributes)["service.name"]
            for span in resource.scope_spans[0].spans:
                self.span(service, span)

    def span(self, service, span):
        given = attributes_of(span.attributes)
        start, end = span.start_time_unix_nano, span.end_time_unix_nano
        seconds = (end - start) / 1e9 if start and end >= start else 0.0
        model, method = given.get("gen_ai.request.model", ""), given.get("http.request.method", "")
        failed = span.status.code == StatusCode.ERROR
        error = given.get("error.type", "_OTHER") if failed else ""

        def note(metric, value, *labels):
            self.values[metric, (service, *labels)].append((value, span.trace_id))

        kind = f"SPAN_KIND_{SpanKind(span.kind).name}"
        status = f"STATUS_CODE_{StatusCode(span.status.code).name}"
        note(catalog.DERIVED_SPAN_DURATION, seconds, span.name, kind, status, model)
        code = str(given.get("http.response.status_code", ""))
        if method and span.kind == SpanKind.SERVER:
            note(catalog.DERIVED_HTTP_SERVER_DURATION, seconds, method, "", code, error, model)
        if method and span.kind == SpanKind.CLIENT:
            note(catalog.DERIVED_HTTP_CLIENT_DURATION, seconds, method, "", code, error, model)
        if given.get("kernel.tcp.retransmits"):
            note(catalog.DERIVED_CAUSE_EVENTS, given["kernel.tcp.retransmits"], model, "tcp_retransmit")
        operation, tokens = given.get("gen_ai.operation.name", ""), given.get("gen_ai.usage.output_tokens")
        if operation == "chat" or (not operation and tokens is not None):
            served = span.kind in (SpanKind.SERVER, SpanKind.CONSUMER)
            duration = catalog.DERIVED_SERVER_DURATION if served else catalog.DERIVED_CLIENT_DURATION
            note(duration, seconds, operation, "", model, "", error)
            if tokens is not None and 0 <= tokens <= 10**9:
                usage = catalog.DERIVED_SERVER_TOKENS if served else catalog.DERIVED_CLIENT_TOKENS
                note(usage, tokens, operation, "", model, "", "output")


@settings(max_examples=60, deadline=None)
@given(REQUESTS)
def test_totals_equal_a_plain_loop(drawn):
    """Counts, sums, every bucket; and each exemplar is the worst of its bucket."""
    bridge, loop = deriving(), Loop()
    for data in requests_of(drawn):
        bridge.request(data)
        loop.add(data)
    found = {
        (metric, point.labels): point
        for metric in catalog.DERIVED
        for point in bridge.points(metric)
        if metric not in (catalog.DERIVED_BATCH_SIZE, catalog.DERIVED_PROMPT_BYTES)
    }
    assert found.keys() == loop.values.keys()
    for (metric, labels), values in loop.values.items():
        point = found[metric, labels]
        buckets = defaultdict(list)
        for value, trace in values:
            buckets[bisect_left(metric.buckets, value)].append((value, trace))
        assert point.counts == [len(buckets[at]) for at in range(len(metric.buckets) + 1)]
        assert abs(point.sum - sum(value for value, _ in values)) <= 1e-9 * max(1.0, point.sum)
        for at, exemplar in enumerate(point.exemplars):
            worst = max(buckets[at], default=None)
            assert (exemplar is None) == (worst is None)
            if exemplar is not None and worst is not None:
                assert exemplar.value == worst[0]
                assert (exemplar.value, exemplar.trace_id) in buckets[at]
                assert exemplar.span_id == exemplar.trace_id[8:]


@settings(max_examples=60, deadline=None)
@given(REQUESTS, st.integers(1, 3))
def test_no_limit_loses_an_observation(drawn, limit):
    """With few series allowed the sums over all series are the same."""
    bridge, loop = deriving(max_series=limit), Loop()
    for data in requests_of(drawn):
        bridge.request(data)
        loop.add(data)
    totals = defaultdict(int)
    for (metric, _), values in loop.values.items():
        totals[metric] += len(values)
    for metric, total in totals.items():
        points = bridge.points(metric)
        assert sum(point.count for point in points) == total
        assert len([point for point in points if point.labels is not None]) <= limit
