"""Derived metrics in the pipeline: what was delivered counts, once, whatever sampling leaves out."""

from __future__ import annotations

import asyncio

import pytest

from otel_bridge import catalog
from otel_bridge.errors import QueueFullError, RetryableError
from otel_bridge.pipeline import Pipeline, build_steps
from otel_bridge.receivers.otlp.codec import NativeCodec
from otel_bridge.settings import ConnectorSettings, ProcessorSettings
from otel_bridge.telemetry import Telemetry
from otel_bridge.testing import FakeClock, trace_request
from tests.unit.processors.join.test_join import SECOND, START, retransmits
from tests.unit.test_pipeline import FakeExporter


class Bench:
    """A pipeline with derived metrics."""

    def __init__(self, **processors) -> None:
        self.telemetry, self.clock = Telemetry(), FakeClock(START + 10 * SECOND)
        self.exporter = FakeExporter()
        self.processors = processors
        self.pipeline = Pipeline(NativeCodec(), self.steps(), self.exporter, self.telemetry, self.clock)

    def steps(self, **derive):
        """Compiled steps."""
        return build_steps(
            ProcessorSettings.model_validate(self.processors),
            self.telemetry,
            self.clock,
            connectors=ConnectorSettings.model_validate({"derive": derive}),
        )

    def count(self, metric=catalog.DERIVED_SPAN_DURATION) -> int:
        """All observations of a metric."""
        metrics = self.pipeline.derived
        assert metrics is not None
        return sum(point.count for point in dict(metrics.points(None, 0.0)).get(metric, []))


async def test_a_request_that_could_not_be_delivered_counts_when_it_comes_again():
    """Once: neither the refused try nor the failed one was counted."""
    bench = Bench()
    data = trace_request([{}, {}])
    bench.exporter.full = True
    with pytest.raises(QueueFullError):
        await bench.pipeline.consume_traces(data)
    bench.exporter.full, bench.exporter.fails = False, True
    with pytest.raises(RetryableError):
        await bench.pipeline.consume_traces(data)
    assert bench.count() == 0
    bench.exporter.fails = False
    await bench.pipeline.consume_traces(data)
    assert bench.count() == 2


async def test_kernel_events_are_causes():
    """What the join wrote on a span, by service and model."""
    bench = Bench()
    bench.pipeline.take(retransmits(1, 1))
    await bench.pipeline.consume_traces(trace_request([{"attributes": {"gen_ai.request.model": "tiny"}}, {}]))
    metrics = bench.pipeline.derived
    assert metrics is not None
    (point,) = dict(metrics.points(None, 0.0))[catalog.DERIVED_CAUSE_EVENTS]
    assert (point.labels, point.sum) == (("test", "tiny", "tcp_retransmit"), 2)


async def test_prompts_are_measured_and_stay_out_of_labels():
    """Redaction in its default takes the prompt away before anything is made of it."""
    bench = Bench()
    await bench.pipeline.consume_traces(
        trace_request([{"attributes": {"gen_ai.request.model": "m", "llm.prompts.0.prompt.text": "Grüße"}}])
    )
    assert bench.count(catalog.DERIVED_PROMPT_BYTES) == 1


async def test_a_reload_goes_on_counting():
    """With other processors and the same series."""
    bench = Bench()
    await bench.pipeline.consume_traces(trace_request([{}]))
    bench.pipeline.replace(bench.steps(max_series=10))
    await bench.pipeline.consume_traces(trace_request([{}]))
    assert bench.count() == 2
    bench.pipeline.replace(bench.steps(enabled=False))
    await bench.pipeline.consume_traces(trace_request([{}]))
    assert bench.pipeline.derived is None


async def test_idle_series_are_swept_in_time():
    """By the pipeline's own clock."""
    bench = Bench()
    await bench.pipeline.start()
    await bench.pipeline.consume_traces(trace_request([{}]))
    await asyncio.sleep(0)  # the sweeper waits now
    await bench.clock.advance(1000)
    await bench.pipeline.stop(1)
    assert bench.count() == 0
