"""What rules may name: fields of spans, kinds of events and their fields, metrics; each with its unit."""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from otel_bridge import catalog
from otel_bridge.catalog import Attribute, Kind, Metric
from otel_bridge.model import KernelEventKind, Match, Scope, StatusCode
from otel_bridge.rules.language import EventCondition, SpanCondition
from otel_bridge.vocabulary import CONTENT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_bridge.rules.language import Leaf, RuleSet


@dataclass(frozen=True, slots=True)
class Field:
    """One thing that a rule can ask of an item.

    Attributes:
        unit: of the value as it is read (UCUM); "" when not known.
        type: "number", "text", "address", or "any" where it may be a number or a text.
        names: words for numbers: ENOMEM, error, server; a word may stand for several.
        bounded: whether it has few values, so that it can make groups.
    """

    unit: str = ""
    type: str = "number"
    names: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: MappingProxyType({}))
    bounded: bool = False


_ERRORS = {name: (-number,) for number, name in errno.errorcode.items()}
_CUDA_OUT_OF_MEMORY = 2
"""cudaErrorMemoryAllocation and CUDA_ERROR_OUT_OF_MEMORY; the driver's ioctl says -ENOMEM."""
_CUDA_ERRORS = _ERRORS | {"ENOMEM": (-errno.ENOMEM, _CUDA_OUT_OF_MEMORY)}
_MATCHES = {match.name.lower(): (int(match),) for match in Match}
_TLS_VERSIONS = {"1.0": (0x0301,), "1.1": (0x0302,), "1.2": (0x0303,), "1.3": (0x0304,)}

DURATION = "duration"
_COMMON = {
    DURATION: Field("ns"),
    "error": Field("{error}", names=_ERRORS, bounded=True),
    "match": Field("{match}", names=_MATCHES, bounded=True),
    "tgid": Field("{process}", bounded=True),
    "tid": Field("{thread}"),
}
_TCP = {
    "local_address": Field(type="address"),
    "remote_address": Field(type="address"),
    "local_port": Field("{port}"),
    "remote_port": Field("{port}"),
    "state": Field("{state}", bounded=True),
    "protocol": Field(names={"icmp": (1,), "tcp": (6,), "udp": (17,)}, bounded=True),
    "bytes": Field("By"),
    "smoothed_rtt_us": Field("us"),
    "retransmits": Field("{segment}"),
    "segments": Field("{segment}"),
}
_DEVICE = {"major": Field("{device}", bounded=True), "minor": Field("{device}", bounded=True)}
_MEMORY = {"reclaimed_pages": Field("{page}"), "comm": Field(type="text", bounded=True)}
_CUDA = {
    "size": Field("By"),
    "error": Field("{error}", names=_CUDA_ERRORS, bounded=True),
    "operation": Field(
        names={
            name: (number,)
            for number, name in enumerate(
                ("device", "pool", "managed", "host", "virtual", "free", "copy", "launch")
            )
        },
        bounded=True,
    ),
}

EVENTS: dict[str, dict[str, Field]] = {
    name: _COMMON | own
    for name, own in {
        "tcp_retransmit": _TCP,
        "tcp_reset_sent": _TCP,
        "tcp_reset_received": _TCP,
        "tcp_connect": _TCP,
        "tcp_zero_window": _TCP,
        "receive_queue_full": _TCP,
        "sched_wait": {"run_queue_ns": Field("ns"), "off_cpu_ns": Field("ns")},
        "sched_sum": {
            "run_queue_ns": Field("ns"),
            "run_queue_max_ns": Field("ns"),
            "off_cpu_ns": Field("ns"),
            "off_cpu_max_ns": Field("ns"),
        },
        "block_io": {
            **_DEVICE,
            "bytes": Field("By"),
            "queue_depth": Field("{request}"),
            "operation": Field(names={"read": (0,), "write": (1,), "other": (2,)}, bounded=True),
        },
        "block_sum": {
            **_DEVICE,
            "count": Field("{request}"),
            "errors": Field("{request}"),
            "latency_ns": Field("ns"),
            "latency_max_ns": Field("ns"),
            "bytes": Field("By"),
            "queue_depth_max": Field("{request}"),
        },
        "oom_kill": _MEMORY,
        "reclaim": _MEMORY,
        "memory_sum": {
            "reclaim_ns": Field("ns"),
            "reclaim_max_ns": Field("ns"),
            "reclaimed_pages": Field("{page}"),
        },
        "tls_handshake": {
            "version": Field(names=_TLS_VERSIONS, bounded=True),
            "role": Field(names={"unknown": (0,), "client": (1,), "server": (2,)}, bounded=True),
            "fd": Field("{descriptor}"),
            "calls": Field("{call}"),
        },
        "cuda_alloc": _CUDA,
        "cuda_launch_gap": _CUDA,
        "cuda_copy": _CUDA,
        "cuda_sum": {
            "allocs": Field("{allocation}"),
            "alloc_bytes": Field("By"),
            "alloc_ns": Field("ns"),
            "alloc_max_ns": Field("ns"),
            "frees": Field("{free}"),
            "copies": Field("{copy}"),
            "copy_bytes": Field("By"),
            "copy_ns": Field("ns"),
            "failures": Field("{error}"),
        },
        "drm_sum": {"evictions": Field("{buffer}"), "evicted_bytes": Field("By")},
    }.items()
}
"""Fields by kind of event: the kinds of `KernelEventKind`, and names of probes that watch functions."""

KIND_NUMBERS = {kind.name.lower(): int(kind) for kind in KernelEventKind}

