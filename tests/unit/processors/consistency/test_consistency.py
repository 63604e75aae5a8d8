"""What the check of contexts finds, and what it leaves alone."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from pydantic import ValidationError

from otel_bridge import catalog
from otel_bridge.batch import PlanBuilder
from otel_bridge.processors.consistency.config import ConsistencyConfig
from otel_bridge.processors.consistency.consistency import Consistency
from otel_bridge.processors.consistency.trace import Kind
from otel_bridge.receivers.otlp.codec import choose_codec
from otel_bridge.telemetry import Telemetry
from otel_bridge.testing import FakeClock, trace_request

T0 = 1_700_000_000_000_000_000
MS = 1_000_000
LOCAL, REMOTE = 0x100, 0x300


class Checking:
    """The check with a clock that is moved by hand."""

    def __init__(self, **config: Any) -> None:
        self.telemetry = Telemetry()
        self.clock = FakeClock()
        self._plan = PlanBuilder()
        settings = ConsistencyConfig.model_validate({"share": 1.0, **config})
        self.check = Consistency(settings, self._plan, self.telemetry, self.clock)
        self._codec = choose_codec("auto")[0]

    def send(self, service: str | None, *spans: dict[str, Any]) -> None:
        """One request of one service."""
        resource = {"service.name": service} if service is not None else {"host.name": "h"}
        self.receive(trace_request(spans, resource=resource))

    def receive(self, data: bytes) -> None:
        """One request."""
        self.check.process(self._codec.scan(data, self._plan.build()))

    async def judge(self) -> dict[tuple[str, str], int]:
        """Findings by kind and role once everything is quiet."""
        await self.clock.advance(61.0)
        self.check.sweep()
        return self.found

    @property
    def found(self) -> dict[tuple[str, str], int]:
        """Findings so far."""
        roles = ("", "gateway", "kserve", "triton", "backend")
        counts = {
            (kind.value, role): int(
                self.telemetry.value(catalog.CONSISTENCY_FINDINGS, kind=kind.value, role=role)
            )
            for kind in Kind
            for role in roles
        }
        return {key: count for key, count in counts.items() if count}

    def outcome(self, outcome: str) -> float:
        """How many traces ended so."""
        return self.telemetry.value(catalog.CONSISTENCY_TRACES, outcome=outcome)


def span(
    number: int, parent: int = 0, *, trace: int = 1, start: int = 0, end: int = 100, **fields: Any
) -> dict:
    """A span, times in milliseconds."""
    return {
        "trace_id": trace.to_bytes(16, "big"),
        "span_id": number.to_bytes(8, "big"),
        "parent_span_id": parent.to_bytes(8, "big") if parent else b"",
        "name": "POST /v1/chat/completions",
        "kind": 2,
        "start_time_unix_nano": T0 + start * MS,
        "end_time_unix_nano": T0 + end * MS,
        **fields,
    }


CLIENT = {"kind": 3, "name": "POST"}


def whole_trace(trace: int = 1) -> list[tuple[str, dict]]:
    """Gateway, KServe, Triton and an inner span each, as they should be."""
    return [
        ("llm-gateway", span(1, trace=trace)),
        ("llm-gateway", span(2, 1, trace=trace, start=5, **CLIENT)),
        ("kserve-chat", span(3, 2, trace=trace, start=10, flags=REMOTE)),
        ("kserve-chat", span(4, 3, trace=trace, start=15, flags=LOCAL, **CLIENT)),
        ("triton-inference-server", span(5, 4, trace=trace, start=20, name="InferRequest")),
        ("triton-inference-server", span(6, 5, trace=trace, start=25, name="llama3_8b")),
        ("triton-inference-server", span(7, 6, trace=trace, start=30, name="compute")),
    ]


async def test_a_whole_trace_has_no_findings():
    """Triton's inner SERVER spans are none either."""
    checking = Checking()
    for service, one in whole_trace():
        checking.send(service, one)
    assert await checking.judge() == {}
    assert checking.outcome("judged") == 1


