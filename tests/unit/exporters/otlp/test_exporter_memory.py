"""Requests through memory: delivered, retried, refused, handed back."""

from __future__ import annotations

import asyncio
import sys

import pytest

from otel_bridge import catalog
from otel_bridge.errors import QueueFullError, RetryableError, ShuttingDownError
from otel_bridge.exporters.otlp.answer import Delivered, Failed
from otel_bridge.model import Signal
from otel_bridge.telemetry import Telemetry
from otel_bridge.testing import FakeClock, trace_request
from tests.support.exporter_fakes import (
    INVALID,
    UNAVAILABLE,
    FakeSender,
    make_exporter,
    send,
    turns,
)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def telemetry() -> Telemetry:
    return Telemetry()


async def test_a_request_is_handed_on_at_once_and_unchanged(clock, telemetry):
    sender = FakeSender()
    exporter = make_exporter(sender, clock=clock, telemetry=telemetry)
    await exporter.start()
    payload = trace_request([{}, {}])
    await send(exporter, payload, 2)
    assert sender.tried == [(Signal.TRACES, payload)]
    assert sender.tried[0][1] is payload
    assert telemetry.value(catalog.EXPORTER_SENT, exporter="otlp", signal="traces") == 2
    assert telemetry.value(catalog.EXPORTER_QUEUE_BYTES, exporter="otlp", place="memory") == 0


async def test_a_delivered_request_is_not_kept_until_its_deadline(clock):
    exporter = make_exporter(FakeSender(), clock=clock)
    await exporter.start()
    payload = bytes(1000)
    before = sys.getrefcount(payload)
    exporter._destinations[0]._sender.tried = Forgetful()
    exporter._destinations[0]._sender.delivered = Forgetful()
    await send(exporter, payload)
    await turns()
    assert sys.getrefcount(payload) == before


class Forgetful(list):
    """A list that keeps nothing."""

    def append(self, item):
        """Forget it."""


async def test_an_empty_request_goes_nowhere(clock):
    sender = FakeSender()
    exporter = make_exporter(sender, clock=clock)
    await exporter.start()
    await send(exporter, b"", 0)
    assert not sender.tried


async def test_every_label_set_exists_at_zero(clock, telemetry):
    exporter = make_exporter(FakeSender(), clock=clock, telemetry=telemetry)
    await exporter.start()
    seen = {
        (sample.name, *sorted(sample.labels.items()))
        for family in telemetry.registry.collect()
        for sample in family.samples
    }
    for signal in ("traces", "metrics", "logs"):
        label = (("exporter", "otlp"), ("signal", signal))
        assert ("otel_bridge_exporter_sent_items_total", *label) in seen
        assert ("otel_bridge_exporter_rejected_items_total", *label) in seen
        for reason in ("refused", "oversize", "damaged", "disk_full"):
            labels = sorted((*label, ("reason", reason)))
            assert ("otel_bridge_exporter_dropped_items_total", *labels) in seen
        labels = sorted((*label, ("code", "UNAVAILABLE")))
        assert ("otel_bridge_exporter_send_failures_total", *labels) in seen
    assert ("otel_bridge_exporter_enqueue_failed_requests_total", ("exporter", "otlp")) in seen


async def test_partial_success_is_counted_and_never_sent_again(clock, telemetry):
    """cases.md otlp-partial (a) and (c): both transports give this answer."""
    sender = FakeSender(Delivered(rejected=3, message="quota"))
    exporter = make_exporter(sender, clock=clock, telemetry=telemetry)
    await exporter.start()
    await send(exporter, b"request", 10)
    await clock.advance(3600)
    assert len(sender.tried) == 1
    assert telemetry.value(catalog.EXPORTER_SENT, exporter="otlp", signal="traces") == 7
    assert telemetry.value(catalog.EXPORTER_REJECTED, exporter="otlp", signal="traces") == 3


@pytest.mark.parametrize("rejected", [11, 2**62])
async def test_more_rejected_than_sent_counts_no_more_than_was_sent(clock, telemetry, rejected):
    exporter = make_exporter(FakeSender(Delivered(rejected=rejected)), clock=clock, telemetry=telemetry)
    await exporter.start()
    await send(exporter, b"request", 10)
    assert telemetry.value(catalog.EXPORTER_SENT, exporter="otlp", signal="traces") == 0
    assert telemetry.value(catalog.EXPORTER_REJECTED, exporter="otlp", signal="traces") == 10


async def test_a_permanent_error_drops_with_a_reason_and_lets_the_sender_go(clock, telemetry):
    sender = FakeSender(INVALID)
    exporter = make_exporter(sender, clock=clock, telemetry=telemetry)
    await exporter.start()
    await send(exporter, b"request", 4)
    assert len(sender.tried) == 1
    dropped = telemetry.value(catalog.EXPORTER_DROPPED, exporter="otlp", signal="traces", reason="refused")
    assert dropped == 4
    failures = telemetry.value(
        catalog.EXPORTER_SEND_FAILED, exporter="otlp", signal="traces", code="INVALID_ARGUMENT"
    )
    assert failures == 1


