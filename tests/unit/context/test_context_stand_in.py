"""Without the extension: Python stands in for it, publishes what it can see the end of, and says so."""

from __future__ import annotations

import subprocess
import sys

import pytest

from otel_bridge.context import tls_module
from tests.support.application import SETUP, application
from tests.support.thread_records import Published, ThreadReader, needs_x86_64

BLOCKED = """
import sys
sys.modules["otel_bridge.context._record"] = None
import otel_bridge.context.stand_in
otel_bridge.context._record = otel_bridge.context.stand_in
"""
CHECKS = """
def publishes(span):
    if span is None:
        return _record.published() is None
    context = span.get_span_context()
    own = context.trace_id.to_bytes(16), context.span_id.to_bytes(8), int(context.trace_flags)
    return _record.published() == own

def check(right):
    assert right, _record.published()
"""


def runs(code: str) -> tuple[list[str], str]:
    """The lines that it prints, and what it warns of, run where the extension is missing."""
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED + SETUP + CHECKS + code + "\nprint('done')"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines.pop() == "done"
    return lines, done.stderr


def test_it_is_said():
    """In the log once, and in the status: what is missing, what mends it, what stands in."""
    (status,), log = runs("print(otel_bridge.context.install())")
    assert log.count("not published everywhere: the C extension of otel_bridge.context was not built") == 1
    for said in ("publishing=True", "asyncio.Handle", "install a wheel, or a C compiler", "publishes less"):
        assert said in status
    assert "process_problem='it could not be published: the C extension is needed for it'" in status


NESTED = """
import contextvars
from opentelemetry import trace, context as api
check(publishes(None))
with tracer.start_as_current_span("outer") as outer:
    check(publishes(outer))
    with tracer.start_as_current_span("inner", end_on_exit=False) as inner:
        check(publishes(inner))
        copied = contextvars.copy_context()
        check(copied.run(publishes, inner))
    check(publishes(outer))
    inner.end()
    token = api.attach(trace.set_span_in_context(inner))
    check(publishes(None))
    api.detach(token)
    check(publishes(outer))
    remote = trace.NonRecordingSpan(trace.SpanContext(5, 6, is_remote=True))
    token = api.attach(trace.set_span_in_context(remote))
    check(publishes(None))
    api.detach(token)
check(publishes(None))
otel_bridge.context.uninstall()
with tracer.start_as_current_span("off"):
    check(publishes(None))
"""


def test_nested_spans_on_a_thread():
    """From attach to detach; ended and remote ones are left out here too."""
    runs(NESTED)


POOL = """
import contextvars
from concurrent.futures import ThreadPoolExecutor

def work(inherited):
    check(publishes(None))
    with tracer.start_as_current_span("own") as own:
        check(publishes(own))
    check(publishes(None))

with ThreadPoolExecutor(3) as pool, tracer.start_as_current_span("a") as span:
    for _ in range(23):
        pool.submit(contextvars.copy_context().run, work, span).result()
        check(pool.submit(publishes, None).result())
"""


def test_what_a_thread_inherits_is_not_published():
    """Nobody would say when it ends."""
    runs(POOL)


TASKS = """
import asyncio

looks = []

async def request(number):
    check(publishes(None))
    with tracer.start_as_current_span("outer") as outer:
        for _ in range(number % 5 + 1):
            await asyncio.sleep(0.001 * (number % 3))
            looks.append(publishes(outer))
            check(looks[-1] or publishes(None))
            with tracer.start_as_current_span("inner") as inner:
                await asyncio.sleep(0)
                looks.append(publishes(inner))
                check(looks[-1] or publishes(None))
        looks.append(publishes(outer))
        check(looks[-1] or publishes(None))
    check(publishes(None))

async def main():
    asyncio.get_running_loop().call_later(0.002, lambda: check(publishes(None)))
    await asyncio.gather(*(request(number) for number in range(64)))

with asyncio.Runner(loop_factory=new_event_loop) as runner:
    runner.run(main())
print(sum(looks), len(looks))
"""


def test_interleaved_tasks_on_asyncio():
    """Every callback shows its own span."""
    (line,), _ = runs("import asyncio; new_event_loop = asyncio.new_event_loop" + TASKS)
    right, looks = line.split()
    assert right == looks


def test_interleaved_tasks_on_uvloop():
    """Its callbacks cannot be seen, so nothing is shown."""
    pytest.importorskip("uvloop", reason="uvloop is not installed: pip install uvloop")
    (line,), _ = runs("import uvloop; new_event_loop = uvloop.new_event_loop" + TASKS)
    right, looks = line.split()
    assert right == "0"
    assert int(looks) > 64


def test_nothing_is_published_among_greenlets():
    """They switch without a word."""
    pytest.importorskip("greenlet", reason="greenlet is not installed: pip install greenlet")
    runs("import greenlet\nwith tracer.start_as_current_span('a'):\n    check(publishes(None))")


FROM_OUTSIDE = """
go = threading.Barrier(8)
inside = {}

def work():
    with tracer.start_as_current_span("a") as span:
        inside[threading.get_native_id()] = ids(span)
        go.wait()
        go.wait()

for _ in range(7):
    threading.Thread(target=work).start()
go.wait()
say(inside)
sys.stdin.readline()
go.wait()
"""


@needs_x86_64
def test_readers_find_it_like_any_other(monkeypatch):
    """The loader gave each thread a record, in a module that no compiler made."""
    monkeypatch.setattr("tests.support.application.SETUP", BLOCKED + SETUP)
    with application(FROM_OUTSIDE) as app:
        inside = {int(tid): Published(*ids) for tid, ids in app.hear().items()}
        with ThreadReader(app.pid) as reader:
            assert reader.layout.module > 0
            assert len(inside) == 7
            assert reader.all() == inside | {app.pid: None}
        app.tell()


def test_the_module_can_be_made_for_every_machine_it_knows(monkeypatch):
    """And for no other."""
    for machine, numbers in tls_module.MACHINES.items():
        image = tls_module.image(*numbers)
        assert image[:6] == b"\x7fELF\x02\x01"
        assert int.from_bytes(image[18:20], "little") == {"x86_64": 62, "aarch64": 183}[machine]
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(OSError, match="riscv64"):
        tls_module.load()


def test_it_is_not_there_where_it_is_not_needed():
    """With the extension, nothing makes a module."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, otel_bridge.context as c; print(c.__name__ + '.stand_in' in sys.modules)",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "False\n"
