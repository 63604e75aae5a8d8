"""Requests that go to disk: when, in which order they leave it, and what a restart finds."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from otel_bridge import catalog
from otel_bridge.errors import QueueFullError, RetryableError
from otel_bridge.exporters.otlp.answer import Delivered, Failed
from otel_bridge.exporters.otlp.config import StorageConfig
from otel_bridge.telemetry import Telemetry
from otel_bridge.testing import FakeClock
from tests.support.exporter_fakes import INVALID, UNAVAILABLE, FakeSender, make_exporter, send, turns, until


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def storage(tmp_path) -> StorageConfig:
    return StorageConfig(directory=tmp_path, fsync=False)


@pytest.fixture
def telemetry() -> Telemetry:
    return Telemetry()


def files(directory) -> list[str]:
    return sorted(path.name for path in (directory / "otlp").glob("0*.sqlite"))


async def test_on_the_good_path_nothing_touches_the_disk(clock, storage, tmp_path):
    sender = FakeSender()
    exporter = make_exporter(sender, clock=clock, directory=tmp_path, storage=storage)
    await exporter.start()
    for number in range(23):
        await send(exporter, b"%d" % number)
    assert not files(tmp_path)
    assert len(sender.delivered) == 23
    await exporter.stop(1.0)


async def test_a_request_not_delivered_in_time_is_acknowledged_from_disk(clock, storage, tmp_path):
    sender = FakeSender(gate=asyncio.Event())
    exporter = make_exporter(sender, clock=clock, directory=tmp_path, storage=storage)
    await exporter.start()
    sending = asyncio.create_task(send(exporter, b"request"))
    await turns()
    await clock.advance(0.99)
    assert not sending.done()
    assert not files(tmp_path)
    await clock.advance(0.02)
    await sending
    assert len(files(tmp_path)) == 1
    sender.gate.set()
    await until(lambda: not files(tmp_path))
    await turns()
    assert sender.delivered == [b"request"], "the try that was in flight delivered it: not sent again"
    await exporter.stop(1.0)


async def test_known_to_be_down_requests_go_to_disk_at_once(clock, storage, tmp_path, telemetry):
    sender = FakeSender(UNAVAILABLE)
    exporter = make_exporter(sender, clock=clock, directory=tmp_path, storage=storage, telemetry=telemetry)
    await exporter.start()
    for number in range(5):
        await send(exporter, b"%d" % number)
    assert clock.monotonic() == 0.0, "nobody waited"
    assert len(sender.tried) == 1
    where = {"exporter": "otlp", "place": "disk"}
    assert telemetry.value(catalog.EXPORTER_QUEUE_REQUESTS, **where) == 5
    assert telemetry.value(catalog.EXPORTER_QUEUE_BYTES, **where) > 0
    sender.answer = Delivered()
    await clock.advance(6)
    await until(lambda: telemetry.value(catalog.EXPORTER_QUEUE_REQUESTS, **where) == 0)
    assert b"".join(sender.delivered) == b"01234"
    assert not files(tmp_path)
    await exporter.stop(1.0)


async def test_memory_running_high_goes_to_disk(clock, storage, tmp_path):
    sender = FakeSender(gate=asyncio.Event())
    exporter = make_exporter(
        sender, clock=clock, directory=tmp_path, storage=storage, sending_queue={"queue_size": 1000}
    )
    await exporter.start()
    held = [asyncio.create_task(send(exporter, b"x" * 100)) for _ in range(8)]
    await turns()
    await send(exporter, b"y" * 100)
    assert not any(task.done() for task in held)
    sender.gate.set()
    await asyncio.gather(*held)
    await until(lambda: not files(tmp_path))
    assert len(sender.delivered) == 9
    await exporter.stop(1.0)


async def test_a_fresh_request_is_acknowledged_at_once_and_sent_after_the_backlog(clock, storage, tmp_path):
    sender = FakeSender(UNAVAILABLE)
    exporter = make_exporter(
        sender,
        clock=clock,
        directory=tmp_path,
        storage=storage,
        sending_queue={"batch_size": 0, "num_consumers": 1},
    )
    await exporter.start()
    for number in range(10):
        await send(exporter, b"old %d" % number)
    sender.answer, sender.gate = Delivered(), asyncio.Event()
    await clock.advance(6)
    await until(lambda: len(sender.tried) == 2)
    await send(exporter, b"fresh")
    assert not sender.delivered
    sender.gate.set()
    await until(lambda: not files(tmp_path))
    assert sender.delivered == [*(b"old %d" % number for number in range(10)), b"fresh"]
    await exporter.stop(1.0)


async def test_an_outage_of_88_hours_with_a_kill_half_way(clock, storage, tmp_path, telemetry):
    """cases.md otlp-queue (a): all of it arrives, oldest first; no age drops anything."""
    sender = FakeSender(UNAVAILABLE)
    exporter = make_exporter(sender, clock=clock, directory=tmp_path, storage=storage)
    await exporter.start()
    total = 88 * 60
    for minute in range(total):
        await send(exporter, b"<%05d>" % minute)
        await clock.advance(60)
        if minute == total // 2:
            kill(exporter)
            exporter = make_exporter(
                sender, clock=clock, directory=tmp_path, storage=storage, telemetry=telemetry
            )
            await exporter.start()
    tries = len(sender.tried)
    assert tries > 1000
    sender.answer = Delivered()
    await clock.advance(31)
    await until(lambda: not files(tmp_path))
    assert b"".join(sender.delivered) == b"".join(b"<%05d>" % minute for minute in range(total))
    for reason in ("refused", "oversize", "damaged", "disk_full"):
        assert telemetry.value(catalog.EXPORTER_DROPPED, exporter="otlp", signal="traces", reason=reason) == 0
    await exporter.stop(1.0)


def kill(exporter) -> None:
    """What kill -9 leaves: files as they are, the lock free, nothing finished."""
    for destination in exporter._destinations:
        destination._closing = True
        destination._gate_alarm.cancel()
        destination._hold_alarm.cancel()
        destination._disk._store.close()


async def test_a_restart_delivers_the_backlog_first(clock, storage, tmp_path):
    sender = FakeSender(UNAVAILABLE)
    exporter = make_exporter(sender, clock=clock, directory=tmp_path, storage=storage)
    await exporter.start()
    for number in range(5):
        await send(exporter, b"%d" % number)
    await exporter.stop(1.0)
    sender = FakeSender()
    exporter = make_exporter(sender, clock=clock, directory=tmp_path, storage=storage)
    await exporter.start()
    await send(exporter, b"new")
    await until(lambda: not files(tmp_path))
    assert b"".join(sender.delivered) == b"01234new"
    await exporter.stop(1.0)


async def test_stop_puts_on_disk_what_it_cannot_deliver(clock, storage, tmp_path):
    sender = FakeSender(gate=asyncio.Event())
    exporter = make_exporter(
        sender,
        clock=clock,
        directory=tmp_path,
        storage=storage,
        sending_queue={"num_consumers": 1, "hold": 60},
    )
    await exporter.start()
    sending = [asyncio.create_task(send(exporter, b"%d" % number)) for number in range(3)]
    await turns()
    stopping = asyncio.create_task(exporter.stop(10.0))
    await turns()
    await clock.advance(10)
    await stopping
    await asyncio.gather(*sending)
    sender = FakeSender()
    exporter = make_exporter(sender, clock=clock, directory=tmp_path, storage=storage)
    await exporter.start()
    await until(lambda: not files(tmp_path))
    assert b"".join(sender.delivered) == b"012"
    await exporter.stop(1.0)


async def test_a_refused_request_leaves_the_disk_too(clock, storage, tmp_path, telemetry):
    sender = FakeSender(UNAVAILABLE)
    exporter = make_exporter(sender, clock=clock, directory=tmp_path, storage=storage, telemetry=telemetry)
    await exporter.start()
    await send(exporter, b"request", 3)
    sender.answer = INVALID
    await clock.advance(6)
    await until(lambda: not files(tmp_path))
    dropped = telemetry.value(catalog.EXPORTER_DROPPED, exporter="otlp", signal="traces", reason="refused")
    assert dropped == 3
    await exporter.stop(1.0)


async def test_memory_and_disk_full_pushes_back(clock, tmp_path):
    sender = FakeSender(UNAVAILABLE)
    storage = StorageConfig(directory=tmp_path, max_size=1 << 20, fsync=False)
    exporter = make_exporter(sender, clock=clock, directory=tmp_path, storage=storage)
    await exporter.start()
    payload, taken = b"x" * 50_000, 0
    with contextlib.suppress(QueueFullError):
        while taken < 100:
            await send(exporter, payload)
            taken += 1
    assert 15 <= taken <= 21
    with pytest.raises(QueueFullError) as caught:
        exporter.reserve(len(payload))
    assert caught.value.retry_after >= 1
    sender.answer = Delivered()
    await clock.advance(10)
    await until(lambda: not files(tmp_path))
    assert sum(map(len, sender.delivered)) == taken * 50_000
    await send(exporter, b"x" * 50_000)
    await exporter.stop(1.0)


async def test_drop_oldest_counts_what_it_drops(clock, tmp_path, telemetry):
    sender = FakeSender(UNAVAILABLE)
    storage = StorageConfig(directory=tmp_path, max_size=1 << 20, when_full="drop_oldest", fsync=False)
    exporter = make_exporter(sender, clock=clock, directory=tmp_path, storage=storage, telemetry=telemetry)
    await exporter.start()
    for number in range(100):
        await send(exporter, b"<%04d>" % number * 5000, 2)
    sender.answer = Delivered()
    await clock.advance(10)
    await until(lambda: not files(tmp_path))
    arrived = b"".join(sender.delivered)
    numbers = [int(arrived[at + 1 : at + 5]) for at in range(0, len(arrived), 6 * 5000)]
    assert numbers == list(range(numbers[0], 100))
    dropped = telemetry.value(catalog.EXPORTER_DROPPED, exporter="otlp", signal="traces", reason="disk_full")
    assert dropped == 2 * numbers[0]
    await exporter.stop(1.0)


async def test_a_disk_that_fails_is_done_without_and_tried_again(clock, storage, tmp_path):
    sender = FakeSender(UNAVAILABLE)
    exporter = make_exporter(sender, clock=clock, directory=tmp_path, storage=storage)
    await exporter.start()
    store = exporter._destinations[0]._disk._store
    working, store._make_room = (
        store._make_room,
        lambda _: (_ for _ in ()).throw(OSError(28, "No space left")),
    )
    sending = asyncio.create_task(send(exporter, b"lost to the disk"))
    await until(lambda: exporter._destinations[0]._disk_paused_until > 0)
    await clock.advance(1.1)
    with pytest.raises(RetryableError):
        await sending
    store._make_room = working
    await clock.advance(11)
    await send(exporter, b"kept on disk")
    sender.answer = Delivered()
    await clock.advance(30)
    await until(lambda: not files(tmp_path))
    assert sender.delivered == [b"kept on disk"]
    await exporter.stop(1.0)


async def test_an_unusable_directory_is_no_reason_not_to_start(clock, tmp_path, capsys):
    (tmp_path / "otlp").write_text("a file where the directory should be")
    sender = FakeSender()
    storage = StorageConfig(directory=tmp_path)
    exporter = make_exporter(sender, clock=clock, directory=tmp_path, storage=storage)
    await exporter.start()
    await send(exporter, b"request")
    assert sender.delivered == [b"request"]
    said = capsys.readouterr().out
    assert "going on without a queue on disk" in said
    assert f"ls -la {tmp_path / 'otlp'}" in said
    await exporter.stop(1.0)


async def test_several_destinations_have_their_own_queues(clock, storage, tmp_path):
    up, down = FakeSender(), FakeSender(UNAVAILABLE)
    exporter = make_exporter(up, down, clock=clock, directory=tmp_path, storage=storage)
    await exporter.start()
    for number in range(5):
        await send(exporter, b"%d" % number)
    assert up.delivered == [b"0", b"1", b"2", b"3", b"4"]
    assert not files(tmp_path)
    down.answer = Delivered()
    await clock.advance(6)
    await until(lambda: len(b"".join(down.delivered)) == 5)
    assert b"".join(down.delivered) == b"01234"
    assert len(up.delivered) == 5
    await exporter.stop(1.0)


async def test_a_cancelled_sender_and_a_dead_destination_leave_the_request_on_disk(clock, storage, tmp_path):
    sender = FakeSender(gate=asyncio.Event())
    exporter = make_exporter(sender, clock=clock, directory=tmp_path, storage=storage)
    await exporter.start()
    sending = asyncio.create_task(send(exporter, b"request"))
    await turns()
    sending.cancel()
    await turns()
    await clock.advance(1.1)
    await until(lambda: bool(files(tmp_path)))
    sender.answer = UNAVAILABLE
    sender.gate.set()
    await turns()
    sender.answer = Delivered()
    await clock.advance(6)
    await until(lambda: not files(tmp_path))
    assert sender.delivered == [b"request"]
    await exporter.stop(1.0)


async def test_throttling_holds_for_what_is_on_disk(clock, storage, tmp_path):
    sender = FakeSender(Failed("RESOURCE_EXHAUSTED", "slow down", retryable=True, retry_after=40.0))
    exporter = make_exporter(sender, clock=clock, directory=tmp_path, storage=storage)
    await exporter.start()
    await send(exporter, b"request")
    sender.answer = Delivered()
    await clock.advance(39.9)
    assert len(sender.tried) == 1
    await clock.advance(5.2)
    await until(lambda: not files(tmp_path))
    assert len(sender.tried) == 2
    await exporter.stop(1.0)


async def test_one_request_that_always_runs_into_the_timeout_does_not_stop_the_others(
    clock, storage, tmp_path
):
    timeout = Failed("DEADLINE_EXCEEDED", "", retryable=True, doubtful=True)
    sender = FakeSender(lambda _, payload: timeout if b"poison" in payload else Delivered())
    exporter = make_exporter(sender, clock=clock, directory=tmp_path, storage=storage)
    await exporter.start()
    await send(exporter, b"poison")
    for number in range(20):
        await send(exporter, b"%d" % number)
    disk = exporter._destinations[0]._disk
    for _ in range(60):
        await clock.advance(1)
        await asyncio.wait_for(disk.untake([]), 10)
    assert b"".join(sender.delivered) == b"".join(b"%d" % number for number in range(20))
    assert disk.requests == 1
    sender.answer = Delivered()
    for _ in range(60):
        await clock.advance(1)
        await asyncio.wait_for(disk.untake([]), 10)
    assert sender.delivered[-1] == b"poison", "no age gives it up"
    await exporter.stop(1.0)
