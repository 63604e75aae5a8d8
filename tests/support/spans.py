"""Which span the running thread publishes, compared with the one that it should."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_bridge.context import _record

if TYPE_CHECKING:
    from opentelemetry.trace import Span

Ids = tuple[bytes, bytes, int]


def ids(span: Span) -> Ids:
    """As they stand in a record."""
    context = span.get_span_context()
    return context.trace_id.to_bytes(16), context.span_id.to_bytes(8), int(context.trace_flags)


def publishes(span: Span | None) -> bool:
    """Whether exactly this span, or none, is published."""
    return _record.published() == (None if span is None else ids(span))
