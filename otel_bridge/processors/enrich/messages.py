"""Messages of other vocabularies put into the current form, gen_ai.input.messages and gen_ai.output.messages.

This is done span by span, for those alone that have such messages and only where content is kept.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from otel_bridge.columns import MALFORMED, MAX_DEPTH, JsonPaths
from otel_bridge.processors.enrich import vocabulary
from otel_bridge.processors.enrich.values import STRING, index_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from otel_bridge.batch import Batch, PlanBuilder
    from otel_bridge.processors.enrich.work import Work

_DATA_URL = re.compile(r"data:([^;,]*)(?:;[^,]*)?,(.*)", re.DOTALL)
_MODALITIES = {
    "image": "image",
    "image_url": "image",
    "input_image": "image",
    "audio": "audio",
    "input_audio": "audio",
}

_WHOLE = JsonPaths([""])

Part = dict[str, Any]


@dataclass(slots=True)
class _Message:
    """One message while its attributes are gathered."""

    role: str = ""
    name: str = ""
    content: str | None = None
    reasoning: str | None = None
    contents: dict[int, dict[str, str]] = field(default_factory=dict)
    calls: dict[int, dict[str, str]] = field(default_factory=dict)
    answers: str = ""  # the id of the tool call that this message answers
    finish_reason: str = ""
    strange: bool = False  # whether it has attributes that are not understood

    def written(self, default_role: str) -> dict[str, Any]:
        """In the current form."""
        role = self.role or ("tool" if self.answers else default_role)
        out: dict[str, Any] = {"role": role, "parts": self._parts(role)}
        if self.name:
            out["name"] = self.name
        if self.finish_reason:
            out["finish_reason"] = self.finish_reason
        return out

    @property
    def understood(self) -> bool:
        """Whether its content can be written: a message that had some must not come out without."""
        return not self.strange or bool(self._parts(self.role))

    def _parts(self, role: str) -> list[Part]:
        parts: list[Part] = []
        if self.reasoning:
            parts.append({"type": "reasoning", "content": self.reasoning})
        if self.content is not None:
            if role == "tool" or self.answers:
                parts.append(
                    {"type": "tool_call_response", "id": self.answers or None, "response": self.content}
                )
            elif self.content or not (self.calls or self.contents):
                parts += parts_of(self.content)
        parts += [part for number in sorted(self.contents) if (part := _content_part(self.contents[number]))]
        parts += [_tool_call(self.calls[number]) for number in sorted(self.calls)]
        return parts


def parts_of(content: Any) -> list[Part]:
    """The parts of one message's content: a text, a list of parts, or that list written as JSON."""
    if isinstance(content, str):
        listed = _json(content) if content.startswith("[") else None
        if not (
            isinstance(listed, list)
            and listed
            and all(isinstance(part, dict) and "type" in part for part in listed)
        ):
            return [{"type": "text", "content": content}]
        content = listed
    if isinstance(content, list):
        return [part for item in content for part in _part_of(item)]
    return []


def _part_of(item: Any) -> list[Part]:
    if isinstance(item, str):
        return [{"type": "text", "content": item}]
    if not isinstance(item, dict):
        return []
    kind = item.get("type", "text")
    text = item.get("text", item.get("content"))
    if isinstance(text, str) and kind in {"text", "input_text", "output_text", "refusal"}:
        return [{"type": "text", "content": text}]
    if kind in {"thinking", "reasoning"}:
        return [{"type": "reasoning", "content": item.get("thinking") or text or ""}]
    if kind == "tool_use":
        return [_tool_call({"id": item.get("id", ""), "name": item.get("name", "")}, item.get("input"))]
    if kind == "tool_result":
        return [
            {"type": "tool_call_response", "id": item.get("tool_use_id"), "response": item.get("content")}
        ]
    if kind in _MODALITIES:
        url = item.get("image_url", item.get("url"))
        url = url.get("url") if isinstance(url, dict) else url
        if isinstance(url, str):
            return [_uri(_MODALITIES[kind], url)]
    return [item]  # the conventions leave room for parts of other types


def _content_part(fields: dict[str, str]) -> Part | None:
    """One of OpenInference's indexed contents."""
    if "text" in fields:
        kind = "reasoning" if fields.get("type") in {"reasoning", "thinking"} else "text"
        return {"type": kind, "content": fields["text"]}
    for modality in ("image", "audio"):
        url = fields.get(f"{modality}.{modality}.url", fields.get(f"{modality}.url"))
        if url is not None:
            return _uri(modality, url)
    return None


