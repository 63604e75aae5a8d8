"""The record follows opentelemetry's context, on threads and through every switch; never is it stale."""

from __future__ import annotations

import contextvars
import gc
import os
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
from opentelemetry import context as context_api
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from otel_bridge import context
from otel_bridge.context import _record
from tests.support.spans import ids, publishes


def attach(span):
    return context_api.attach(trace.set_span_in_context(span))


def test_nested_spans_come_and_go(tracer):
    """The inner one while it lasts, then the outer one again."""
    assert publishes(None)
    with tracer.start_as_current_span("outer") as outer:
        assert publishes(outer)
        with tracer.start_as_current_span("inner") as inner:
            assert publishes(inner)
        assert publishes(outer)
    assert publishes(None)


def test_an_exception_ends_what_it_leaves(tracer):
    """Detached on the way out."""
    with pytest.raises(ZeroDivisionError), tracer.start_as_current_span("a"):
        _ = 1 / 0
    assert publishes(None)


def test_a_span_that_is_only_started_is_not_current(tracer):
    """Nobody attached it."""
    span = tracer.start_span("a")
    assert publishes(None)
    with trace.use_span(span, end_on_exit=True):
        assert publishes(span)
    assert publishes(None)


def test_an_ended_span_is_not_published(tracer):
    """A context may outlive its span: a keep-alive connection carries that of the request before."""
    before = context.status().stale
    with tracer.start_as_current_span("a") as span:
        leaked = contextvars.copy_context()
        assert leaked.run(publishes, span)
    assert leaked.run(publishes, None)
    assert leaked.run(trace.get_current_span) is span
    assert context.status().stale == before + 2


def test_a_span_that_ends_while_attached_is_withdrawn(provider, tracer, monkeypatch):
    """An application may end it long before it detaches."""
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    with tracer.start_as_current_span("outer") as outer:
        with tracer.start_as_current_span("inner", end_on_exit=False) as inner:
            inner.end()
            assert publishes(None)
        assert publishes(outer)
        tracer.start_span("another").end()
        assert publishes(outer)


def test_the_end_watch_is_added_once_per_provider(provider, tracer, monkeypatch):
    """Also when the publisher is turned off and on."""
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    for _ in range(3):
        with tracer.start_as_current_span("a"):
            pass
        context.uninstall()
        context.install()
    assert len(provider._active_span_processor._span_processors) == 1


def test_a_remote_parent_is_not_published(tracer):
    """Nothing that this process does is done in another process's span."""
    remote = NonRecordingSpan(SpanContext(1 << 100, 1 << 50, is_remote=True, trace_flags=TraceFlags(1)))
    token = attach(remote)
    assert publishes(None)
    with tracer.start_as_current_span("server") as server:
        assert publishes(server)
    assert publishes(None)
    context_api.detach(token)


def test_an_unsampled_span_is_published_as_such():
    """It is current; that nobody will see it is said by its flags."""
    provider = TracerProvider(sampler=ALWAYS_OFF)
    with provider.get_tracer("test").start_as_current_span("a") as span:
        assert publishes(span)
        assert _record.published()[2] & 1 == 0
    assert publishes(None)


def test_an_invalid_span_is_not_published():
    """All zero is no id."""
    token = attach(trace.INVALID_SPAN)
    assert publishes(None)
    context_api.detach(token)


def test_a_context_without_a_span_hides_the_one_around_it(tracer):
    """As suppress-instrumentation contexts do not, and a fresh Context does."""
    with tracer.start_as_current_span("a") as span:
        token = context_api.attach(context_api.set_value("suppress", value=True))
        assert publishes(span)
        context_api.detach(token)
        token = context_api.attach(context_api.Context())
        assert publishes(None)
        context_api.detach(token)
        assert publishes(span)


@pytest.mark.parametrize("value", [None, 5, {}, {"current-span": "x"}])
def test_an_odd_context_publishes_nothing_and_breaks_nothing(value):
    """The API does not check what it is given."""
    token = context_api.attach(value)
    assert publishes(None)
    context_api.detach(token)


