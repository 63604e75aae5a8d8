"""Kernel events that found no span here, as OTLP log records for a bridge that has the span; and back.

Each record carries trace id and span id, so that a load-balancing exporter brings it to the bridge that gets
the trace. For people it has the event's name, the ids and the time; for the bridge the event itself, byte for
byte, with the layout that wrote it.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
import structlog
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from otel_bridge import __version__, catalog
from otel_bridge.events import COMMON, KernelEvents
from otel_bridge.model import Match
from otel_bridge.processors.join.schema import shape_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray
    from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ScopeLogs

log = structlog.get_logger(__name__)

SCOPE_NAME = "otel_bridge.kernel"
_PROBE, _LAYOUT, _RECORD = "otel_bridge.probe", "otel_bridge.layout", "otel_bridge.record"
_MAX_FIELDS = 64
_MAX_RECORD = 4096
"""Bytes; the longest record has a stack's text."""


def write_events(groups: Iterable[tuple[str, NDArray[np.void]]]) -> bytes:
    """An ExportLogsServiceRequest with one log record an event."""
    request = ExportLogsServiceRequest()
    resource_logs = request.resource_logs.add()
    resource_logs.resource.attributes.append(_text("service.name", "otel_bridge"))
    for probe, records in groups:
        scope_logs = resource_logs.scope_logs.add()
        scope_logs.scope.name = SCOPE_NAME
        scope_logs.scope.version = __version__
        scope_logs.scope.attributes.extend((_text(_PROBE, probe), _text(_LAYOUT, repr(records.dtype.descr))))
        for record in records:
            _write(scope_logs, record, probe)
    return request.SerializeToString()


def read_events(data: bytes) -> Iterator[KernelEvents]:
    """The kernel events in an ExportLogsServiceRequest; logs of others are passed over.

    A record that does not fit its layout is left out with a line in the log: it comes from outside.
    """
    if SCOPE_NAME.encode() not in data:
        return
    try:
        request = ExportLogsServiceRequest.FromString(data)
    except DecodeError:
        return
    for resource_logs in request.resource_logs:
        for scope_logs in resource_logs.scope_logs:
            if scope_logs.scope.name == SCOPE_NAME:
                yield from _read(scope_logs)


def _write(scope_logs: ScopeLogs, record: np.void, probe: str) -> None:
    shape = shape_of(record, probe)
    trace_id = bytes(record["trace_id"])
    known = any(trace_id)
    scope_logs.log_records.add(
        time_unix_nano=int(record["time"]),
        event_name=shape.name if shape is not None and shape.name else f"kernel.{int(record['kind'])}",
        trace_id=trace_id if known else b"",
        span_id=bytes(record["span_id"]) if known else b"",
        attributes=[
            _text(catalog.KERNEL_MATCH.key, Match(int(record["match"])).name.lower()),
            KeyValue(key=_RECORD, value=AnyValue(bytes_value=record.tobytes())),
        ],
    )


def _read(scope_logs: ScopeLogs) -> Iterator[KernelEvents]:
    about = {item.key: item.value.string_value for item in scope_logs.scope.attributes}
    dtype = _layout(about.get(_LAYOUT, ""))
    if dtype is None:
        log.warning("kernel events in a layout that is not understood", records=len(scope_logs.log_records))
        return
    pieces: dict[str, list[bytes]] = defaultdict(list)
    for record in scope_logs.log_records:
        piece = _piece(record)
        if len(piece) == dtype.itemsize:
            pieces[about.get(_PROBE, "")].append(piece)
    for probe, found in pieces.items():
        yield KernelEvents(probe, np.frombuffer(bytearray().join(found), dtype))


def _piece(record: LogRecord) -> bytes:
    for item in record.attributes:
        if item.key == _RECORD:
            content: bytes = item.value.bytes_value
            return content
    return b""


def _layout(text: str) -> np.dtype[Any] | None:
    """A dtype from its description, which is data from outside: literals only, and nothing but numbers."""
    try:
        fields = ast.literal_eval(text)
        dtype = np.dtype([tuple(field) for field in fields][:_MAX_FIELDS])
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
    if dtype.hasobject or dtype.itemsize > _MAX_RECORD or dtype.descr[: len(COMMON.descr)] != COMMON.descr:
        return None
    return dtype


def _text(key: str, value: str) -> KeyValue:
    return KeyValue(key=key, value=AnyValue(string_value=value))
