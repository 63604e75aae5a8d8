"""The codec on protobuf's own decoder (upb): what the native codec is held to, and where no wheel fits, used.

Spans are decoded into messages of a private descriptor pool whose strings are bytes, so that text that is
not UTF-8 can be mended instead of costing the whole request. A `ReferenceBatch` has the columns of any other
`Batch`; they point into an arena of re-encoded fields, not into the request.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
from opentelemetry.proto.common.v1 import common_pb2
from opentelemetry.proto.resource.v1 import resource_pb2
from opentelemetry.proto.trace.v1 import trace_pb2

from otel_bridge.batch import ATTRIBUTE, SCOPE, SPAN, STATUS_MESSAGE, Batch
from otel_bridge.errors import MalformedRequestError
from otel_bridge.model import Reject, Scope, Signal, SpanKind, StatusCode, ValueType
from otel_bridge.receivers.otlp.items import ITEMS, count_items
from otel_bridge.receivers.otlp.reference_mend import mend
from otel_bridge.wire import sized

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from otel_bridge.batch import Plan
    from otel_bridge.edits import Insert

_LARGEST = 2**32 - 1
_DEPTH = 100
"""Messages that protobuf's decoders take in each other."""
_OVERSIZED_SLOT = 2**16 - 1

_ATTRIBUTES_FIELD = {
    Scope.SPAN: 9,
    Scope.RESOURCE: 1,
    Scope.INSTRUMENTATION: 3,
    Scope.EVENT: 3,
    Scope.LINK: 4,
}
_STATUS_MESSAGE_FIELD = 2
_STATUS = -1
"""The part of a span that its status is, in a `Home`."""
_SPAN_KINDS = {int(kind) for kind in SpanKind}
_STATUS_CODES = {int(code) for code in StatusCode}
_VALUE_TYPES = {
    None: ValueType.EMPTY,
    "string_value": ValueType.STRING,
    "bool_value": ValueType.BOOL,
    "int_value": ValueType.INT,
    "double_value": ValueType.DOUBLE,
    "array_value": ValueType.ARRAY,
    "kvlist_value": ValueType.KVLIST,
    "bytes_value": ValueType.BYTES,
}


class Home(NamedTuple):
    """Where an attribute stands.

    Attributes:
        scope: of what kind its owner is.
        owner: the span's row, or the number of the ResourceSpans or ScopeSpans in the request.
        part: which of the span's events or links; for the status's message `_STATUS`; else 0.
        place: which of the owner's attributes.
    """

    scope: Scope
    owner: int
    part: int
    place: int


@dataclass(slots=True)
class Tree:
    """A request in messages.

    Attributes:
        data: its bytes, mended.
        shell: the request, each span in it as bytes.
        spans: the spans as messages; None for one that is nested too deep.
        homes: for the arena offset of an attribute, where it stands.
    """

    data: bytes
    shell: Any
    spans: list[Any]
    homes: dict[int, Home] = field(default_factory=dict)


@dataclass(slots=True)
class ReferenceBatch(Batch):
    """A `Batch` whose `data` is an arena that holds what its records point at."""

    tree: Tree = field(kw_only=True)

    def event_names(self, records: np.ndarray[Any, np.dtype[np.void]]) -> list[bytes | None]:
        """For each EVENT record the name of its event; see `Batch.event_names`."""
        homes = [self.tree.homes[at] for at in records["kv_off"].tolist()]
        return [self.tree.spans[home.owner].events[home.part].name for home in homes]

    def splice(self) -> bytes:
        """The request with the edits worked in; see `Batch.splice`."""
        return self.codec.splice(self) if self.edited else self.tree.data


class ReferenceCodec:
    """Reads and splices with protobuf."""

    name = "reference"

    def scan(self, data: bytes, plan: Plan) -> ReferenceBatch:
        """Read a request; see `contracts.Codec`."""
        if len(data) > _LARGEST:
            raise MalformedRequestError("not an ExportTraceServiceRequest: larger than 4 GiB")
        tree, mended = _decode(data)
        columns = _Columns(plan, tree)
        columns.fill()
        attributes, starts = columns.grouped()
        return ReferenceBatch(
            bytes(columns.arena),
            plan,
            self,
            np.array(columns.spans, SPAN),
            np.array(columns.scopes, SCOPE),
            attributes,
            starts,
            frozenset(slot for slot in range(len(plan.wants)) if starts[slot] != starts[slot + 1]),
            columns.resources,
            mended,
            tree=tree,
        )

    def splice(self, batch: Batch) -> bytes:
        """Work the edits in; see `contracts.Codec`."""
        assert isinstance(batch, ReferenceBatch), "a batch is spliced by the codec that scanned it"
        return _Splice(batch).run()

    def count_items(self, signal: Signal, data: bytes) -> int:
        """Count without decoding; see `contracts.Codec`."""
        return count_items(data, ITEMS[signal])


