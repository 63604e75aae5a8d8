"""Kept bytes as a trace that can be drawn: spans in the order of the tree, kernel events on a timeline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_bridge import catalog
from otel_bridge.model import SpanKind, StatusCode
from otel_bridge.ui.shown import LONGEST_NAME, attribute_units, clean, duration, shown_attributes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from opentelemetry.proto.common.v1.common_pb2 import KeyValue
    from opentelemetry.proto.resource.v1.resource_pb2 import Resource
    from opentelemetry.proto.trace.v1.trace_pb2 import Span as WireSpan

    from otel_bridge.ui.recent import KeptTrace

MOST_SPANS = 300
"""Spans of one trace that are drawn."""
MOST_EVENTS = 50
"""Events of one span that are drawn."""
_KERNEL = "kernel."
_KINDS = {int(kind): kind.name.lower() for kind in SpanKind}
_LEAST_WIDTH = 0.25
"""Percent: what is shorter would not be seen."""
_MATTERS = 0.01
"""Of a trace's time: what took less of it is named after what has no duration."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened within a span.

    Attributes:
        name: its name.
        kernel: whether the kernel saw it.
        at: from the trace's beginning, as text.
        lasted: how long, as text; empty: a moment.
        left: where it begins, percent of the trace's time.
        width: how long, percent.
        attributes: what may be shown.
    """

    name: str
    kernel: bool
    at: str
    lasted: str
    left: float
    width: float
    attributes: dict[str, str]


@dataclass(frozen=True, slots=True)
class SpanRow:
    """A span as it is drawn.

    Attributes:
        span_id: hex.
        name: as sent, without what would spoil a page.
        service: who sent it.
        pod: where in Kubernetes that ran; empty: it did not say.
        kind: a word.
        depth: 0 for a root, or a span whose parent is not here.
        orphan: whether it names a parent that is not here.
        failed: whether its status is ERROR.
        at: from the trace's beginning, as text.
        lasted: how long, as text.
        left: where its bar begins, percent of the trace's time.
        width: its bar, percent.
        kernel: what the kernel noted on it, most time first: text by name.
        attributes: the others that may be shown.
        resource: those of its resource.
        events: in the order of their times.
        hidden_events: how many are not among them.
    """

    span_id: str
    name: str
    service: str
    pod: str
    kind: str
    depth: int
    orphan: bool
    failed: bool
    at: str
    lasted: str
    left: float
    width: float
    kernel: dict[str, str]
    attributes: dict[str, str]
    resource: dict[str, str]
    events: list[Event]
    hidden_events: int

    @property
    def kernel_events(self) -> list[Event]:
        """Those of the kernel."""
        return [event for event in self.events if event.kernel]


@dataclass(frozen=True, slots=True)
class Summary:
    """A trace in a list.

    Attributes:
        trace_id: hex.
        name: of its first span.
        services: names, in the order of their first spans.
        pods: names, likewise.
        start: unix nanoseconds.
        lasted: as text.
        spans: how many are known.
        failed: how many of them failed.
        causes: what the kernel noted, most time first.
        most: where most of the time went: the span with the most time of its own, as text; empty: there is
            but one span.
        cut: whether spans were left out.
    """

    trace_id: str
    name: str
    services: list[str]
    pods: list[str]
    start: int
    lasted: str
    spans: int
    failed: int
    causes: list[str]
    most: str
    cut: bool


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace as it is drawn."""

    summary: Summary
    rows: list[SpanRow]
    hidden: int
    """Spans that are known and not drawn."""


@dataclass(frozen=True, slots=True)
class _Found:
    span: WireSpan
    resource: Resource

    @property
    def service(self) -> str:
        return _text(catalog.SERVICE_NAME.key, self.resource.attributes)

    @property
    def pod(self) -> str:
        """As metrics have it: a span may say more than its resource."""
        key = catalog.K8S_POD_NAME.key
        return _text(key, self.span.attributes) or _text(key, self.resource.attributes)


def _text(key: str, attributes: Iterable[KeyValue]) -> str:
    found = (one.value.string_value for one in attributes if one.key == key)
    return clean(next(found, ""), LONGEST_NAME)


