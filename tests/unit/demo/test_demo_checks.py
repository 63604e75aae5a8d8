"""The demo's checks: each fails for what it is there to find."""

from __future__ import annotations

from dataclasses import replace

import pytest

from demo import checks
from demo.spans import Kind, RecordedSpan
from demo.traffic import ClientRun, Exchange

TRACE = "0af7651916cd43dd8448eb211c80319c"
BEFORE = RecordedSpan(
    service="engine",
    scope="opentelemetry.instrumentation.aiohttp_server",
    name="POST /v1/completions",
    kind=Kind.SERVER,
    trace_id=TRACE,
    span_id="b7ad6b7169203331",
    parent_id="",
    attributes={"http.request.body.content": '{"prompt":"Grüße aus Köln"}', "url.query": "batch_size=2"},
)
AFTER = replace(
    BEFORE,
    attributes={
        "url.query": "batch_size=2",
        "llm.model.id": "tiny",
        "llm.prompt.len": 16,
        "llm.inference.batch_size": 2,
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.operation.name": "text_completion",
    },
)
RUNS = [
    ClientRun(
        "openinference", [Exchange("completion", TRACE, ok=True, prompt_bytes=[16], outcome="answered")], 1
    )
]


def failing(runs=RUNS, before=(BEFORE,), after=(AFTER,)) -> list[str]:
    """Claims that do not hold."""
    return [check.claim for check in checks.check_all(runs, list(before), list(after)) if not check.ok]


def with_attributes(**attributes: object) -> RecordedSpan:
    """The span that came out, with some attributes changed; None takes one away."""
    names = {name.replace("__", "."): value for name, value in attributes.items()}
    merged = {**AFTER.attributes, **names}
    return replace(AFTER, attributes={key: value for key, value in merged.items() if value is not None})


def test_a_good_run_passes():
    """All of them."""
    assert failing() == []


@pytest.mark.parametrize(
    ("after", "claim"),
    [
        ((), "every span came through the bridge, once"),
        ((AFTER, AFTER), "every span came through the bridge, once"),
        ((with_attributes(llm__model__id=None),), "every LLM call has llm.model.id"),
        ((with_attributes(llm__model__id=""),), "every LLM call has llm.model.id"),
        ((with_attributes(llm__inference__batch_size=1),), "every server span has llm.inference.batch_size"),
        ((with_attributes(llm__prompt__len=14),), "llm.prompt.len is the UTF-8 bytes that were asked"),
        ((with_attributes(llm__prompt__len=None),), "llm.prompt.len is the UTF-8 bytes that were asked"),
        ((with_attributes(gen_ai__operation__name=None),), "tokens and operation have one name"),
        ((with_attributes(input__value="Grüße aus Köln"),), "no prompt text left the node"),
    ],
)
def test_a_fault_is_found(after, claim):
    """By the check that is named after it."""
    assert claim in failing(after=after)


def test_an_exchange_that_went_wrong_is_found():
    """And named."""
    wrong = [replace(RUNS[0], exchanges=[replace(RUNS[0].exchanges[0], ok=False)])]
    (claim,) = failing(runs=wrong)
    assert claim == "every exchange with the engine went as meant"


def test_no_prompt_before_proves_nothing():
    """A check that had nothing to look at does not pass."""
    assert failing(before=(replace(BEFORE, attributes={}),)) == ["no prompt text left the node"]
