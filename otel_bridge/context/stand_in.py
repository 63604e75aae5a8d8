"""What `_record` does, in Python, for where it could not be built: slower, and it publishes less.

A record may be published only where its end will be seen, and Python code sees less than C code does:

- On asyncio's own loops every callback runs through `asyncio.Handle._run`, which is stood in for: the record
  is set before a callback and cleared after it.
- On any other loop (uvloop), and in a process with greenlets, nothing is published.
- On a thread without a loop a span is published from its attach to its detach. What a thread inherited with a
  context that was handed to it is not: nobody would say when that context is left.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import sys
import threading
from typing import TYPE_CHECKING, Any

from otel_bridge.context import tls_module

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextvars import ContextVar, Token

MECHANISM = "asyncio.Handle and attach, in Python"
MAX_ATTACHED = 64


class _Record(ctypes.Structure):
    """src/record.h."""

    _fields_ = (
        ("trace_id", ctypes.c_ubyte * 16),
        ("span_id", ctypes.c_ubyte * 8),
        ("valid", ctypes.c_uint8),
        ("trace_flags", ctypes.c_uint8),
        ("attributes_size", ctypes.c_uint16),
        ("pad", ctypes.c_uint32),
        ("sequence", ctypes.c_uint64),
    )


class _Thread(threading.local):
    """This thread's record, and what it must remember to keep it right.

    Attributes:
        record: in the thread-local block of the module.
        callbacks: how many of asyncio's callbacks run within one another here.
        attached: tokens of attaches that were published, each with the span that was published before.
        shown: the span that is published.
    """

    def __init__(self) -> None:
        self.record = _Record.in_dll(_module, tls_module.RECORD.decode())
        pointer = ctypes.c_void_p.in_dll(_module, tls_module.POINTER.decode())
        pointer.value = ctypes.addressof(self.record)
        self.callbacks = 0
        self.attached: list[tuple[Token[Any], Any]] = []
        self.shown: Any = None


class _Following:
    """What `follow` was told, and what was not published since."""

    def __init__(self) -> None:
        self.active = False
        self.variable: ContextVar[Any] | None = None
        self.span_key = ""
        self.non_recording: type = object
        self.on_first_span: Callable[[Any], object] | None = None
        self.stale = self.failures = self.unfollowed = 0


_module = tls_module.load()
_thread = _Thread()
_following = _Following()
_handle_run = asyncio.Handle._run  # noqa: SLF001 - every callback of asyncio goes through it


def publish(trace_id: int, span_id: int, trace_flags: int = 0, /) -> None:
    """Make a span this thread's. OverflowError: an id is negative or too large."""
    trace, span = trace_id.to_bytes(16), span_id.to_bytes(8)
    record = _thread.record
    record.sequence += 1
    record.valid = 0
    record.trace_id[:] = trace
    record.span_id[:] = span
    record.trace_flags = trace_flags & 0xFF
    record.valid = 1
    record.sequence += 1


def clear() -> None:
    """Make this thread spanless."""
    _thread.record.valid = 0
    _thread.shown = None


def published() -> tuple[bytes, bytes, int] | None:
    """Trace id, span id and trace flags as a reader of this thread sees them; None when there is no span."""
    record = _thread.record
    return (bytes(record.trace_id), bytes(record.span_id), record.trace_flags) if record.valid else None


def ended(span_context: Any, /) -> None:
    """Clear the record if it shows this very span."""
    ids = span_context.trace_id.to_bytes(16), span_context.span_id.to_bytes(8)
    now = published()
    if now is not None and now[:2] == ids:
        clear()


def follow(
    variable: ContextVar[Any],
    span_key: str,
    non_recording_span: type,
    on_first_span: Callable[[Any], object],
    on_greenlets: Callable[[], object],  # noqa: ARG001 - as _record.follow
    /,
) -> str:
    """From now on the record follows a context variable, as far as this module can see."""
    _following.variable = variable
    _following.span_key = span_key
    _following.non_recording = non_recording_span
    _following.on_first_span = on_first_span
    _following.active = True
    setattr(asyncio.Handle, "_run", _run_handle)  # noqa: B010 - the stubs would have it bound
    return MECHANISM


