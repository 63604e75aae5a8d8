"""Traces that wait for their verdict: kept whole or not at all, and what their senders may rely on."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from otel_bridge import catalog
from otel_bridge.errors import QueueFullError, RetryableError, StartError
from otel_bridge.pipeline import build_steps
from otel_bridge.processors.sample.hold import TICK
from otel_bridge.processors.sample.threshold import FULL
from otel_bridge.settings import ProcessorSettings
from tests.support.exporter_fakes import until
from tests.support.sampling import FAST, WALL, Sampling, span, trace_id, until_idle
from tests.unit.processors.join.test_join import retransmits

RATE = {"curve": "fixed", "baseline": 0.5}
MEMORY = {"rate": RATE, "hold": "memory"}
ERROR = {"status": {"code": 2}}
SLOW = {"end_time_unix_nano": WALL + 2_000_000_000}


async def started(directory=None, **sample) -> Sampling:
    """A running one."""
    sampling = Sampling(directory, **sample)
    await sampling.pipeline.start()
    await until_idle()
    return sampling


async def test_nothing_leaves_before_the_verdict():
    """Ten seconds after a trace's first span; then by its randomness, as without waiting."""
    sampling = await started(**MEMORY)
    await sampling.send(span(0.9), span(0.1, 1))
    await sampling.clock.advance(9.9)
    assert sampling.traces == set()
    assert sampling.telemetry.value(catalog.SAMPLE_WAITING_SPANS) == 2
    assert sampling.telemetry.value(catalog.SAMPLE_WAITING_BYTES) > 100
    await sampling.clock.advance(0.4)
    assert list(sampling.left.values()) == ["ot=th:8"]
    assert sampling.traces == {trace_id(0.9)}
    assert sampling.telemetry.value(catalog.SAMPLE_WAITING_BYTES) == 0
    assert sampling.telemetry.value(catalog.SAMPLE_SPANS, verdict="dropped", reason="rate") == 1
    assert sampling.telemetry.value(catalog.PROCESSOR_OUTGOING) == 1
    await sampling.pipeline.stop(1.0)


@pytest.mark.parametrize(
    ("tells", "reason"),
    [
        (ERROR, "error"),
        (SLOW, "slow"),
        ({"attributes": {"kernel.tcp.retransmits": 1}}, "kernel"),
        ({"attributes": {"kernel.sched.run_queue.max": 10_000_000}}, "kernel"),
        ({"attributes": {"kernel.tls.handshake.time": 500_000_000}}, "kernel"),
        ({"attributes": {"kernel.cuda.out_of_memory": 1}}, "kernel"),
        ({"attributes": {"sampling.priority": 1}}, "priority"),
    ],
)
async def test_a_span_that_tells_keeps_its_trace(tells, reason):
    """Spans before it, beside it and after it, in whichever request; all stand for one."""
    sampling = await started(**MEMORY)
    await sampling.send(span(0.1, span_id=b"before__"), span(0.2, 1))
    await sampling.clock.advance(5.0)
    await sampling.send(span(0.1, span_id=b"tells___", **{**FAST, **tells}), span(0.1, span_id=b"beside__"))
    assert {span_id for _, span_id in sampling.left} == {b"tells___", b"beside__"}
    await sampling.clock.advance(5.3)
    await sampling.send(span(0.1, span_id=b"after___"), span(0.2, 1))
    assert sampling.left == {
        (trace_id(0.1), span_id): "ot=th:0"
        for span_id in (b"before__", b"tells___", b"beside__", b"after___")
    }
    assert sampling.telemetry.value(catalog.SAMPLE_SPANS, verdict="kept", reason=reason) == 4
    assert sampling.telemetry.value(catalog.SAMPLE_SPANS, verdict="dropped", reason="rate") == 2
    await sampling.pipeline.stop(1.0)


