"""Attribute values: read from a batch, masked wherever they hold strings, shown as text."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import orjson
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValueList

from otel_bridge.model import ValueType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy as np

    from otel_bridge.batch import Batch

_SIZED = (ValueType.STRING, ValueType.BYTES, ValueType.ARRAY, ValueType.KVLIST)


def raw(batch: Batch, record: np.void) -> bytes:
    """What a value holds, as bytes: the text, the encoded message, or a number's own eight bytes."""
    if record["type"] in _SIZED:
        start = int(record["off"])
        return batch.data[start : start + int(record["len"])]
    return int(record["value"]).to_bytes(8, "little", signed=True)


def read(batch: Batch, record: np.void) -> AnyValue:
    """A value that holds text or may: a string, bytes, an array, a list of pairs; others are empty.

    Raises:
        google.protobuf.message.DecodeError: a nested value is nested too deep.
    """
    kind = record["type"]
    if kind == ValueType.STRING:
        return AnyValue(string_value=raw(batch, record).decode())
    if kind == ValueType.BYTES:
        return AnyValue(bytes_value=raw(batch, record))
    if kind == ValueType.ARRAY:
        return AnyValue(array_value=ArrayValue.FromString(raw(batch, record)))
    if kind == ValueType.KVLIST:
        return AnyValue(kvlist_value=KeyValueList.FromString(raw(batch, record)))
    return AnyValue()


def change_strings(value: AnyValue, change: Callable[[bytes], bytes]) -> bool:
    """Change every string in a value; whether any changed. `change` returns the same object for no change."""
    which = value.WhichOneof("value")
    if which == "string_value":
        before = value.string_value.encode()
        after = change(before)
        if after is not before:
            value.string_value = after.decode()
        return after is not before
    if which == "bytes_value":
        before = value.bytes_value
        after = change(before)
        if after is not before:
            value.bytes_value = after
        return after is not before
    if which == "array_value":
        return _change_each(value.array_value.values, change)
    if which == "kvlist_value":
        return _change_each((item.value for item in value.kvlist_value.values), change)
    return False


def _change_each(values: Iterable[AnyValue], change: Callable[[bytes], bytes]) -> bool:
    changed = [change_strings(value, change) for value in values]
    return any(changed)


def as_text(value: AnyValue) -> bytes:
    """A value as text: a string as it is, anything else as OTLP/JSON would show it."""
    if value.WhichOneof("value") == "string_value":
        return value.string_value.encode()
    plain = _plain(value)
    return plain.encode() if isinstance(plain, str) else orjson.dumps(plain)


def _plain(value: AnyValue) -> Any:
    which = value.WhichOneof("value")
    if which is None:
        return None
    if which == "array_value":
        return [_plain(item) for item in value.array_value.values]
    if which == "kvlist_value":
        return {item.key: _plain(item.value) for item in value.kvlist_value.values}
    if which == "bytes_value":
        return base64.b64encode(value.bytes_value).decode()
    return getattr(value, which)