def _uri(modality: str, url: str) -> Part:
    data = _DATA_URL.fullmatch(url)
    if data is None:
        return {"type": "uri", "modality": modality, "uri": url}
    return {"type": "blob", "modality": modality, "mime_type": data[1], "content": data[2]}


def _tool_call(fields: dict[str, str], arguments: Any = None) -> Part:
    if arguments is None:
        raw = fields.get("arguments")
        arguments = raw if raw is None else _json(raw, raw)
    return {
        "type": "tool_call",
        "id": fields.get("id"),
        "name": fields.get("name", ""),
        "arguments": arguments,
    }


def _json(text: str, default: Any = None) -> Any:
    """The value of a JSON text; `default` where it is none, or nests too deeply to be written again."""
    try:
        return default if _too_deep(text) else orjson.loads(text)
    except orjson.JSONDecodeError:
        return default


def _too_deep(text: str) -> bool:
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return False
    data = text.encode()
    whole = np.zeros(1, "<u4"), np.array([len(data)], "<u4")
    return bool(_WHOLE.text_bytes(data, *whole)[0] == MALFORMED)


def _openinference(message: _Message, path: str, value: str) -> bool:
    """Take one `llm.input_messages.N.message.<path>`; whether it was understood."""
    head, _, rest = path.partition(".")
    if head in {"role", "name"} and not rest:
        setattr(message, head, value)
    elif head == "content" and not rest:
        message.content = value
    elif head == "tool_call_id":
        message.answers = value
    elif head == "contents":
        number, _, leaf = rest.partition(".message_content.")
        index = index_of(number)
        if index is None or leaf not in {
            "type",
            "text",
            "image.image.url",
            "audio.audio.url",
            "image.url",
            "audio.url",
        }:
            return False
        message.contents.setdefault(index, {})[leaf] = value
    elif head == "tool_calls":
        number, _, leaf = rest.partition(".tool_call.")
        return _call(message, number, leaf.removeprefix("function."), value)
    elif head in {"function_call_name", "function_call_arguments_json"}:
        return _call(message, "0", "name" if head.endswith("name") else "arguments", value)
    else:
        return False
    return True


def _openllmetry(message: _Message, path: str, value: str) -> bool:
    """Take one `gen_ai.prompt.N.<path>`; whether it was understood."""
    head, _, rest = path.partition(".")
    if head in {"role", "name", "finish_reason", "reasoning"} and not rest:
        setattr(message, head, value)
    elif head == "content" and not rest:
        message.content = value
    elif head == "tool_call_id":
        message.answers = value
    elif head == "tool_calls":
        number, _, leaf = rest.partition(".")
        return _call(message, number, leaf.removeprefix("function."), value)
    elif head == "function_call":
        return _call(message, "0", rest, value)
    else:
        return False
    return True


def _call(message: _Message, number: str, leaf: str, value: str) -> bool:
    index = index_of(number)
    if index is None or leaf not in {"id", "name", "arguments"}:
        return False
    message.calls.setdefault(index, {})[leaf] = value
    return True


def _text(message: _Message, path: str, value: str) -> bool:
    """Take one `llm.prompts.N.prompt.text`."""
    if path not in {"prompt.text", "completion.text", "content"}:
        return False
    message.content = value
    return True


@dataclass(frozen=True, slots=True)
class _Flattened:
    """One way of numbering messages: what stands before the number, behind it, and how the rest is read."""

    slot: int
    prefix: str
    middle: str
    take: Callable[[_Message, str, str], bool]