def summary(kept: KeptTrace) -> Summary | None:
    """A trace for a list; None when nothing of it could be kept."""
    found = _spans(kept)
    return _summary(kept, found) if found else None


def trace(kept: KeptTrace) -> Trace | None:
    """A trace to draw; None when nothing of it could be kept."""
    found = _spans(kept)
    if not found:
        return None
    start, end = _bounds(found)
    ordered = list(_in_order(found))
    rows = [
        _row(one, depth, start, max(1, end - start), orphan=orphan)
        for one, depth, orphan in ordered[:MOST_SPANS]
    ]
    return Trace(_summary(kept, found), rows, max(0, len(ordered) - MOST_SPANS))


def _spans(kept: KeptTrace) -> list[_Found]:
    """The spans by their beginning; one that was sent twice counts once, as it came last."""
    by_id: dict[bytes, _Found] = {}
    for piece in list(kept.pieces):
        for resource_spans in ExportTraceServiceRequest.FromString(piece).resource_spans:
            for scope_spans in resource_spans.scope_spans:
                for span in scope_spans.spans:
                    if span.trace_id == kept.trace_id:
                        by_id[span.span_id] = _Found(span, resource_spans.resource)
    return sorted(by_id.values(), key=lambda one: (one.span.start_time_unix_nano, one.span.span_id))


def _summary(kept: KeptTrace, found: Sequence[_Found]) -> Summary:
    start, end = _bounds(found)
    ids = {one.span.span_id for one in found}
    root = next((one for one in found if one.span.parent_span_id not in ids), found[0])
    return Summary(
        trace_id=kept.trace_id.hex(),
        name=_name(root.span),
        services=list(dict.fromkeys(one.service for one in found if one.service)),
        pods=list(dict.fromkeys(pod for one in found if (pod := one.pod))),
        start=start,
        lasted=duration(end - start),
        spans=len(found),
        failed=sum(_failed(one.span) for one in found),
        causes=list(_causes(found, end - start)),
        most=_most(found, end - start),
        cut=kept.cut,
    )


def _causes(found: Sequence[_Found], whole: int) -> Iterator[str]:
    """What the kernel noted, summed over spans: times that matter to the whole, counts, shorter times."""
    units = attribute_units()
    sums: dict[str, int] = {}
    for one in found:
        for item in one.span.attributes:
            if item.key.startswith(_KERNEL) and item.key in units and item.value.HasField("int_value"):
                if units[item.key] == "ns" and not item.key.endswith(".time"):
                    continue  # the longest of what is summed already
                sums[item.key] = sums.get(item.key, 0) + item.value.int_value
    counts = [(key, total) for key, total in sums.items() if units[key].startswith("{")]
    times = sorted(
        ((key, total) for key, total in sums.items() if units[key] == "ns"), key=lambda pair: -pair[1]
    )
    long = [pair for pair in times if pair[1] >= whole * _MATTERS]
    for key, total in (*long, *counts, *times[len(long) :]):
        said = duration(total) if units[key] == "ns" else total
        yield f"{key.removeprefix(_KERNEL).removesuffix('.time')} {said}"


def _most(found: Sequence[_Found], whole: int) -> str:
    """The span with the most time in which none of its children ran."""
    if len(found) == 1 or whole <= 0:
        return ""
    children: dict[bytes, list[WireSpan]] = {}
    for one in found:
        children.setdefault(one.span.parent_span_id, []).append(one.span)
    own = [(_own_time(one.span, children.get(one.span.span_id, ())), one) for one in found]
    longest, one = max(own, key=lambda pair: pair[0])
    of = f" of {one.service}" if one.service else ""
    return f"{duration(longest)} ({min(1.0, longest / whole):.0%}) in {_name(one.span)}{of}"


def _own_time(span: WireSpan, children: Sequence[WireSpan]) -> int:
    """Nanoseconds of a span that no child covers; `children` by their beginning."""
    own, at = 0, span.start_time_unix_nano
    for child in children:
        if child.span_id == span.span_id:
            continue
        own += max(0, min(child.start_time_unix_nano, span.end_time_unix_nano) - at)
        at = max(at, child.end_time_unix_nano)
    return own + max(0, span.end_time_unix_nano - at)


