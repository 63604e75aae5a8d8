"""An application that publishes its spans, as a process of its own that is talked with line by line."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

SETUP = """
import json, sys, threading
from opentelemetry.sdk.trace import TracerProvider
import otel_bridge.context
from otel_bridge.context import _record

otel_bridge.context.install()
tracer = TracerProvider().get_tracer("test")

def say(what):
    print(json.dumps(what), flush=True)

def ids(span):
    context = span.get_span_context()
    return [context.trace_id, context.span_id, int(context.trace_flags)]
"""


class Application:
    """A running one.

    Attributes:
        process: it.
        pid: of it.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.pid = process.pid

    def hear(self) -> Any:
        """What it says next."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the application ended with {self.process.wait()}"
        return json.loads(line)

    def tell(self, what: Any = None) -> None:
        """Answer its read of a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()


@contextmanager
def application(code: str) -> Iterator[Application]:
    """Runs code after SETUP, until its input ends."""
    with subprocess.Popen(
        [sys.executable, "-c", SETUP + code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield Application(process)
        except BaseException:
            process.kill()
            raise
        finally:
            assert process.stdin is not None
            process.stdin.close()
