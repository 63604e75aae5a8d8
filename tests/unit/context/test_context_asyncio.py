"""Tasks and callbacks interleave on one thread: each sees its own span published, never another's."""

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading
from contextlib import contextmanager

import pytest
from opentelemetry import context as context_api
from opentelemetry import trace

from otel_bridge import context
from tests.support.spans import publishes

uvloop = pytest.importorskip("uvloop", reason="uvloop is not installed: pip install uvloop")

TASKS = 64


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request):
    """Runs a coroutine on a loop of either kind."""

    def run(main):
        with asyncio.Runner(loop_factory=request.param) as runner:
            return runner.run(main)

    return run


class Watch:
    """Counts the looks at what is published, and keeps those that were wrong."""

    def __init__(self) -> None:
        self.looks = 0
        self.wrong: list[str] = []

    def look(self, span, where: str) -> None:
        self.looks += 1
        if not publishes(span):
            self.wrong.append(where)


@pytest.fixture
def watch():
    watch = Watch()
    yield watch
    assert watch.wrong == []
    assert watch.looks > 0


def test_interleaved_tasks(run, tracer, watch):
    """64 tasks of nested spans, switching at every step."""

    async def request(number: int) -> None:
        watch.look(None, "before")
        with tracer.start_as_current_span(f"server {number}") as server:
            for step in range(number % 7 + 3):
                watch.look(server, "server")
                await asyncio.sleep(0)
                watch.look(server, "server resumed")
                with tracer.start_as_current_span(f"client {number}.{step}") as client:
                    await asyncio.sleep(0.001 * (number % 3))
                    watch.look(client, "client resumed")
                    await asyncio.to_thread(watch.look, client, "worker thread")
                watch.look(server, "server again")
        watch.look(None, "after")

    async def main() -> None:
        await asyncio.gather(*(request(number) for number in range(TASKS)))

    run(main())
    assert publishes(None)


def test_child_tasks_inherit(run, tracer, watch):
    """create_task copies the context: the child works for the parent's span until it starts its own."""

    async def child(parent) -> None:
        watch.look(parent, "inherited")
        await asyncio.sleep(0)
        with tracer.start_as_current_span("child") as span:
            await asyncio.sleep(0)
            watch.look(span, "child")
        watch.look(parent, "inherited again")

    async def main() -> None:
        with tracer.start_as_current_span("parent") as parent:
            async with asyncio.TaskGroup() as group:
                for _ in range(23):
                    group.create_task(child(parent))
            watch.look(parent, "parent")
        watch.look(None, "after")

    run(main())


def test_plain_callbacks(run, tracer, watch):
    """Soon, later, from another thread, of futures, and in a context of one's own."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        done = asyncio.Event()
        empty = contextvars.Context()
        with tracer.start_as_current_span("a") as span:
            loop.call_soon(watch.look, span, "call_soon")
            loop.call_soon(lambda: watch.look(None, "own context"), context=empty)
            loop.call_later(0.002, watch.look, span, "call_later")
            future = loop.create_future()
            future.add_done_callback(lambda _: watch.look(span, "done callback"))
            loop.call_later(0.001, future.set_result, None)
            copied = contextvars.copy_context()
            thread = threading.Thread(
                target=lambda: loop.call_soon_threadsafe(watch.look, span, "threadsafe", context=copied)
            )
            thread.start()
            loop.call_later(0.004, done.set)
            await done.wait()
            watch.look(span, "task")
            thread.join()
        watch.look(None, "after")

    run(main())
    assert watch.looks == 7


def test_a_callback_that_forgets_to_detach_spoils_no_other(run, tracer, watch):
    """What it attached stays in its own context."""

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def forgetful() -> None:
            span = tracer.start_span("forgotten")
            context_api.attach(trace.set_span_in_context(span))
            watch.look(span, "attached")

        for _ in range(7):
            loop.call_soon(forgetful)
            loop.call_soon(watch.look, None, "next callback")
        await asyncio.sleep(0.01)
        watch.look(None, "task")

    run(main())


def test_a_failing_callback_spoils_no_other(run, tracer, watch):
    """The loop's exception handler runs outside the span."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda *_: watch.look(None, "handler"))
        with tracer.start_as_current_span("a") as span:
            loop.call_soon(lambda: 1 / 0)
        loop.call_soon(watch.look, None, "next")
        await asyncio.sleep(0.005)
        assert span.end_time is not None

    run(main())
    assert watch.looks == 2