@pytest.mark.parametrize(
    "tells",
    [
        {"end_time_unix_nano": WALL + 1_999_999_999},
        {"end_time_unix_nano": WALL - 5_000_000_000},
        {"attributes": {"kernel.tcp.retransmits": 0}},
        {"attributes": {"kernel.sched.run_queue.max": 9_999_999}},
        {"attributes": {"kernel.tls.handshake.time": 499_999_999}},
        {"attributes": {"kernel.sched.off_cpu.max": 10**12}},
        {"status": {"code": 1}},
    ],
)
async def test_a_span_that_tells_nothing(tells):
    """Not slow, ended before it began, no kernel event of those that count, status OK."""
    sampling = await started(**MEMORY)
    await sampling.send(span(0.1, **{**FAST, **tells}))
    await sampling.clock.advance(11.0)
    assert sampling.left == {}
    await sampling.pipeline.stop(1.0)


async def test_the_joins_events_count_in_the_same_request():
    """What the join has just noted is an edit and no column yet."""
    sampling = await started(**MEMORY)
    sampling.pipeline.take(retransmits(1))
    await sampling.send({"end_time_unix_nano": WALL + 1_000_000_000})
    assert list(sampling.left.values()) == ["ot=th:0"]
    await sampling.pipeline.stop(1.0)


async def test_what_says_keep_and_what_says_drop():
    """A wish to drop holds for the whole trace, unless it failed, was slow or was hit."""
    sampling = await started(**MEMORY)
    unwanted = {"attributes": {"sampling.priority": 0}}
    await sampling.send(span(0.9, **unwanted), span(0.9, span_id=b"other___"), span(0.8, 1, **unwanted))
    await sampling.send(span(0.8, 1, span_id=b"failed__", **ERROR))
    await sampling.clock.advance(11.0)
    assert sampling.traces == {trace_id(0.8, 1)}
    assert sampling.telemetry.value(catalog.SAMPLE_SPANS, verdict="dropped", reason="priority") == 2
    await sampling.pipeline.stop(1.0)


async def test_an_error_after_the_verdict_is_too_late():
    """The trace is gone: a part of it would be no trace. It is counted; one that was kept stays as it was."""
    sampling = await started(**MEMORY)
    await sampling.send(span(0.1), span(0.9, 1))
    await sampling.clock.advance(11.0)
    await sampling.send(span(0.1, **ERROR), span(0.9, 1, span_id=b"late____", **ERROR))
    assert sampling.traces == {trace_id(0.9, 1)}
    assert sampling.left[trace_id(0.9, 1), b"late____"] == "ot=th:8"
    assert sampling.telemetry.value(catalog.SAMPLE_LATE, reason="error") == 1
    await sampling.pipeline.stop(1.0)


async def test_adjusted_counts_with_errors_that_are_always_kept():
    """Failed traces stand for themselves, the others for those that were dropped: the sum stays right.

    20,000 traces with evenly spread randomness, at 5 %.
    """
    sampling = await started(hold="memory", rate={"curve": "fixed", "baseline": 0.05}, keep={"wait": 1})
    step = 1 / 20_000
    for first in range(0, 20_000, 500):
        await sampling.send(
            *[
                span(number * step, **(ERROR if number % 100 == 0 else {}))
                for number in range(first, first + 500)
            ]
        )
        await sampling.clock.advance(1.0)
    await sampling.clock.advance(2.0)
    counts = {True: 0.0, False: 0.0}
    for one in sampling.destination.spans:
        threshold = int(one.trace_state.removeprefix("ot=th:").ljust(14, "0"), 16)
        counts[one.status.code == 2] += (1 << 56) / ((1 << 56) - threshold)
    assert counts[True] == 200
    assert counts[False] == pytest.approx(19_800, rel=0.02)
    await sampling.pipeline.stop(1.0)