async def test_a_parent_that_comes_later_is_not_missing():
    """Within the window, which begins anew with each span."""
    checking = Checking()
    for service, one in reversed(whole_trace()):
        checking.send(service, one)
        await checking.clock.advance(50.0)
        checking.check.sweep()
    assert checking.outcome("judged") == 0
    assert await checking.judge() == {}


@pytest.mark.parametrize(
    ("gone", "role"),
    [
        ({2}, "kserve"),  # a gateway is seen, its CLIENT span is not
        ({3}, "kserve"),  # the SERVER span above a CLIENT one, in one process by its flags
        ({4}, "triton"),
        ({5}, "triton"),  # Triton's inner spans are SERVER and say nothing of where their parent is
        ({1}, "gateway"),
    ],
)
async def test_a_parent_that_did_not_come(gone, role):
    """Counted once for the span that misses it."""
    checking = Checking()
    for number, (service, one) in enumerate(whole_trace(), 1):
        if number not in gone:
            checking.send(service, one)
    assert await checking.judge() == {("missing_parent", role): 1}


@pytest.mark.parametrize("gone", [{1, 2}, {1, 2, 3, 4}])
async def test_callers_that_are_exported_elsewhere_are_not_missing(gone):
    """Nothing of them came: their spans go another way, or were sampled."""
    checking = Checking()
    for number, (service, one) in enumerate(whole_trace(), 1):
        if number not in gone:
            checking.send(service, one)
    assert await checking.judge() == {}


async def test_a_service_without_a_role_is_checked_too():
    """For parents in its own process; a remote one may be anywhere."""
    checking = Checking()
    checking.send("shop", span(2, 1, kind=1), span(3, 9), span(4, 8, flags=REMOTE, kind=1))
    assert await checking.judge() == {("missing_parent", ""): 1}


async def test_a_split_is_told_by_the_request_id():
    """A client that sends no traceparent: the engine's span is a root of its own trace."""
    checking = Checking()
    with structlog.testing.capture_logs() as logs:
        checking.send("shop", span(1, trace=1, kind=3, attributes={"gen_ai.response.id": "chatcmpl-00aa"}))
        checking.send(
            "vllm",
            span(
                2, trace=2, start=5, name="llm_request", attributes={"gen_ai.request.id": "chatcmpl-00aa-0"}
            ),
        )
    assert await checking.judge() == {("split", "backend"): 1}
    example = checking.check.examples[Kind.SPLIT, "backend"]
    assert example.trace == (2).to_bytes(16, "big")
    (line,) = logs
    assert line["trace_id"] == (2).to_bytes(16, "big").hex()
    assert (1).to_bytes(16, "big").hex() in line["detail"]


@pytest.mark.parametrize("order", [1, -1])
async def test_a_split_in_either_order_with_headers(order):
    """Headers are lists of strings."""
    checking = Checking()
    sides = [
        ("llm-gateway", span(1, trace=1, attributes={"http.response.header.x-request-id": ["r-1"]})),
        ("vllm", span(2, trace=2, attributes={"http.request.header.x-request-id": ["r-1"]})),
    ]
    for service, one in sides[::order]:
        checking.send(service, one)
    assert await checking.judge() == {("split", "backend"): 1}
    assert checking.check.examples[Kind.SPLIT, "backend"].trace == (2).to_bytes(16, "big")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        # One trace, as it should be.
        (("gateway", {"trace": 1}, "r"), ("vllm", {"trace": 1}, "r")),
        # A retry by the same service.
        (("gateway", {"trace": 1}, "r"), ("gateway", {"trace": 2}, "r")),
        # Not at the same time.
        (("gateway", {"trace": 1, "end": 10}, "r"), ("vllm", {"trace": 2, "start": 20}, "r")),
        # Other ids, though they begin alike.
        (("gateway", {"trace": 1}, "job-1"), ("vllm", {"trace": 2}, "job-2")),
        (("gateway", {"trace": 1}, ""), ("vllm", {"trace": 2}, "")),
        (("gateway", {"trace": 1}, "x" * 300), ("vllm", {"trace": 2}, "x" * 300)),
        (("gateway", {"trace": 1}, 7), ("vllm", {"trace": 2}, 7)),
    ],
)
async def test_what_is_no_split(first, second):
    """Two traces of one id are one only when two services meant one call by it."""
    checking = Checking()
    for service, times, request_id in (first, second):
        checking.send(service, span(1, attributes={"http.request.header.x-request-id": request_id}, **times))
    assert await checking.judge() == {}


