"""Which traces are kept to be looked at, and how much room and work that takes."""

from __future__ import annotations

import itertools

import pytest

from otel_bridge import catalog
from otel_bridge.batch import PlanBuilder
from otel_bridge.pipeline import build_steps
from otel_bridge.receivers.otlp.codec import NativeCodec
from otel_bridge.settings import ProcessorSettings
from otel_bridge.telemetry import Telemetry
from otel_bridge.testing import FakeClock, attributes_of, spans_of, trace_request
from otel_bridge.ui.config import UiConfig
from otel_bridge.ui.recent import MOST_TRACES, PIECES_PER_SECOND, RecentTraces

HIT = {"attributes": {"kernel.match": "thread"}}
FAILED = {"status": {"code": 2}}


def trace_id(number: int) -> bytes:
    return number.to_bytes(16, "big")


class Bench:
    """Recent traces behind a data path of nothing else."""

    def __init__(self, **config) -> None:
        self.clock = FakeClock()
        self.telemetry = Telemetry()
        self.recent = RecentTraces(UiConfig.model_validate(config), self.telemetry, self.clock)
        columns = PlanBuilder()
        self.step = self.recent.tap(columns)
        self._plan = columns.build()
        self._codec = NativeCodec()
        self._ids = itertools.count(1)

    def span(self, trace: int, **fields) -> dict:
        return {"trace_id": trace_id(trace), "span_id": next(self._ids).to_bytes(8, "big"), **fields}

    def send(self, *spans: dict, dropped=(), held=()) -> None:
        """One request, some rows of which an earlier step dropped or held."""
        batch = self._codec.scan(trace_request(spans), self._plan)
        if dropped:
            batch.drop(list(dropped))
        if held:
            batch.hold(list(held))
        self.step.process(batch)

    def kept(self, *, marked_only: bool = False) -> list[int]:
        """Numbers of the traces that are kept, the newest first."""
        traces = self.recent.newest(marked_only=marked_only)
        return [int.from_bytes(one.trace_id, "big") for one in traces]

    def names(self, trace: int) -> list[str]:
        """The names of the spans kept of a trace."""
        kept = self.recent.find(trace_id(trace))
        return [span.name for piece in kept.pieces for span in spans_of(piece)] if kept else []


def test_a_trace_is_kept_whole_though_its_spans_come_apart():
    """Those of other traces in the same requests are not among them."""
    bench = Bench()
    bench.send(bench.span(1, name="child"), bench.span(2, name="other"))
    bench.send(bench.span(1, name="parent"), bench.span(3))
    assert bench.names(1) == ["child", "parent"]
    assert bench.names(2) == ["other"]
    assert set(bench.kept()) == {1, 2, 3}


async def test_so_many_new_traces_a_second():
    """What came meanwhile is passed over; saved up for two seconds at most."""
    bench = Bench(traces_per_second=3)
    for number in range(1, 21):
        bench.send(bench.span(number))
    assert sorted(bench.kept()) == [1, 2, 3, 4, 5, 6]
    await bench.clock.advance(60)
    for number in range(101, 121):
        bench.send(bench.span(number))
    assert sorted(bench.kept())[6:] == [101, 102, 103, 104, 105, 106]


@pytest.mark.parametrize("remarkable", [HIT, FAILED], ids=["kernel events", "failed"])
def test_what_people_look_for_has_an_allowance_of_its_own(remarkable):
    """A flood of ordinary traces before it does not keep it out."""
    bench = Bench(traces_per_second=1)
    for number in range(1, 21):
        bench.send(bench.span(number))
    bench.send(*(bench.span(number) for number in range(21, 31)), bench.span(99, **remarkable))
    assert bench.kept(marked_only=True) == [99]


async def test_ordinary_traces_do_not_push_marked_ones_out():
    """Half the room is theirs; the room is never exceeded."""
    bench = Bench(max_bytes=64 << 10, traces_per_second=1000)
    bench.send(bench.span(1, name="slow", **HIT))
    for number in range(2, 300):
        bench.send(bench.span(number, name="x" * 1000))
        assert bench.telemetry.value(catalog.UI_KEPT_BYTES) <= 64 << 10
    assert bench.names(1) == ["slow"]
    assert 10 < len(bench.kept()) < 64
    assert max(bench.kept()) == 299
    assert bench.telemetry.value(catalog.UI_KEPT_TRACES) == len(bench.kept())


