"""Xid errors: by the event set, each seen as growth, whatever happens to other cards."""

from __future__ import annotations

import pytest

from otel_bridge import catalog
from otel_bridge.gpu.xid_counts import XidCounts
from otel_bridge.testing import FakeClock
from tests.support.gpu import gpu
from tests.support.processes import eventually

XID = catalog.GPU_XID_ERRORS
GPU_IS_LOST = 15


def reported(logged):
    """Which cards reported which numbers, in the order of their log lines."""
    return [(line["gpu_uuid"], line["xid"]) for line in logged if line["event"].endswith("Xid error")]


def test_errors_come_by_the_event_set(rig, logged):
    """Each once, by card and number, as a counter and as a reading that grew from 0."""
    one = rig(gpu("GPU-a"), "xid 79 0", "xid 31 0", gpu("GPU-b"), "xid 79 0")
    expected = [("GPU-a", 79), ("GPU-a", 31), ("GPU-b", 79)]
    eventually("all are reported", lambda: sorted(reported(logged)) == sorted(expected))
    one.rounds(1)
    assert all(one.shown(XID, gpu_uuid=uuid, xid=str(number)) == 0 for uuid, number in expected)
    one.clock.ahead += 16
    one.rounds(1)
    for uuid, number in expected:
        assert one.shown(XID, gpu_uuid=uuid, xid=str(number)) == 1
        assert one.sink.of(XID, gpu_uuid=uuid, xid=str(number)) == [0.0, 1.0, 1.0]
    times = [one.time for one in one.sink.readings if one.metric == XID.name]
    assert times == sorted(times)


def test_a_card_that_is_lost_does_not_hide_the_errors_of_the_others(rig, logged):
    """NVML then answers every wait with "GPU is lost": the set is made anew without it."""
    others = gpu("GPU-b"), "xid 31 0"
    one = rig(gpu("GPU-a"), gpu("GPU-b"))
    one.rounds(1)
    # The wait fails as long as the lost card is in the set.
    one.play(
        f"error nvmlDevice 0 {GPU_IS_LOST}",
        f"error nvmlEventSetWait 0 {GPU_IS_LOST}",
        gpu("GPU-a"),
        gpu("GPU-b"),
    )
    eventually("the wait fails", lambda: [line for line in logged if "not seen" in line["event"]])
    one.play(
        f"error nvmlDevice 0 {GPU_IS_LOST}", f"error nvmlEventSetWait 0 {GPU_IS_LOST}", gpu("GPU-a"), *others
    )

    def seen():
        one.rounds(1, seconds=0.5)
        return reported(logged)

    assert eventually("the other's is reported", seen) == [("GPU-b", 31)]


def test_a_card_that_came_back_reports_again(rig, logged):
    """It is watched anew, under the handle that it has now."""
    one = rig(gpu("GPU-a"), gpu("GPU-b"))
    one.rounds(1)
    one.play(f"error nvmlDevice 0 {GPU_IS_LOST}", gpu("GPU-a"), gpu("GPU-b"))
    one.rounds(1)
    assert one.shown(catalog.GPU_UP, gpu_uuid="GPU-a") == 0
    one.play(gpu("GPU-a"), "xid 79 0", gpu("GPU-b"))

    def seen():
        one.rounds(1, seconds=1)
        return reported(logged)

    assert eventually("it is reported", seen) == [("GPU-a", 79)]


def test_a_watch_that_has_ended_is_begun_anew(rig, logged):
    """As after a call that held up a reload."""
    one = rig(gpu("GPU-a"))
    one.rounds(1)
    assert one.sampler._watch.stop(60)
    one.play(gpu("GPU-a"), "xid 79 0")

    def seen():
        one.rounds(1, seconds=1)
        return reported(logged)

    assert eventually("it is reported", seen) == [("GPU-a", 79)]


@pytest.mark.parametrize("call", ["nvmlEventSetCreate", "nvmlDeviceRegisterEvents", "nvmlEventSetWait"])
def test_a_driver_that_refuses_is_asked_again(rig, logged, call):
    """Said once; what is reported later is seen."""
    one = rig(f"error {call} * 999", gpu("GPU-a"))
    eventually("it is said", lambda: [line for line in logged if "Xid errors" in line["event"]])
    one.play(gpu("GPU-a"), "xid 79 0")

    def seen():
        one.rounds(1, seconds=1)
        return reported(logged)

    if call == "nvmlDeviceRegisterEvents":  # a card without the event has it no sooner than it is found anew
        one.play("error nvmlDeviceGet 0 15", gpu("GPU-a"))
        one.rounds(1)
        one.play(gpu("GPU-a"), "xid 79 0")
    assert eventually("it is reported", seen) == [("GPU-a", 79)]
    assert len([line for line in logged if "Xid errors" in line["event"]]) == 1


async def test_a_series_is_served_at_zero_first():
    """To everyone who scrapes within 15 s of the first; what is counted meanwhile is not lost."""
    clock = FakeClock()
    counts = XidCounts(clock)

    def scraped():
        return [sample.value for family in counts.collect() for sample in family.samples]

    assert scraped() == []
    counts.add("GPU-a", 79)
    assert scraped() == [0]
    await clock.advance(15)
    counts.add("GPU-a", 79)
    assert scraped() == [0]
    await clock.advance(0.1)
    assert scraped() == [2]
    assert [one.value for one in counts.readings(7)] == [0, 2]
    assert [one.value for one in counts.readings(8)] == [2]