_STATUS = {status.name.lower(): (int(status),) for status in StatusCode}
SPAN_FIELDS = {
    DURATION: Field("ns"),
    "status": Field(names=_STATUS, bounded=True),
    "status_message": Field(type="text"),
    "name": Field(type="text"),
}
"""What every span has; any other name is an attribute's key."""

RESOURCE = "resource."
"""Before the key of a resource's attribute."""

_OF_RESOURCES = ("service.", "k8s.", "host.", "container.", "deployment.", "cloud.", "telemetry.sdk.")
"""Namespaces of resource attributes in the semantic conventions; they need no prefix."""


def attribute_of(name: str) -> tuple[Scope, str]:
    """Where a span's attribute stands, by its name in a rule, and its key there."""
    if name.startswith(RESOURCE):
        return Scope.RESOURCE, name.removeprefix(RESOURCE)
    return (Scope.RESOURCE if name.startswith(_OF_RESOURCES) else Scope.SPAN), name


_PROBES = {"oom_kill": "memory", "reclaim": "memory", "receive_queue_full": "tcp"}
"""Those that the beginning of the event's name does not tell."""


def probe_of(event: str) -> str:
    """The probe whose losses concern a kind of event."""
    if event not in KIND_NUMBERS:
        return "user"
    return _PROBES.get(event, event.partition("_")[0])


_KNOWN_UNITS = {
    "gen_ai.usage.input_tokens": "{token}",
    "gen_ai.usage.output_tokens": "{token}",
    "gen_ai.response.time_to_first_chunk": "s",
    "gen_ai.latency.time_in_queue": "s",
    "gen_ai.latency.time_to_first_token": "s",
    "gen_ai.latency.e2e": "s",
    "gen_ai.request.max_tokens": "{token}",
} | {entry.key: entry.unit for entry in vars(catalog).values() if isinstance(entry, Attribute)}

_UNBOUNDED = frozenset(
    {
        "duration",
        "status_message",
        "tid",
        "fd",
        "size",
        "bytes",
        "trace_id",
        "span_id",
        "trace.id",
        "span.id",
        "thread.id",
        "gen_ai.response.id",
        "gen_ai.request.id",
        "gen_ai.conversation.id",
        "request_id",
        "http.request.id",
        "session.id",
        "enduser.id",
        "user.id",
        "url.full",
        "url.path",
        "url.query",
        "http.url",
        "http.target",
        "client.address",
        "client.port",
        "network.peer.port",
        "network.local.port",
        "exception.message",
        "exception.stacktrace",
        "db.statement",
        "db.query.text",
        "llm.prompt.len",
        "traceparent",
    }
)
"""Names with as many values as there are requests, users or addresses."""


METRICS: dict[str, Metric] = {
    entry.name: entry for entry in vars(catalog).values() if isinstance(entry, Metric)
}
"""The bridge's own metrics by name."""

VALUE = "value"
"""The one field of a metric that is no label."""


@dataclass(frozen=True, slots=True)
class Series:
    """A metric as rules see it.

    Attributes:
        kind: counter, gauge or histogram.
        unit: UCUM.
        labels: that rules may use.
        own: whether it is the bridge's own, so that readings of it reach the streaming engine.
    """

    kind: Kind
    unit: str
    labels: tuple[str, ...]
    own: bool


class Vocabulary:
    """The names that one rule set may use: everybody's and those that it declares itself."""

    def __init__(self, declared: RuleSet) -> None:
        self._attributes = declared.attributes
        self.events = EVENTS | {name: _user_event(fields) for name, fields in declared.events.items()}
        self.metrics = {
            metric.name: Series(metric.kind, metric.unit, metric.labels, own=True)
            for metric in METRICS.values()
        } | {
            name: Series(Kind(metric.kind), metric.unit, tuple(metric.labels), own=False)
            for name, metric in declared.metrics.items()
        }

    def field(self, leaf: Leaf, name: str) -> Field | None:
        """A field of what a condition looks at; None when it has no such field."""
        if isinstance(leaf, SpanCondition):
            return self._span_field(name)
        if isinstance(leaf, EventCondition):
            return self.events.get(leaf.event, {}).get(name)
        series = self.metrics.get(leaf.metric)
        if series is None:
            return None
        if name == VALUE:
            return Field(series.unit)
        return Field(type="text", bounded=True) if name in series.labels else None

    def fields(self, leaf: Leaf) -> list[str]:
        """The names that `field` knows; for spans only what every span has."""
        if isinstance(leaf, SpanCondition):
            return [*SPAN_FIELDS, *self._attributes]
        if isinstance(leaf, EventCondition):
            return list(self.events.get(leaf.event, {}))
        series = self.metrics.get(leaf.metric)
        return [] if series is None else [VALUE, *series.labels]

    def _span_field(self, name: str) -> Field:
        """A span's field or attribute; of an attribute that nobody declared, the unit is not known."""
        if name in SPAN_FIELDS:
            return SPAN_FIELDS[name]
        key = name.removeprefix(RESOURCE)
        unit = self._attributes.get(name, _KNOWN_UNITS.get(key, ""))
        return Field(unit, type="any", bounded=key not in _UNBOUNDED and not _is_content(key))


def _user_event(fields: Mapping[str, str]) -> dict[str, Field]:
    return _COMMON | {name: Field(unit, bounded=name not in _UNBOUNDED) for name, unit in fields.items()}


def _is_content(key: str) -> bool:
    return any(key.startswith(entry.key) if entry.prefix else key == entry.key for entry in CONTENT)