def _bounds(found: Sequence[_Found]) -> tuple[int, int]:
    start = min(one.span.start_time_unix_nano for one in found)
    return start, max(start, *(one.span.end_time_unix_nano for one in found))


def _in_order(found: Sequence[_Found]) -> Iterator[tuple[_Found, int, bool]]:
    """Parents before their children, with depths; spans that are their own ancestors count as roots."""
    here = {one.span.span_id: one for one in found}
    children: dict[bytes, list[_Found]] = {}
    roots = []
    for one in found:
        parent = one.span.parent_span_id
        if parent in here and parent != one.span.span_id:
            children.setdefault(parent, []).append(one)
        else:
            roots.append(one)
    seen: set[bytes] = set()
    for root in (*roots, *found):
        waiting = [(root, 0)]
        while waiting:
            one, depth = waiting.pop()
            if one.span.span_id in seen:
                continue
            seen.add(one.span.span_id)
            orphan = depth == 0 and bool(one.span.parent_span_id.strip(b"\0"))
            yield one, depth, orphan
            waiting += [(child, depth + 1) for child in reversed(children.get(one.span.span_id, ()))]


def _row(one: _Found, depth: int, start: int, whole: int, *, orphan: bool) -> SpanRow:
    span = one.span
    left, width = _place(span.start_time_unix_nano, span.end_time_unix_nano, start, whole)
    shown = shown_attributes(span.attributes)
    events = sorted(span.events, key=lambda event: (not event.name.startswith(_KERNEL), event.time_unix_nano))
    drawn = sorted(events[:MOST_EVENTS], key=lambda event: event.time_unix_nano)
    return SpanRow(
        span_id=span.span_id.hex(),
        name=_name(span),
        service=one.service,
        pod=one.pod,
        kind=_KINDS.get(int(span.kind), "unknown"),
        depth=depth,
        orphan=orphan,
        failed=_failed(span),
        at=duration(span.start_time_unix_nano - start),
        lasted=duration(span.end_time_unix_nano - span.start_time_unix_nano),
        left=left,
        width=width,
        kernel={key: text for key, text in shown.items() if key.startswith(_KERNEL)},
        attributes={key: text for key, text in shown.items() if not key.startswith(_KERNEL)},
        resource=shown_attributes(one.resource.attributes),
        events=[_event(event, start, whole) for event in drawn],
        hidden_events=max(0, len(events) - MOST_EVENTS),
    )


def _event(event: WireSpan.Event, start: int, whole: int) -> Event:
    kernel = event.name.startswith(_KERNEL)
    lasted = next(
        (one.value.int_value for one in event.attributes if one.key == catalog.KERNEL_DURATION.key), 0
    )
    # The kernel tells of what lasts when it is over.
    began = event.time_unix_nano - lasted if kernel else event.time_unix_nano
    left, width = _place(began, event.time_unix_nano, start, whole)
    return Event(
        name=clean(event.name, LONGEST_NAME) or "(no name)",
        kernel=kernel,
        at=duration(began - start),
        lasted=duration(lasted) if kernel and lasted > 0 else "",
        left=left,
        width=width,
        # Of an application's own events name and time are enough.
        attributes=shown_attributes(event.attributes) if kernel else {},
    )


def _place(began: int, ended: int, start: int, whole: int) -> tuple[float, float]:
    """Where something lies on the trace's axis, and its length, percent; never outside."""
    left = min(max(0.0, (began - start) / whole * 100), 100.0 - _LEAST_WIDTH)
    right = min(max(left, (ended - start) / whole * 100), 100.0)
    return round(left, 3), round(max(_LEAST_WIDTH, right - left), 3)


def _failed(span: WireSpan) -> bool:
    return int(span.status.code) == StatusCode.ERROR


def _name(span: WireSpan) -> str:
    return clean(span.name, LONGEST_NAME) or "(no name)"