@cache
def _schema(*raw: str) -> Callable[[str], Any]:
    """OTLP's trace messages with strings as bytes, and with the fields named in `raw` undecoded."""
    pool = DescriptorPool()
    for module in (common_pb2, resource_pb2, trace_pb2, trace_service_pb2):
        file = FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(file)
        for message in _all_messages(file.message_type):
            # Fields that OTLP has for profiles alone: another signal's decoder may not know them.
            kept = [item for item in message.field if not item.name.endswith("_strindex")]
            del message.field[:]
            message.field.extend(kept)
            for item in message.field:
                if item.type == FieldDescriptorProto.TYPE_STRING or f"{message.name}.{item.name}" in raw:
                    item.type = FieldDescriptorProto.TYPE_BYTES
                    item.ClearField("type_name")
        pool.Add(file)

    @cache
    def message_class(name: str) -> Any:
        return GetMessageClass(pool.FindMessageTypeByName(f"opentelemetry.proto.{name}"))

    return message_class


def _all_messages(messages: Any) -> Iterator[Any]:
    for message in messages:
        yield message
        yield from _all_messages(message.nested_type)


_SHELL = _schema("ScopeSpans.spans")
_WHOLE = _schema()
_FLAT = _schema("ArrayValue.values", "KeyValueList.values")
_REQUEST = "collector.trace.v1.ExportTraceServiceRequest"


def _decode(data: bytes) -> tuple[Tree, int]:
    """The request in messages, and how many strings were mended."""
    try:
        shell = _SHELL(_REQUEST).FromString(data)
        scopes = _scopes(shell)
        spans = [_decode_span(raw) for scope_spans in scopes for raw in scope_spans.spans]
    except DecodeError as error:
        raise MalformedRequestError(f"not an ExportTraceServiceRequest: {error}") from error
    if _is_clean(data):
        return Tree(data, shell, spans), 0
    mended = mend(shell)
    rows = iter(spans)
    for scope_spans in scopes:
        for index, span in zip(range(len(scope_spans.spans)), rows, strict=False):
            if span is not None:
                mended += mend(span)
                # Written anew also when nothing was mended: a broken string may hide behind a later one.
                scope_spans.spans[index] = span.SerializeToString()
    return Tree(shell.SerializeToString(), shell, spans), mended


def _scopes(shell: Any) -> list[Any]:
    """All ScopeSpans, in order."""
    return [
        scope_spans for resource_spans in shell.resource_spans for scope_spans in resource_spans.scope_spans
    ]


def _decode_span(raw: bytes) -> Any:
    """A Span as it stands below a request: None when it is nested deeper than decoders go."""
    try:
        request = _WHOLE(_REQUEST).FromString(sized(1, sized(2, sized(2, raw))))
    except DecodeError:
        _check_flat(raw)
        return None
    return request.resource_spans[0].scope_spans[0].spans[0]


def _check_flat(raw: bytes) -> None:
    """Whether a span that could not be decoded is well formed as deep as decoders go; raises DecodeError."""
    span = _FLAT("trace.v1.Span").FromString(raw)
    owners = [span, *span.events, *span.links]
    values = [item.value for owner in owners for item in owner.attributes]
    for _ in range(_DEPTH):
        arrays = [item for value in values for item in value.array_value.values]
        pairs = [item for value in values for item in value.kvlist_value.values]
        values = [_FLAT("common.v1.AnyValue").FromString(item) for item in arrays]
        values += [_FLAT("common.v1.KeyValue").FromString(item).value for item in pairs]


def _is_clean(data: bytes) -> bool:
    """Whether OTLP's own messages take the request, strings and all; no is not yet a verdict."""
    try:
        trace_service_pb2.ExportTraceServiceRequest.FromString(data)
    except DecodeError:
        return False
    return True


