"""Sampling with the real Collector's sampler before and after it, and kill -9 while spans wait."""

from __future__ import annotations

import random
import signal
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import grpc
import pytest
import yaml

from otel_bridge.testing import spans_of, trace_request
from tests.support.ports import free_port
from tests.support.processes import Bridge, Process, collector_binary, eventually, running
from tests.support.sampling import FAST, Sampling
from tests.support.sinks import SERVICES, GrpcSink

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MARK = b"\xff" * 16
"""The trace id of a span that every sampler keeps: when it has come, the others have."""

STATES = [
    "",
    "",
    "",
    "vendor=x",
    "ot=th:0",
    "ot=th:8",
    "ot=th:f",
    "ot=rv:{rv}",
    "ot=rv:{rv};th:4,vendor=x",
    "a=b,ot=th:c;pn:abc",
]


def random_spans(count: int, seed: int) -> list[dict[str, Any]]:
    """Spans with whatever tracestate; one that its own threshold should have dropped has none."""
    chance = random.Random(seed)
    spans = []
    while len(spans) < count:
        trace, rv = chance.randbytes(16), f"{chance.getrandbits(56):014x}"
        state = chance.choice(STATES).format(rv=rv)
        randomness = rv if "rv:" in state else trace[-7:].hex()
        threshold = state.partition("th:")[2].split(";")[0].split(",")[0].ljust(14, "0")
        if randomness >= threshold:
            spans.append({"trace_id": trace, "trace_state": state, **FAST})
    return spans