async def test_a_backend_that_is_called_directly_is_no_split():
    """Its root says nothing of a gateway."""
    checking = Checking()
    checking.send("llm-gateway", span(1, trace=1))
    checking.send("vllm", span(1, trace=2, name="llm_request"))
    assert await checking.judge() == {}


async def test_a_trace_that_swallowed_two_requests():
    """Case ebpf-context-leak: the second request on a connection ran in the first one's context."""
    checking = Checking()
    checking.send("shop", span(1, end=100, flags=LOCAL), span(2, 1, start=1102, end=1150, flags=LOCAL))
    assert await checking.judge() == {("merged", ""): 1}
    assert checking.check.examples[Kind.MERGED, ""].trace == (1).to_bytes(16, "big")


@pytest.mark.parametrize(
    "second",
    [
        {"start": 99},
        {"start": 101},  # as far as clocks go, the parent ended now
        {"start": 1100, "flags": REMOTE},
        {"start": 1100, "kind": 1},  # work that goes on after the answer
        {"start": 1100, "kind": 5},  # a consumer may come late
    ],
)
async def test_what_is_not_merged(second):
    """A later span is fine unless it is a request of the same service."""
    checking = Checking()
    checking.send("shop", span(1, end=100), span(2, **{"parent": 1, "end": 2000, **second}))
    assert await checking.judge() == {}


async def test_a_caller_that_comes_after_the_called():
    """A gateway below a backend: the context went the wrong way."""
    checking = Checking()
    checking.send("vllm", span(1, name="llm_request"))
    checking.send("helper", span(2, 1, kind=1, flags=REMOTE))
    checking.send("llm-gateway", span(3, 2, flags=REMOTE))
    assert await checking.judge() == {("wrong_parent", "gateway"): 1}


async def test_circles_end():
    """A span that is its own parent is told; longer circles are gone through once."""
    checking = Checking()
    checking.send("shop", span(1, 1), span(2, 3), span(3, 2))
    checking.send("llm-gateway", span(4, 2, flags=REMOTE))
    assert await checking.judge() == {("wrong_parent", ""): 1}


@pytest.mark.parametrize(
    ("service", "name", "fits"),
    [
        ("llm-gateway", "POST /v1/chat/completions", True),
        ("llm-gateway", "GET", True),
        ("llm-gateway", "ingress", True),
        ("llm-gateway", "GET /users?id=7", False),
        ("llm-gateway", "http://10.0.0.7/v1", False),
        ("LLM-Gateway", "whatever", False),
        ("triton-inference-server", "InferRequest", True),
        ("triton-inference-server", "llama3_8b", False),
        ("triton-inference-server", "inference.GRPCInferenceService/ModelInfer", True),
        ("vllm", "llm_request", True),
        ("vllm-7b", "chat", False),
        ("shop", "whatever", True),
        (None, "whatever", True),
    ],
)
async def test_names(service, name, fits):
    """Of entry spans, by role."""
    checking = Checking()
    checking.send(service, span(1, name=name), span(2, 1, name="inner, called anything"))
    assert [kind for kind, _ in await checking.judge()] == ([] if fits else ["name"])


async def test_a_kind_counts_once_a_trace():
    """However many spans show it."""
    checking = Checking()
    checking.send("vllm", *[span(number, 99, kind=1) for number in range(1, 9)])
    assert await checking.judge() == {("missing_parent", "backend"): 1}


