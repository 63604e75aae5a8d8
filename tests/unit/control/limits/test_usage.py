"""What spans say of the tokens that requests used: which spans, which numbers, of which trace."""

from __future__ import annotations

from typing import Any

import pytest

from otel_bridge.batch import PlanBuilder
from otel_bridge.control.config import SpansConfig
from otel_bridge.control.limits.usage import UsageTap
from otel_bridge.receivers.otlp.codec import choose_codec
from otel_bridge.testing import trace_request

END = 1_700_000_001_000_000_000
SECOND = 1_000_000_000
IN, OUT = "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"


class Tap:
    """A tap that keeps what it tells."""

    def __init__(self, codec: str, **config: Any) -> None:
        columns = PlanBuilder()
        self.told: list[tuple[int, float, int]] = []
        self.tap = UsageTap(SpansConfig.model_validate(config), columns, self)  # type: ignore[arg-type]
        self.plan = columns.build()
        self.codec, _ = choose_codec(codec)

    def settle(self, trace: str, used: float, end: int) -> None:
        """As the limiter's."""
        assert len(trace) == 32
        self.told.append((int(trace, 16), used, end))

    def feed(self, *attributes: dict[str, Any], **fields: Any) -> list[tuple[int, float, int]]:
        """One request whose spans are of traces that are counted up from 1."""
        spans = [
            {"trace_id": number.to_bytes(16, "big"), "attributes": found, **fields}
            for number, found in enumerate(attributes, 1)
        ]
        self.told = []
        self.tap.process(self.codec.scan(trace_request(spans), self.plan))
        return self.told


@pytest.fixture(params=["native", "reference"])
def tap(request):
    return Tap(request.param)


def test_both_counts_or_the_one_there_is(tap):
    """Each of its own trace; a span without any tells nothing."""
    found = tap.feed({IN: 90, OUT: 10}, {IN: 7}, {OUT: 3.0}, {}, {IN: 0, OUT: 0})
    assert [(trace, used) for trace, used, _ in found] == [(1, 100), (2, 7), (3, 3), (5, 0)]
    assert {end for _, _, end in found} == {END + SECOND}, "clocks may be a second apart"


def test_texts_are_no_counts(tap):
    """And nothing raises."""
    assert tap.feed({IN: "90", OUT: "many"}, {IN: [1, 2]}) == []


@pytest.mark.parametrize("kind", [1, 3, 4, 5])
def test_only_spans_of_the_kinds_that_are_calls(tap, kind):
    """What a client says of the same call settles nothing."""
    assert tap.feed({IN: 90}, kind=kind) == []
    assert len(tap.feed({IN: 90}, kind=2)) == 1


def test_kinds_as_configured():
    """For those who only have clients' spans."""
    tap = Tap("native", kinds=["client"])
    assert len(tap.feed({IN: 90}, kind=3)) == 1
    assert tap.feed({IN: 90}, kind=2) == []