async def test_adjusted_counts_over_an_hour_of_traces_that_wait():
    """The defaults: ten traces of two spans a second, with surges; some fail, are slow or hit, by one span.

    Randomness is spread evenly (multiples of the golden ratio), so that chance has no share in what is off.
    """
    sampling = await started(hold="memory")
    tells = {7: ERROR, 107: SLOW, 207: {"attributes": {"kernel.tcp.retransmits": 1}}}
    sent, stood_for, parts, number = 0, 0.0, Counter(), 0
    for second in range(3600 + 11):
        count = 0 if second >= 3600 else 15 if (second // 300) % 3 == 2 else 10
        traces = range(number, number + count)
        number += count
        for part in (0, 1) if count else ():
            await sampling.send(
                *(
                    span(one * 0.6180339887498949 % 1, one, span_id=bytes([part + 1] * 8))
                    | (tells.get(one % 300, {}) if part else {"kind": 1, "parent_span_id": b"\x02" * 8})
                    for one in traces
                )
            )
        sent += 2 * count
        await sampling.clock.advance(1.0)
        for one in sampling.destination.spans:
            stood_for += FULL / (FULL - int(one.trace_state.removeprefix("ot=th:").ljust(14, "0"), 16))
            parts[one.trace_id] += 1
        sampling.destination.sent.clear()
    assert sent == 2 * 42_000
    assert stood_for == pytest.approx(sent, rel=0.02)
    assert set(parts.values()) == {2}
    for reason in ("error", "slow", "kernel"):
        kept = sampling.telemetry.value(catalog.SAMPLE_SPANS, verdict="kept", reason=reason)
        assert kept == 2 * 42_000 / 300
    await sampling.pipeline.stop(1.0)


# What a sender may rely on.


async def test_memory_acknowledges_at_once():
    """And loses what waits, when it is killed: nothing else is promised."""
    sampling = await started(**MEMORY)
    assert (await sampling.send(span(0.9))).accepted == 1
    await sampling.pipeline.stop(1.0)
    assert sampling.traces == {trace_id(0.9)}


async def test_sender_acknowledges_after_the_verdict():
    """When what was kept has been delivered."""
    sampling = await started(rate=RATE, hold="sender")
    kept, dropped = sampling.sending(span(0.9)), sampling.sending(span(0.1, 1))
    await sampling.clock.advance(9.9)
    assert not kept.done()
    assert not dropped.done()
    sampling.destination.fails = True
    await sampling.clock.advance(0.5)
    assert dropped.done()
    assert not kept.done()
    sampling.destination.fails = False
    await sampling.clock.advance(TICK)
    assert (await kept).accepted == 1
    assert sampling.traces == {trace_id(0.9)}
    await sampling.pipeline.stop(1.0)


async def test_a_sender_that_went_away():
    """Its spans are decided and delivered as if it had not."""
    sampling = await started(rate=RATE, hold="sender")
    call = sampling.sending(span(0.9))
    await until_idle()
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    await sampling.clock.advance(11.0)
    assert sampling.traces == {trace_id(0.9)}
    await sampling.pipeline.stop(1.0)


async def test_disk_acknowledges_when_it_is_written(tmp_path):
    """And what an earlier process left is decided by the next, though that knows only what is on disk."""
    killed = await started(tmp_path, rate=RATE)
    await killed.send(span(0.9), span(0.1, 1), span(0.2, 2))
    await killed.send(span(0.2, 2, span_id=b"failed__", **ERROR))
    assert killed.traces == {trace_id(0.2, 2)}
    await abandoned(killed)

    sampling = await started(tmp_path, rate=RATE)
    assert sampling.telemetry.value(catalog.SAMPLE_RECOVERED) == 3
    await sampling.clock.advance(11.0)
    assert sampling.left == {
        (trace_id(0.9), (1).to_bytes(8, "big")): "ot=th:8",
        (trace_id(0.2, 2), (3).to_bytes(8, "big")): "ot=th:0",
    }
    await sampling.pipeline.stop(1.0)
    again = await started(tmp_path, rate=RATE)
    assert again.telemetry.value(catalog.SAMPLE_RECOVERED) == 0
    await again.pipeline.stop(1.0)


async def test_what_is_on_disk_is_ours_alone(tmp_path):
    """Spans are personal data."""
    sampling = await started(tmp_path / "queue", rate=RATE)
    await sampling.send(span(0.9))
    assert (tmp_path / "queue" / "sample").stat().st_mode & 0o777 == 0o700
    for file in (tmp_path / "queue" / "sample").iterdir():
        assert file.stat().st_mode & 0o077 == 0, file
    await sampling.pipeline.stop(1.0)


async def test_what_is_on_disk_is_redacted(tmp_path):
    """As if it had left."""
    sampling = await started(tmp_path, rate=RATE)
    sampling.pipeline.replace(
        build_steps(
            ProcessorSettings.model_validate({"sample": {"enabled": True, "rate": RATE}}),
            sampling.telemetry,
            sampling.clock,
        )
    )
    await sampling.send(span(0.9, attributes={"llm.prompts.0.prompt.text": "Zebra", "kept": "Quagga"}))
    on_disk = b"".join(file.read_bytes() for file in (tmp_path / "sample").iterdir())
    assert b"Zebra" not in on_disk
    assert b"Quagga" in on_disk
    await sampling.pipeline.stop(1.0)


async def test_what_was_left_goes_on_when_sampling_was_switched_off(tmp_path):
    """It was acknowledged: it is sent whole."""
    killed = await started(tmp_path, rate=RATE)
    await killed.send(span(0.9), span(0.1, 1))
    await abandoned(killed)
    sampling = await started(tmp_path, enabled=False)
    await sampling.clock.advance(0.5)
    assert sampling.traces == {trace_id(0.9), trace_id(0.1, 1)}
    await sampling.pipeline.stop(1.0)


async def test_a_disk_that_fails_is_no_promise(tmp_path):
    """The request is acknowledged after the verdict instead, and counted."""
    sampling = await started(tmp_path, rate=RATE)
    journal = sampling.pipeline._hold._journal
    await journal._in_thread(journal._close)
    call = sampling.sending(span(0.9))
    await until(lambda: sampling.telemetry.value(catalog.SAMPLE_JOURNAL_FAILURES) == 1)
    await until_idle()
    assert not call.done()
    await sampling.clock.advance(11.0)
    assert (await call).accepted == 1
    await sampling.pipeline.stop(1.0)


async def test_a_request_that_failed_is_not_held_too():
    """Its sender comes again with all of it."""
    sampling = await started(**MEMORY)
    sampling.destination.fails = True
    with pytest.raises(RetryableError):
        await sampling.send(span(0.1, **ERROR), span(0.9, 1))
    sampling.destination.fails = False
    await sampling.send(span(0.1, **ERROR), span(0.9, 1))
    await sampling.clock.advance(11.0)
    assert len(sampling.destination.spans) == 2
    await sampling.pipeline.stop(1.0)


# Bounds.


async def test_too_much_that_waits_is_decided_early():
    """The oldest first, by what is known; nothing is lost, nothing is refused while it can leave."""
    sampling = await started(rate=RATE, hold="memory", max_waiting="1MiB", keep={"wait": 1000})
    text = {"attributes": {"prompt": "x" * 100_000}}
    for number in range(20):
        await sampling.send(span(0.9 if number % 2 else 0.1, number, **text))
        await sampling.clock.advance(TICK)
    early = sampling.telemetry.value(catalog.SAMPLE_EARLY, reason="memory")
    assert 10 <= early <= 14
    assert sampling.telemetry.value(catalog.SAMPLE_WAITING_BYTES) <= 0.8 * (1 << 20)
    assert sampling.traces == {trace_id(0.9, number) for number in range(1, int(early), 2)}
    await sampling.pipeline.stop(1.0)


async def test_when_nothing_can_leave_requests_are_refused():
    """With a time to come again, before any work is spent on them; and taken again afterwards."""
    sampling = await started(rate=RATE, hold="memory", max_waiting="1MiB")
    text = {"attributes": {"prompt": "x" * 600_000}}
    sampling.destination.fails = True
    for number in range(2):
        await sampling.send(span(0.9, number, **text))
    await sampling.clock.advance(11.0)
    with pytest.raises(QueueFullError) as refused:
        await sampling.send(span(0.9, 9))
    assert refused.value.retry_after == 1.0
    sampling.destination.fails = False
    await sampling.clock.advance(TICK)
    assert (await sampling.send(span(0.9, 9))).accepted == 1
    await sampling.pipeline.stop(1.0)
    assert sampling.traces == {trace_id(0.9, number) for number in (0, 1, 9)}


async def test_verdicts_are_forgotten_in_the_end():
    """Memory is bounded; a span that comes later still is decided anew, by randomness alone."""
    sampling = await started(**MEMORY, remembered_traces=1024)
    await sampling.send(span(0.1, **ERROR))
    for first in range(1, 2000, 500):
        await sampling.send(*[span(0.1, number, **ERROR) for number in range(first, first + 500)])
    assert len(sampling.pipeline._steps.sample._verdicts) == 1024
    await sampling.send(span(0.1, span_id=b"late____"))
    await sampling.clock.advance(11.0)
    assert (trace_id(0.1), b"late____") not in sampling.left
    await sampling.pipeline.stop(1.0)


async def test_pieces_are_joined_on_their_way_out():
    """Many small requests leave as one."""
    sampling = await started(**MEMORY)
    for number in range(50):
        await sampling.send(span(0.9, number))
    await sampling.clock.advance(11.0)
    assert len(sampling.destination.sent) == 1
    assert len(sampling.traces) == 50
    await sampling.pipeline.stop(1.0)


# Reload and stop.


async def test_a_reload_keeps_what_waits():
    """And decides it by the new rules' clock; verdicts stay."""
    sampling = await started(**MEMORY)
    await sampling.send(span(0.1, 5, **ERROR), span(0.9))
    sampling.pipeline.replace(sampling.steps(**MEMORY, keep={"wait": 1}))
    await sampling.send(span(0.1, 5, span_id=b"late____"))
    assert (trace_id(0.1, 5), b"late____") in sampling.left
    await sampling.clock.advance(1.5)
    assert trace_id(0.9) in sampling.traces
    await sampling.pipeline.stop(1.0)


async def test_a_reload_that_switches_sampling_off():
    """New spans go on at once, the waiting ones by their verdict."""
    sampling = await started(**MEMORY)
    await sampling.send(span(0.9), span(0.1, 1))
    sampling.pipeline.replace(sampling.steps(enabled=False))
    await sampling.send(span(0.2, 2))
    assert sampling.traces == {trace_id(0.2, 2)}
    await sampling.clock.advance(11.0)
    assert sampling.traces == {trace_id(0.2, 2), trace_id(0.9)}
    await sampling.pipeline.stop(1.0)


async def test_a_reload_that_switches_sampling_on(tmp_path):
    """The disk is opened when the first spans wait."""
    sampling = await started(tmp_path, enabled=False)
    sampling.pipeline.replace(sampling.steps(rate=RATE))
    await sampling.send(span(0.9))
    await abandoned(sampling)
    after = await started(tmp_path, rate=RATE)
    assert after.telemetry.value(catalog.SAMPLE_RECOVERED) == 1
    await after.pipeline.stop(1.0)


async def test_a_stop_decides_everything(tmp_path):
    """Nothing waits for the next start but what the destination does not take."""
    sampling = await started(tmp_path, rate=RATE)
    await sampling.send(span(0.9), span(0.1, 1))
    await sampling.pipeline.stop(1.0)
    assert sampling.traces == {trace_id(0.9)}
    assert sampling.telemetry.value(catalog.SAMPLE_EARLY, reason="stop") == 2

    stuck = await started(tmp_path, rate=RATE)
    await stuck.send(span(0.9, 7))
    stuck.destination.fails = True
    await stuck.pipeline.stop(1.0)
    after = await started(tmp_path, rate=RATE)
    assert after.telemetry.value(catalog.SAMPLE_RECOVERED) == 1
    await after.pipeline.stop(1.0)


async def test_a_stop_lets_waiting_senders_go():
    """`hurry` decides what they wait for; one whose spans cannot be sent is told to come again."""
    sampling = await started(rate=RATE, hold="sender")
    dropped, kept = sampling.sending(span(0.1)), sampling.sending(span(0.9, 1))
    await until_idle()
    sampling.destination.fails = True
    sampling.pipeline.hurry()
    await sampling.clock.advance(TICK)
    assert (await dropped).accepted == 1
    await sampling.pipeline.stop(1.0)
    with pytest.raises(RetryableError):
        await kept


async def test_what_is_being_sent_at_a_stop_is_not_sent_again():
    """The destination takes its time; the stop waits for it."""
    sampling = await started(**MEMORY)
    await sampling.send(span(0.9))
    gate = asyncio.Event()
    sampling.destination.gate = gate
    await sampling.clock.advance(10.5)
    stopping = asyncio.create_task(sampling.pipeline.stop(1.0))
    await until_idle()
    gate.set()
    await stopping
    assert len(sampling.destination.spans) == 1


# The file.


async def test_two_processes_on_one_file(tmp_path):
    """The second does not start, and says what to do."""
    first = await started(tmp_path, rate=RATE)
    with pytest.raises(StartError, match=r"stop whoever uses it, or set processors\.sample\.hold"):
        await Sampling(tmp_path, rate=RATE).pipeline.start()
    await first.pipeline.stop(1.0)


async def test_a_file_that_is_damaged_is_set_aside(tmp_path):
    """And kept; the service starts."""
    place = tmp_path / "sample"
    place.mkdir()
    (place / "waiting.sqlite").write_bytes(b"no database at all" * 1000)
    sampling = await started(tmp_path, rate=RATE)
    assert (await sampling.send(span(0.9))).accepted == 1
    assert [file.name[:8] for file in place.glob("damaged*")] == ["damaged-"]
    await sampling.pipeline.stop(1.0)


async def test_a_row_that_is_damaged_is_lost_alone(tmp_path):
    """Its checksum tells."""
    killed = await started(tmp_path, rate=RATE)
    await killed.send(span(0.9, 1))
    await killed.send(span(0.9, 2))
    journal = killed.pipeline._hold._journal
    await journal._in_thread(
        lambda: journal._connection.execute("UPDATE piece SET payload = x'00' WHERE number = 1")
    )
    await abandoned(killed)
    sampling = await started(tmp_path, rate=RATE)
    await sampling.clock.advance(11.0)
    assert sampling.traces == {trace_id(0.9, 2)}
    await sampling.pipeline.stop(1.0)


async def test_notes_of_kept_traces_do_not_pile_up(tmp_path):
    """They go with the pieces they were for."""
    sampling = await started(tmp_path, rate=RATE)
    await sampling.send(span(0.1, 1))
    await sampling.send(span(0.1, 1, span_id=b"failed__", **ERROR))
    journal = sampling.pipeline._hold._journal
    rows = await journal._in_thread(lambda: journal._connection.execute("SELECT reason FROM kept").fetchall())
    assert len(rows) == 1
    await sampling.clock.advance(11.0)
    # Removed by a thread, in its own time; the test's limit ends it.
    for table in ("kept", "piece"):
        query = f"SELECT count(*) FROM {table}"
        while await journal._in_thread(lambda q=query: journal._connection.execute(q).fetchone()) != (0,):  # noqa: ASYNC110 (a thread)
            await asyncio.sleep(0.001)
    await sampling.pipeline.stop(1.0)


async def abandoned(sampling: Sampling) -> None:
    """Leave a pipeline as kill -9 does: nothing is decided; only the lock of its file is given up."""
    sampling.pipeline._sweeper.cancel()
    hold = sampling.pipeline._hold
    hold._task.cancel()
    await hold._journal._in_thread(hold._journal._close)
