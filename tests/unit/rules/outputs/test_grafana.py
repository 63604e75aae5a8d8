"""Firings as annotations."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest

from otel_bridge import catalog
from otel_bridge.rules.outputs.config import GrafanaConfig
from otel_bridge.rules.outputs.grafana import GrafanaAnnotations
from otel_bridge.telemetry import Telemetry
from otel_bridge.testing import FakeClock
from tests.unit.rules.outputs.receiver import START, TRACE, Receiver, firing, until

MILLISECONDS = START // 1_000_000


class Noting:
    """Annotations on a fake clock."""

    def __init__(self, url: str, **config) -> None:
        self.clock = FakeClock(START)
        self.telemetry = Telemetry()
        retry = {"initial_interval": "1s", "max_interval": "1s"}
        made = GrafanaConfig(url=url, **{"retry": retry, **config})
        self.grafana = GrafanaAnnotations(made, self.telemetry, self.clock)

    def dropped(self, reason: str) -> float:
        return self.telemetry.value(catalog.ANNOTATIONS_DROPPED, reason=reason)


@asynccontextmanager
async def noting(receiver: Receiver, **config):
    made = Noting(receiver.url, **config)
    await made.grafana.start()
    try:
        yield made
    finally:
        await made.grafana.stop(1.0)


@pytest.fixture
async def receiver():
    async with Receiver() as made:
        yield made


async def test_a_firing_becomes_a_region(receiver):
    """It begins as a moment, and gets its end when it has one."""
    config = {"trace_url": "https://t/{trace_id}", "bearer_token": "t0ken", "dashboard_uid": "gpu"}
    async with noting(receiver, **config) as made:
        made.grafana.take_firing(firing(pod="a"))
        await until(lambda: len(receiver.requests) == 1)
        made.grafana.take_firing(firing(active=False, at=5, pod="a"))
        await until(lambda: len(receiver.requests) == 2)
        await until(lambda: made.telemetry.value(catalog.ANNOTATIONS_SENT) == 2)
    begin, end = receiver.requests
    assert begin[:2] == ("POST", "/api/annotations")
    assert begin[2]["Authorization"] == "Bearer t0ken"
    assert begin[3] == {
        "time": MILLISECONDS,
        "tags": ["otel-bridge", "GpuLost", "critical", "pod:a"],
        "text": f"a GPU is lost\n{TRACE.hex()}\nhttps://t/{TRACE.hex()}",
        "dashboardUID": "gpu",
    }
    assert end[:2] == ("PATCH", "/api/annotations/7")
    assert end[3] == {"timeEnd": MILLISECONDS + 5000}


@pytest.mark.parametrize("answer", ["no object", {"message": "ok"}, {"id": "seven"}])
async def test_an_answer_without_an_id_makes_the_end_a_moment_of_its_own(receiver, answer):
    """Nothing is lost for it."""
    receiver.answer = answer
    async with noting(receiver) as made:
        made.grafana.take_firing(firing())
        made.grafana.take_firing(firing(active=False, at=5))
        await until(lambda: len(receiver.requests) == 2)
    assert [method for method, *_ in receiver.requests] == ["POST", "POST"]
    assert "(ended)" in receiver.contents[1]["text"]


async def test_a_failure_is_tried_again_in_order(receiver):
    """The next one waits for it."""
    receiver.statuses = [503, 500]
    async with noting(receiver) as made:
        made.grafana.take_firing(firing(pod="a"))
        made.grafana.take_firing(firing(pod="b"))
        await until(lambda: len(receiver.requests) == 4, made.clock)
    assert [content["tags"][-1] for content in receiver.contents] == ["pod:a"] * 3 + ["pod:b"]


async def test_a_refusal_is_counted_and_the_next_one_sent(receiver):
    """Wrong credentials do not fill the queue for ever."""
    receiver.statuses = [401]
    async with noting(receiver) as made:
        made.grafana.take_firing(firing(pod="a"))
        made.grafana.take_firing(firing(pod="b"))
        await until(lambda: len(receiver.requests) == 2)
    assert made.dropped("refused") == 1


async def test_the_queue_is_bounded(receiver):
    """Beyond it firings are counted; what is left at the end as well."""
    receiver.statuses = [503] * 10
    made = Noting(receiver.url, queue_size=2)
    await made.grafana.start()
    for number in range(5):
        made.grafana.take_firing(firing(pod=str(number)))
    assert made.dropped("full") == 3
    await until(lambda: receiver.requests)
    await made.grafana.stop(0.05)
    assert made.dropped("stopped") == 2


async def test_a_stop_sends_what_waits(receiver):
    """If there is time."""
    made = Noting(receiver.url)
    await made.grafana.start()
    made.grafana.take_firing(firing())
    await made.grafana.stop(5.0)
    assert len(receiver.requests) == 1
    assert made.dropped("stopped") == 0