class _Columns:
    """Records of everything wanted, and the arena they point into."""

    def __init__(self, plan: Plan, tree: Tree) -> None:
        self._tree = tree
        self._exact: dict[tuple[Scope, bytes], int] = {}
        self._prefixes: dict[Scope, list[tuple[bytes, int]]] = {scope: [] for scope in Scope}
        for slot, want in enumerate(plan.wants):
            if want.prefix:
                self._prefixes[want.scope].append((want.key.encode(), slot))
            else:
                self._exact[want.scope, want.key.encode()] = slot
        self._longer_than = plan.longer_than or _LARGEST
        self._seen: set[tuple[int, int]] = set()
        # One group a slot, then the duplicates, then the oversized.
        self._groups: list[list[tuple[object, ...]]] = [[] for _ in range(len(plan.wants) + 2)]
        self.arena = bytearray()
        self.spans: list[tuple[object, ...]] = []
        self.scopes: list[tuple[int, int, int]] = []
        self.resources = 0

    def fill(self) -> None:
        numbers = iter(range(_LARGEST))
        for resource_index, resource_spans in enumerate(self._tree.shell.resource_spans):
            resource = _Number(self._next_resource)
            owner = Home(Scope.RESOURCE, resource_index, 0, 0)
            self._attributes(resource_spans.resource, owner, resource)
            for scope_spans in resource_spans.scope_spans:
                self._scope(scope_spans, next(numbers), resource)

    def _next_resource(self) -> int:
        self.resources += 1
        return self.resources - 1

    def _scope(self, scope_spans: Any, index: int, resource: _Number) -> None:
        def number() -> int:
            name = scope_spans.scope.name
            self.scopes.append((self._store(name), len(name), resource()))
            return len(self.scopes) - 1

        scope = _Number(number)
        self._attributes(scope_spans.scope, Home(Scope.INSTRUMENTATION, index, 0, 0), scope)
        for raw in scope_spans.spans:
            self._span(raw, resource(), scope())

    def _span(self, raw: bytes, resource: int, scope: int) -> None:
        row = len(self.spans)
        span = self._tree.spans[row]
        framed = sized(2, raw)
        off = self._store(framed)
        place = (off, len(framed), off + len(framed) - len(raw))
        if span is None:
            no_ids, nothing = (bytes(16), bytes(8), bytes(8), 0, 0), (0, 0, 0, 0)
            self.spans.append((*no_ids, *place, *nothing, resource, scope, 0, 0, 0, 0, 0, Reject.TOO_DEEP, 0))
            return
        self.spans.append(
            (
                _id(span.trace_id, 16),
                _id(span.span_id, 8),
                _id(span.parent_span_id, 8),
                span.start_time_unix_nano,
                span.end_time_unix_nano,
                *place,
                self._store(span.name),
                len(span.name),
                self._store(span.trace_state),
                len(span.trace_state),
                resource,
                scope,
                span.flags,
                len(span.events),
                len(span.links),
                span.kind if span.kind in _SPAN_KINDS else 0,
                span.status.code if span.status.code in _STATUS_CODES else 0,
                _reject(span),
                0,
            )
        )
        here = _Number(lambda: row)
        self._attributes(span, Home(Scope.SPAN, row, 0, 0), here)
        self._status_message(span.status.message, row)
        for scope_kind, parts in ((Scope.EVENT, span.events), (Scope.LINK, span.links)):
            for index, part in enumerate(parts):
                self._attributes(part, Home(scope_kind, row, index, 0), here)

    def _attributes(self, owner: Any, home: Home, row: _Number) -> None:
        for place, item in enumerate(owner.attributes):
            self._attribute(item, home, place, row)

    def _attribute(self, item: Any, owner: Home, place: int, row: _Number) -> None:
        key: bytes = item.key
        which = item.value.WhichOneof("value")
        content = _content(item.value, which)
        wants = [slot for prefix, slot in self._prefixes[owner.scope] if key.startswith(prefix)]
        exact = self._exact.get((owner.scope, key))
        oversized = len(content) > self._longer_than
        if exact is None and not wants and not oversized:
            return
        value_type = _VALUE_TYPES[which]
        # Of unknown fields nothing is kept here: the content must be what the encoded attribute ends with.
        member = sized(value_type, content) if which in _WITH_CONTENT else item.value.SerializeToString()
        key_field = sized(1, key)
        encoded = key_field + sized(2, member)
        framed = sized(_ATTRIBUTES_FIELD[owner.scope], encoded)
        off = self._store(framed)
        self._tree.homes[off] = owner._replace(place=place)
        record = (
            _number(item.value, which),
            row(),
            off + len(framed) - len(content) if which in _WITH_CONTENT else 0,
            len(content),
            off + len(framed) - len(encoded) + len(key_field) - len(key),
            len(key),
            off,
            len(framed),
        )
        if exact is not None:
            again = (exact, row()) in self._seen
            self._seen.add((exact, row()))
            self._groups[-2 if again else exact].append((*record, exact, value_type, 0))
        for slot in wants:
            self._groups[slot].append((*record, slot, value_type, 0))
        if oversized:
            self._groups[-1].append((*record, _OVERSIZED_SLOT, value_type, 0))

    def _status_message(self, message: bytes, row: int) -> None:
        slot = self._exact.get((Scope.SPAN, STATUS_MESSAGE.encode()))
        if slot is None or not message:
            return
        framed = sized(_STATUS_MESSAGE_FIELD, message)
        off = self._store(framed)
        self._tree.homes[off] = Home(Scope.SPAN, row, _STATUS, 0)
        again = (slot, row) in self._seen
        content = (off + len(framed) - len(message), len(message))
        record = (0, row, *content, 0, 0, off, len(framed), slot, ValueType.STRING, 0)
        self._groups[-2 if again else slot].append(record)

    def _store(self, content: bytes) -> int:
        off = len(self.arena)
        self.arena += content
        return off

    def grouped(self) -> tuple[np.ndarray[Any, np.dtype[np.void]], Sequence[int]]:
        """The records in the order of `Batch.attributes`, and where each group begins."""
        records = [record for group in self._groups for record in group]
        return np.array(records, ATTRIBUTE), [0, *accumulate(map(len, self._groups))]


