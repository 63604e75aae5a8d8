"""What of a span may be shown, and as which text: never a prompt, an answer, or what might hold one.

Text is shown of attributes that are on a list of names, whose values are no content; numbers of all others
but those known to be content. So a setting of redaction, or a library nobody foresaw, shows nothing.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from otel_bridge import catalog
from otel_bridge.vocabulary import CONTENT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

LONGEST_NAME = 120
LONGEST_TEXT = 300
LONGEST_STACK = 4000
_MANY = 3
"""Of an array so many values are shown."""

_CONVENTIONS = frozenset(
    {
        "cloud.region",
        "container.id",
        "container.name",
        "db.operation.name",
        "db.system.name",
        "deployment.environment.name",
        "error.type",
        "exception.type",
        "gen_ai.agent.name",
        "gen_ai.operation.name",
        "gen_ai.output.type",
        "gen_ai.provider.name",
        "gen_ai.request.model",
        "gen_ai.response.finish_reasons",
        "gen_ai.response.id",
        "gen_ai.response.model",
        "gen_ai.system",
        "gen_ai.tool.name",
        "host.name",
        "http.method",
        "http.request.method",
        "http.route",
        "k8s.container.name",
        "k8s.deployment.name",
        "k8s.namespace.name",
        "k8s.node.name",
        "k8s.pod.name",
        "network.protocol.name",
        "network.protocol.version",
        "rpc.method",
        "rpc.service",
        "rpc.system",
        "server.address",
        "service.instance.id",
        "service.name",
        "service.namespace",
        "service.version",
        "telemetry.sdk.language",
        "telemetry.sdk.name",
        "telemetry.sdk.version",
        "url.scheme",
    }
)
_UNITS = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs"))


def shown_attributes(items: Iterable[KeyValue]) -> dict[str, str]:
    """Attributes that may be shown, as text; of a repeated key the first."""
    out: dict[str, str] = {}
    for item in items:
        value = _value(item.key, item.value)
        if value is not None:
            out.setdefault(clean(item.key, LONGEST_NAME), value)
    return out


def clean(text: str, longest: int) -> str:
    """A stranger's text on one line: no control characters, no marks that turn the line's direction."""
    text = text[: longest + 1]
    kept = "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text)
    return kept if len(kept) <= longest else kept[: longest - 1] + "…"


def duration(nanoseconds: int) -> str:
    """A time as people say it."""
    for size, unit in _UNITS:
        if abs(nanoseconds) >= size:
            return f"{nanoseconds / size:.3g} {unit}"
    return f"{nanoseconds} ns" if nanoseconds else "0 s"


def byte_size(count: float) -> str:
    """A number of bytes as people say it."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":  # noqa: PLR2004 (the prefix's size)
            break
        count /= 1024
    return f"{count:.3g} {unit}" if count < 1000 else f"{count:.0f} {unit}"  # noqa: PLR2004


@cache
def attribute_units() -> dict[str, str]:
    """The units of the bridge's own attributes."""
    return {one.key: one.unit for one in vars(catalog).values() if isinstance(one, catalog.Attribute)}


@cache
def _text_names() -> frozenset[str]:
    own = {
        one.key
        for one in vars(catalog).values()
        if isinstance(one, catalog.Attribute) and one.type == "string"
    }
    return frozenset((own | _CONVENTIONS) - {one.key for one in CONTENT})


@cache
def _content() -> tuple[frozenset[str], tuple[str, ...]]:
    exact = frozenset(one.key for one in CONTENT if not one.prefix)
    return exact, tuple(one.key for one in CONTENT if one.prefix)


def _value(key: str, value: AnyValue) -> str | None:
    which = value.WhichOneof("value")
    if which in ("int_value", "double_value", "bool_value"):
        exact, prefixes = _content()
        if key in exact or key.startswith(prefixes):
            return None
        return _number(key, getattr(value, which))
    if key not in _text_names():
        return None
    if which == "string_value":
        if key == catalog.CODE_STACKTRACE.key:
            lines = value.string_value[:LONGEST_STACK].splitlines()
            return "\n".join(clean(line, LONGEST_TEXT) for line in lines)
        return clean(value.string_value, LONGEST_TEXT)
    if which == "array_value":
        texts = [one.string_value for one in value.array_value.values if one.HasField("string_value")]
        return clean(", ".join(texts[:_MANY]), LONGEST_TEXT) if texts else None
    return None


def _number(key: str, value: float | bool) -> str:  # noqa: FBT001 (a value of any type)
    if isinstance(value, bool):
        return "true" if value else "false"
    unit = attribute_units().get(key, "")
    if unit == "ns" and isinstance(value, int):
        return duration(value)
    if unit == "By":
        return byte_size(value)
    said = f"{value:d}" if isinstance(value, int) else f"{value:.6g}"
    return f"{said} {unit}" if unit and not unit.startswith("{") and unit != "1" else said