class MessagesStep:
    """Writes one of the two current message attributes."""

    def __init__(self, key: str, plan: PlanBuilder, *, remove: bool) -> None:
        self._key = key
        self._remove = remove
        self.slot = plan.want(key)
        asked = key == vocabulary.INPUT_MESSAGES
        self._role = "user" if asked else "assistant"
        flattened = (
            (
                ("llm.input_messages.", "message.", _openinference),
                ("gen_ai.prompt.", "", _openllmetry),
                ("llm.prompts.", "", _text),
            )
            if asked
            else (
                ("llm.output_messages.", "message.", _openinference),
                ("gen_ai.completion.", "", _openllmetry),
                ("llm.choices.", "", _text),
            )
        )
        self._flattened = tuple(
            _Flattened(plan.want(prefix, prefix=True), prefix, middle, take)
            for prefix, middle, take in flattened
        )
        self._whole = plan.want("gen_ai.prompt" if asked else "gen_ai.completion")
        self.slots = (*(one.slot for one in self._flattened), self._whole)

    def run(self, work: Work) -> None:
        """Work on one batch that has one of the columns."""
        has = np.zeros(work.size, np.bool_)
        current = work.batch.column(self.slot)
        has[current["row"][current["len"] > 0]] = True
        for way in self._flattened:
            if way.slot in work.present:
                self._unflatten(work, way, has)
        if self._whole in work.present:
            self._reshape(work, has)

    def _unflatten(self, work: Work, way: _Flattened, has: NDArray[np.bool_]) -> None:
        records = work.batch.column(way.slot)
        records = records[~has[records["row"]] & (records["type"] == STRING)]
        spans: dict[int, dict[int, _Message]] = {}
        taken: list[tuple[int, _Message]] = []
        for at, row, number, path, value in _entries(work.batch, records, way):
            message = spans.setdefault(row, {}).setdefault(number, _Message())
            if way.take(message, path, value):
                taken.append((at, message))
            else:
                message.strange = True
        written = {
            row: [found.written(self._role) for _, found in sorted(messages.items()) if found.understood]
            for row, messages in spans.items()
        }
        self._write(work, {row: messages for row, messages in written.items() if messages}, has)
        if self._remove:
            work.removed.append(records[[at for at, message in taken if message.understood]])

    def _reshape(self, work: Work, has: NDArray[np.bool_]) -> None:
        records = work.batch.column(self._whole)
        records = records[~has[records["row"]] & (records["type"] == STRING) & (records["len"] > 0)]
        written = {
            row: messages_of(work.batch.text(off, length), self._role)
            for row, off, length in records[["row", "off", "len"]].tolist()
        }
        self._write(work, written, has)
        if self._remove:
            work.removed.append(records)

    def _write(self, work: Work, written: dict[int, list[dict[str, Any]]], has: NDArray[np.bool_]) -> None:
        rows = np.fromiter(written, "<u4", len(written))
        texts = [orjson.dumps(messages).decode() for messages in written.values()]
        work.batch.set_texts(self._key, rows, texts)
        has[rows] = True


def messages_of(text: str, role: str) -> list[dict[str, Any]]:
    """The messages in one text: JSON in one of the usual shapes, or else what somebody said."""
    value = _json(text) if text[:1] in {"[", "{"} else None
    if isinstance(value, dict):
        value = value.get("messages", [value] if "role" in value else None)
    if isinstance(value, list) and value and all(isinstance(item, dict) and "role" in item for item in value):
        return [_reshaped(item) for item in value]
    return [{"role": role, "parts": [{"type": "text", "content": text}]}]


def _reshaped(item: dict[str, Any]) -> dict[str, Any]:
    if isinstance(item.get("parts"), list):
        return item
    content = item.get("content")
    if item.get("tool_call_id"):
        parts: list[Part] = [{"type": "tool_call_response", "id": item["tool_call_id"], "response": content}]
    else:
        parts = parts_of(content)
    for call in item.get("tool_calls") or []:
        if isinstance(call, dict):
            function = call.get("function", call)
            parts.append(_tool_call({"id": call.get("id", ""), **function}))
    out = {"role": item["role"], "parts": parts}
    return {**out, "finish_reason": item["finish_reason"]} if item.get("finish_reason") else out


def _entries(
    batch: Batch, records: NDArray[np.void], way: _Flattened
) -> Iterable[tuple[int, int, int, str, str]]:
    """Place, span, message number, rest of the key and text of each attribute that is numbered so."""
    data = batch.data
    columns = ["row", "key_off", "key_len", "off", "len"]
    for at, (row, key_off, key_len, off, length) in enumerate(records[columns].tolist()):
        number, _, path = data[key_off : key_off + key_len].decode().removeprefix(way.prefix).partition(".")
        index = index_of(number)
        if index is not None and path.startswith(way.middle):
            yield at, row, index, path.removeprefix(way.middle), data[off : off + length].decode()