class _Number:
    """A row number that is given out when it is first asked for."""

    def __init__(self, give: Callable[[], int]) -> None:
        self._give = give
        self._number: int | None = None

    def __call__(self) -> int:
        if self._number is None:
            self._number = self._give()
        return self._number


_WITH_CONTENT = {"string_value", "bytes_value", "array_value", "kvlist_value"}


def _content(value: Any, which: str | None) -> bytes:
    if which in {"string_value", "bytes_value"}:
        text: bytes = getattr(value, which)
        return text
    if which in {"array_value", "kvlist_value"}:
        message: bytes = getattr(value, which).SerializeToString()
        return message
    return b""


def _number(value: Any, which: str | None) -> int:
    if which in {"int_value", "bool_value"}:
        return int(getattr(value, which))
    if which == "double_value":
        bits: int = struct.unpack("<q", struct.pack("<d", value.double_value))[0]
        return bits
    return 0


def _id(found: bytes, length: int) -> bytes:
    return found if len(found) == length else bytes(length)


def _reject(span: Any) -> Reject:
    if len(span.trace_id) != 16:  # noqa: PLR2004 (W3C trace context)
        return Reject.TRACE_ID_LENGTH
    if not any(span.trace_id):
        return Reject.TRACE_ID_ZERO
    if len(span.span_id) != 8:  # noqa: PLR2004
        return Reject.SPAN_ID_LENGTH
    if not any(span.span_id):
        return Reject.SPAN_ID_ZERO
    if len(span.parent_span_id) not in {0, 8}:
        return Reject.PARENT_ID_LENGTH
    if any(len(link.trace_id) not in {0, 16} or len(link.span_id) not in {0, 8} for link in span.links):
        return Reject.LINK_ID_LENGTH
    return Reject.NONE


