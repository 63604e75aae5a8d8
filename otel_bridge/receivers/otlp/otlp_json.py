"""OTLP/JSON turned into the protobuf bytes that say the same.

One walk over the parsed document, steered by the protobuf descriptors, writes the bytes. protobuf's own
json_format is no help here: OTLP's ids are hex, which it reads as base64 without complaint.

Accepted beyond what OTLP/JSON asks for: names in snake_case, enums by name, 64-bit integers as numbers,
`null` for anything, and base64 without padding or in its URL-safe alphabet.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from google.protobuf.descriptor import FieldDescriptor
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_bridge.errors import MalformedRequestError
from otel_bridge.model import Signal
from otel_bridge.receivers.otlp.json_text import parse

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, EnumDescriptor

_Encode: TypeAlias = Callable[[Any, list[bytes]], int]
"""Appends a value's whole field, tag included, to the pieces, and gives its size in bytes.

The pieces are joined once at the end, so that a long text is not copied again at each level above it.
"""

_Write: TypeAlias = Callable[[Any], bytes]
"""A value's bytes, without tag."""

_Fields: TypeAlias = dict[str, _Encode]

_IDS = {"trace_id", "span_id", "parent_span_id"}
"""The bytes fields that OTLP/JSON writes in hex."""

_SHORT = 128
"""Lengths below this take one byte."""


@dataclass(frozen=True, slots=True)
class Converted:
    """A request in protobuf.

    Attributes:
        data: an Export*ServiceRequest.
        mended: how many strings were not Unicode and now are.
        warning: for the sender; empty when there is nothing to say.
    """

    data: bytes
    mended: int
    warning: str


def convert(body: bytes, signal: Signal) -> Converted:
    """Turn a JSON body into protobuf.

    Ids are only held to be hex: one of a wrong length costs its span, not the request, and that is for the
    consumer to say.

    Raises:
        MalformedRequestError: not JSON, or not OTLP; the text names the place in the document.
    """
    document, mended = parse(body)
    fields = _REQUESTS[signal]
    pieces: list[bytes] = []
    try:
        _message(document, fields, pieces)
    except _FieldError as error:
        raise MalformedRequestError(str(error)) from None
    except RecursionError:
        raise MalformedRequestError("the body is nested too deeply") from None
    return Converted(b"".join(pieces), mended, _warning(document, fields))


def _warning(document: dict[str, Any], fields: _Fields) -> str:
    """A document with nothing of ours in it is no error to OTLP, but hardly what its sender meant."""
    if not document or not fields.keys().isdisjoint(document):
        return ""
    found = ", ".join(repr(name) for name in list(document)[:3])
    return f"nothing was taken: expected the key {next(iter(fields))!r}, found only {found}"


class _FieldError(Exception):
    """A value that cannot be; on its way up it learns where it stands."""

    def __init__(self, found: Any, expected: str) -> None:
        super().__init__()
        self._what = f"found {_shown(found)}, expected {expected}"
        self._path = ""

    def under(self, step: str) -> None:
        """The value stands below `step`: a name, or an index in brackets."""
        joint = "." if self._path and not self._path.startswith("[") else ""
        self._path = f"{step}{joint}{self._path}"

    def __str__(self) -> str:
        return f"{self._path or 'the body'}: {self._what}"


