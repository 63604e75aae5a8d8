"""Text on the wire that is not UTF-8, mended in decoded messages whose strings are bytes."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message

_STRINGS = {
    f"opentelemetry.proto.{name}": fields
    for name, fields in {
        "trace.v1.ResourceSpans": ("schema_url",),
        "trace.v1.ScopeSpans": ("schema_url",),
        "trace.v1.Span": ("trace_state", "name"),
        "trace.v1.Span.Event": ("name",),
        "trace.v1.Span.Link": ("trace_state",),
        "trace.v1.Status": ("message",),
        "common.v1.InstrumentationScope": ("name", "version"),
        "common.v1.EntityRef": ("schema_url", "type", "id_keys", "description_keys"),
        "common.v1.KeyValue": ("key",),
        "common.v1.AnyValue": ("string_value",),
    }.items()
}


def mend(root: Any) -> int:
    """Make every string below a message UTF-8; how many were not."""
    mended = 0
    messages = [root]
    while messages:
        message = messages.pop()
        strings = _STRINGS.get(message.DESCRIPTOR.full_name, ())
        for descriptor, value in message.ListFields():
            if descriptor.message_type is not None:
                messages.extend([value] if isinstance(value, Message) else value)
            elif descriptor.name in strings:
                mended += _mend_field(message, descriptor, value)
    return mended


def _mend_field(message: Any, descriptor: Any, value: Any) -> int:
    if isinstance(value, bytes):
        fixed = _utf8(value)
        setattr(message, descriptor.name, fixed)
        return int(fixed != value)
    texts = list(value)
    value[:] = [_utf8(text) for text in texts]
    return sum(text != fixed for text, fixed in zip(texts, value, strict=True))


def _utf8(text: bytes) -> bytes:
    return text.decode("utf-8", "replace").encode()