class LoudSpan(NonRecordingSpan):
    """Cannot be asked."""

    def is_recording(self):
        raise RuntimeError("no answer")


class InterruptedSpan(NonRecordingSpan):
    """Asked while the user presses Ctrl-C."""

    def is_recording(self):
        raise KeyboardInterrupt


class ForeignSpan(NonRecordingSpan):
    """Another SDK's: its private attributes mean something else."""

    def __init__(self, context):
        super().__init__(SpanContext(7, 7, is_remote=False))
        self._said = context
        self._end_time = None
        self.recording = True

    def get_span_context(self):
        return self._said

    def is_recording(self):
        return self.recording


LOCAL = SpanContext(0xABC, 0xDEF, is_remote=False, trace_flags=TraceFlags(1))


def test_a_span_that_cannot_be_asked_is_left_out_and_counted():
    """The application goes on."""
    before = context.status().failures
    token = attach(LoudSpan(LOCAL))
    assert publishes(None)
    context_api.detach(token)
    assert context.status().failures == before + 1


def test_an_interrupt_reaches_the_application():
    """It is not ours to swallow."""
    with pytest.raises(KeyboardInterrupt):
        attach(InterruptedSpan(LOCAL))
    assert publishes(None)


def test_a_foreign_span_is_believed_by_its_methods():
    """Not by attributes that look like those of the SDK."""
    span = ForeignSpan(LOCAL)
    for _ in range(3):
        token = attach(span)
        assert publishes(span)
        context_api.detach(token)
    span.recording = False
    token = attach(span)
    assert publishes(None)
    context_api.detach(token)


def test_a_generator_runs_in_its_consumers_context(tracer):
    """Generators have no context of their own: what one attaches, its consumer sees, in both."""

    def steps():
        with tracer.start_as_current_span("generator") as span:
            yield span
        yield None

    generator = steps()
    span = next(generator)
    assert publishes(span)
    assert trace.get_current_span() is span
    next(generator)
    assert publishes(None)


def test_a_token_of_another_context_changes_nothing(tracer, caplog):
    """The API logs the failure and goes on; so does the record."""
    token = contextvars.copy_context().run(attach, tracer.start_span("other"))
    with tracer.start_as_current_span("own") as own:
        context_api.detach(token)
        assert publishes(own)
    assert "Failed to detach context" in caplog.text


def test_running_in_another_context_publishes_that_context(tracer):
    """And afterwards the own one again, also after an exception."""
    with tracer.start_as_current_span("a") as a:
        in_a = contextvars.copy_context()
    in_a.run(attach, b := tracer.start_span("b"))
    assert in_a.run(publishes, b)
    assert publishes(None)
    with tracer.start_as_current_span("c") as c:
        assert contextvars.Context().run(publishes, None)
        assert in_a.run(publishes, b)
        assert publishes(c)
        with pytest.raises(ZeroDivisionError):
            in_a.run(lambda: 1 / 0)
        assert publishes(c)
        with pytest.raises(TypeError):
            in_a.run()
        assert publishes(c)
        with pytest.raises(RuntimeError, match="already entered"):
            in_a.run(in_a.run, publishes, b)
        assert publishes(c)
    assert a.end_time is not None


def test_an_already_bound_run_is_followed_too(tracer):
    """Bound before the publisher was turned on."""
    context.uninstall()
    run = contextvars.copy_context().run
    context.install()
    span = tracer.start_span("a")
    run(attach, span)
    assert run(publishes, span)
    assert publishes(None)


def test_deep_nesting_loses_spans_but_never_shows_a_wrong_one(tracer):
    """Beyond eight contexts within one another the record stays empty, and is right again on the way back."""
    shown = []

    def descend(depth: int) -> None:
        span = tracer.start_span(str(depth))
        token = attach(span)
        shown.append(publishes(span) or (publishes(None) and depth > 8))
        if depth < 20:
            contextvars.copy_context().run(descend, depth + 1)
        shown.append(publishes(span) or (publishes(None) and depth > 8))
        context_api.detach(token)

    descend(0)
    assert shown == [True] * 42
    assert publishes(None)