def _shown(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "an array"
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "…"  # noqa: PLR2004 (a line of a terminal)


def _message(value: Any, fields: _Fields, pieces: list[bytes]) -> int:
    """The fields of one message, one after the other."""
    if type(value) is not dict:
        raise _FieldError(value, "an object")
    size = 0
    name = ""
    try:
        for name, item in value.items():
            encode = fields.get(name)
            if encode is not None and item is not None:
                size += encode(item, pieces)
    except _FieldError as error:
        error.under(name)
        raise
    return size


# Fields


def _fields(descriptor: Descriptor, tables: dict[str, _Fields]) -> _Fields:
    """How each field of a message is written, under both of its names; messages may contain themselves."""
    table = tables.get(descriptor.full_name)
    if table is None:
        table = tables[descriptor.full_name] = {}
        for field in descriptor.fields:
            encode = _field(field, tables)
            table[field.json_name] = encode
            table[field.name] = encode
    return table


def _field(field: FieldDescriptor, tables: dict[str, _Fields]) -> _Encode:
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        assert field.message_type is not None
        one = _message_field(field, _fields(field.message_type, tables))
    elif field.type == FieldDescriptor.TYPE_STRING:
        one = _string_field(field)
    elif field.type == FieldDescriptor.TYPE_BYTES:
        one = _bytes_field(field)
    else:
        return _scalar_field(field)
    return _repeated(one) if field.is_repeated else one


def _message_field(field: FieldDescriptor, fields: _Fields) -> _Encode:
    tag, heads = _delimited(field)

    def encode(value: Any, pieces: list[bytes]) -> int:
        place = len(pieces)
        pieces.append(b"")
        size = _message(value, fields, pieces)
        head = heads[size] if size < _SHORT else tag + _varint(size)
        pieces[place] = head
        return len(head) + size

    return encode


def _string_field(field: FieldDescriptor) -> _Encode:
    tag, heads = _delimited(field)

    def encode(value: Any, pieces: list[bytes]) -> int:
        if type(value) is not str:
            raise _FieldError(value, "a string")
        body = value.encode()
        size = len(body)
        if size < _SHORT:
            pieces.append(heads[size] + body)
            return len(heads[size]) + size
        head = tag + _varint(size)
        pieces += (head, body)
        return len(head) + size

    return encode


def _bytes_field(field: FieldDescriptor) -> _Encode:
    tag, _ = _delimited(field)
    decode = _hex if field.name in _IDS else _base64

    def encode(value: Any, pieces: list[bytes]) -> int:
        body = decode(value)
        head = tag + _varint(len(body))
        pieces += (head, body)
        return len(head) + len(body)

    return encode


def _repeated(one: _Encode) -> _Encode:
    def encode(value: Any, pieces: list[bytes]) -> int:
        if type(value) is not list:
            raise _FieldError(value, "an array")
        size = index = 0
        try:
            for index, item in enumerate(value):  # noqa: B007 (for the path)
                # An array has no place to leave out: null is the empty value.
                size += one({} if item is None else item, pieces)
        except _FieldError as error:
            error.under(f"[{index}]")
            raise
        return size

    return encode


def _scalar_field(field: FieldDescriptor) -> _Encode:
    write = _scalar(field)
    tag = b"" if field.is_repeated else _tag(field, _WIRE_TYPES[field.type])

    def encode(value: Any, pieces: list[bytes]) -> int:
        piece = tag + write(value)
        pieces.append(piece)
        return len(piece)

    return _packed(field, _repeated(encode)) if field.is_repeated else encode


def _packed(field: FieldDescriptor, elements: _Encode) -> _Encode:
    tag, _ = _delimited(field)

    def encode(value: Any, pieces: list[bytes]) -> int:
        inner: list[bytes] = []
        size = elements(value, inner)
        head = tag + _varint(size)
        pieces.append(head)
        pieces += inner
        return len(head) + size

    return encode


# Scalars


def _scalar(field: FieldDescriptor) -> _Write:
    kind = field.type
    if kind == FieldDescriptor.TYPE_BOOL:
        return _bool
    if kind in (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT):
        pack_float = struct.Struct("<d" if kind == FieldDescriptor.TYPE_DOUBLE else "<f").pack
        return lambda value: pack_float(_float(value))
    if kind == FieldDescriptor.TYPE_ENUM:
        assert field.enum_type is not None
        return _enum(field.enum_type)
    low, high = _RANGES[kind]
    if kind in _FIXED:
        pack = struct.Struct(_FIXED[kind]).pack
        return lambda value: pack(_integer(value, low, high))
    if kind in (FieldDescriptor.TYPE_SINT32, FieldDescriptor.TYPE_SINT64):
        return lambda value: _varint(_zigzag(_integer(value, low, high)))
    return lambda value: _varint(_integer(value, low, high) & _UINT64)


def _bool(value: Any) -> bytes:
    if type(value) is not bool:
        raise _FieldError(value, "true or false")
    return b"\x01" if value else b"\x00"


def _enum(descriptor: EnumDescriptor) -> _Write:
    numbers = {name: value.number for name, value in descriptor.values_by_name.items()}

    def write(value: Any) -> bytes:
        number = numbers.get(value) if isinstance(value, str) else None
        if number is None:
            try:
                number = _integer(value, *_INT32)
            except _FieldError:
                raise _FieldError(value, f"a number or a name of {descriptor.name}") from None
        return _varint(number & _UINT64)

    return write


def _integer(value: Any, low: int, high: int) -> int:
    number = value
    if type(value) is str:
        digits = value.removeprefix("-")
        # int() alone would also take spaces, underscores and other scripts' digits, and any length.
        if digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS:
            number = int(value)
    elif type(value) is float and value.is_integer():
        number = int(value)
    if type(number) is not int or not low <= number <= high:
        raise _FieldError(value, f"an integer from {low} to {high}")
    return number


_SPECIAL = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


def _float(value: Any) -> float:
    if type(value) is float or type(value) is int:
        return float(value)
    if type(value) is str:
        if value in _SPECIAL:
            return _SPECIAL[value]
        try:
            return float(value)
        except ValueError:
            pass
    raise _FieldError(value, 'a number, "NaN", "Infinity" or "-Infinity"')


def _hex(value: Any) -> bytes:
    try:
        return binascii.unhexlify(value)
    except (ValueError, TypeError):
        raise _FieldError(value, "hex digits, two a byte (base64 is not OTLP/JSON)") from None


def _base64(value: Any) -> bytes:
    try:
        text = value.rstrip("=")
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=_altchars(text), validate=True)
    except (ValueError, TypeError, AttributeError):
        raise _FieldError(value, "base64") from None


