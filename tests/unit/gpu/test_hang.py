"""Calls of the driver that do not return: their GPU is lost, the others are read on."""

from __future__ import annotations

import threading

import pytest

from otel_bridge import catalog
from otel_bridge.gpu.hang import HangWatch, Turn
from otel_bridge.testing import FakeClock
from tests.support.gpu import gpu
from tests.support.processes import eventually

BUSY = "utilization constant 91\noccupancy constant 60"
QUICK = {"interval": "20ms", "slow_interval": "100ms", "retry_interval": "100ms", "call_timeout": "500ms"}
USED = catalog.GPU_MEMORY_USED_RATIO


def named(name: str) -> int:
    """How many threads have a name."""
    return sum(thread.name == name for thread in threading.enumerate())


def reading_threads() -> int:
    """How many threads read, or are stuck in the driver."""
    return named("gpu-sampler")


@pytest.mark.parametrize(
    "call", ["nvmlDeviceGetMemoryInfo", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetComputeRunning"]
)
def test_a_gpu_that_hangs_is_lost_and_the_other_goes_on(rig, logged, call):
    """Whatever call it is; once the call returns, the GPU is found again."""
    one = rig(gpu("GPU-a"), BUSY, gpu("GPU-b"), BUSY, **QUICK)
    one.sampler.start()
    eventually("both are read", lambda: [one.shown(USED, gpu_uuid=f"GPU-{n}") for n in "ab"] == [0.5, 0.5])
    one.play(f"hang {call} 0", gpu("GPU-a"), BUSY, gpu("GPU-b", memory="constant 61440"), BUSY)
    eventually("it is lost", lambda: one.shown(catalog.GPU_UP, gpu_uuid="GPU-a") == 0)
    assert one.shown(USED, gpu_uuid="GPU-a") is None
    before = len(one.sink.of(USED, gpu_uuid="GPU-b"))
    eventually("the other is read", lambda: len(one.sink.of(USED, gpu_uuid="GPU-b")) > before + 5)
    assert one.shown(USED, gpu_uuid="GPU-b") == 0.75
    assert one.shown(catalog.GPU_UP, gpu_uuid="GPU-a") == 0
    assert reading_threads() == 2
    one.play(gpu("GPU-a"), BUSY, gpu("GPU-b"), BUSY)
    eventually("it is found again", lambda: one.shown(USED, gpu_uuid="GPU-a") == 0.5)
    eventually("one thread reads", lambda: reading_threads() == 1)
    lost = [(line["gpu_uuid"], line["reason"]) for line in logged if line["event"] == "a GPU is lost"]
    assert lost == [("GPU-a", "hangs")]


def test_when_all_hang_each_has_one_thread_at_the_most(rig):
    """Nobody asks a GPU again that has not answered; the library is not loaded anew under a call."""
    one = rig(gpu("GPU-a"), gpu("GPU-b"), gpu("GPU-c"), **QUICK)
    one.sampler.start()
    one.play("hang * *", gpu("GPU-a"), gpu("GPU-b"), gpu("GPU-c"))
    up = {(("gpu_uuid", f"GPU-{n}"),): 0.0 for n in "abc"}
    eventually("all are lost", lambda: one.scrape().get(catalog.GPU_UP.name) == up)
    assert reading_threads() <= 4
    assert one.telemetry.value(catalog.GPU_REINITIALIZATIONS) == 0
    one.play(gpu("GPU-a"), gpu("GPU-b"), gpu("GPU-c"))
    eventually("all are read", lambda: len(one.scrape().get(USED.name, {})) == 3)


def test_stopping_does_not_wait_for_a_driver_that_hangs(rig, logged):
    """The library stays where its call is."""
    one = rig(gpu("GPU-a"), **QUICK)
    one.sampler.start()
    eventually("it is read", lambda: one.shown(USED, gpu_uuid="GPU-a") == 0.5)
    one.play("hang nvmlDeviceGetMemoryInfo 0", gpu("GPU-a"))
    eventually("it is lost", lambda: one.shown(catalog.GPU_UP, gpu_uuid="GPU-a") == 0)
    one.sampler.stop()
    assert [line for line in logged if "stays loaded" in line["event"]]
    assert one.sampler.fleet.is_open
    one.play(gpu("GPU-a"))
    eventually("the call returns", lambda: reading_threads() == 0)
    one.sampler.stop()
    assert not one.sampler.fleet.is_open


def test_a_wait_for_xid_errors_that_hangs_holds_up_nothing(rig, logged):
    """Cards are read on; the library stays until the call has returned, and is unloaded then."""
    one = rig(gpu("GPU-a"), "hang nvmlEventSetWait *", **QUICK)
    one.sampler.start()
    eventually("it is read", lambda: one.shown(USED, gpu_uuid="GPU-a") == 0.5)
    one.play("hang nvmlEventSetWait *", gpu("GPU-a", memory="constant 61440"))
    eventually("it is read on", lambda: one.shown(USED, gpu_uuid="GPU-a") == 0.75)
    one.sampler.stop()
    assert [line for line in logged if "stays loaded" in line["event"]]
    assert one.sampler.fleet.is_open
    one.play(gpu("GPU-a"))
    eventually("the call returns", lambda: not named("gpu-xid"))
    one.sampler.stop()
    assert not one.sampler.fleet.is_open


async def test_an_answer_that_comes_late_is_nobody_s():
    """Whether it is in time is decided once, for the thread and for the watch alike."""
    clock, told = FakeClock(), []
    watch, turn = HangWatch(2.0, clock, told.append), Turn()
    watch.follow(turn)
    turn.begin("GPU-a", clock.monotonic())
    await clock.advance(1.9)
    watch.look()
    assert turn.end()
    assert not told
    turn.begin("GPU-b", clock.monotonic())
    await clock.advance(2.1)
    watch.look()
    watch.look()
    assert told == ["GPU-b"]
    assert watch.stuck
    assert not turn.end()
    watch.returned(turn)
    assert not watch.stuck