def test_threads_start_empty_and_pools_follow_what_is_handed_over(tracer):
    """A pool carries no context by itself; with `copy_context().run` it does."""
    with ThreadPoolExecutor(3) as pool, tracer.start_as_current_span("a") as span:
        assert pool.submit(publishes, None).result()
        for _ in range(23):
            assert pool.submit(contextvars.copy_context().run, publishes, span).result()
            assert pool.submit(publishes, None).result()


def test_threads_do_not_disturb_each_other(tracer):
    """17 threads, 101 spans each."""
    wrong = []

    def work() -> None:
        for _ in range(101):
            with tracer.start_as_current_span("outer") as outer:
                with tracer.start_as_current_span("inner") as inner:
                    wrong.append(inner) if not publishes(inner) else None
                wrong.append(outer) if not publishes(outer) else None
            wrong.append(None) if not publishes(None) else None

    threads = [threading.Thread(target=work) for _ in range(17)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_child_process_goes_on_in_the_span_of_the_fork(tracer):
    """And leaves it like its parent."""
    reading, writing = os.pipe()
    with tracer.start_as_current_span("a") as span:
        expected = ids(span)
        pid = os.fork()
        if pid == 0:
            inherited = _record.published() == expected
            with tracer.start_as_current_span("child") as child:
                inner = publishes(child)
            os.write(writing, b"y" if inherited and inner and publishes(span) else b"n")
            os._exit(0)
        os.close(writing)
        assert os.read(reading, 1) == b"y"
        os.waitpid(pid, 0)
        assert publishes(span)
    os.close(reading)


def test_turning_on_inside_a_context_publishes_nothing_for_it(tracer):
    """Its end would go unnoticed, and the record would stay behind."""
    context.uninstall()
    late = []

    def callback() -> None:
        context.install()
        late.append(publishes(None))
        with tracer.start_as_current_span("inner") as inner:
            late.append(publishes(None))
            late.append(contextvars.copy_context().run(publishes, inner))
        late.append(publishes(None))

    with tracer.start_as_current_span("outer") as outer:
        contextvars.copy_context().run(callback)
        assert late == [True] * 4
        assert publishes(None)
        assert contextvars.copy_context().run(publishes, outer)
    assert context.status().unfollowed > 0


def test_turning_on_within_a_span_publishes_it(tracer):
    """On the thread that does so."""
    context.uninstall()
    with tracer.start_as_current_span("a") as span:
        context.install()
        assert publishes(span)
    assert publishes(None)


def test_turning_off_inside_a_context_leaves_nothing_behind(tracer):
    """What was entered while on is left while off, and the other way round."""
    with tracer.start_as_current_span("a") as span:

        def callback() -> None:
            assert publishes(span)
            context.uninstall()
            assert publishes(None)

        contextvars.copy_context().run(callback)
        assert publishes(None)
        context.install()
        assert publishes(span)


def test_off_is_off(tracer):
    """Nothing of ours is left in the way."""
    context.uninstall()
    runtime = context_api._RUNTIME_CONTEXT
    assert "attach" not in vars(runtime)
    with tracer.start_as_current_span("a"):
        assert publishes(None)
        assert contextvars.copy_context().run(publishes, None)
    assert contextvars.Context().run(sum, [1, 2], start=3) == 6


def test_nothing_is_kept_alive(tracer):
    """Neither spans nor contexts."""
    span = tracer.start_span("a")
    other = contextvars.copy_context()
    other.run(attach, span)
    gone = weakref.ref(span)
    token = attach(span)
    context_api.detach(token)
    del span, other, token
    gc.collect()
    assert gone() is None
    references = sys.getrefcount(LOCAL)
    for _ in range(101):
        _record.ended(LOCAL)
    assert sys.getrefcount(LOCAL) == references
