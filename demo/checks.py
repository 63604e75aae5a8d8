"""What must be true of the spans that came out, each checked on all of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from demo.spans import Kind
from otel_bridge import catalog

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from demo.spans import RecordedSpan
    from demo.traffic import ClientRun

MODEL = catalog.LLM_MODEL_ID.key
PROMPT_BYTES = catalog.LLM_PROMPT_LEN.key
BATCH_SIZE = catalog.LLM_BATCH_SIZE.key
PROMPT_TEXTS = ("Grüße aus Köln", "Der Fluß war", "Woher kommst du", "日本語", "नमस्ते")
"""Pieces of what the clients asked."""


@dataclass(frozen=True)
class Check:
    """One thing that must be true.

    Attributes:
        claim: for people.
        found: what was looked at, or the first thing that contradicts.
        ok: whether it is true.
    """

    claim: str
    found: str
    ok: bool


def check_all(
    runs: Sequence[ClientRun], before: Sequence[RecordedSpan], after: Sequence[RecordedSpan]
) -> list[Check]:
    """Every check, in the order in which they are shown."""
    return [
        exchanges_went_as_meant(runs),
        nothing_lost(before, after),
        every_call_has_a_model(after),
        every_server_span_has_a_batch_size(after),
        prompt_lengths_are_what_was_asked(runs, after),
        one_vocabulary(after),
        no_prompt_left(before, after),
    ]


def exchanges_went_as_meant(runs: Sequence[ClientRun]) -> Check:
    """Answered, or refused where a refusal was wanted."""
    wrong = [
        f"{run.client}: {exchange.exchange}" for run in runs for exchange in run.exchanges if not exchange.ok
    ]
    count = sum(len(run.exchanges) for run in runs)
    return _check("every exchange with the engine went as meant", f"{count} exchanges", wrong)


def nothing_lost(before: Sequence[RecordedSpan], after: Sequence[RecordedSpan]) -> Check:
    """What the first pipeline received is what the second received, once."""
    ids_before, ids_after = (Counter(span.span_id for span in spans) for spans in (before, after))
    wrong = [f"span {span_id} is missing" for span_id in ids_before - ids_after]
    wrong += [f"span {span_id} came twice" for span_id, count in ids_after.items() if count > 1]
    return _check("every span came through the bridge, once", f"{len(after)} spans", wrong)


def every_call_has_a_model(after: Sequence[RecordedSpan]) -> Check:
    """Client and server spans of LLM calls, whichever library wrote them."""
    calls = [span for span in after if is_call(span)]
    wrong = [f"{span.service}: {span.name}" for span in calls if not span.attributes.get(MODEL)]
    return _check(f"every LLM call has {MODEL}", f"{len(calls)} calls", wrong)


def every_server_span_has_a_batch_size(after: Sequence[RecordedSpan]) -> Check:
    """From the query where the caller says it, 1 elsewhere."""
    spans = [span for span in after if is_call(span) and span.kind is Kind.SERVER]
    wrong = [
        f"{span.name} {span.attributes.get('url.query', '')}: {span.attributes.get(BATCH_SIZE)}"
        for span in spans
        if span.attributes.get(BATCH_SIZE) != (2 if span.attributes.get("url.query") == "batch_size=2" else 1)
    ]
    return _check(f"every server span has {BATCH_SIZE}", f"{len(spans)} server spans", wrong)


def prompt_lengths_are_what_was_asked(runs: Sequence[ClientRun], after: Sequence[RecordedSpan]) -> Check:
    """In each trace, whoever has lengths on its spans has the bytes that the client says it sent."""
    measured: dict[tuple[str, str], list[int]] = defaultdict(list)
    for span in after:
        if PROMPT_BYTES in span.attributes:
            measured[span.trace_id, span.scope].append(span.attributes[PROMPT_BYTES])
    # A refused request was sent too, but its client does not say how long it was.
    asked = {
        exchange.trace_id: (f"{run.client}, {exchange.exchange}", sorted(exchange.prompt_bytes))
        for run in runs
        for exchange in run.exchanges
        if exchange.prompt_bytes
    }
    wrong = []
    compared = 0
    for (trace_id, scope), lengths in measured.items():
        if trace_id in asked:
            exchange, expected = asked[trace_id]
            compared += len(lengths)
            if sorted(lengths) != expected:
                wrong.append(f"{exchange}: {sorted(lengths)} by {scope}, asked {expected}")
    if not compared:
        wrong.append(f"no span of a client's trace has {PROMPT_BYTES}")
    return _check(f"{PROMPT_BYTES} is the UTF-8 bytes that were asked", f"{compared} spans", wrong)


def one_vocabulary(after: Sequence[RecordedSpan]) -> Check:
    """Current names for what every client says in its own way."""
    calls = [span for span in after if is_call(span) and has_usage(span)]
    wrong = [
        f"{span.service}: {span.name} has no {name}"
        for span in calls
        for name in ("gen_ai.usage.input_tokens", "gen_ai.operation.name")
        if name not in span.attributes
    ]
    return _check("tokens and operation have one name", f"{len(calls)} calls with usage", wrong)


def no_prompt_left(before: Sequence[RecordedSpan], after: Sequence[RecordedSpan]) -> Check:
    """What was asked is on the spans before the bridge, and on none after it."""
    had = [span for span in before if has_prompt(span)]
    wrong = [f"{span.service}: {span.name}" for span in after if has_prompt(span)]
    if not had:
        wrong.append("no span had prompt text to begin with, so this shows nothing")
    return _check("no prompt text left the node", f"{len(had)} spans carried some before", wrong)


def is_call(span: RecordedSpan) -> bool:
    """Whether a span is an LLM call as some library records it, an HTTP server's span of one included."""
    if span.scope in ("demo.clients", "opentelemetry.instrumentation.httpx"):
        return False
    return span.kind is not Kind.SERVER or span.name == "llm_request" or span.name.startswith("POST /v1/")


def has_usage(span: RecordedSpan) -> bool:
    """Whether it counts prompt tokens, under any name."""
    names = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt")
    return any(name in span.attributes for name in names)


def has_prompt(span: RecordedSpan) -> bool:
    """Whether any attribute quotes a prompt."""
    text = repr(span.attributes)
    return any(piece in text for piece in PROMPT_TEXTS)


def _check(claim: str, looked_at: str, wrong: Iterable[str]) -> Check:
    wrong = list(wrong)
    if not wrong:
        return Check(claim, looked_at, ok=True)
    more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
    return Check(claim, f"{wrong[0]}{more}", ok=False)
