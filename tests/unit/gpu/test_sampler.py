"""NVML through its own binding, on a stand-in library: what is read, what is absent, what is lost."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pynvml
import pytest

from otel_bridge import catalog
from otel_bridge.gpu.nvml import NvmlError
from tests.support.gpu import gpu
from tests.support.processes import eventually

MIB = 1 << 20
BUSY = "utilization constant 91\noccupancy constant 60"
SLOW = 22  # rounds after which everything was read once


def test_a_card_is_read_in_all_its_parts(rig):
    """Every metric of the catalog that a card can have."""
    one = rig(gpu("GPU-a"), BUSY, f"process {os.getpid()} 1024")
    one.rounds(45)
    time.sleep(0.01)
    shown = one.scrape()
    for metric, value in (
        (catalog.GPU_UP, 1.0),
        (catalog.GPU_MEMORY_USED_RATIO, 0.5),
        (catalog.GPU_MEMORY_USED, 40960 * MIB),
        (catalog.GPU_MEMORY_RESERVED, 640 * MIB),
        (catalog.GPU_MEMORY_TOTAL, 81920 * MIB),
        (catalog.GPU_MEMORY_UNATTRIBUTED, 39936 * MIB),
        (catalog.GPU_UTILIZATION_RATIO, 0.91),
        (catalog.GPU_SM_OCCUPANCY_RATIO, 0.6),
        (catalog.GPU_DRAM_ACTIVE_RATIO, 0.6),
        (catalog.GPU_POWER, 412.345),
        (catalog.GPU_PRESSURE_LEVEL, 0.0),
    ):
        assert shown[metric.name] == {(("gpu_uuid", "GPU-a"),): value}, metric.name
    throttled = shown[catalog.GPU_THROTTLED.name]
    assert {dict(labels)["reason"] for labels, value in throttled.items() if value} == {"power_cap"}
    assert one.shown(catalog.GPU_CLOCK, gpu_uuid="GPU-a", clock="sm") == 1.98e9
    assert one.shown(catalog.GPU_ECC_ERRORS, gpu_uuid="GPU-a", type="corrected") == 3
    assert one.shown(catalog.GPU_TEMPERATURE, gpu_uuid="GPU-a", sensor="memory") == 70
    assert set(shown[catalog.GPU_PROCESS_MEMORY.name].values()) == {1024 * MIB}


def test_throughput_is_the_driver_s_counters_over_its_own_time(rig):
    """A GiB a second on NVLink, 100 MB a second on PCIe."""
    one = rig(gpu("GPU-a"), BUSY)
    for _ in range(3):
        one.rounds(50)
        time.sleep(0.1)
    link = one.shown(catalog.GPU_NVLINK_THROUGHPUT, gpu_uuid="GPU-a", direction="received")
    assert link == pytest.approx(2**30, rel=0.01)
    pcie = one.shown(catalog.GPU_PCIE_THROUGHPUT, gpu_uuid="GPU-a", direction="transmitted")
    assert pcie == pytest.approx(1e8, rel=0.01)


def test_utilization_carries_the_driver_s_time(rig):
    """Samples lie on the driver's grid of six a second, each told once."""
    one = rig(gpu("GPU-a"), "utilization saw 0 100 10")

    def told():
        one.rounds(1, seconds=0.5)
        times = [item.time for item in one.sink.readings if item.metric == catalog.GPU_UTILIZATION_RATIO.name]
        return times if len(times) >= 12 else None

    times = eventually("two seconds of them are told", told)
    assert times == sorted(set(times))
    assert {moment // 1000 % 166667 for moment in times} == {0}


ERRORS = sorted(
    value for name, value in vars(pynvml).items() if name.startswith("NVML_ERROR_") and isinstance(value, int)
)


@pytest.mark.parametrize("code", ERRORS)
def test_no_error_code_of_any_call_stops_the_rest(rig, code):
    """One card answers nothing but an error, the other goes on; nothing of the first is shown as a value."""
    one = rig(gpu("GPU-a"), BUSY, gpu("GPU-b"), BUSY)
    one.rounds(SLOW)
    one.play(f"error * 0 {code}", gpu("GPU-a"), BUSY, gpu("GPU-b"), BUSY)
    one.rounds(2 * SLOW)
    assert one.shown(catalog.GPU_MEMORY_USED_RATIO, gpu_uuid="GPU-b") == 0.5
    assert one.shown(catalog.GPU_UP, gpu_uuid="GPU-b") == 1
    assert one.shown(catalog.GPU_MEMORY_USED_RATIO, gpu_uuid="GPU-a") is None


@pytest.mark.parametrize("code", ERRORS)
def test_no_error_code_of_any_minor_call_loses_the_card(rig, code):
    """What fails beside memory is absent with its reason, unless the code says that the card is gone."""
    calls = ("GetSamples", "GetUtilization", "GetClock", "GetTemp", "GetPower", "GetCurrent", "GetField")
    lines = [f"error nvmlDevice{call} * {code}" for call in (*calls, "GetCompute", "GetGraphics")]
    one = rig(*lines, f"error nvmlGpm * {code}", gpu("GPU-a"), BUSY)
    one.rounds(2 * SLOW)
    gone = one.shown(catalog.GPU_UP, gpu_uuid="GPU-a") != 1
    assert gone == (code in {1, 9, 15, 16, 18, 28})
    if not gone:
        assert one.shown(catalog.GPU_MEMORY_USED_RATIO, gpu_uuid="GPU-a") == 0.5
        reasons = one.scrape()[catalog.GPU_ABSENT_READINGS.name]
        named = {dict(labels)["reading"] for labels in reasons}
        assert {"clock", "temperature", "power", "fields", "processes"} <= named
    for name in (
        catalog.GPU_POWER,
        catalog.GPU_TEMPERATURE,
        catalog.GPU_CLOCK,
        catalog.GPU_SM_OCCUPANCY_RATIO,
    ):
        assert name.name not in one.scrape()


@pytest.mark.parametrize("code", [999, 15, 18])
def test_a_lost_card_shows_nothing_and_comes_back_by_itself(rig, code):
    """cases.md gpu-lost (a)."""
    good = gpu("GPU-a", memory="constant 78643"), BUSY
    one = rig(*good)
    one.rounds(200, seconds=0.1)
    assert one.hub._gpus["GPU-a"].assessor.pressure.level == 2
    one.play(f"error * * {code}", f"init {code}", *good)
    one.rounds(2)
    assert one.shown(catalog.GPU_UP, gpu_uuid="GPU-a") == 0
    assert one.shown(catalog.GPU_MEMORY_USED_RATIO, gpu_uuid="GPU-a") is None
    before = len(one.sink.of(catalog.GPU_MEMORY_SATURATED))
    # 120 s of silence: neither an event for nearly full memory, nor an end of what fires.
    one.rounds(25, seconds=5)
    assert one.shown(catalog.GPU_UP, gpu_uuid="GPU-a") == 0
    assert len(one.sink.of(catalog.GPU_MEMORY_SATURATED)) == before
    assert {firing.labels["hook"] for firing in one.sink.firings} == {"evict", "pause"}
    assert all(firing.active for firing in one.sink.firings)
    one.play(gpu("GPU-a", memory="constant 40960"), BUSY)
    one.rounds(2, seconds=5)
    one.rounds(SLOW)
    assert one.shown(catalog.GPU_UP, gpu_uuid="GPU-a") == 1
    assert one.shown(catalog.GPU_MEMORY_USED_RATIO, gpu_uuid="GPU-a") == 0.5
    assert [firing.active for firing in one.sink.firings] == [True, True, False, False]


def test_for_the_sake_of_some_cards_the_library_is_loaded_anew_once(rig):
    """After a minute, and not again while they stay away: the others pause for it. They come back without."""
    cards = gpu("GPU-a"), gpu("GPU-b")
    one = rig(*cards, slow_interval="100ms")
    one.rounds(1)
    one.play("error * 0 15", *cards)
    for seconds, reloads in ((55, 0), (15, 1), (130, 1)):
        one.rounds(seconds, seconds=1.0)
        assert one.telemetry.value(catalog.GPU_REINITIALIZATIONS) == reloads
        assert one.shown(catalog.GPU_UP, gpu_uuid="GPU-a") == 0
        assert one.shown(catalog.GPU_UP, gpu_uuid="GPU-b") == 1
    one.play(*cards)
    one.rounds(7, seconds=1.0)
    assert one.shown(catalog.GPU_UP, gpu_uuid="GPU-a") == 1
    assert one.telemetry.value(catalog.GPU_REINITIALIZATIONS) == 1


def test_reserved_memory_is_not_used_memory(rig):
    """cases.md gpu-lost (b): 84.4 %, medium; reserved apart."""
    one = rig(gpu("GPU-a", memory="constant 69120"))
    one.rounds(1)
    assert one.shown(catalog.GPU_MEMORY_USED_RATIO, gpu_uuid="GPU-a") == pytest.approx(0.84375)
    assert one.shown(catalog.GPU_PRESSURE_LEVEL, gpu_uuid="GPU-a") == 1
    assert one.shown(catalog.GPU_MEMORY_RESERVED, gpu_uuid="GPU-a") == 640 * MIB


def test_an_old_driver_tells_no_reserved_memory(rig):
    """Its used memory holds what it reserves; that it is so is counted."""
    one = rig("error nvmlDeviceGetMemoryInfo_v2 * 13", gpu("GPU-a", memory="constant 69120"))
    one.rounds(1)
    assert one.shown(catalog.GPU_MEMORY_USED, gpu_uuid="GPU-a") == 69760 * MIB
    assert not one.sink.of(catalog.GPU_MEMORY_RESERVED)
    absent = {"gpu_uuid": "GPU-a", "reading": "reserved_memory", "reason": "function_not_found"}
    assert one.telemetry.value(catalog.GPU_ABSENT_READINGS, **absent) == 1


def test_mig_instances_have_memory_and_the_card_their_mean_activity(rig, logged):
    """cases.md gpu-mig-blanks (a)."""
    activities = {"2g": (2, 60), "1": (1, 90), "2": (1, 40), "3": (1, 20), "4": (1, 70), "5": (1, 10)}
    lines = [
        f"mig MIG-{name} {number} {slices} 10240 {activity} constant 5120"
        for number, (name, (slices, activity)) in enumerate(activities.items(), 1)
    ]
    one = rig(gpu("GPU-a"), *lines)
    one.rounds(3 * SLOW)
    assert one.shown(catalog.GPU_UTILIZATION_RATIO, gpu_uuid="GPU-a") is None
    assert one.shown(catalog.GPU_MEMORY_USED_RATIO, gpu_uuid="GPU-a") is None
    memory = one.scrape()[catalog.GPU_MEMORY_USED_RATIO.name]
    assert memory == {(("gpu_uuid", f"MIG-{name}"),): 0.5 for name in activities}
    assert one.shown(catalog.GPU_SM_ACTIVE_RATIO, gpu_uuid="GPU-a") == pytest.approx(0.5)
    assert one.shown(catalog.GPU_SM_ACTIVE_RATIO, gpu_uuid="MIG-1") == pytest.approx(0.9)
    said = [line for line in logged if line["event"] == "a GPU reading is absent"]
    assert len(said) == len({(line["gpu_uuid"], line["reading"], line["reason"]) for line in said})
    for reading, reason in (("utilization", "not_supported"), ("memory", "no_permission")):
        absent = {"gpu_uuid": "GPU-a", "reading": reading, "reason": reason}
        assert one.telemetry.value(catalog.GPU_ABSENT_READINGS, **absent) == 1


def test_a_card_that_is_divided_anew_is_seen(rig):
    """An instance is made, another taken apart."""
    one = rig(gpu("GPU-a"), "mig MIG-a 1 3 10240 50 constant 5120")
    one.rounds(SLOW)
    one.play(gpu("GPU-a"), "mig MIG-b 2 4 10240 50 constant 5120")
    one.rounds(60, seconds=0.1)
    memory = one.scrape()[catalog.GPU_MEMORY_USED_RATIO.name]
    assert memory == {(("gpu_uuid", "MIG-b"),): 0.5}


def test_silence_of_the_sampler_shows_nothing(rig):
    """A thread that hangs in the driver leaves no last values behind."""
    one = rig(gpu("GPU-a"), BUSY)
    one.rounds(SLOW)
    one.clock.ahead += 30
    assert not [name for name in one.scrape() if name.endswith(("_ratio", "_bytes", "_gpu_up"))]


def test_a_driver_that_comes_later_is_found(rig):
    """Every retry_interval."""
    one = rig("init 9", gpu("GPU-a"), opened=False)
    with pytest.raises(NvmlError, match="driver not loaded"):
        one.sampler.open()
    one.rounds(2, seconds=5)
    one.play(gpu("GPU-a"))
    one.rounds(2, seconds=5)
    one.rounds(1)
    assert one.shown(catalog.GPU_MEMORY_USED_RATIO, gpu_uuid="GPU-a") == 0.5


def test_a_library_that_is_none_is_said(rig, tmp_path):
    """Missing, or no shared library at all."""
    one = rig(gpu("GPU-a"), opened=False)
    for path in (tmp_path / "libnvidia-ml.so.1", tmp_path / "text"):
        (tmp_path / "text").write_text("no library")
        one.sampler._nvml._path = str(path)
        with pytest.raises(NvmlError, match="library not found"):
            one.sampler.open()


def test_the_loader_s_path_finds_the_library(libraries, scenario):
    """Without gpu.library: as libnvidia-ml.so.1."""
    scenario.play(gpu("GPU-loader"))
    code = (
        "from otel_bridge.gpu.nvml import Nvml\n"
        "nvml = Nvml(); nvml.open()\n"
        "print(nvml.api.nvmlDeviceGetUUID(nvml.api.nvmlDeviceGetHandleByIndex(0)))"
    )
    environment = {**os.environ, "LD_LIBRARY_PATH": str(libraries)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "GPU-loader"


def test_readings_are_timed_to_the_middle_of_their_call(rig):
    """A call of 300 us is off by about half of that; the figure is exported."""
    one = rig("latency nvmlDeviceGetMemoryInfo 0 300", gpu("GPU-a"))
    one.rounds(15)
    exported = one.telemetry.value(catalog.GPU_CLOCK_ERROR, statistic="mean")
    mean, largest = one.sampler._reading_clock.error()
    assert 0 < exported <= largest
    assert largest >= 150e-6
    assert mean <= largest
