"""Turning it on and off, and being told plainly where it cannot work."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading

import pytest
from opentelemetry import context as context_api
from opentelemetry.context.context import _RuntimeContext

from otel_bridge import context
from otel_bridge.context.instrumentor import ThreadContextInstrumentor
from tests.support.spans import publishes


def python(code: str, *arguments: str, **environment: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run(
        [sys.executable, *arguments, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ".", **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_turning_it_on_twice_is_turning_it_on_once(tracer):
    """And off once is off."""
    first = context.install()
    assert context.install() == first == context.status()
    assert first.publishing
    assert first.problem == first.process_problem == ""
    with tracer.start_as_current_span("a") as span:
        assert publishes(span)
    context.uninstall()
    context.uninstall()
    off = context.status()
    assert not off.publishing
    assert (off.mechanism, off.problem) == ("none", "uninstall() was called")


def test_many_threads_may_turn_it_on_and_off_while_others_work(tracer):
    """Whatever the order, a span is published right or not at all."""
    wrong = []
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            with tracer.start_as_current_span("a") as span:
                if not publishes(span) and not publishes(None):
                    wrong.append(span)

    def turn() -> None:
        for _ in range(53):
            context.uninstall()
            context.install()

    workers = [threading.Thread(target=work) for _ in range(3)]
    turners = [threading.Thread(target=turn) for _ in range(3)]
    for thread in workers + turners:
        thread.start()
    for thread in turners:
        thread.join()
    stop.set()
    for thread in workers:
        thread.join()
    assert wrong == []


def test_the_mechanism_is_that_of_this_python():
    """CPython tells of switches from 3.14 on."""
    assert context.status().mechanism == ("context watcher" if sys.version_info >= (3, 14) else "Context.run")


class ThreadLocalContext(_RuntimeContext):
    """A runtime context as others have written them: not on contextvars."""

    def attach(self, context):
        return None

    def get_current(self):
        return context_api.Context()

    def detach(self, token):
        pass


def test_a_context_that_cannot_be_followed_is_left_alone(monkeypatch, caplog):
    """And said, with what to do about it."""
    context.uninstall()
    other = ThreadLocalContext()
    monkeypatch.setattr(context_api, "_RUNTIME_CONTEXT", other)
    with caplog.at_level(logging.WARNING, "otel_bridge.context"):
        status = context.install()
    assert not status.publishing
    assert "ThreadLocalContext" in status.problem
    assert "OTEL_PYTHON_CONTEXT" in status.problem
    assert status.problem in caplog.text
    assert vars(other) == {}


WITHOUT_ANY = """
import sys
sys.modules["otel_bridge.context._record"] = None
import platform
platform.machine = lambda: "riscv64"
import otel_bridge.context
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

print(otel_bridge.context.install())
with TracerProvider().get_tracer("test").start_as_current_span("a"):
    print(trace.get_current_span().is_recording())
otel_bridge.context.uninstall()
"""


def test_where_neither_works_it_says_so_and_breaks_nothing():
    """The application runs on, unpublished; the log and the status name what is missing and what mends it."""
    said = python(WITHOUT_ANY)
    assert "publishing=False" in said
    assert "the active span is not published: the C extension of otel_bridge.context was not built" in said
    assert "install a wheel, or a C compiler" in said
    assert "no thread-local module can be made for riscv64" in said
    assert "True" in said.splitlines()


IMPORTS = """
import sys
import otel_bridge.context, otel_bridge.context.instrumentor
otel_bridge.context.install()
foreign = {name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names)
print(sorted(foreign - {"__main__", "sitecustomize", "usercustomize"}))
print(any(name.startswith("opentelemetry.sdk") for name in sys.modules))
"""


def test_it_needs_opentelemetry_api_alone():
    """An application that publishes its context takes on nothing else."""
    foreign, sdk = python(IMPORTS, "-S", PYTHONPATH=":".join(sys.path)).splitlines()
    assert set(eval(foreign)) <= {"opentelemetry", "otel_bridge", "typing_extensions"}
    assert sdk == "False"


# As opentelemetry-instrument does at start-up. The SDK is there only by the time of the first span.
INSTRUMENTED = """
from opentelemetry.instrumentation.auto_instrumentation import initialize

initialize()

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from otel_bridge import context
from tests.support.spans import publishes

trace.set_tracer_provider(TracerProvider())
status = context.status()
with trace.get_tracer("test").start_as_current_span("a") as span:
    print(status.publishing, type(span).__name__, publishes(span))
    span.end()
    print(publishes(None))
"""


def test_opentelemetry_instrument_turns_it_on():
    """By the entry point of the installed package, with no change to the application."""
    pytest.importorskip("opentelemetry.instrumentation", reason="pip install opentelemetry-instrumentation")
    assert python(INSTRUMENTED).splitlines()[:2] == ["True _Span True", "True"]


def test_the_instrumentor_is_shaped_as_its_loader_expects():
    """It instruments the API itself, so it depends on nothing else."""
    instrumentor = ThreadContextInstrumentor()
    assert instrumentor.instrumentation_dependencies() == ()
    assert instrumentor.is_instrumented_by_opentelemetry
    instrumentor.uninstrument()
    assert not instrumentor.is_instrumented_by_opentelemetry
    instrumentor.instrument(skip_dep_check=True)
    assert context.status().publishing


SUBINTERPRETER = """
import importlib, sys
import otel_bridge.context
from otel_bridge.context import _record

otel_bridge.context.install()
_record.publish(1, 2, 1)
name = "_xxsubinterpreters" if sys.version_info < (3, 13) else "_interpreters"
interpreters = importlib.import_module(name)
number = interpreters.create()
failed = interpreters.run_string(number, '''
import contextvars
import otel_bridge.context
status = otel_bridge.context.install()
assert not status.publishing
assert "subinterpreter" in status.problem, status.problem
contextvars.Context().run(print, status.problem)
''')
assert failed is None, failed
interpreters.destroy(number)
assert _record.published() is not None
"""


def test_a_subinterpreter_is_refused():
    """It shares threads, and so records, with the main one; running there it disturbs nothing."""
    assert "subinterpreter" in python(SUBINTERPRETER)


EXIT_WITH_THREADS = """
import threading, time
from opentelemetry.sdk.trace import TracerProvider
import otel_bridge.context

otel_bridge.context.install()
tracer = TracerProvider().get_tracer("test")
busy = threading.Barrier(8)

def work():
    first = True
    while True:
        with tracer.start_as_current_span("a"):
            if first:
                busy.wait()
                first = False

for _ in range(7):
    threading.Thread(target=work, daemon=True).start()
busy.wait()
with tracer.start_as_current_span("main"):
    print("leaving")
"""


def test_an_interpreter_may_end_while_threads_publish():
    """Daemon threads are stopped wherever they are."""
    for _ in range(5):
        assert python(EXIT_WITH_THREADS) == "leaving\n"


EXIT_IN_SPAN = """
import contextvars, sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
import otel_bridge.context
from otel_bridge.context import _record

otel_bridge.context.install()
provider = TracerProvider()
trace.set_tracer_provider(provider)
class Late:
    def __del__(self, run=contextvars.Context().run):
        run(print, "late")
late = Late()
stays = provider.get_tracer("test").start_as_current_span("never left")
stays.__enter__()
contextvars.copy_context().run(sys.exit, 0)
"""


def test_an_interpreter_may_end_inside_a_span():
    """And run in contexts while it goes down."""
    assert "late" in python(EXIT_IN_SPAN)
