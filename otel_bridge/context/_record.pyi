"""The thread's record, in C: written, withdrawn, and kept in step with contextvars (src/*.c)."""

from collections.abc import Callable, Mapping
from contextvars import ContextVar, Token
from typing import Any, TypedDict

class Counts(TypedDict):
    """What was not published, and why; `slots` is how many call sites of PyContext_Enter and _Exit lead here."""

    stale: int
    failures: int
    unfollowed: int
    slots: int

def publish(trace_id: int, span_id: int, trace_flags: int = 0, /) -> None:
    """Make a span this thread's.

    Raises:
        OverflowError: an id is negative or too large.
        TypeError: an id is not an int.
    """

def clear() -> None:
    """Make this thread spanless."""

def published() -> tuple[bytes, bytes, int] | None:
    """Trace id, span id and trace flags as a reader would see them; None when there is no span."""

def ended(span_context: tuple[Any, ...], /) -> None:
    """Clear the record if it shows this very span."""

def follow(
    variable: ContextVar[Any],
    span_key: str,
    non_recording_span: type,
    on_first_span: Callable[[Any], object],
    /,
) -> str:
    """From now on the record follows a context variable, on all threads, through every switch of context.

    Args:
        variable: holds opentelemetry's Context, a dict.
        span_key: of the current span in that dict.
        non_recording_span: the class whose spans count as current although they do not record.
        on_first_span: called once with the first recording span that is published.

    Returns:
        How switches are noticed: "context watcher" (CPython 3.14 and later) or "Context.run".

    Raises:
        RuntimeError: contextvars is not as CPython ships it, or no watcher is free.
    """

def unfollow() -> None:
    """Undo `follow`; this thread's record is cleared."""

def attach(context: Mapping[str, Any], /) -> Token[Any]:
    """Set the followed variable, and publish."""

def detach(token: Token[Any], /) -> None:
    """Reset the followed variable, and publish what is current then."""

def sync() -> None:
    """Publish what the current context says."""

def counts() -> Counts:
    """Since the module was loaded."""

def publish_process(payload: bytes, /) -> None:
    """Publish a serialized ProcessContext (OTEP 4719), or replace the published one.

    Raises:
        OSError: no memory could be mapped for it.
    """

def withdraw_process() -> None:
    """Unmap what `publish_process` mapped."""
