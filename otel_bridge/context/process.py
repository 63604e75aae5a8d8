"""The process describes itself to readers outside: resource attributes, and how its records are to be read.

The payload is a ProcessContext message (OTEP 4719): the resource as field 1, further attributes as field 2.
It is encoded here, because an application that publishes its context must not need protobuf for it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

if TYPE_CHECKING:
    from types import ModuleType

SCHEMA_VERSION = "tlsdesc_v1_dev"
SEQUENCE_OFFSET = 32
"""Bytes from a record to its sequence (src/record.h), for readers that do not interrupt the thread."""

THREAD_ATTRIBUTES: Mapping[str, Any] = {
    "threadlocal.schema_version": SCHEMA_VERSION,
    "threadlocal.attribute_key_map": (),
    "otel_bridge.threadlocal.sequence_offset": SEQUENCE_OFFSET,
}

MAPPING_NAMES = ("/memfd:OTEL_CTX", "[anon:OTEL_CTX]", "[anon_shmem:OTEL_CTX]")


def publish(record: ModuleType, resource: Mapping[str, Any], *, replace: bool) -> str:
    """Describe the process, or, with `replace`, describe it anew.

    Returns:
        What stood in the way, with nothing published; empty if nothing did.
    """
    if not replace and _is_published():
        return "another library describes this process already, and there may be one description only"
    try:
        record.publish_process(encode(resource, THREAD_ATTRIBUTES))
    except OSError as error:
        return f"it could not be published: {error.strerror}"
    return ""


def _is_published() -> bool:
    maps = Path("/proc/self/maps").read_text("utf-8", "surrogateescape")
    return any(name in maps for name in MAPPING_NAMES)


def resource_of(owner: Any) -> Mapping[str, Any]:
    """The resource attributes of an SDK's span or tracer provider; without an SDK, what the environment says.

    Source: OpenTelemetry's specification of environment variables; OTEL_SERVICE_NAME wins over
    OTEL_RESOURCE_ATTRIBUTES.
    """
    attributes = getattr(getattr(owner, "resource", None), "attributes", None)
    return dict(attributes) if isinstance(attributes, Mapping) else _resource_of_environment(os.environ)


def _resource_of_environment(environment: Mapping[str, str]) -> dict[str, str]:
    attributes: dict[str, str] = {}
    for item in environment.get("OTEL_RESOURCE_ATTRIBUTES", "").split(","):
        key, found, value = item.partition("=")
        if found and key.strip():
            attributes[key.strip()] = unquote(value.strip())
    name = environment.get("OTEL_SERVICE_NAME", "").strip()
    if name:
        attributes["service.name"] = name
    return attributes


def encode(resource: Mapping[str, Any], attributes: Mapping[str, Any]) -> bytes:
    """A ProcessContext message."""
    inner = b"".join(_field(1, _key_value(key, value)) for key, value in resource.items())
    return _field(1, inner) + b"".join(_field(2, _key_value(key, value)) for key, value in attributes.items())


def _key_value(key: str, value: Any) -> bytes:
    return _field(1, key.encode("utf-8", "replace")) + _field(2, _any_value(value))


def _any_value(value: Any) -> bytes:
    """An AnyValue; what is of no OTLP type goes as its text."""
    if isinstance(value, bool):
        return _tag(2, 0) + _varint(int(value))
    if isinstance(value, int) and -(1 << 63) <= value < 1 << 63:
        return _tag(3, 0) + _varint(value & (1 << 64) - 1)
    if isinstance(value, float):
        return _tag(4, 1) + struct.pack("<d", value)
    if isinstance(value, bytes):
        return _field(7, value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return _field(5, b"".join(_field(1, _any_value(item)) for item in value))
    return _field(1, str(value).encode("utf-8", "replace"))


def _field(number: int, content: bytes) -> bytes:
    return _tag(number, 2) + _varint(len(content)) + content


def _tag(number: int, wire_type: int) -> bytes:
    return _varint(number << 3 | wire_type)


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:  # noqa: PLR2004 - protobuf: seven bits a byte
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
