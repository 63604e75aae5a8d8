"""Greenlets take their context along when they switch, and tell nobody but their trace function."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from tests.support.spans import publishes

greenlet = pytest.importorskip("greenlet", reason="greenlet is not installed: pip install greenlet")


def test_interleaved_greenlets(tracer):
    """As gevent's hub switches them: 23 at a time, each in its own span."""
    wrong = []

    def request(number: int) -> None:
        for _ in range(5):
            with tracer.start_as_current_span(f"{number}") as span:
                hub.switch()
                wrong.append(number) if not publishes(span) else None
            wrong.append(number) if not publishes(None) else None
            hub.switch()

    hub = greenlet.getcurrent()
    requests = [greenlet.greenlet(request) for _ in range(23)]
    switches = 0
    while requests:
        for number, one in enumerate(list(requests)):
            one.switch(number)
            switches += 1
            wrong.append(None) if not publishes(None) else None
        requests = [one for one in requests if not one.dead]
    assert wrong == []
    assert switches == 23 * 11


def test_a_greenlet_that_ends_within_a_span_leaves_nothing(tracer):
    """Its parent goes on in its own context."""

    def fail() -> None:
        with tracer.start_as_current_span("inner"):
            raise ZeroDivisionError

    with tracer.start_as_current_span("outer") as outer:
        with pytest.raises(ZeroDivisionError):
            greenlet.greenlet(fail).switch()
        assert publishes(outer)
    assert publishes(None)


def test_each_thread_is_followed(tracer):
    """The trace function is the thread's own."""
    right = []

    def work() -> None:
        def inner() -> None:
            with tracer.start_as_current_span("inner"):
                outside.switch()

        outside = greenlet.getcurrent()
        one = greenlet.greenlet(inner)
        one.switch()
        right.append(publishes(None))
        one.switch()
        right.append(publishes(None))

    threads = [threading.Thread(target=work) for _ in range(7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == [True] * 14


LATE = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
import otel_bridge.context
from tests.support.spans import publishes

otel_bridge.context.install()
tracer = TracerProvider().get_tracer("test")
with tracer.start_as_current_span("before"):
    pass
import greenlet

seen = []
greenlet.settrace(lambda *event: seen.append(event))
main = greenlet.getcurrent()

def inner():
    with tracer.start_as_current_span("inner") as span:
        main.switch()
        assert publishes(span)

one = greenlet.greenlet(inner)
one.switch()
assert publishes(None)
one.switch()
assert publishes(None)
assert len(seen) == 4
print("right")
"""


def test_greenlet_may_be_imported_late_and_have_a_trace_function_already():
    """Both are told."""
    done = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, check=False)
    assert done.stdout == "right\n", done.stderr