def export(port: int, request: bytes, timeout: float = 20.0) -> None:
    """One OTLP/gRPC export."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(f"/{SERVICES['traces']}/Export")
        call(request, timeout=timeout, wait_for_ready=True)


class SamplingCollector:
    """The real Collector with one sampler."""

    def __init__(self, directory: Path, mode: str, percentage: float) -> None:
        self.port, health = free_port(), free_port()
        self.sink = GrpcSink()
        config = {
            "receivers": {"otlp": {"protocols": {"grpc": {"endpoint": f"127.0.0.1:{self.port}"}}}},
            "processors": {
                "probabilistic_sampler": {
                    "mode": mode,
                    "sampling_percentage": percentage,
                    "fail_closed": True,
                }
            },
            "exporters": {
                "otlp": {"endpoint": f"127.0.0.1:{self.sink.port}", "tls": {"insecure": True}},
            },
            "extensions": {"health_check": {"endpoint": f"127.0.0.1:{health}"}},
            "service": {
                "extensions": ["health_check"],
                "telemetry": {"metrics": {"level": "none"}},
                "pipelines": {
                    "traces": {
                        "receivers": ["otlp"],
                        "processors": ["probabilistic_sampler"],
                        "exporters": ["otlp"],
                    }
                },
            },
        }
        path = directory / f"{mode}-{percentage}.yaml"
        path.write_text(yaml.safe_dump(config))
        self.process = Process([str(collector_binary()), "--config", str(path)], path.with_suffix(".log"))
        self._health = f"http://127.0.0.1:{health}/"

    def wait(self) -> None:
        """Until it serves."""
        self.process.wait_for_http(self._health)

    def sample(self, request: bytes) -> dict[bytes, str]:
        """What it keeps of a request: tracestates by trace id."""
        self.sink.requests.clear()
        export(self.port, request + trace_request([{"trace_id": MARK}]))
        eventually("all of the request", lambda: MARK in {one.trace_id for one in self.sink.spans()})
        return {one.trace_id: one.trace_state for one in self.sink.spans() if one.trace_id != MARK}


@pytest.fixture(scope="module")
def samplers(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[tuple[str, float], SamplingCollector]]:
    """Each mode at some rates."""
    directory = tmp_path_factory.mktemp("samplers")
    with ExitStack() as stack:
        made = {}
        for key in (("equalizing", 5), ("equalizing", 20), ("proportional", 20), ("equalizing", 1)):
            made[key] = SamplingCollector(directory, *key)
            stack.enter_context(made[key].sink)
            stack.enter_context(running(made[key].process))
        for one in made.values():
            one.wait()
        yield made


async def ours(request: bytes, rate: float) -> tuple[dict[bytes, str], bytes]:
    """What the bridge keeps of a request, and the bytes that leave."""
    sampling = Sampling(keep=None, rate={"curve": "fixed", "baseline": rate})
    await sampling.pipeline.consume_traces(request)
    payload = b"".join(sampling.destination.sent)
    return {one.trace_id: one.trace_state for one in spans_of(payload)}, payload


def meaning(states: dict[bytes, str]) -> dict[bytes, tuple[frozenset[str], tuple[str, ...]]]:
    """Tracestates with the parts of `ot` in no order, which says nothing."""
    out = {}
    for trace, state in states.items():
        members = state.split(",") if state else []
        mine = [member for member in members if member.startswith("ot=")]
        others = tuple(member for member in members if not member.startswith("ot="))
        out[trace] = frozenset(mine[0][3:].split(";")) if mine else frozenset(), others
    return out


@pytest.mark.collector
@pytest.mark.parametrize("percentage", [1, 5, 20])
async def test_the_collectors_sampler_keeps_the_same(samplers, percentage):
    """Trace by trace, threshold by threshold, whatever came along; `equalizing` is what the bridge does."""
    request = trace_request(random_spans(3000, percentage))
    kept, _ = await ours(request, percentage / 100)
    theirs = samplers["equalizing", percentage].sample(request)
    assert meaning(kept) == meaning(theirs)
    assert len(kept) > 15


@pytest.mark.collector
async def test_a_sampler_before_the_bridge(samplers):
    """Sampled harder before: all of it stays, as it came. Sampled less: as if it had not been at all."""
    request = trace_request(random_spans(3000, 99))
    theirs = samplers["equalizing", 20].sample(request)
    before = trace_request([{"trace_id": trace, "trace_state": state} for trace, state in theirs.items()])
    half, _ = await ours(before, 0.5)
    assert meaning(half) == meaning(theirs)
    twentieth, _ = await ours(before, 0.05)
    directly, _ = await ours(request, 0.05)
    assert meaning(twentieth) == meaning(directly)


@pytest.mark.collector
async def test_a_sampler_after_the_bridge(samplers):
    """`equalizing` keeps what the harder of the two keeps, `proportional` a share of what came."""
    request = trace_request(random_spans(3000, 7))
    half, left = await ours(request, 0.5)
    directly, _ = await ours(request, 0.2)
    assert meaning(samplers["equalizing", 20].sample(left)) == meaning(directly)
    twentieth, left_of_it = await ours(request, 0.05)
    assert meaning(samplers["equalizing", 20].sample(left_of_it)) == meaning(twentieth)
    tenth, _ = await ours(trace_request([{"trace_id": trace} for trace in half]), 0.1)
    plain = await ours(trace_request([{"trace_id": trace} for trace in half]), 0.5)
    assert set(samplers["proportional", 20].sample(plain[1])) == set(tenth)


# kill -9 of a real bridge.

WAIT = 3.0


def config(sink: GrpcSink, hold: str) -> dict[str, Any]:
    """Everything is kept, so everything must arrive."""
    return {
        "exporters": {"otlp": {"endpoint": f"127.0.0.1:{sink.port}"}},
        "processors": {
            "sample": {
                "enabled": True,
                "hold": hold,
                "rate": {"curve": "fixed", "baseline": 1.0},
                "keep": {"wait": WAIT},
            }
        },
    }


def spans(first: int, count: int) -> bytes:
    """A request of spans with ids from `first` on, each a trace of its own."""
    return trace_request(
        [
            {"trace_id": number.to_bytes(16, "big"), "span_id": number.to_bytes(8, "big"), **FAST}
            for number in range(first, first + count)
        ]
    )


def test_acknowledged_spans_that_wait_survive_kill_9(tmp_path):
    """23 requests of 43 spans are acknowledged, and none has left when the bridge is killed."""
    with GrpcSink() as sink:
        with running(Bridge(tmp_path, config(sink, "disk"))) as bridge:
            for number in range(23):
                export(bridge.grpc_port, spans(1 + 43 * number, 43))
            bridge.stop(signal.SIGKILL)
        assert sink.spans() == []
        with running(Bridge(tmp_path, config(sink, "disk"))) as bridge:
            eventually("all spans", lambda: len(sink.spans()) >= 23 * 43)
            assert sorted(sink.span_ids()) == [number.to_bytes(8, "big") for number in range(1, 1 + 23 * 43)]
            assert {one.trace_state for one in sink.spans()} == {"ot=th:0"}
            bridge.stop()


def test_a_sender_that_waits_knows_of_the_kill(tmp_path):
    """With `hold: sender` nothing was acknowledged: the call fails, and its sender has the spans still."""
    with GrpcSink() as sink, running(Bridge(tmp_path, config(sink, "sender"))) as bridge:
        with grpc.insecure_channel(f"127.0.0.1:{bridge.grpc_port}") as channel:
            call = channel.unary_unary(f"/{SERVICES['traces']}/Export").future(spans(1, 43), timeout=20)
            eventually(
                "the spans wait", lambda: bridge.metrics().get("otel_bridge_sample_waiting_spans", 0) == 43
            )
            bridge.stop(signal.SIGKILL)
            assert isinstance(call.exception(timeout=20), grpc.RpcError)
        assert sink.spans() == []


def test_what_waits_in_memory_is_lost_by_kill_9(tmp_path):
    """The cost that the README names: acknowledged, and gone; whoever sets `hold: memory` accepts it."""
    with GrpcSink() as sink:
        with running(Bridge(tmp_path, config(sink, "memory"))) as bridge:
            export(bridge.grpc_port, spans(1, 43))
            bridge.stop(signal.SIGKILL)
        with running(Bridge(tmp_path, config(sink, "memory"))) as bridge:
            export(bridge.grpc_port, spans(100, 7))
            assert bridge.stop() == 0
        assert sorted(sink.span_ids()) == [number.to_bytes(8, "big") for number in range(100, 107)]


@pytest.mark.parametrize("hold", ["disk", "sender", "memory"])
def test_a_stop_delivers_what_waits(tmp_path, hold):
    """SIGTERM decides and sends everything, well within the drain time; waiting senders get their answer."""
    with GrpcSink() as sink, running(Bridge(tmp_path, config(sink, hold))) as bridge:
        with grpc.insecure_channel(f"127.0.0.1:{bridge.grpc_port}") as channel:
            call = channel.unary_unary(f"/{SERVICES['traces']}/Export").future(spans(1, 43), timeout=20)
            eventually(
                "the spans wait", lambda: bridge.metrics().get("otel_bridge_sample_waiting_spans", 0) == 43
            )
            assert bridge.stop() == 0
            call.result(timeout=20)
        assert len(sink.spans()) == 43


def test_waiting_on_disk_needs_a_disk(tmp_path):
    """And says so before anything starts."""
    settings = config(GrpcSink(), "disk")
    with pytest.raises(pytest.fail.Exception, match="storage is null"):
        Bridge(tmp_path, {**settings, "storage": None})
