"""Every LLM call of a recording comes out in one vocabulary, whichever client wrote it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from otel_bridge import catalog
from otel_bridge.model import Signal
from otel_bridge.processors.enrich.vocabulary import FACTS, FINISH_REASONS, OPERATION
from otel_bridge.receivers.otlp.codec import choose_codec
from otel_bridge.receivers.otlp.otlp_json import convert
from otel_bridge.testing import attributes_of, spans_of
from tests.support.enriching import enriching

HERE = Path(__file__).parent
LINES = (HERE / "vllm-0.32-and-clients.otlp.jsonl").read_bytes().splitlines()
EXPECTED = yaml.safe_load((HERE / "expected.yaml").read_text())
TARGETS = (catalog.LLM_MODEL_ID.key, catalog.LLM_PROMPT_LEN.key, catalog.LLM_BATCH_SIZE.key)
VOCABULARY = (*(fact.key for fact in FACTS), OPERATION.key, FINISH_REASONS, *TARGETS)

ENGINE_NAMES = {
    "gen_ai.usage.input_tokens": "gen_ai.usage.prompt_tokens",
    "gen_ai.usage.output_tokens": "gen_ai.usage.completion_tokens",
    "gen_ai.request.temperature": "gen_ai.request.temperature",
    "gen_ai.request.top_p": "gen_ai.request.top_p",
    "gen_ai.request.max_tokens": "gen_ai.request.max_tokens",
    "gen_ai.request.choice.count": "gen_ai.request.n",
    "gen_ai.response.time_to_first_chunk": "gen_ai.latency.time_to_first_token",
    "gen_ai.server.queue.duration": "gen_ai.latency.time_in_queue",
    "gen_ai.server.prefill.duration": "gen_ai.latency.time_in_model_prefill",
    "gen_ai.server.decode.duration": "gen_ai.latency.time_in_model_decode",
    "gen_ai.server.inference.duration": "gen_ai.latency.time_in_model_inference",
    "gen_ai.server.request.duration": "gen_ai.latency.e2e",
}


def raw_spans():
    """Each span's attributes as the recording has them, read without our code."""
    for line in LINES:
        for resource in json.loads(line)["resourceSpans"]:
            for scope in resource["scopeSpans"]:
                for span in scope["spans"]:
                    yield (
                        span["spanId"],
                        {one["key"]: raw(one["value"]) for one in span.get("attributes", [])},
                    )


def raw(value):
    ((kind, inner),) = value.items()
    if kind == "intValue":
        return int(inner)
    if kind == "doubleValue":
        return float(inner)
    return [raw(one) for one in inner["values"]] if kind == "arrayValue" else inner


@pytest.fixture(scope="module", params=["native", "reference"])
def enriched(request):
    """Each span's attributes after enrichment, export after export, and the counters."""
    bridge = enriching(codec=choose_codec(request.param)[0], explain=True, convert_messages=True)
    out = {}
    for line in LINES:
        for span in spans_of(bridge.request(convert(line, Signal.TRACES).data)):
            out[span.span_id.hex()] = attributes_of(span.attributes)
    return out, bridge


def vocabulary_of(attributes):
    return {key: attributes[key] for key in VOCABULARY if key in attributes}


@pytest.mark.parametrize("span_id", EXPECTED["clients"])
def test_a_client_s_call(enriched, span_id):
    attributes = vocabulary_of(enriched[0][span_id])
    assert attributes == EXPECTED["clients"][span_id]
    assert {key: type(value) for key, value in attributes.items()} == {
        key: type(value) for key, value in EXPECTED["clients"][span_id].items()
    }


@pytest.mark.parametrize("span_id", EXPECTED["engine"])
def test_the_engine_s_span(enriched, span_id):
    expected = EXPECTED["engine"][span_id]
    attributes = dict(enriched[0][span_id])
    before = dict(raw_spans())[span_id]
    wanted = {name: before[old] for name, old in ENGINE_NAMES.items()}
    wanted["gen_ai.operation.name"] = expected["operation"]
    wanted["llm.inference.batch_size"] = 1
    if "model" in expected:
        wanted["llm.model.id"] = expected["model"]
    assert vocabulary_of(attributes) == wanted
    assert attributes.get("otel_bridge.enrich.llm.model.id.source") == expected.get("source")


def test_other_spans_are_left_alone(enriched):
    for span_id, before in raw_spans():
        if span_id not in EXPECTED["clients"] and span_id not in EXPECTED["engine"]:
            assert enriched[0][span_id] == before


def test_originals_are_kept(enriched):
    for span_id, before in raw_spans():
        after = enriched[0][span_id]
        assert {key: after[key] for key in before} == before


def test_nothing_in_it_is_disbelieved(enriched):
    bridge = enriched[1]
    samples = [
        sample
        for metric in bridge.telemetry.registry.collect()
        for sample in metric.samples
        if sample.name in {"otel_bridge_enrich_bad_values_total", "otel_bridge_enrich_conflicts_total"}
    ]
    assert not [sample for sample in samples if sample.value]


def test_messages_are_in_the_current_form(enriched):
    """Flattened ones of OpenInference become what the other clients wrote themselves."""
    spans = enriched[0]
    written = json.loads(spans["34676f5498bfe6b5"]["gen_ai.input.messages"])
    assert json.loads(spans["a8d298953a7a1769"]["gen_ai.input.messages"]) == written
    streamed = json.loads(spans["b0d300438f7de088"]["gen_ai.input.messages"])
    assert streamed == [
        {
            "role": "user",
            "parts": [{"type": "text", "content": "part one"}, {"type": "text", "content": "part two"}],
        }
    ]
    completion = json.loads(spans["e132334cd8f59ea4"]["gen_ai.input.messages"])
    assert [message["parts"][0]["content"] for message in completion] == ["first prompt", "second"]
    choices = json.loads(spans["e132334cd8f59ea4"]["gen_ai.output.messages"])
    assert [message["parts"][0]["content"] for message in choices] == [
        "nQ\ufffd\x05",
        ":\ufffd\ufffd\ufffd*",
        "\x13[\x13",
    ]
