"""How the demo shows spans."""

from __future__ import annotations

import io
import json

from rich.console import Console

from demo.report import collapsed, side_by_side
from demo.spans import Kind, RecordedSpan, read

EXPORT = {
    "resourceSpans": [
        {
            "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "engine"}}]},
            "scopeSpans": [
                {
                    "scope": {"name": "demo"},
                    "spans": [
                        {
                            "traceId": "0af7651916cd43dd8448eb211c80319c",
                            "spanId": "b7ad6b7169203331",
                            "name": "llm_request",
                            "kind": 2,
                            "attributes": [
                                {"key": "tokens", "value": {"intValue": "12"}},
                                {"key": "ratio", "value": {"doubleValue": 0.5}},
                                {"key": "ids", "value": {"arrayValue": {"values": [{"stringValue": "a"}]}}},
                                {"key": "empty", "value": {}},
                            ],
                        }
                    ],
                }
            ],
        }
    ]
}


def span(attributes: dict[str, object]) -> RecordedSpan:
    """A span with these attributes."""
    return RecordedSpan("engine", "demo", "llm_request", Kind.SERVER, "a" * 32, "b" * 16, "", attributes)


def test_reading_leaves_a_line_that_is_being_written(tmp_path):
    """The Collector writes while the demo reads."""
    line = json.dumps(EXPORT)
    path = tmp_path / "after.jsonl"
    assert read(path) == []
    path.write_text(f"{line}\n{line[:50]}")
    (found,) = read(path)
    assert found.service == "engine"
    assert found.kind is Kind.SERVER
    assert found.attributes == {"tokens": 12, "ratio": 0.5, "ids": ["a"], "empty": None}
    path.write_text(f"{line}\n{line}\n")
    assert len(read(path)) == 2


def test_flattened_messages_take_one_row():
    """Attributes that differ in an index only."""
    rows = collapsed(
        {
            "llm.input_messages.0.message.role": "user",
            "llm.input_messages.0.message.content": "a\n b",
            "x": 0.25,
        }
    )
    assert rows == {"llm.input_messages.*": "2 attributes: user · a b", "x": "0.25"}


def test_what_was_written_and_taken_away_is_seen():
    """Both sides, whole keys."""
    console = Console(file=io.StringIO(), width=120)
    console.print(
        side_by_side("title", span({"a": 1, "gone": "text"}), span({"a": 2, "llm.model.id": "tiny"}))
    )
    lines = [line.split() for line in console.file.getvalue().splitlines()]
    assert ["llm.model.id", "tiny"] in lines
    assert ["a", "1", "2"] in lines
    assert ["gone", "text", "—"] in lines
