"""Every LLM call of a recording counts once at its client and once at its engine, and both sides agree."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path

import pytest
import yaml

from otel_bridge import catalog
from otel_bridge.model import Signal
from otel_bridge.receivers.otlp.otlp_json import convert
from tests.support.deriving import deriving

HERE = Path(__file__).parent
LINES = (HERE / "vllm-0.32-and-clients.otlp.jsonl").read_bytes().splitlines()
EXPECTED = yaml.safe_load((HERE / "expected.yaml").read_text())


def recorded():
    """Each span's service, id and raw attributes, read without our code."""
    for line in LINES:
        for resource in json.loads(line)["resourceSpans"]:
            (service,) = (
                one["value"]["stringValue"]
                for one in resource["resource"]["attributes"]
                if one["key"] == "service.name"
            )
            for scope in resource["scopeSpans"]:
                for span in scope["spans"]:
                    values = {one["key"]: one["value"] for one in span.get("attributes", [])}
                    yield service, span["spanId"], values


@pytest.fixture(scope="module", params=["in order", "reversed"])
def derived(request):
    """The metrics of the whole recording, whichever export comes first."""
    bridge = deriving()
    for line in LINES if request.param == "in order" else LINES[::-1]:
        bridge.request(convert(line, Signal.TRACES).data)
    return bridge


def by(bridge, metric, *keys, value="count"):
    """A metric's total by some of its labels."""
    labels = bridge.derive.metrics.labels[metric]
    out = Counter()
    for point in bridge.points(metric):
        named = dict(zip(labels, point.labels, strict=True))
        out[tuple(named[key] for key in keys)] += getattr(point, value)
    return +out


def test_every_span_is_counted(derived):
    """Whatever it tells of."""
    total = by(derived, catalog.DERIVED_SPAN_DURATION, "service.name")
    assert total == Counter((service,) for service, _, _ in recorded())


def test_each_client_call_once(derived):
    """By operation and model, as `expected.yaml` has them: spans of HTTP and of the application are none."""
    services = {span: service for service, span, _ in recorded()}
    expected = Counter(
        (services[span], call["gen_ai.operation.name"], call["gen_ai.request.model"])
        for span, call in EXPECTED["clients"].items()
    )
    keys = ("service.name", "gen_ai.operation.name", "gen_ai.request.model")
    assert by(derived, catalog.DERIVED_CLIENT_DURATION, *keys) == expected


def test_client_tokens_are_those_of_the_calls(derived):
    """Added up by service."""
    services = {span: service for service, span, _ in recorded()}
    expected = Counter()
    for span, call in EXPECTED["clients"].items():
        for kind in ("input", "output"):
            expected[services[span], kind] += call.get(f"gen_ai.usage.{kind}_tokens", 0)
    keys = ("service.name", "gen_ai.token.type")
    assert by(derived, catalog.DERIVED_CLIENT_TOKENS, *keys, value="sum") == expected


def engine_requests():
    """The engine's spans by the request that the API took: an id without its number."""
    out = defaultdict(list)
    for _, span, values in recorded():
        if span in EXPECTED["engine"]:
            name = values["gen_ai.request.id"]["stringValue"]
            call = name[: -len("-0")] if name[-2:] in ("-0", "-1", "_0") else name
            tokens = [
                int(values[f"gen_ai.usage.{kind}_tokens"]["intValue"]) for kind in ("prompt", "completion")
            ]
            out[call].append((name, *tokens))
    return out


def test_each_engine_request_once(derived):
    """Two prompts with two answers each are four spans of vLLM and one request."""
    calls = engine_requests()
    assert by(derived, catalog.DERIVED_SERVER_DURATION, "service.name") == {("vllm-server",): len(calls)}
    assert sum(map(len, calls.values())) > len(calls)
    for metric in (catalog.DERIVED_SERVER_FIRST_TOKEN, catalog.DERIVED_SERVER_QUEUE):
        assert sum(by(derived, metric, "service.name").values()) == len(calls)


def test_engine_tokens_read_each_prompt_once(derived):
    """And write every answer: the numbers that the API answered."""
    expected = Counter()
    for spans in engine_requests().values():
        expected["input",] += sum({name: prompt for name, prompt, _ in spans}.values())
        expected["output",] += sum(completion for _, _, completion in spans)
    assert by(derived, catalog.DERIVED_SERVER_TOKENS, "gen_ai.token.type", value="sum") == expected


def test_both_sides_agree_on_a_call_that_both_recorded():
    """OpenLLMetry's calls, and vLLM's spans of them: but for one that the client did not record."""
    services = {span: service for service, span, _ in recorded()}
    client = Counter()
    for span, call in EXPECTED["clients"].items():
        if services[span] == "client-openllmetry":
            client["input"] += call.get("gen_ai.usage.input_tokens", 0)
            client["output"] += call.get("gen_ai.usage.output_tokens", 0)
    ids = {
        call["gen_ai.response.id"]
        for span, call in EXPECTED["clients"].items()
        if services[span] == "client-openllmetry" and "gen_ai.response.id" in call
    }
    bridge = deriving()
    for line in LINES:
        document = json.loads(line)
        for resource in document["resourceSpans"]:
            for scope in resource["scopeSpans"]:
                scope["spans"] = [
                    span
                    for span in scope["spans"]
                    for one in span.get("attributes", [])
                    if one["key"] == "gen_ai.request.id"
                    and any(one["value"]["stringValue"].startswith(name) for name in ids)
                ]
        bridge.request(convert(json.dumps(document).encode(), Signal.TRACES).data)
    server = by(bridge, catalog.DERIVED_SERVER_TOKENS, "gen_ai.token.type", value="sum")
    assert {kind: total for (kind,), total in server.items()} == client


def test_the_same_exports_again_count_no_call_twice():
    """An answer that was lost: spans are counted again, calls are not."""
    bridge = deriving()
    for line in [*LINES, *LINES]:
        bridge.request(convert(line, Signal.TRACES).data)
    assert sum(by(bridge, catalog.DERIVED_CLIENT_DURATION, "service.name").values()) == len(
        EXPECTED["clients"]
    )
    assert sum(by(bridge, catalog.DERIVED_SERVER_DURATION, "service.name").values()) == len(engine_requests())
    spans = sum(by(bridge, catalog.DERIVED_SPAN_DURATION, "service.name").values())
    assert spans == 2 * len(list(recorded()))
