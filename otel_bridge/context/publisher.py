"""Turning the publishing on and off, and saying whether it works."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol, cast
from weakref import WeakSet

from opentelemetry import context as context_api
from opentelemetry import trace

from otel_bridge.context import process

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextvars import ContextVar

logger = logging.getLogger(__name__)

NO_MECHANISM = "none"
NOT_BUILT = (
    "the C extension of otel_bridge.context was not built; "
    "install a wheel, or a C compiler and the headers of this Python and then the package anew"
)


def _choose_record() -> tuple[Any, str]:
    """The extension, or what stands in for it, or None; and why it is not the extension."""
    try:
        return import_module("otel_bridge.context._record"), ""
    except ImportError as error:
        if find_spec("otel_bridge.context._record") is not None:
            return None, str(error)
    try:
        stand_in = import_module("otel_bridge.context.stand_in")
    except (ImportError, OSError) as error:
        return None, f"{NOT_BUILT} ({error})"
    return stand_in, f"{NOT_BUILT}. Until then Python stands in for it: slower, and it publishes less"


_record, _record_problem = _choose_record()


@dataclass(frozen=True, slots=True)
class Status:
    """Whether the active span is published, how, and what was left out.

    Attributes:
        publishing: whether each thread's active span can be read from outside.
        mechanism: how switches of context are noticed; "none" when nothing is published.
        problem: why nothing is published, or less than could be, and what mends it; empty when all is well.
        process_problem: why the process does not describe itself (OTEP 4719); empty when it does.
        stale: contexts that carried a span which had ended already; none was published for them.
        failures: spans that could not be asked for their ids.
        unfollowed: attaches inside a context whose end would not have been noticed; none was published.
    """

    publishing: bool
    mechanism: str
    problem: str
    process_problem: str
    stale: int
    failures: int
    unfollowed: int


class _EndWatch:
    """A span processor by its shape, as the SDK is not needed: a span that ended is not current any more."""

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        """Nothing: a span becomes current by being attached, not by being started."""

    def _on_ending(self, span: Any) -> None:
        """Nothing: it may still be written to."""

    def on_end(self, span: Any) -> None:
        """Clear this thread's record if it shows the span."""
        _record.ended(span.context)

    def shutdown(self) -> None:
        """Nothing is held."""

    def force_flush(self, timeout_millis: int = 30000) -> bool:  # noqa: ARG002 - the SDK's signature
        """Nothing is held."""
        return True


class _Provider(Protocol):
    """What the SDK's TracerProvider has beyond the API's."""

    def add_span_processor(self, span_processor: Any) -> None: ...


class _Publisher:
    """One per process: the record, the runtime context and the process's mapping are all single."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runtime: Any = None
        self._mechanism = NO_MECHANISM
        self._problem = "install() was not called"
        self._process_problem = self._problem
        self._described = False
        self._providers: WeakSet[Any] = WeakSet()
        self._resource: Mapping[str, Any] = {}
        self._hooked_exit = False

    def install(self) -> Status:
        """Publish from now on; a second call changes nothing.

        Never raises for what the process cannot do: the status says it, and a warning is logged once.
        """
        with self._lock:
            if self._runtime is None:
                self._start()
        return self.status()

    def uninstall(self) -> None:
        """Undo `install`: nothing is published, nothing is hooked."""
        with self._lock:
            if self._runtime is None:
                return
            for name in ("attach", "detach"):
                vars(self._runtime).pop(name, None)
            self._runtime = None
            _record.unfollow()
            _record.withdraw_process()
            self._described = False
            self._mechanism = NO_MECHANISM
            self._problem = self._process_problem = "uninstall() was called"

    def status(self) -> Status:
        """What is published now."""
        counts = _record.counts() if _record is not None else {"stale": 0, "failures": 0, "unfollowed": 0}
        return Status(
            publishing=self._runtime is not None,
            mechanism=self._mechanism,
            problem=self._problem,
            process_problem=self._process_problem,
            stale=counts["stale"],
            failures=counts["failures"],
            unfollowed=counts["unfollowed"],
        )

    def _start(self) -> None:
        runtime = context_api._RUNTIME_CONTEXT  # noqa: SLF001 - there is no public way to the running one
        variable = getattr(runtime, "_current_context", None)
        self._mechanism, self._problem = _follow(runtime, variable, self._on_first_span)
        published = self._mechanism != NO_MECHANISM
        if self._problem:
            how_far = "not published everywhere" if published else "not published"
            logger.warning("the active span is %s: %s", how_far, self._problem)
        if not published:
            return
        # On the instance, not the class: whoever holds the runtime context already is followed too.
        vars(runtime).update(attach=_record.attach, detach=_record.detach)
        self._runtime = runtime
        self._resource = process.resource_of(trace.get_tracer_provider())
        self._describe_process()
        _record.sync()
        self._hook_exit()

    def _hook_exit(self) -> None:
        if self._hooked_exit:
            return
        self._hooked_exit = True
        atexit.register(self.uninstall)
        os.register_at_fork(after_in_child=self._after_fork)

    def _after_fork(self) -> None:
        """The record is right as it is, like the context; what describes the process is not inherited."""
        self._lock = threading.Lock()
        self._described = False
        if self._runtime is not None:
            self._describe_process()

    def _on_first_span(self, span: Any) -> None:
        """A recording span is published for the first time, so now there is an SDK."""
        provider = trace.get_tracer_provider()
        if hasattr(provider, "add_span_processor") and provider not in self._providers:
            self._providers.add(provider)
            cast("_Provider", provider).add_span_processor(_EndWatch())
        resource = process.resource_of(span)
        if resource and resource != self._resource:
            self._resource = resource
            self._describe_process()

    def _describe_process(self) -> None:
        self._process_problem = process.publish(_record, self._resource, replace=self._described)
        self._described = not self._process_problem


def _follow(
    runtime: Any, variable: ContextVar[Any] | None, on_first_span: Callable[[Any], None]
) -> tuple[str, str]:
    """How the variable is followed, and what stands in the way, if anything does."""
    if _record is None:
        return NO_MECHANISM, _record_problem
    if variable is None:
        kind = type(runtime).__qualname__
        return (
            NO_MECHANISM,
            f"opentelemetry's context is a {kind}, not built on contextvars; unset OTEL_PYTHON_CONTEXT",
        )
    (span_key,) = trace.set_span_in_context(trace.INVALID_SPAN, context_api.Context())
    try:
        mechanism = _record.follow(
            variable, span_key, trace.NonRecordingSpan, on_first_span, _follow_greenlets
        )
    except RuntimeError as error:
        return NO_MECHANISM, str(error)
    return mechanism, _record_problem


def _follow_greenlets() -> None:
    """Be told of this thread's switches of greenlet; whoever was told before still is."""
    greenlet = sys.modules["greenlet"]
    before = greenlet.gettrace()
    if before is _record.sync:
        return

    def switched(*event: Any) -> None:
        _record.sync()
        before(*event)

    greenlet.settrace(switched if before else _record.sync)


_publisher = _Publisher()
install = _publisher.install
uninstall = _publisher.uninstall
status = _publisher.status
