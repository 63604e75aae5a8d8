"""Spans as the Collector's file exporter wrote them: OTLP/JSON, one export a line."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Kind(IntEnum):
    """OTLP's span kinds."""

    UNSPECIFIED = 0
    INTERNAL = 1
    SERVER = 2
    CLIENT = 3
    PRODUCER = 4
    CONSUMER = 5


@dataclass(frozen=True)
class RecordedEvent:
    """A span event."""

    name: str
    time_ns: int
    attributes: dict[str, Any]


@dataclass(frozen=True)
class RecordedSpan:
    """What the demo looks at in a span."""

    service: str
    scope: str
    name: str
    kind: Kind
    trace_id: str
    span_id: str
    parent_id: str
    attributes: dict[str, Any]
    start_ns: int = 0
    end_ns: int = 0
    events: tuple[RecordedEvent, ...] = ()

    @property
    def duration_ns(self) -> int:
        """How long it took."""
        return self.end_ns - self.start_ns


def read(path: Path) -> list[RecordedSpan]:
    """All spans in the file; a line that is being written is left for the next look."""
    if not path.exists():
        return []
    *lines, _being_written = path.read_text(encoding="utf-8").split("\n")
    return [span for line in lines if line for span in _spans(json.loads(line))]


def _spans(export: dict[str, Any]) -> Iterator[RecordedSpan]:
    for resource_spans in export["resourceSpans"]:
        resource = _attributes(resource_spans.get("resource", {}))
        for scope_spans in resource_spans["scopeSpans"]:
            for span in scope_spans["spans"]:
                yield RecordedSpan(
                    service=str(resource.get("service.name", "")),
                    scope=scope_spans.get("scope", {}).get("name", ""),
                    name=span["name"],
                    kind=Kind(span.get("kind", 0)),
                    trace_id=span["traceId"],
                    span_id=span["spanId"],
                    parent_id=span.get("parentSpanId", ""),
                    attributes=_attributes(span),
                    start_ns=int(span.get("startTimeUnixNano", 0)),
                    end_ns=int(span.get("endTimeUnixNano", 0)),
                    events=tuple(
                        RecordedEvent(event["name"], int(event["timeUnixNano"]), _attributes(event))
                        for event in span.get("events", [])
                    ),
                )


def _attributes(holder: dict[str, Any]) -> dict[str, Any]:
    return {item["key"]: _plain(item.get("value", {})) for item in holder.get("attributes", [])}


def _plain(value: dict[str, Any]) -> Any:
    for kind, content in value.items():
        if kind == "intValue":
            return int(content)
        if kind == "arrayValue":
            return [_plain(item) for item in content.get("values", [])]
        if kind == "kvlistValue":
            return {item["key"]: _plain(item.get("value", {})) for item in content.get("values", [])}
        return content
    return None
