"""Spans as calls: which count, whose they are, how long they took."""

from __future__ import annotations

from typing import Any

import pytest

from otel_bridge.batch import PlanBuilder
from otel_bridge.control.calls import CallTap
from otel_bridge.receivers.otlp.codec import choose_codec
from otel_bridge.testing import trace_request
from tests.support.control import SECOND, World

T0 = 1_700_000_000 * SECOND


class Tap:
    """A tap that keeps what it tells."""

    def __init__(self, codec: str = "auto", **config: Any) -> None:
        world = World(**config)
        columns = PlanBuilder()
        self.calls: list[tuple[str, Any]] = []
        self.tap = CallTap(world.config.spans, world.config.targets, columns, self)  # type: ignore[arg-type]
        self.plan = columns.build()
        self.codec, _ = choose_codec(codec)

    def take_calls(self, key: str, calls: Any, event: int) -> None:
        assert event > 0
        self.calls.append((key, calls))

    def feed(self, *spans: dict[str, Any], resource: dict[str, Any] | None = None) -> list[tuple[str, Any]]:
        self.calls = []
        data = trace_request(spans, resource=resource or {"service.name": "llama"})
        self.tap.process(self.codec.scan(data, self.plan))
        return self.calls


def span(seconds: float = 1.0, at: float = 0.0, **fields: Any) -> dict[str, Any]:
    attributes = {"gen_ai.request.model": "8b"} | fields.pop("attributes", {})
    return {
        "start_time_unix_nano": T0 + int(at * SECOND),
        "end_time_unix_nano": T0 + int((at + seconds) * SECOND),
        "attributes": attributes,
        **fields,
    }


@pytest.fixture(params=["native", "reference"])
def tap(request):
    return Tap(request.param)


def test_a_server_span_is_a_call(tap):
    """With its target, duration and trace."""
    ((key, calls),) = tap.feed(span(0.25))
    assert key == "llama/8b"
    assert calls.seconds.tolist() == [0.25]
    assert calls.errors.tolist() == [False]
    assert calls.starts.tolist() == [T0]
    assert calls.traces[0].tobytes() == (1).to_bytes(16, "big")


def test_other_kinds_are_none(tap):
    """A client's span tells of somebody else's server."""
    assert tap.feed(span(kind=3), span(kind=1), span(kind=0)) == []


def test_calls_come_in_the_order_of_their_ends(tap):
    """Runs are reckoned in it."""
    ((_, calls),) = tap.feed(span(3), span(1), span(2))
    assert calls.seconds.tolist() == [1, 2, 3]


def test_targets_are_told_apart(tap):
    """By resource and by model."""
    told = tap.feed(span(1), span(2, attributes={"gen_ai.request.model": "70b"}), span(3))
    assert {key: calls.seconds.tolist() for key, calls in told} == {"llama/8b": [1, 3], "llama/70b": [2]}


def test_of_nested_spans_the_outermost_counts(tap):
    """Triton's three SERVER spans are one request (cases.md genai-triton)."""
    ids = [number.to_bytes(8, "big") for number in range(1, 4)]
    told = tap.feed(
        span(1.0, span_id=ids[0], parent_span_id=b"\xaa" * 8),
        span(0.9, span_id=ids[1], parent_span_id=ids[0]),
        span(0.8, span_id=ids[2], parent_span_id=ids[1]),
    )
    assert [calls.seconds.tolist() for _, calls in told] == [[1.0]]


@pytest.mark.parametrize(
    ("fields", "error", "ignored"),
    [
        ({"status": {"code": 2}}, True, False),
        ({"status": {"code": 1}}, False, False),
        ({"attributes": {"http.response.status_code": 503}}, True, False),
        ({"attributes": {"http.response.status_code": 404}}, False, False),
        ({"attributes": {"http.response.status_code": 429}}, False, True),
        ({"attributes": {"http.status_code": 499}, "status": {"code": 2}}, True, True),
    ],
)
def test_errors_and_calls_that_say_nothing(tap, fields, error, ignored):
    """A refusal or a client that left is no failure of the service."""
    ((_, calls),) = tap.feed(span(**fields))
    assert calls.errors.tolist() == [error]
    assert calls.ignored.tolist() == [ignored]


def test_a_span_without_a_service_has_no_target(tap):
    """Nothing is guessed; one without a model is its service's."""
    assert tap.feed(span(attributes={"gen_ai.request.model": ""}), resource={"x": "y"}) == []
    assert [key for key, _ in tap.feed(span(attributes={"gen_ai.request.model": ""}))] == ["llama"]


def test_a_span_that_ends_before_it_begins_took_no_time(tap):
    """Clocks of others may step."""
    ((_, calls),) = tap.feed(span(-5))
    assert calls.seconds.tolist() == [0.0]


def test_many_names_are_forgotten_and_found_again(tap, monkeypatch):
    """Names are a stranger's; memory is not."""
    monkeypatch.setattr("otel_bridge.control.calls._MOST_NAMES", 10)
    for number in range(50):
        told = tap.feed(span(attributes={"gen_ai.request.model": f"m{number}"}))
        assert [key for key, _ in told] == [f"llama/m{number}"]
    assert len(tap.tap._keys) <= 11


def test_other_parts_from_other_attributes():
    """As configured, up to version and tenant."""
    tap = Tap(
        targets={
            "key": ["service", "model", "version", "tenant"],
            "fields": {"tenant": {"attributes": ["enduser.id"], "header": "x-tenant"}},
        }
    )
    told = tap.feed(
        span(attributes={"enduser.id": "acme/1"}), resource={"service.name": "llama", "service.version": "2"}
    )
    assert [key for key, _ in told] == ["llama/8b/2/acme%2F1"]
