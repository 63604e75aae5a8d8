"""A reading that is not there, is stale or blank is absent with its reason: never 0, never its last value."""

from __future__ import annotations

import time

import pynvml
import pytest

from otel_bridge import catalog
from otel_bridge.gpu.nvml import Nvml, NvmlError
from tests.support.gpu import gpu
from tests.support.processes import eventually

BUSY = "utilization constant 91\noccupancy constant 60"
GPU = {"gpu_uuid": "GPU-a"}
EACH_ROUND = {"slow_interval": "100ms"}
STATE = 5  # rounds after which everything was read once, when every one reads what is slow


def absent(rig, reading, reason):
    """How often a reading was absent for a reason."""
    return rig.telemetry.value(catalog.GPU_ABSENT_READINGS, reading=reading, reason=reason, **GPU)


def test_looking_in_vain_for_a_driver_reads_the_binding_once(monkeypatch):
    """A node without one is asked every few seconds, for ever."""

    def absent_library(name):
        raise OSError(name)

    monkeypatch.setattr(pynvml, "CDLL", absent_library)
    binding = pynvml.nvmlInit
    with pytest.raises(NvmlError):
        Nvml().open()
    assert pynvml.nvmlInit is binding


def test_utilization_that_the_driver_samples_no_more_is_stale(rig):
    """It had samples, and has no new ones for over a second: what was shown is gone."""
    one = rig(gpu("GPU-a"), BUSY)
    one.rounds(1)
    assert one.shown(catalog.GPU_UTILIZATION_RATIO, **GPU) == 0.91
    one.play("error nvmlDeviceGetSamples * 6", gpu("GPU-a"), BUSY)
    before = len(one.sink.of(catalog.GPU_UTILIZATION_RATIO))

    def stale():
        one.rounds(1, seconds=0.5)
        return absent(one, "utilization", "stale")

    eventually("it is stale", stale)
    assert len(one.sink.of(catalog.GPU_UTILIZATION_RATIO)) == before
    one.clock.ahead += 2
    assert one.shown(catalog.GPU_UTILIZATION_RATIO, **GPU) is None
    assert one.shown(catalog.GPU_MEMORY_USED_RATIO, **GPU) is None  # as old
    one.rounds(1)
    assert one.shown(catalog.GPU_MEMORY_USED_RATIO, **GPU) == 0.5
    assert one.shown(catalog.GPU_UTILIZATION_RATIO, **GPU) is None


@pytest.mark.parametrize(
    ("line", "reading", "metric"),
    [
        ("utilization constant 4294967295", "utilization", catalog.GPU_UTILIZATION_RATIO),
        ("utilization constant 101", "utilization", catalog.GPU_UTILIZATION_RATIO),
        ("occupancy constant 101", catalog.GPU_SM_OCCUPANCY_RATIO.name, catalog.GPU_SM_OCCUPANCY_RATIO),
        ("occupancy constant -1", catalog.GPU_SM_OCCUPANCY_RATIO.name, catalog.GPU_SM_OCCUPANCY_RATIO),
    ],
)
def test_more_than_all_is_blank(rig, line, reading, metric):
    """Shares that cannot be are how drivers say that they have none."""
    one = rig(gpu("GPU-a"), line, **EACH_ROUND)
    one.rounds(3, seconds=0.5)
    assert absent(one, reading, "blank") >= 1
    assert one.shown(metric, **GPU) is None
    assert one.sink.of(metric) == []


def test_more_memory_than_there_is_is_blank(rig):
    """No level either; the card is there."""
    one = rig(gpu("GPU-a", memory="constant 81921"))
    one.rounds(2)
    assert absent(one, "memory", "blank") == 3  # once as it was found
    for metric in (catalog.GPU_MEMORY_USED_RATIO, catalog.GPU_MEMORY_USED, catalog.GPU_PRESSURE_LEVEL):
        assert one.shown(metric, **GPU) is None
    assert one.shown(catalog.GPU_UP, **GPU) == 1


def test_a_counter_that_began_anew_is_no_throughput(rig):
    """A negative rate, or one of the whole counter, would be a lie."""
    one = rig(f"begin {time.time() - 1000:.0f}", gpu("GPU-a"), BUSY, **EACH_ROUND)

    def throughput():
        one.rounds(STATE)
        return one.sink.of(catalog.GPU_PCIE_THROUGHPUT)

    eventually("it is told", throughput)
    one.play(gpu("GPU-a"), BUSY)  # the stand-in's counters count from its scenario's beginning, now
    one.rounds(2 * STATE)
    assert absent(one, "pcie_throughput", "counter_reset") == 2
    for metric in (catalog.GPU_PCIE_THROUGHPUT, catalog.GPU_NVLINK_THROUGHPUT):
        assert min(one.sink.of(metric)) >= 0


def test_activity_is_of_one_interval(rig):
    """After a sample that failed there is none until two have come: what lies between is of no known time."""
    one = rig(gpu("GPU-a"), BUSY, **EACH_ROUND)
    one.rounds(3)
    known = len(one.sink.of(catalog.GPU_SM_OCCUPANCY_RATIO))
    assert known == 2
    one.play("error nvmlGpmSampleGet * 999", gpu("GPU-a"), BUSY)
    one.rounds(1)
    assert absent(one, "gpm", "unknown") == 1
    one.play(gpu("GPU-a"), BUSY)
    one.rounds(1)
    assert len(one.sink.of(catalog.GPU_SM_OCCUPANCY_RATIO)) == known
    one.rounds(1)
    assert len(one.sink.of(catalog.GPU_SM_OCCUPANCY_RATIO)) == known + 1
