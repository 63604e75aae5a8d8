"""How long a prompt is: UTF-8 bytes of its text, the same number whichever vocabulary recorded it.

Counted are the strings of all input messages, system ones and tools' results included; images, blobs and
the arguments of tool calls are not. Several prompts in one request add up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from otel_bridge.columns import MALFORMED, NO_MATCH, JsonPaths, KeyPatterns, Words, any_of
from otel_bridge.model import Scope
from otel_bridge.processors.enrich import defaults, vocabulary
from otel_bridge.processors.enrich.values import ARRAY, KVLIST, STRING, Bad, Numbers, rows_of
from otel_bridge.processors.enrich.work import OPEN_BRACKETS, is_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from otel_bridge.batch import Batch, PlanBuilder
    from otel_bridge.processors.enrich.values import Mask
    from otel_bridge.processors.enrich.work import Landmarks, Work

MESSAGE_PATHS = (
    "[*].parts[*].content",
    "[*].parts[*].text",
    "[*].parts[*].response",
    "[*].content",
    "[*].content[*]",
    "[*].content[*].text",
    "[*].content[*].content",
    "[*].message.content",
    "[*]",
)
"""Text in a list of messages: current parts, OpenAI's content, or plain strings."""
PART_PATHS = ("[*].text", "[*].content", "[*]")
"""Text in a list of parts, as one message's content."""
BLOBS = ("blob", "image", "image_url", "file", "uri", "audio", "input_image", "input_audio", "tool_call")
"""Types of parts that are no text."""

_JSON_TYPES = Words(("application/json", "text/json"), "prefix")


class Measure(Protocol):
    """One place where prompts stand."""

    @property
    def slots(self) -> Sequence[int]:
        """The columns that it reads."""

    def lengths(self, work: Work) -> NDArray[np.int64]:
        """For each span the length, NO_MATCH or MALFORMED."""


class PromptSource:
    """The length of the prompt, from the first vocabulary that has it."""

    def __init__(self, plan: PlanBuilder, landmarks: Landmarks) -> None:
        messages = JsonPaths(MESSAGE_PATHS, unless_type=BLOBS)
        parts = JsonPaths(PART_PATHS, unless_type=BLOBS)
        body = JsonPaths(defaults.PROMPT_PATHS, unless_type=BLOBS)
        instructions = _Structured(
            plan.want(vocabulary.SYSTEM_INSTRUCTIONS), (messages, parts), plain=True, instructions=None
        )
        current = vocabulary.INPUT_MESSAGES
        self._measures: tuple[Measure, ...] = (
            _Structured(plan.want(current), (messages,), plain=False, instructions=instructions),
            _Flattened(
                plan.want("llm.input_messages.", prefix=True),
                (
                    "llm.input_messages.#.message.content",
                    "llm.input_messages.#.message.contents.#.message_content.text",
                ),
                None,
            ),
            _Flattened(plan.want("gen_ai.prompt.", prefix=True), ("gen_ai.prompt.#.content",), parts),
            _Flattened(
                plan.want("llm.prompts.", prefix=True),
                ("llm.prompts.#.prompt.text", "llm.prompts.#.content"),
                parts,
            ),
            _Flattened(
                plan.want("embedding.embeddings.", prefix=True),
                ("embedding.embeddings.#.embedding.text",),
                None,
            ),
            *(
                _Structured(plan.want(key), (messages, body), plain=True, instructions=None)
                for key in (
                    "gen_ai.prompt",
                    "llm.prompts",
                    "llm.input_messages",
                    "ai.prompt.messages",
                    "ai.prompt",
                )
            ),
            *(
                _Structured(plan.want(key, scope=Scope.EVENT), (messages,), plain=True, instructions=None)
                for key in (current, "gen_ai.prompt")
            ),
            _InputValue(plan.want("input.value"), plan.want("input.mime_type"), body),
        )
        self.slots = tuple(slot for measure in self._measures for slot in measure.slots)
        for measure in self._measures[:-1]:
            for slot in measure.slots:
                landmarks.mark(slot)

    def read(self, work: Work, need: Mask) -> Iterator[Numbers | Bad]:
        """Lengths of the prompts of spans that need one."""
        need = need.copy()
        for measure in self._measures:
            if not work.any(measure.slots):
                continue
            lengths = measure.lengths(work)
            found = need & (lengths >= 0)
            if any_of(found):
                rows = rows_of(found)
                yield Numbers(rows, lengths[found])
                need &= ~found
            malformed = need & (lengths == MALFORMED)
            if any_of(malformed):
                yield Bad("malformed", rows_of(malformed))