def _altchars(text: str) -> bytes | None:
    return b"-_" if "-" in text or "_" in text else None


# The wire

_UINT64 = (1 << 64) - 1
_INT32 = (-(1 << 31), (1 << 31) - 1)
_INT64 = (-(1 << 63), (1 << 63) - 1)
_MOST_DIGITS = 20

_RANGES: dict[int, tuple[int, int]] = {
    FieldDescriptor.TYPE_INT32: _INT32,
    FieldDescriptor.TYPE_SINT32: _INT32,
    FieldDescriptor.TYPE_SFIXED32: _INT32,
    FieldDescriptor.TYPE_UINT32: (0, (1 << 32) - 1),
    FieldDescriptor.TYPE_FIXED32: (0, (1 << 32) - 1),
    FieldDescriptor.TYPE_INT64: _INT64,
    FieldDescriptor.TYPE_SINT64: _INT64,
    FieldDescriptor.TYPE_SFIXED64: _INT64,
    FieldDescriptor.TYPE_UINT64: (0, _UINT64),
    FieldDescriptor.TYPE_FIXED64: (0, _UINT64),
}

_FIXED: dict[int, str] = {
    FieldDescriptor.TYPE_FIXED32: "<I",
    FieldDescriptor.TYPE_SFIXED32: "<i",
    FieldDescriptor.TYPE_FIXED64: "<Q",
    FieldDescriptor.TYPE_SFIXED64: "<q",
}

_VARINT, _I64, _LEN, _I32 = 0, 1, 2, 5

_WIRE_TYPES: dict[int, int] = {
    **dict.fromkeys(_RANGES, _VARINT),
    FieldDescriptor.TYPE_BOOL: _VARINT,
    FieldDescriptor.TYPE_ENUM: _VARINT,
    FieldDescriptor.TYPE_DOUBLE: _I64,
    FieldDescriptor.TYPE_FIXED64: _I64,
    FieldDescriptor.TYPE_SFIXED64: _I64,
    FieldDescriptor.TYPE_FLOAT: _I32,
    FieldDescriptor.TYPE_FIXED32: _I32,
    FieldDescriptor.TYPE_SFIXED32: _I32,
}


def _tag(field: FieldDescriptor, wire_type: int) -> bytes:
    return _varint(field.number << 3 | wire_type)


def _delimited(field: FieldDescriptor) -> tuple[bytes, list[bytes]]:
    """The tag, and tag with length for each short length."""
    tag = _tag(field, _LEN)
    return tag, [tag + bytes([size]) for size in range(_SHORT)]


def _varint(number: int) -> bytes:
    if number < _SHORT:
        return bytes((number,))
    out = bytearray()
    while number >= _SHORT:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _zigzag(number: int) -> int:
    return number << 1 if number >= 0 else ~(number << 1)


_TABLES: dict[str, _Fields] = {}
_REQUESTS: dict[Signal, _Fields] = {
    Signal.TRACES: _fields(ExportTraceServiceRequest.DESCRIPTOR, _TABLES),
    Signal.METRICS: _fields(ExportMetricsServiceRequest.DESCRIPTOR, _TABLES),
    Signal.LOGS: _fields(ExportLogsServiceRequest.DESCRIPTOR, _TABLES),
}