async def test_without_a_disk_an_undelivered_request_is_handed_back_after_the_hold(clock):
    sender = FakeSender(UNAVAILABLE)
    exporter = make_exporter(sender, clock=clock)
    await exporter.start()
    sending = asyncio.create_task(send(exporter, b"request"))
    await turns()
    await clock.advance(0.9)
    assert not sending.done()
    await clock.advance(0.2)
    with pytest.raises(RetryableError) as caught:
        await sending
    assert caught.value.retry_after is not None
    assert caught.value.retry_after >= 1
    await clock.advance(3600)
    assert len(sender.tried) == 1, "let go means not sent later"


async def test_without_a_disk_a_request_in_flight_waits_for_its_answer(clock):
    """Handing it back while it is in flight would have it delivered twice."""
    sender = FakeSender(gate=asyncio.Event())
    exporter = make_exporter(sender, clock=clock)
    await exporter.start()
    sending = asyncio.create_task(send(exporter, b"request"))
    await turns()
    await clock.advance(4)
    assert not sending.done()
    sender.gate.set()
    await sending
    assert sender.delivered == [b"request"]


async def test_a_retry_within_the_hold_succeeds_unseen_by_the_sender(clock):
    answers = iter([UNAVAILABLE, Delivered()])
    sender = FakeSender(lambda *_: next(answers))
    exporter = make_exporter(
        sender, clock=clock, retry_on_failure={"initial_interval": 0.2}, sending_queue={"hold": "1s"}
    )
    await exporter.start()
    sending = asyncio.create_task(send(exporter, b"request"))
    await turns()
    await clock.advance(0.3)
    await sending
    assert len(sender.tried) == 2


async def test_a_full_queue_pushes_back_with_a_time_to_wait(clock, telemetry):
    sender = FakeSender(gate=asyncio.Event())
    exporter = make_exporter(sender, clock=clock, telemetry=telemetry, sending_queue={"queue_size": 100})
    await exporter.start()
    first = asyncio.create_task(send(exporter, b"x" * 60))
    await turns()
    held = exporter.reserve(40)
    with pytest.raises(QueueFullError) as caught:
        exporter.reserve(1)
    assert caught.value.retry_after >= 1
    assert telemetry.value(catalog.EXPORTER_REFUSED, exporter="otlp") == 1
    held.release()
    held.release()
    exporter.reserve(40).release()
    sender.gate.set()
    await first
    exporter.reserve(100).release()


async def test_a_request_larger_than_the_queue_is_taken_when_the_queue_is_empty(clock):
    """Otherwise its sender would retry for ever."""
    sender = FakeSender()
    exporter = make_exporter(sender, clock=clock, sending_queue={"queue_size": 100})
    await exporter.start()
    await send(exporter, b"x" * 1000)
    assert len(sender.delivered) == 1


async def test_a_throttled_destination_is_left_alone_and_senders_are_told_how_long(clock):
    answers = iter([Failed("UNAVAILABLE", "busy", retryable=True, retry_after=20.0), Delivered()])
    sender = FakeSender(lambda *_: next(answers))
    exporter = make_exporter(sender, clock=clock)
    await exporter.start()
    first = asyncio.create_task(send(exporter, b"first"))
    await turns()
    await clock.advance(1.1)
    with pytest.raises(RetryableError):
        await first
    with pytest.raises(QueueFullError) as caught:
        exporter.reserve(10)
    assert caught.value.retry_after >= 18
    await clock.advance(17)
    assert len(sender.tried) == 1
    await clock.advance(10)
    await send(exporter, b"second")
    assert sender.delivered == [b"second"]


async def test_waiting_requests_are_joined_and_each_is_acknowledged(clock):
    sender = FakeSender(gate=asyncio.Event())
    exporter = make_exporter(sender, clock=clock, sending_queue={"num_consumers": 1})
    await exporter.start()
    payloads = [trace_request([{"name": f"span {n}"}]) for n in range(5)]
    sending = [asyncio.create_task(send(exporter, payload)) for payload in payloads]
    await turns()
    sender.gate.set()
    await asyncio.gather(*sending)
    assert [payload for _, payload in sender.tried] == [payloads[0], b"".join(payloads[1:])]