class _Splice:
    """Edits made on copies of the messages: a batch can be spliced again with others."""

    def __init__(self, batch: ReferenceBatch) -> None:
        self._batch = batch
        self._tree = batch.tree
        self._shell = _SHELL(_REQUEST)()
        self._shell.CopyFrom(batch.tree.shell)
        self._scopes = _scopes(self._shell)
        self._touched: dict[int, Any] = {}

    def run(self) -> bytes:
        self._swap()
        for insert in self._batch.inserts:
            self._append(insert)
        self._drop()
        data: bytes = self._shell.SerializeToString()
        return data

    def _swap(self) -> None:
        """Cuts and replacements, owner by owner."""
        swaps: dict[Home, bytes] = {}
        for replacement in self._batch.replacements:
            ends = [0, *accumulate(replacement.sizes.tolist())]
            for off, start, end in zip(replacement.offs.tolist(), ends, ends[1:], strict=False):
                swaps[self._home(off)] = replacement.blob[start:end]
        for records in self._batch.cuts:
            swaps.update((self._home(off), b"") for off in records["kv_off"].tolist())
        by_owner: dict[Home, dict[int, bytes]] = {}
        for home, fields in swaps.items():
            by_owner.setdefault(home._replace(place=0), {})[home.place] = fields
        for home, of_owner in by_owner.items():
            owner = self._owner(home)
            if home.part == _STATUS:
                owner.status.ClearField("message")
                owner.status.MergeFromString(of_owner[0])
                continue
            attributes = list(owner.attributes)
            del owner.attributes[:]
            for place, attribute in enumerate(attributes):
                if place in of_owner:
                    owner.MergeFromString(of_owner[place])
                else:
                    owner.attributes.append(attribute)

    def _home(self, off: int) -> Home:
        try:
            return self._tree.homes[off]
        except KeyError:
            raise ValueError(f"the edits do not fit the request: no attribute at {off}") from None

    def _append(self, insert: Insert) -> None:
        batch = self._batch
        ends = list(accumulate(insert.values.tolist())) if insert.kind in {"text", "raw"} else []
        for item, row in enumerate(insert.rows.tolist()):
            span = self._span(row)
            if span is None:
                continue
            piece = insert.blob[ends[item - 1] if item else 0 : ends[item]] if ends else insert.blob
            if insert.kind == "raw":
                span.MergeFromString(piece)
                continue
            value = span.attributes.add(key=insert.key).value
            match insert.kind:
                case "int":
                    value.int_value = int(insert.values[item])
                case "double":
                    value.double_value = float(insert.values[item])
                case "bool":
                    value.bool_value = bool(insert.values[item])
                case "slice":
                    off = int(insert.values[item])
                    value.string_value = batch.data[off : off + int(insert.lens[item])]
                case _:
                    value.string_value = piece

    def _drop(self) -> None:
        """Leave out what must not go on, and resources and scopes that have lost all their spans."""
        gone = self._batch.spans["reject"] > 0
        if self._batch.dropped is not None:
            gone |= self._batch.dropped
        rows = iter(range(len(gone)))
        emptied_resources = []
        for index, resource_spans in enumerate(self._shell.resource_spans):
            emptied = []
            had = any(scope_spans.spans for scope_spans in resource_spans.scope_spans)
            for place, scope_spans in enumerate(resource_spans.scope_spans):
                before = list(scope_spans.spans)
                here = list(islice(rows, len(before)))
                scope_spans.spans[:] = [
                    self._touched[row].SerializeToString() if row in self._touched else raw
                    for row, raw in zip(here, before, strict=True)
                    if not gone[row]
                ]
                if before and not scope_spans.spans:
                    emptied.append(place)
            if had and not any(scope_spans.spans for scope_spans in resource_spans.scope_spans):
                emptied_resources.append(index)
            _delete(resource_spans.scope_spans, emptied)
        _delete(self._shell.resource_spans, emptied_resources)

    def _span(self, row: int) -> Any:
        span = self._touched.get(row)
        if span is None and self._tree.spans[row] is not None:
            span = self._touched[row] = type(self._tree.spans[row])()
            span.CopyFrom(self._tree.spans[row])
        return span

    def _owner(self, home: Home) -> Any:
        match home.scope:
            case Scope.RESOURCE:
                return self._shell.resource_spans[home.owner].resource
            case Scope.INSTRUMENTATION:
                return self._scopes[home.owner].scope
            case Scope.EVENT:
                return self._span(home.owner).events[home.part]
            case Scope.LINK:
                return self._span(home.owner).links[home.part]
        return self._span(home.owner)


def _delete(container: Any, places: list[int]) -> None:
    for place in reversed(places):
        del container[place]
