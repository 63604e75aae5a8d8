"""One trace as far as its spans have come, and what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from otel_bridge.model import SpanKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_bridge.processors.consistency.roles import Service

SPAN_BYTES = 320
"""What is kept of a span, in bytes."""
TRACE_BYTES = 400
"""What is kept of a trace beside its spans."""

SLACK = 1_000_000
"""Nanoseconds by which clocks of one host may disagree."""

_NO_PARENT = bytes(8)
_REMOTE_KNOWN, _REMOTE = 0x100, 0x200
"""OTLP's Span.flags: whether it is known that the parent is in another process, and whether it is."""

_ENTRY_KINDS = (SpanKind.SERVER, SpanKind.CONSUMER)


class Kind(Enum):
    """What can be wrong; README.md says how each is told."""

    SPLIT = "split"
    MISSING_PARENT = "missing_parent"
    WRONG_PARENT = "wrong_parent"
    MERGED = "merged"
    NAME = "name"


class Finding(NamedTuple):
    """One thing that is wrong with a trace.

    Attributes:
        kind: what.
        role: of the service that shows it; empty when it has none.
        service: its name.
        detail: for a log line.
    """

    kind: Kind
    role: str
    service: str
    detail: str


class SpanFacts(NamedTuple):
    """What is kept of a span.

    Attributes:
        parent: span id; zeros for a root.
        service: whose span it is.
        kind: model.SpanKind.
        flags: OTLP's.
        start: unix nanoseconds.
        end: unix nanoseconds.
        name: kept of entry spans of services with a role; else empty.
    """

    parent: bytes
    service: Service
    kind: int
    flags: int
    start: int
    end: int
    name: bytes

    @property
    def is_root(self) -> bool:
        """Whether it says that it has no parent."""
        return self.parent == _NO_PARENT

    @property
    def parent_is_local(self) -> bool:
        """Whether its parent must be a span of the same process."""
        if self.flags & _REMOTE_KNOWN:
            return not self.flags & _REMOTE
        return self.kind not in _ENTRY_KINDS

    @property
    def parent_is_remote(self) -> bool:
        """Whether its sender says that its parent is a span of another process."""
        return self.flags & (_REMOTE_KNOWN | _REMOTE) == _REMOTE_KNOWN | _REMOTE


@dataclass(slots=True)
class Trace:
    """What is known of a trace.

    Attributes:
        last: when the last span came, monotonic seconds.
        spans: by span id; one that came twice counts once.
    """

    last: float
    spans: dict[bytes, SpanFacts] = field(default_factory=dict)

    @property
    def cost(self) -> int:
        """Bytes it stands for."""
        return TRACE_BYTES + SPAN_BYTES * len(self.spans)

    def findings(self) -> Iterator[Finding]:
        """What is wrong, once no more spans come."""
        places = {span.service.place for span in self.spans.values() if span.service.place is not None}
        for span_id, span in self.spans.items():
            parent = self.spans.get(span.parent)
            if span.is_root:
                yield from _name(span)
            elif parent is None:
                # Where the parent is missing it is not known whether the span is an entry.
                yield from _orphan(span, places) or _name(span)
            elif span.parent == span_id:
                yield _finding(Kind.WRONG_PARENT, span, "a span that is its own parent")
            else:
                if parent.service is not span.service:
                    yield from _name(span)
                yield from self._misplaced(span, parent)

    def _misplaced(self, span: SpanFacts, parent: SpanFacts) -> Iterator[Finding]:
        if (
            span.kind == SpanKind.SERVER
            and parent.service is span.service
            and not span.parent_is_remote
            and parent.end + SLACK < span.start
        ):
            yield _finding(
                Kind.MERGED, span, "a request that began after its parent in the service had ended"
            )
        upstream = self._upstream(span, parent)
        if upstream is not None:
            yield _finding(Kind.WRONG_PARENT, span, f"called by {upstream.name}, which comes after it")

    def _upstream(self, span: SpanFacts, parent: SpanFacts) -> Service | None:
        """The caller, if its role comes after the span's own."""
        own = span.service.place
        if own is None or parent.service is span.service:
            return None
        seen = {span.parent}
        above: SpanFacts | None = parent
        while above is not None and above.service.place is None:
            above = None if above.parent in seen else self._above(above, seen)
        if above is None or above.service.place is None or above.service.place <= own:
            return None
        return above.service

    def _above(self, span: SpanFacts, seen: set[bytes]) -> SpanFacts | None:
        seen.add(span.parent)
        return self.spans.get(span.parent)


def _name(span: SpanFacts) -> list[Finding]:
    """The name of an entry span."""
    if not span.name or span.service.names(span.name):
        return []
    text = span.name.decode(errors="replace")
    return [_finding(Kind.NAME, span, f"an entry span called {text[:100]!r}")]


def _orphan(span: SpanFacts, places: set[int]) -> list[Finding]:
    """A parent in the same process comes the same way; one elsewhere is missed only where its hop is seen."""
    if span.parent_is_local:
        return [_finding(Kind.MISSING_PARENT, span, "a parent in the same process that did not come")]
    if span.service.place is not None and any(place < span.service.place for place in places):
        detail = "a caller's span that did not come, of a caller that is seen"
        return [_finding(Kind.MISSING_PARENT, span, detail)]
    return []


def _finding(kind: Kind, span: SpanFacts, detail: str) -> Finding:
    return Finding(kind, span.service.role, span.service.name, detail)
