"""Redaction over real bytes: scanned, redacted, spliced, by either codec."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from otel_bridge.batch import PlanBuilder
from otel_bridge.processors.redact.config import RedactConfig
from otel_bridge.processors.redact.redact import Redact
from otel_bridge.receivers.otlp.codec import choose_codec
from otel_bridge.telemetry import Telemetry

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_bridge.batch import Batch
    from otel_bridge.contracts import Codec


@dataclass
class Step:
    """The step as the pipeline runs it."""

    codec: Codec
    config: RedactConfig
    telemetry: Telemetry = field(default_factory=Telemetry)

    def __post_init__(self) -> None:
        columns = PlanBuilder()
        self.redact = Redact(self.config, columns, self.telemetry)
        self.plan = columns.build()

    def __call__(self, data: bytes, before: Callable[[Batch], None] = lambda _: None) -> bytes:
        """What leaves of a request, on which another step has worked before."""
        batch = self.codec.scan(data, self.plan)
        before(batch)
        self.redact.process(batch)
        return batch.splice()


@pytest.fixture(params=["native", "reference"])
def step(request):
    """Make a step of a configuration."""
    codec, _ = choose_codec(request.param)
    return lambda **config: Step(codec, RedactConfig(**config))
