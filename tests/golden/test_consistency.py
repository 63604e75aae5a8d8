"""A recording whose contexts were handed on as they should: nothing is found in it."""

from __future__ import annotations

from pathlib import Path

from otel_bridge.model import Signal
from otel_bridge.receivers.otlp.otlp_json import convert
from tests.unit.processors.consistency.test_consistency import Checking

LINES = (Path(__file__).parent / "vllm-0.32-and-clients.otlp.jsonl").read_bytes().splitlines()


async def test_a_recording_without_broken_contexts():
    """Two of its traces have callers that were not recorded, which is no finding either."""
    checking = Checking()
    for line in LINES:
        checking.receive(convert(line, Signal.TRACES).data)
    assert await checking.judge() == {}
    assert checking.outcome("judged") == len({trace for line in LINES for trace in _traces(line)})


def _traces(line: bytes) -> set[bytes]:
    """The ids as they stand in the JSON."""
    return {piece.split(b'"')[0] for piece in line.split(b'"traceId":"')[1:]}
