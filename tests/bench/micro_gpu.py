"""What it costs to read eight GPUs ten times a second, and how exactly a reading is timed.

On stand-in libraries (tests/gpu/standin), whose calls take the CPU time and the waiting time that are set
here: assumed from published traces of the driver's calls, not measured on a card.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from pathlib import Path

from rich.console import Console

from otel_bridge import catalog
from otel_bridge.contracts import SystemClock
from otel_bridge.gpu.absent import Absences
from otel_bridge.gpu.clock import ReadingClock
from otel_bridge.gpu.config import GpuConfig
from otel_bridge.gpu.hub import Hub
from otel_bridge.gpu.nvml import Nvml
from otel_bridge.gpu.sampler import Sampler
from otel_bridge.kernel.clock import Alignment
from otel_bridge.telemetry import Telemetry
from tests.bench import figures
from tests.support.gpu import SCENARIO, Scenario, build, gpu

GPUS = 8
LATENCIES = (
    # CPU time, then waiting, microseconds
    "latency nvmlDeviceGetMemoryInfo 6 0",
    "latency nvmlDeviceGetSamples 12 0",
    "latency nvmlDeviceGetFieldValues 60 200",
    "latency nvmlDeviceGetClockInfo 15 0",
    "latency nvmlDeviceGetTemperature 15 0",
    "latency nvmlDeviceGetPowerUsage 30 300",
    "latency nvmlDeviceGetCurrentClocks 10 0",
    "latency nvmlDeviceGetComputeRunning 40 0",
    "latency nvmlDeviceGetGraphicsRunning 40 0",
    "latency nvmlGpm 30 100",
)


class _Sink:
    """Takes readings as rules do, and does nothing with them."""

    def take_readings(self, readings: object) -> None:
        """See `ReadingSink`."""


def measure(directory: Path, seconds: float) -> dict[str, float]:
    """Sample for a while in a thread as the service does."""
    scenario = Scenario(directory / "scenario")
    cards = [
        f"{gpu(f'GPU-{number}', memory='saw 20000 70000 60')}\n"
        f"utilization saw 20 95 20\noccupancy saw 10 60 30\nprocess {os.getpid()} 500"
        for number in range(GPUS)
    ]
    scenario.play(*LATENCIES, *cards)
    os.environ[SCENARIO] = str(scenario.path)
    telemetry, clock = Telemetry(), SystemClock()
    config = GpuConfig(library=str(build(directory) / "libnvidia-ml.so.1"))
    hub = Hub(config, clock, [_Sink()])
    reading_clock = ReadingClock(Alignment())
    sampler = Sampler(
        config,
        Nvml(config.library),
        hub,
        absences=Absences(telemetry),
        reading_clock=reading_clock,
        telemetry=telemetry,
        clock=clock,
    )
    sampler.open()
    sampler.start()
    time.sleep(2 * config.slow_interval)
    before = telemetry.value(catalog.GPU_SAMPLING_TIME), telemetry.value(catalog.GPU_SAMPLES)
    began = time.monotonic()
    threading.Event().wait(seconds)
    spent = telemetry.value(catalog.GPU_SAMPLING_TIME) - before[0]
    rounds = telemetry.value(catalog.GPU_SAMPLES) - before[1]
    took = time.monotonic() - began
    mean, largest = reading_clock.error()
    sampler.stop()
    return {
        "gpu.sampling_core_fraction": spent / took,
        "gpu.sampling_rounds_per_second": rounds / took,
        "clock.mean_error_us": mean * 1e6,
        "clock.max_error_us": largest * 1e6,
    }


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.micro_gpu", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long to sample (default 20)")
    parser.add_argument("--no-results", action="store_true", help="leave results.json as it is")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        found = measure(Path(directory), options.seconds)
    Console().print(
        f"{GPUS} GPUs, {found['gpu.sampling_rounds_per_second']:.1f} rounds a second: "
        f"{found['gpu.sampling_core_fraction']:.2%} of a core (at most 1 %); a reading's time is off by "
        f"{found['clock.mean_error_us']:.0f} us on average (at most 100), {found['clock.max_error_us']:.0f} "
        "us at the most (at most 900)"
    )
    if not options.no_results:
        del found["gpu.sampling_rounds_per_second"]
        figures.merge(found)


if __name__ == "__main__":
    main()