async def test_late_spans_of_a_judged_trace_are_not_judged_alone():
    """They would all miss their parents."""
    checking = Checking()
    for service, one in whole_trace()[:4]:
        checking.send(service, one)
    await checking.judge()
    checking.send("triton-inference-server", span(7, 6, kind=1))
    assert await checking.judge() == {}


async def test_memory_is_bounded():
    """The quietest traces are given up, unjudged and counted; a giant one too."""
    checking = Checking(max_bytes=1 << 20, max_spans=100)
    for trace in range(1, 3000):
        checking.send("vllm", span(1, 99, trace=trace, kind=1))
    checking.check.sweep()
    assert checking.telemetry.value(catalog.CONSISTENCY_WAITING_BYTES) <= 1 << 20
    assert checking.outcome("evicted") == pytest.approx(2999 - (3 << 18) / 720, abs=2)
    checking.send("vllm", *[span(number, 99, trace=5000, kind=1) for number in range(1, 150)])
    assert checking.outcome("too_large") == 1
    found = await checking.judge()
    assert found == {("missing_parent", "backend"): int(checking.outcome("judged"))}


async def test_request_ids_are_bounded():
    """The oldest are forgotten, by number and by age."""
    checking = Checking(max_bytes=1 << 16)
    for number in range(1000):
        checking.send(
            "llm-gateway",
            span(1, trace=number + 1, attributes={"http.request.header.x-request-id": f"r{number}"}),
        )
    assert len(checking.check._requests._sides) == (1 << 14) // 500
    await checking.judge()
    assert len(checking.check._requests._sides) == 0


async def test_only_a_share_is_looked_at():
    """One trace in ten, the ones that a sampler would keep; of request ids one in ten too."""
    checking = Checking(share=0.1)
    chance = random.Random(7)
    high = 0
    for number in range(2000):
        trace = chance.getrandbits(128)
        high += trace & ((1 << 56) - 1) >= (1 << 56) - round(0.1 * (1 << 56))
        checking.send(
            "vllm", span(1, 99, trace=trace, kind=1, attributes={"gen_ai.response.id": f"c{number}"})
        )
    assert 130 <= len(checking.check._requests._sides) <= 270
    await checking.judge()
    assert checking.outcome("judged") == high
    assert 150 <= high <= 250


async def test_refused_spans_are_not_looked_at():
    """They are nobody's."""
    checking = Checking()
    bad = {"span_id": bytes(8), "attributes": {"gen_ai.response.id": "r"}}
    checking.send("vllm", {**span(1, 9, kind=1), **bad})
    assert await checking.judge() == {}
    assert len(checking.check._requests._sides) == 0


async def test_a_log_line_a_minute_for_each_kind():
    """A thousand broken traces write one."""
    checking = Checking()
    with structlog.testing.capture_logs() as logs:
        for trace in range(1, 100):
            checking.send("vllm", span(1, 99, trace=trace, kind=1))
        await checking.judge()
        checking.send("vllm", span(1, 99, trace=500, kind=1))
        await checking.judge()
    assert [line["kind"] for line in logs] == ["missing_parent", "missing_parent"]


async def test_an_exemplar_says_which_trace():
    """For whoever scrapes with OpenMetrics."""
    checking = Checking()
    checking.send("vllm", span(1, 99, trace=0xABC, kind=1))
    await checking.judge()
    (sample,) = [
        sample
        for family in checking.telemetry.registry.collect()
        for sample in family.samples
        if sample.name == catalog.CONSISTENCY_FINDINGS.name + "_total" and sample.value
    ]
    assert sample.exemplar.labels == {"trace_id": f"{0xABC:032x}"}


