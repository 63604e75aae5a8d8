"""The same readings on a real GPU, with a small program of CUDA's; prints what the card does not tell."""

from __future__ import annotations

import ctypes
import time

import pytest

from otel_bridge import catalog
from otel_bridge.contracts import SystemClock
from otel_bridge.gpu.absent import Absences
from otel_bridge.gpu.clock import ReadingClock
from otel_bridge.gpu.config import GpuConfig
from otel_bridge.gpu.hub import Hub
from otel_bridge.gpu.nvml import Nvml, NvmlError
from otel_bridge.gpu.sampler import Sampler
from otel_bridge.kernel.clock import Alignment
from otel_bridge.telemetry import Telemetry

pytestmark = pytest.mark.gpu
SIZE = 256 << 20


@pytest.fixture
def nvml():
    """The real driver's library; whoever uses it opens it."""
    made = Nvml()
    try:
        made.open()
    except NvmlError as error:
        pytest.skip(f"needs an NVIDIA GPU and its driver: {error}")
    made.close()
    return made


@pytest.fixture
def device_memory():
    """Takes and gives back device memory through the driver API."""
    cuda = ctypes.CDLL("libcuda.so.1")
    context, device, address = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_uint64()
    assert cuda.cuInit(0) == 0
    assert cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    assert cuda.cuCtxSetCurrent(context) == 0

    def take() -> None:
        assert cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(SIZE)) == 0

    yield take
    if address.value:
        assert cuda.cuMemFree_v2(address) == 0
    assert cuda.cuDevicePrimaryCtxRelease_v2(device) == 0


class Sink:
    """Keeps readings."""

    def __init__(self) -> None:
        self.readings = []

    def take_readings(self, readings) -> None:
        self.readings += readings


def test_a_real_card_is_read(nvml, device_memory):
    """An allocation shows within a second; times are as exact as promised; the cost is printed."""
    telemetry, clock, sink, config = Telemetry(), SystemClock(), Sink(), GpuConfig()
    reading_clock = ReadingClock(Alignment())
    hub = Hub(config, clock, [sink])
    sampler = Sampler(
        config,
        nvml,
        hub,
        absences=Absences(telemetry),
        reading_clock=reading_clock,
        telemetry=telemetry,
        clock=clock,
    )
    sampler.open()
    sampler.start()
    try:
        time.sleep(3)
        device_memory()
        time.sleep(3)
    finally:
        sampler.stop()
    used = [one.value for one in sink.readings if one.metric == catalog.GPU_MEMORY_USED.name]
    assert max(used) - min(used) >= SIZE
    mean, largest = reading_clock.error()
    rounds = telemetry.value(catalog.GPU_SAMPLES)
    cost = telemetry.value(catalog.GPU_SAMPLING_TIME) / rounds
    absent = {
        tuple(sorted(labels.items())): value
        for labels, value in telemetry.values(catalog.GPU_ABSENT_READINGS)
    }
    exactness = f"off by {mean * 1e6:.0f} us, {largest * 1e6:.0f} us at most"
    print(f"{cost * 1e6:.0f} us a round; {exactness}")  # noqa: T201 (for whoever runs it with -s)
    print(*absent.items(), sep="\n")  # noqa: T201 (the same)
    assert mean <= 100e-6
    assert largest <= 900e-6