def test_marked_traces_alone_do_not_exceed_the_room():
    """The oldest of them go then."""
    bench = Bench(max_bytes=64 << 10, traces_per_second=1000)
    for number in range(1, 300):
        bench.send(bench.span(number, name="x" * 1000, **HIT))
    assert bench.telemetry.value(catalog.UI_KEPT_BYTES) <= 64 << 10
    assert bench.kept()[0] == 299
    assert 1 not in bench.kept()


def test_their_number_is_bounded_however_small_they_are():
    """And what is forgotten is not kept on with later spans."""
    bench = Bench(traces_per_second=1000)
    for number in range(1, MOST_TRACES + 100):
        bench.send(bench.span(number))
    assert len(bench.kept()) == MOST_TRACES
    assert 1 not in bench.kept()
    assert bench.recent.find(trace_id(1)) is None


def test_one_trace_takes_no_more_than_its_share():
    """It says so."""
    bench = Bench(max_bytes=64 << 10)
    for _ in range(30):
        bench.send(bench.span(1, name="x" * 1000))
    kept = bench.recent.find(trace_id(1))
    assert kept.cut
    assert 4 <= len(kept.pieces) <= 8
    bench.send(bench.span(2))
    assert set(bench.kept()) == {1, 2}


async def test_a_trace_that_goes_on_for_ever_costs_so_much_a_second():
    """Its further pieces have an allowance too."""
    bench = Bench()
    for _ in range(1000):
        bench.send(bench.span(1))
    most = 1 + 2 * int(PIECES_PER_SECOND)
    assert len(bench.names(1)) == most
    await bench.clock.advance(1.0)
    for _ in range(1000):
        bench.send(bench.span(1))
    assert len(bench.names(1)) == most + int(PIECES_PER_SECOND)


def test_a_trace_is_marked_by_a_later_span():
    """It moves to those that people look for, with what was kept of it."""
    bench = Bench()
    bench.send(bench.span(1, name="first"))
    assert bench.kept(marked_only=True) == []
    bench.send(bench.span(1, name="second", **FAILED))
    assert bench.kept(marked_only=True) == [1]
    assert bench.names(1) == ["first", "second"]


def test_only_what_goes_on_is_shown():
    """Spans that sampling dropped are not, those that wait for its verdict are; refused ones are not."""
    bench = Bench()
    bench.send(bench.span(1), bench.span(2), bench.span(3), dropped=[0], held=[1])
    assert set(bench.kept()) == {2, 3}
    bench.send(bench.span(4, span_id=b"short"))
    assert 4 not in bench.kept()


def test_looking_changes_nothing_of_what_leaves():
    """The bytes are the same with the step and without."""
    request = trace_request([{**HIT, "trace_id": trace_id(1)}, {"trace_id": trace_id(2)}])
    bench = Bench()
    batch = NativeCodec().scan(request, bench._plan)
    bench.step.process(batch)
    assert batch.splice() == request
    assert len(bench.kept()) == 2


def test_it_keeps_what_left_the_last_step_of_the_data_path():
    """With what enrichment wrote, and without the prompt that redaction removed."""
    bench = Bench()
    steps = build_steps(ProcessorSettings(), bench.telemetry, bench.clock, recent=bench.recent.tap)
    assert steps.processors[-1][0] == "ui"
    chat = {"gen_ai.request.model": "m", "llm.prompts.0.prompt.text": "a secret"}
    batch = NativeCodec().scan(trace_request([{"attributes": chat, "trace_id": trace_id(7)}]), steps.plan)
    for _, processor in steps.processors:
        processor.process(batch)
    (piece,) = bench.recent.find(trace_id(7)).pieces
    assert b"a secret" not in piece
    (span,) = spans_of(piece)
    assert attributes_of(span.attributes)["llm.model.id"] == "m"
    assert piece == batch.splice()


def test_without_pages_there_is_no_step():
    """It costs nothing then."""
    steps = build_steps(ProcessorSettings(), Telemetry(), FakeClock())
    assert "ui" not in dict(steps.processors)