def unfollow() -> None:
    """Undo `follow`; this thread's record is cleared, another's when its callback ends or it detaches."""
    _following.active = False
    setattr(asyncio.Handle, "_run", _handle_run)  # noqa: B010 - the stubs would have it bound
    _thread.attached.clear()
    clear()


def attach(context: Mapping[str, Any], /) -> Token[Any]:
    """Set the followed variable, and publish."""
    assert _following.variable is not None
    token = _following.variable.set(context)
    if not _following.active:
        return token
    if _may_publish():
        if not _thread.callbacks:
            _thread.attached.append((token, _thread.shown))
            del _thread.attached[:-MAX_ATTACHED]
        _show(_span_in(context))
    else:
        _following.unfollowed += 1
        clear()
    return token


def detach(token: Token[Any], /) -> None:
    """Reset the followed variable, and publish what is current then."""
    assert _following.variable is not None
    _following.variable.reset(token)
    before = _forget_attached(token)
    if not _following.active or not _may_publish():
        clear()
    elif _thread.callbacks:
        _show(_span_in(_following.variable.get(None)))
    else:
        _show(before)


def sync(*_ignored: object) -> None:
    """Nothing: what a thread has inherited is not published."""


def counts() -> dict[str, int]:
    """What was not published, and why."""
    return {
        "stale": _following.stale,
        "failures": _following.failures,
        "unfollowed": _following.unfollowed,
        "slots": 0,
    }


def _run_handle(handle: asyncio.Handle) -> None:
    if not _following.active:
        _handle_run(handle)
        return
    assert _following.variable is not None
    _thread.callbacks += 1
    try:
        context = handle._context  # type: ignore[attr-defined]  # noqa: SLF001 - it will run in this
        if _may_publish():
            _show(_span_in(context.get(_following.variable)))
        _handle_run(handle)
    finally:
        _thread.callbacks -= 1
        clear()


def _may_publish() -> bool:
    """Whether the end of what is published now will be seen."""
    if "greenlet" in sys.modules:
        return False
    return _thread.callbacks > 0 or asyncio._get_running_loop() is None  # noqa: SLF001 - documented


def _forget_attached(token: Token[Any]) -> Any:
    """The span that was published before an attach; None if it was not published here."""
    attached = _thread.attached
    for index in range(len(attached) - 1, -1, -1):
        if attached[index][0] is token:
            before = attached[index][1]
            del attached[index:]
            return before
    return None


def _span_in(context: Any) -> Any:
    return context.get(_following.span_key) if isinstance(context, dict) else None


def _show(span: Any) -> None:
    try:
        ids = _ids(span)
    except Exception:  # noqa: BLE001 - whatever a span's own code raises, the application goes on
        _following.failures += 1
        ids = None
    if ids is None:
        clear()
        return
    publish(*ids)
    _thread.shown = span


def _ids(span: Any) -> tuple[int, int, int] | None:
    """Trace id, span id and flags of a local span that is under way."""
    if span is None:
        return None
    context = span.get_span_context()
    if not context.is_valid or context.is_remote:
        return None
    if type(span) is not _following.non_recording:
        if not span.is_recording():
            _following.stale += 1
            return None
        if (tell := _following.on_first_span) is not None:
            _following.on_first_span = None
            tell(span)
    return context.trace_id, context.span_id, int(context.trace_flags)


def publish_process(payload: bytes, /) -> None:  # noqa: ARG001 - as _record.publish_process
    """Not from Python, which cannot order its stores as OTEP 4719 asks. OSError, always."""
    raise OSError(errno.ENOSYS, "the C extension is needed for it")


def withdraw_process() -> None:
    """Nothing was published."""