class _Structured:
    """Messages in one attribute: JSON in a string, or an array or kvlist value.

    `plain`: a string that is no JSON is itself the prompt.
    """

    def __init__(
        self, slot: int, shapes: Sequence[JsonPaths], *, plain: bool, instructions: _Structured | None
    ) -> None:
        self._slot = slot
        self._shapes = shapes
        self._plain = plain
        self._instructions = instructions
        self.slots: tuple[int, ...] = (slot,) if instructions is None else (slot, *instructions.slots)

    def lengths(self, work: Work) -> NDArray[np.int64]:
        """For each span the length, NO_MATCH or MALFORMED."""
        out = np.full(work.size, NO_MATCH, "<i8")
        records = work.batch.column(self._slot)
        if len(records):
            # An event's attribute may come more than once a span: what it says adds up.
            np.maximum.at(out, records["row"], self._of(work.batch, records))
        if self._instructions is not None and work.any(self._instructions.slots):
            beside = self._instructions.lengths(work)
            out = np.where((out >= 0) & (beside >= 0), out + beside, out)
        return out

    def _of(self, batch: Batch, records: NDArray[np.void]) -> NDArray[np.int64]:
        out = np.full(len(records), NO_MATCH, "<i8")
        types = records["type"]
        strings = types == STRING
        json = strings & is_json(batch, records)
        for shape in self._shapes:
            open_ones = json & (out < 0)
            if any_of(open_ones):
                some = records[open_ones]
                out[open_ones] = shape.text_bytes(batch.data, some["off"], some["len"])
            for kind in (ARRAY, KVLIST):
                these = (types == kind) & (out < 0)
                if any_of(these):
                    some = records[these]
                    out[these] = shape.any_value_bytes(
                        batch.data, some["off"], some["len"], kvlist=kind == KVLIST
                    )
        if self._plain:
            text = strings & ~json & (records["len"] > 0) | (json & (out == MALFORMED))
            out[text] = records["len"][text]
        return out


class _Flattened:
    """Messages in numbered attributes, of which those that a pattern fits hold text.

    `parts`: a text that is itself a list of parts counts as what they say.
    """

    def __init__(self, slot: int, patterns: Sequence[str], parts: JsonPaths | None) -> None:
        self.slots = (slot,)
        self._slot = slot
        self._patterns = KeyPatterns(patterns)
        self._parts = parts

    def lengths(self, work: Work) -> NDArray[np.int64]:
        """For each span the length, or NO_MATCH."""
        batch = work.batch
        records = batch.column(self._slot)
        fits = self._patterns.lookup(batch.data, records["key_off"], records["key_len"]) >= 0
        records = records[fits & (records["type"] == STRING)]
        sizes = records["len"].astype("<i8")
        if self._parts is not None and len(records):
            first = np.frombuffer(batch.data, "u1")[np.where(sizes > 0, records["off"], 0)]
            listed = (first == OPEN_BRACKETS[1]) & (sizes > 0)
            if any_of(listed):
                some = records[listed]
                inner = self._parts.text_bytes(batch.data, some["off"], some["len"])
                sizes[listed] = np.where(inner >= 0, inner, sizes[listed])
        out = np.full(work.size, NO_MATCH, "<i8")
        out[records["row"]] = 0
        np.add.at(out, records["row"], sizes)
        return out


class _InputValue:
    """OpenInference's input.value: the request's body where its type says JSON, else the prompt itself.

    It stands on every kind of span; only calls of a model count.
    """

    def __init__(self, slot: int, mime_type: int, body: JsonPaths) -> None:
        self.slots = (slot,)
        self._slot = slot
        self._mime_type = mime_type
        self._body = body

    def lengths(self, work: Work) -> NDArray[np.int64]:
        """For each span the length, NO_MATCH or MALFORMED."""
        batch = work.batch
        out = np.full(work.size, NO_MATCH, "<i8")
        records = batch.column(self._slot)
        records = records[(records["type"] == STRING) & work.marked[records["row"]]]
        types = batch.column(self._mime_type)
        json = np.zeros(work.size, np.bool_)
        json[types["row"][_JSON_TYPES.lookup(batch.data, types["off"], types["len"]) >= 0]] = True
        bodies = json[records["row"]]
        texts = records[~bodies & (records["len"] > 0)]
        out[texts["row"]] = texts["len"]
        some = records[bodies]
        if len(some):
            out[some["row"]] = self._body.text_bytes(batch.data, some["off"], some["len"])
        return out