async def test_a_reload_keeps_examples_and_begins_anew():
    """Half a trace would have broken contexts."""
    old, new = Checking(), Checking()
    old.send("vllm", span(1, 99, trace=9, kind=1))
    await old.judge()
    old.send("vllm", span(1, trace=1))
    new.check.adopt(old.check)
    new.send("vllm", span(2, 99, trace=1, kind=1))
    assert await new.judge() == {}
    assert (Kind.MISSING_PARENT, "backend") in new.check.examples


def test_a_pattern_that_is_none():
    """Is refused with what is wrong with it."""
    with pytest.raises(ValidationError, match="not a regular expression"):
        ConsistencyConfig.model_validate({"chain": [{"role": "x", "services": ["*"], "names": ["("]}]})


# Properties: the order in which spans come makes no difference.


@st.composite
def traces(draw) -> list[tuple[int, int, str]]:
    """A tree of spans: number, parent, service; children of another service are SERVER spans."""
    count = draw(st.integers(1, 15))
    nodes = [(1, 0, "llm-gateway")]
    services = ["llm-gateway", "kserve-a", "triton-x", "vllm"]
    for number in range(2, count + 1):
        _, _, service = parent = draw(st.sampled_from(nodes))
        further = services[services.index(service) :]
        nodes.append((number, parent[0], draw(st.sampled_from(further))))
    return nodes


def requests_of(nodes: list[tuple[int, int, str]], order: list[int], cuts: set[int]) -> list[bytes]:
    """The spans in an order, cut into requests."""
    by_number = {number: (parent, service) for number, parent, service in nodes}
    out, request = [], ExportTraceServiceRequest()
    for place, number in enumerate(order):
        parent, service = by_number[number]
        local = parent in by_number and by_number[parent][1] == service
        name = {"triton-x": "InferRequest", "vllm": "llm_request"}.get(service, "POST /x")
        one = span(
            number,
            parent,
            start=number,
            end=1000,
            kind=1 if local else 2,
            name=name,
            flags=LOCAL if local else REMOTE,
        )
        request.MergeFromString(trace_request([one], resource={"service.name": service}))
        if place in cuts:
            out.append(request.SerializeToString())
            request = ExportTraceServiceRequest()
    return [*out, request.SerializeToString()]


@given(nodes=traces(), chance=st.randoms(use_true_random=False), cuts=st.sets(st.integers(0, 14)))
async def test_a_whole_trace_has_no_findings_in_any_order(nodes, chance, cuts):
    """However it is cut into requests, with up to a window between them; some spans come twice."""
    checking = Checking()
    order = [number for number, _, _ in nodes]
    order += chance.choices(order, k=2)
    chance.shuffle(order)
    for request in requests_of(nodes, order, cuts):
        checking.receive(request)
        await checking.clock.advance(chance.uniform(0, 59))
        checking.check.sweep()
    assert await checking.judge() == {}
    assert checking.outcome("judged") == 1


@given(nodes=traces(), chance=st.randoms(use_true_random=False), cuts=st.sets(st.integers(0, 14)))
async def test_a_missing_span_is_missed_in_any_order(nodes, chance, cuts):
    """By its children: each in the same process, each of a role that comes after one that was seen."""
    gone = chance.choice(nodes)[0]
    left = [node for node in nodes if node[0] != gone]
    places = {"llm-gateway": 0, "kserve-a": 1, "triton-x": 2, "vllm": 3}
    roles = {"llm-gateway": "gateway", "kserve-a": "kserve", "triton-x": "triton", "vllm": "backend"}
    service_of = {number: service for number, _, service in nodes}
    seen = {places[service] for _, _, service in left}
    expected = Counter()
    for _, parent, service in left:
        if parent != gone:
            continue
        local = service_of[gone] == service
        if local or any(place < places[service] for place in seen):
            expected["missing_parent", roles[service]] = 1
    checking = Checking()
    order = [number for number, _, _ in nodes if number != gone]
    chance.shuffle(order)
    for request in requests_of(nodes, order, cuts):
        checking.receive(request)
    assert await checking.judge() == expected
