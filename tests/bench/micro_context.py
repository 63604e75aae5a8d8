"""The context publisher alone: nanoseconds a switch, beside what opentelemetry and contextvars take.

python -m tests.bench.micro_context
"""

from __future__ import annotations

import timeit
from contextvars import ContextVar, copy_context
from typing import TYPE_CHECKING, Any

from opentelemetry import context as context_api
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from otel_bridge import context
from otel_bridge.context import _record
from tests.bench import figures

if TYPE_CHECKING:
    from collections.abc import Mapping

ROUNDS = 101
CALLS = 5_000


def nothing() -> None:
    """A callback that does no work."""


def nanoseconds(statement: str, names: Mapping[str, Any]) -> float:
    """Of one execution, at best: what else the machine does only adds. The empty loop is taken off."""

    def best(code: str) -> float:
        return min(timeit.repeat(code, globals=dict(names), number=CALLS, repeat=ROUNDS)) / CALLS * 1e9

    return best(statement) - best("pass")


def switches() -> dict[str, float]:
    """What the application pays at each kind of switch, as things are now."""
    tracer = TracerProvider().get_tracer("bench")
    with_span = trace.set_span_in_context(tracer.start_span("a"), context_api.Context())
    callback, callback_in_span = copy_context(), copy_context()
    callback_in_span.run(context_api.attach, with_span)
    names = {
        "api": context_api,
        "with_span": with_span,
        "callback": callback,
        "callback_in_span": callback_in_span,
        "nothing": nothing,
    }
    return {
        "attach and detach": nanoseconds("api.detach(api.attach(with_span))", names),
        "callback outside spans": nanoseconds("callback.run(nothing)", names),
        "callback within a span": nanoseconds("callback_in_span.run(nothing)", names),
    }


def main() -> None:
    """Print what each operation takes and keep the figures."""
    ids = {"trace_id": 0x0102030405060708090A0B0C0D0E0F10, "span_id": 0x1112131415161718}
    variable: ContextVar[int] = ContextVar("variable")
    publish = nanoseconds("publish(trace_id, span_id, 1)", {"publish": _record.publish, **ids})
    known = nanoseconds("set(1)", {"set": variable.set})
    _record.clear()
    off = switches()
    status = context.install()
    on = switches()
    context.uninstall()

    print(f"{'publish':24} {publish:6.0f} ns   ContextVar.set {known:.0f} ns, ratio {publish / known:.2f}")
    for name, took in on.items():
        print(f"{name:24} {took:6.0f} ns   without the publisher {off[name]:.0f} ns")
    print(f"switches are noticed by {status.mechanism}")
    figures.merge(
        {
            "context.publish_ns": publish,
            "context.attach_detach_ns": on["attach and detach"] - off["attach and detach"],
            "context.callback_ns": on["callback outside spans"] - off["callback outside spans"],
            "context.callback_in_span_ns": on["callback within a span"] - off["callback within a span"],
        }
    )


if __name__ == "__main__":
    main()