def test_cancelled_tasks(run, tracer, watch):
    """CancelledError is thrown in, and leaves the spans as any exception does."""

    async def request() -> None:
        with tracer.start_as_current_span("a") as span:
            try:
                await asyncio.sleep(60)
            finally:
                watch.look(span, "cancelled")
                await asyncio.sleep(0)
                watch.look(span, "cleaning up")

    async def main() -> None:
        tasks = [asyncio.create_task(request()) for _ in range(23)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        watch.look(None, "after")

    run(main())


def test_async_generators(run, tracer, watch):
    """Their steps run in the task that asks."""

    async def steps():
        for number in range(5):
            with tracer.start_as_current_span(f"step {number}") as span:
                await asyncio.sleep(0)
                watch.look(span, "inside")
                yield span

    async def main() -> None:
        with tracer.start_as_current_span("consumer") as consumer:
            async for span in steps():
                watch.look(span, "between")
                await asyncio.sleep(0)
                watch.look(span, "between, resumed")
            watch.look(consumer, "after")

    run(main())


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks are new in Python 3.12")
def test_eager_tasks(tracer, watch):
    """They start within their creator's step, in a context that C code enters."""

    async def child(creator) -> None:
        watch.look(creator, "eager, inherited")
        with tracer.start_as_current_span("child") as span:
            watch.look(span, "eager")
            await asyncio.sleep(0)
            watch.look(span, "resumed")
        watch.look(creator, "after")

    async def alone() -> None:
        watch.look(None, "own context")
        with tracer.start_as_current_span("alone") as span:
            watch.look(span, "own context")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_task_factory(asyncio.eager_task_factory)
        with tracer.start_as_current_span("creator") as creator:
            for _ in range(5):
                tasks = [asyncio.create_task(child(creator)) for _ in range(3)]
                watch.look(creator, "creator goes on")
                tasks.append(asyncio.create_task(alone(), context=contextvars.Context()))
                watch.look(creator, "creator goes on")
                await asyncio.gather(*tasks)
                watch.look(creator, "creator resumed")

    # Not on uvloop, whose create_task hands CPython's eager factory an argument that it does not take.
    asyncio.run(main())


def test_two_loops_on_two_threads(run, tracer, watch):
    """Each thread has its record."""

    async def request() -> None:
        for _ in range(101):
            with tracer.start_as_current_span("a") as span:
                await asyncio.sleep(0)
                watch.look(span, "resumed")

    async def main() -> None:
        await asyncio.gather(*(request() for _ in range(5)))

    threads = [threading.Thread(target=run, args=(main(),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert watch.looks == 2 * 5 * 101


def test_turned_on_after_the_loop_runs(run, tracer, watch):
    """What was attached before shows no later than the task's next step; nothing shows in the wrong place."""
    context.uninstall()

    async def request(number: int) -> None:
        with tracer.start_as_current_span(f"server {number}") as span:
            await asyncio.sleep(0.002)
            for _ in range(5):
                watch.look(span, "resumed")
                await asyncio.sleep(0)
        watch.look(None, "after")

    async def main() -> None:
        tasks = [asyncio.create_task(request(number)) for number in range(TASKS)]
        await asyncio.sleep(0)
        context.install()
        watch.look(None, "the callback that turned it on")
        with tracer.start_as_current_span("late"):
            watch.look(None, "in the callback that turned it on")
        watch.look(None, "the callback that turned it on, after")
        asyncio.get_running_loop().call_soon(watch.look, None, "next callback")
        await asyncio.gather(*tasks)
        with tracer.start_as_current_span("later") as span:
            watch.look(span, "later")

    run(main())


@contextmanager
def entered(inner: contextvars.Context):
    """As C code does that calls PyContext_Enter past everybody."""
    import ctypes

    ctypes.pythonapi.PyContext_Enter.argtypes = ctypes.pythonapi.PyContext_Exit.argtypes = [ctypes.py_object]
    ctypes.pythonapi.PyContext_Enter(inner)
    try:
        yield
    finally:
        ctypes.pythonapi.PyContext_Exit(inner)


def test_a_context_entered_behind_our_back_publishes_nothing(tracer):
    """Its end would go unnoticed."""
    before = context.status().unfollowed
    inner = contextvars.Context()
    with entered(inner), tracer.start_as_current_span("inner"):
        assert publishes(None)
    assert publishes(None)
    assert context.status().unfollowed > before
