"""Recorded streams run through rules: what would have fired, and when.

A recording is JSON lines, one record a line, in the order of arrival; README.md has the format.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import datetime
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TYPE_CHECKING, Any

import numpy as np
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_bridge.batch import PlanBuilder
from otel_bridge.errors import BridgeError, MalformedRequestError
from otel_bridge.events import COMMON, KernelEvents
from otel_bridge.model import SpanKind, StatusCode
from otel_bridge.readings import Reading
from otel_bridge.rules.streaming.engine import RuleEngine
from otel_bridge.rules.vocabulary import KIND_NUMBERS
from otel_bridge.telemetry import Telemetry
from otel_bridge.testing import key_values
from otel_bridge.units import parse_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from enum import IntEnum

    from otel_bridge.contracts import Codec
    from otel_bridge.firings import Firing
    from otel_bridge.rules.config import RulesConfig
    from otel_bridge.rules.load import LoadedRule
    from otel_bridge.rules.vocabulary import Field

SECOND = 1_000_000_000


class RecordingError(BridgeError):
    """A line of a recording that is none, with its number."""


class ReplayClock:
    """A clock that stands where the recording is."""

    def __init__(self) -> None:
        self._start = 0
        self._now = 0

    def move_to(self, time: int) -> None:
        """Go on to a time; never back."""
        self._start = self._start or time
        self._now = max(self._now, time)

    def time_ns(self) -> int:
        """Unix nanoseconds."""
        return self._now

    def monotonic(self) -> float:
        """Seconds since the recording began."""
        return (self._now - self._start) / SECOND


@dataclass(frozen=True, slots=True)
class Replayed:
    """What became of a recording.

    Attributes:
        firings: every change of an alert, in order.
        records: lines read.
    """

    firings: Sequence[Firing]
    records: int


class _Kept(list["Firing"]):
    def take_firing(self, firing: Firing) -> None:
        """See `FiringSink`."""
        if not firing.again:
            self.append(firing)
            return
        alert = firing.rule, firing.labels
        place = max(at for at, one in enumerate(self) if (one.rule, one.labels) == alert)
        self[place] = replace(self[place], annotations=firing.annotations)


class Replay:
    """Runs recordings through rules.

    Args:
        rules: checked; those left to Prometheus are passed over.
        config: of the engine.
        codec: reads OTLP.
        from_json: makes an OTLP/JSON request binary; raises MalformedRequestError.
    """

    def __init__(
        self,
        rules: Sequence[LoadedRule],
        config: RulesConfig,
        codec: Codec,
        from_json: Callable[[bytes], bytes],
    ) -> None:
        self._rules = rules
        self._config = config
        self._codec = codec
        self._from_json = from_json
        self._events: dict[str, dict[str, Field]] = {}
        for loaded in rules:
            self._events.update(loaded.vocabulary.events)

    def run(self, lines: Iterable[bytes], *, then: float = 0.0) -> Replayed:
        """Run one recording.

        Args:
            lines: of JSON.
            then: how much quiet time follows it, seconds.

        Raises:
            RecordingError: a line cannot be read.
        """
        records = list(self._read(lines))
        clock = ReplayClock()
        if records:
            clock.move_to(records[0].arrives)
        firings = _Kept()
        columns = PlanBuilder()
        engine = RuleEngine(self._rules, self._config, columns, Telemetry(), clock, sinks=[firings])
        plan = columns.build()
        for record in records:
            clock.move_to(record.arrives)
            engine.advance()
            content = record.content
            if isinstance(content, bytes):
                engine.process(self._codec.scan(content, plan))
            elif isinstance(content, KernelEvents):
                engine.take(content)
            elif isinstance(content, Reading):
                engine.take_readings([content])
            else:
                engine.lost(*content)
        clock.move_to(clock.time_ns() + round(then * SECOND))
        engine.advance()
        return Replayed(firings, len(records))

    def _read(self, lines: Iterable[bytes]) -> Iterator[_Record]:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                yield self._record(line)
            except (ValueError, TypeError, KeyError, MalformedRequestError) as error:
                reason = f"no {error}" if isinstance(error, KeyError) else str(error)
                raise RecordingError(f"line {number}: {reason}") from error

    def _record(self, line: bytes) -> _Record:
        found = json.loads(line)
        if not isinstance(found, dict):
            raise TypeError("a record is a JSON object")
        if "resourceSpans" in found:
            data = self._from_json(line)
            batch = self._codec.scan(data, PlanBuilder().build())
            newest = int(batch.spans["end"].max()) if len(batch) else 0
            return _Record(_time(found.get("arrives", newest / SECOND)), data)
        time = _time(found["time"])
        arrives = max(time, _time(found.get("arrives", found["time"])))
        if "span" in found:
            return _Record(arrives, _span(found, time))
        if "metric" in found:
            labels = {str(name): str(value) for name, value in found.get("labels", {}).items()}
            return _Record(arrives, Reading(str(found["metric"]), labels, float(found["value"]), time))
        if "lost" in found:
            return _Record(arrives, (str(found["lost"]), int(found.get("count", 1))))
        if "event" in found:
            return _Record(arrives, self._event(found, time))
        raise ValueError("one of span, event, metric, lost, resourceSpans says what a record is")

    def _event(self, found: Mapping[str, Any], time: int) -> KernelEvents:
        kind = str(found["event"])
        if kind not in self._events:
            raise ValueError(f"an unknown event {kind!r}")
        fields = self._events[kind]
        given = {name: value for name, value in found.items() if name not in ("event", "time", "arrives")}
        own = [(name, _dtype(field)) for name, field in fields.items() if name not in (COMMON.names or ())]
        records = np.zeros(1, np.dtype([*COMMON.descr, *own]))
        record = records[0]
        record["time"] = time
        record["kind"] = KIND_NUMBERS.get(kind, KIND_NUMBERS["user"])
        for name, value in given.items():
            if name in ("trace_id", "span_id"):
                record[name] = bytes.fromhex(value)
            elif name in fields:
                record[name] = _number(fields[name], value)
            else:
                raise ValueError(f"a field {name!r}, which {kind} does not have")
        return KernelEvents(kind, records)


@dataclass(frozen=True, slots=True)
class _Record:
    arrives: int
    content: bytes | KernelEvents | Reading | tuple[str, int]


def _time(value: Any) -> int:
    """Unix nanoseconds of a number of seconds, or of an ISO 8601 text with its zone."""
    if isinstance(value, str):
        moment = datetime.fromisoformat(value)
        if moment.tzinfo is None:
            raise ValueError(f"{value!r} has no time zone; add Z")
        return round(moment.timestamp() * 1e6) * 1000
    return round(float(value) * SECOND)


def _dtype(field: Field) -> str:
    return {"text": "S64", "address": "V16"}.get(field.type, "<i8")


def _number(field: Field, value: Any) -> Any:
    """A field's value as the record has it: words and durations as numbers."""
    if field.type == "text":
        return str(value).encode()
    if field.type == "address":
        address = ip_address(value)
        return (IPv6Address(f"::ffff:{address}") if isinstance(address, IPv4Address) else address).packed
    if isinstance(value, str) and value in field.names:
        return field.names[value][0]
    if isinstance(value, str) and field.unit in ("ns", "us"):
        return round(parse_duration(value) * (1e9 if field.unit == "ns" else 1e6))
    return int(value)


def _span(found: Mapping[str, Any], end: int) -> bytes:
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    resource.resource.attributes.extend(key_values(found.get("resource", {})))
    span = resource.scope_spans.add().spans.add(
        name=str(found["span"]),
        trace_id=bytes.fromhex(found.get("trace_id", "00" * 15 + "01")),
        span_id=bytes.fromhex(found.get("span_id", "00" * 7 + "01")),
        kind=_word(SpanKind, found.get("kind", "server")),
        start_time_unix_nano=end - round(parse_duration(found.get("duration", 0.0)) * SECOND),
        end_time_unix_nano=end,
    )
    span.status.code = _word(StatusCode, found.get("status", "unset"))
    span.status.message = str(found.get("message", ""))
    span.attributes.extend(key_values(found.get("attributes", {})))
    return bytes(request.SerializeToString())


def _word(words: type[IntEnum], value: Any) -> Any:
    known = {member.name.lower(): int(member) for member in words}
    if value not in known:
        raise ValueError(f"{value!r} where one of {', '.join(known)} stands")
    return known[value]