async def test_signals_are_not_joined(clock):
    sender = FakeSender(gate=asyncio.Event())
    exporter = make_exporter(sender, clock=clock, sending_queue={"num_consumers": 1})
    await exporter.start()
    signals = [Signal.TRACES, Signal.TRACES, Signal.LOGS, Signal.LOGS, Signal.METRICS]
    sending = [
        asyncio.create_task(send(exporter, b"%d" % n, signal=signal)) for n, signal in enumerate(signals)
    ]
    await turns()
    sender.gate.set()
    await asyncio.gather(*sending)
    assert sender.tried == [
        (Signal.TRACES, b"0"),
        (Signal.TRACES, b"1"),
        (Signal.LOGS, b"23"),
        (Signal.METRICS, b"4"),
    ]


async def test_one_bad_request_among_joined_ones_is_dropped_alone(clock, telemetry):
    sender = FakeSender(
        lambda _, payload: INVALID if b"bad" in payload else Delivered(), gate=asyncio.Event()
    )
    exporter = make_exporter(sender, clock=clock, telemetry=telemetry, sending_queue={"num_consumers": 1})
    await exporter.start()
    payloads = [b"first", b"one ", b"bad ", b"two "]
    sending = [asyncio.create_task(send(exporter, payload)) for payload in payloads]
    await turns()
    sender.gate.set()
    await asyncio.gather(*sending)
    assert sender.delivered == [b"first", b"one ", b"two "]
    dropped = telemetry.value(catalog.EXPORTER_DROPPED, exporter="otlp", signal="traces", reason="refused")
    assert dropped == 1


async def test_one_destination_down_holds_back_only_itself(clock):
    up, down = FakeSender(), FakeSender(UNAVAILABLE)
    exporter = make_exporter(up, down, clock=clock)
    await exporter.start()
    sending = asyncio.create_task(send(exporter, b"request"))
    await turns()
    assert up.delivered == [b"request"]
    assert not sending.done(), "the other destination has not settled it"
    await clock.advance(1.1)
    with pytest.raises(RetryableError, match="otlp/1"):
        await sending


async def test_a_cancelled_sender_does_not_stop_its_request(clock):
    sender = FakeSender(gate=asyncio.Event())
    exporter = make_exporter(sender, clock=clock)
    await exporter.start()
    sending = asyncio.create_task(send(exporter, b"request"))
    await turns()
    sending.cancel()
    await turns()
    sender.gate.set()
    await turns()
    assert sender.delivered == [b"request"]
    assert exporter._destinations[0]._memory_bytes == 0


async def test_while_down_one_probe_at_a_time_then_all_at_once(clock):
    sender = FakeSender(UNAVAILABLE, gate=asyncio.Event())
    exporter = make_exporter(
        sender,
        clock=clock,
        sending_queue={"hold": 100, "batch_size": 0},
        retry_on_failure={"initial_interval": 5, "max_interval": 30},
    )
    await exporter.start()
    sending = [asyncio.create_task(send(exporter, b"%d" % n)) for n in range(5)]
    await turns()
    assert len(sender.tried) == 5
    sender.gate.set()
    await turns()
    assert len(sender.tried) == 5
    await clock.advance(5.1)
    assert len(sender.tried) == 6
    assert sender.tried[-1][1] == b"0", "the probe is the oldest"
    sender.answer = Delivered()
    await clock.advance(7.6)
    await asyncio.gather(*sending)
    assert sender.delivered == [b"0", b"1", b"2", b"3", b"4"]


async def test_stop_delivers_what_is_in_memory(clock):
    sender = FakeSender(gate=asyncio.Event())
    exporter = make_exporter(sender, clock=clock)
    await exporter.start()
    sending = asyncio.create_task(send(exporter, b"request"))
    await turns()
    stopping = asyncio.create_task(exporter.stop(10.0))
    await turns()
    with pytest.raises(ShuttingDownError):
        exporter.reserve(1)
    sender.gate.set()
    await stopping
    await sending
    assert sender.delivered == [b"request"]
    assert sender.closed


async def test_stop_hands_back_what_it_cannot_deliver(clock):
    sender = FakeSender(gate=asyncio.Event())
    exporter = make_exporter(sender, clock=clock, sending_queue={"num_consumers": 1})
    await exporter.start()
    sending = [asyncio.create_task(send(exporter, b"%d" % n)) for n in range(2)]
    await turns()
    stopping = asyncio.create_task(exporter.stop(10.0))
    await turns()
    await clock.advance(10)
    await stopping
    for task in sending:
        with pytest.raises(RetryableError):
            await task


async def test_a_bug_in_a_sender_costs_no_request(clock):
    def broken(*_):
        sender.answer = Delivered()
        raise ZeroDivisionError

    sender = FakeSender(broken)
    exporter = make_exporter(sender, clock=clock, sending_queue={"hold": 100})
    await exporter.start()
    sending = asyncio.create_task(send(exporter, b"request"))
    await turns()
    await clock.advance(6)
    await sending
    assert sender.delivered == [b"request"]
