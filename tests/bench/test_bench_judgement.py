"""What a benchmark's verdict rests on: it sees wrong spans, and figures of one do not push out another's."""

from __future__ import annotations

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_bridge.testing import attributes_of, key_values
from tests.bench import figures, workloads


def enriched(**changes) -> bytes:
    """A request of ten spans with the right attributes on each, and on the last what is given instead."""
    request = ExportTraceServiceRequest.FromString(workloads.genai().requests[0])
    spans = request.resource_spans[0].scope_spans[0].spans
    for span in spans:
        attributes = attributes_of(span.attributes)
        query = attributes["url.query"]
        right = {
            "llm.model.id": attributes["http.request.header.x-model-id"],
            "llm.prompt.len": 100_000,
            "llm.inference.batch_size": int(query.split("=")[1].split("&")[0]) if "batch" in query else 1,
        }
        given = {key.replace("_", "."): value for key, value in changes.items()} if span is spans[-1] else {}
        if "batch" in given:
            given["llm.inference.batch_size"] = given.pop("batch")
        span.attributes.extend(key_values(right | given))
    return request.SerializeToString()


def test_right_spans_are_found_right():
    """Otherwise every run would fail."""
    assert workloads.wrong(enriched()) == []


@pytest.mark.parametrize(
    "changes",
    [{"llm_model_id": "other"}, {"llm_prompt_len": 99_999}, {"llm_prompt_len": "100000"}, {"batch": 2.0}],
)
def test_a_wrong_span_is_found(changes):
    """One value or one type, on one span of ten."""
    assert len(workloads.wrong(enriched(**changes))) == 1


def test_a_missing_and_a_repeated_attribute_are_found():
    """Untouched spans lack three; a second value for a key is one too many."""
    assert len(workloads.wrong(workloads.genai().requests[0])) == 20
    request = ExportTraceServiceRequest.FromString(enriched())
    span = request.resource_spans[0].scope_spans[0].spans[0]
    span.attributes.add(key="llm.prompt.len").value.int_value = 1
    assert len(workloads.wrong(request.SerializeToString())) == 1


def test_spans_are_counted_by_their_mark():
    """The mark is in each span once, and nowhere else."""
    for workload in (workloads.small(), workloads.genai()):
        assert all(data.count(workloads.MAGIC) == workload.spans for data in workload.requests)


def test_the_small_workload_is_as_it_says():
    """About 535 bytes a span, ten attributes."""
    workload = workloads.small()
    assert 515 < workload.span_bytes < 555
    request = ExportTraceServiceRequest.FromString(workload.requests[0])
    assert {len(span.attributes) for span in request.resource_spans[0].scope_spans[0].spans} == {10}


def test_figures_are_merged(tmp_path):
    """Others stay, the same name is replaced, three digits are kept."""
    path = tmp_path / "results.json"
    figures.merge({"a.ratio": 1.23456, "b": 1e6 / 3}, path)
    figures.merge({"a.ratio": 2.0}, path)
    assert figures.read(path) == {"a.ratio": 2.0, "b": 333_000.0}
