"""dcgm-exporter as the source: its names, its blanks, its silence."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from otel_bridge import catalog
from otel_bridge.gpu.absent import Absences
from otel_bridge.gpu.config import GpuConfig
from otel_bridge.gpu.dcgm import is_blank, readings_of
from otel_bridge.gpu.monitor import GpuMonitor
from otel_bridge.kernel.clock import Alignment
from otel_bridge.telemetry import Telemetry
from tests.unit.gpu.conftest import Sink, SteppedClock

LABELS = 'gpu="0",UUID="GPU-a",pci_bus_id="00000000:0F:00.0",device="nvidia0",modelName="H200",Hostname="n1"'
SCRAPE = f"""# HELP DCGM_FI_DEV_SM_CLOCK SM clock frequency (in MHz).
# TYPE DCGM_FI_DEV_SM_CLOCK gauge
DCGM_FI_DEV_SM_CLOCK{{{LABELS}}} 1980
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{{{LABELS}}} 91
# TYPE DCGM_FI_DEV_FB_USED gauge
DCGM_FI_DEV_FB_USED{{{LABELS}}} 69120
# TYPE DCGM_FI_DEV_FB_FREE gauge
DCGM_FI_DEV_FB_FREE{{{LABELS}}} 12160
# TYPE DCGM_FI_DEV_FB_RESERVED gauge
DCGM_FI_DEV_FB_RESERVED{{{LABELS}}} 640
# TYPE DCGM_FI_PROF_SM_OCCUPANCY gauge
DCGM_FI_PROF_SM_OCCUPANCY{{{LABELS}}} 0.25
DCGM_FI_PROF_SM_OCCUPANCY{{{LABELS},GPU_I_PROFILE="1g.10gb",GPU_I_ID="3"}} 0.75
# TYPE DCGM_FI_PROF_PCIE_TX_BYTES counter
DCGM_FI_PROF_PCIE_TX_BYTES{{{LABELS}}} 1234567
# TYPE DCGM_FI_SOMETHING_ELSE gauge
DCGM_FI_SOMETHING_ELSE{{{LABELS}}} 5
"""


def values(readings):
    """By metric."""
    return {reading.metric: reading.value for reading in readings}


def test_its_names_become_ours():
    """With our units, by card and by MIG instance."""
    found = readings_of(SCRAPE, 7, Absences(Telemetry()))
    assert values(found["GPU-a"]) == {
        catalog.GPU_CLOCK.name: 1.98e9,
        catalog.GPU_UTILIZATION_RATIO.name: pytest.approx(0.91),
        catalog.GPU_SM_OCCUPANCY_RATIO.name: 0.25,
        catalog.GPU_PCIE_THROUGHPUT.name: 1234567,
        catalog.GPU_MEMORY_USED.name: 69120 << 20,
        catalog.GPU_MEMORY_RESERVED.name: 640 << 20,
        catalog.GPU_MEMORY_TOTAL.name: 81920 << 20,
        catalog.GPU_MEMORY_USED_RATIO.name: pytest.approx(0.84375),
    }
    assert values(found["GPU-a/3"]) == {catalog.GPU_SM_OCCUPANCY_RATIO.name: 0.75}
    assert {reading.time for reading in found["GPU-a"]} == {7}


def test_blanks_are_missing_values():
    """cases.md gpu-mig-blanks (b), and +1 to +3 of each."""
    names = {
        "DCGM_FI_PROF_SM_ACTIVE": 140737488355328,
        "DCGM_FI_PROF_SM_OCCUPANCY": 140737488355330,
        "DCGM_FI_PROF_PCIE_TX_BYTES": 9223372036854775792,
        "DCGM_FI_PROF_PCIE_RX_BYTES": 9223372036854775794,
        "DCGM_FI_DEV_FB_USED": 2147483632,
    }
    telemetry = Telemetry()
    text = "".join(f"{name}{{{LABELS}}} {value}\n" for name, value in names.items())
    found = readings_of(text + f"DCGM_FI_DEV_FB_FREE{{{LABELS}}} 100\n", 7, Absences(telemetry))
    assert found.get("GPU-a", []) == []
    for name in names:
        absent = {"gpu_uuid": "GPU-a", "reading": name, "reason": "blank"}
        assert telemetry.value(catalog.GPU_ABSENT_READINGS, **absent) == 1
    for first in (2147483632, 140737488355328, 9223372036854775792):
        assert all(is_blank(float(first + more)) for more in range(4))
    assert not any(is_blank(value) for value in (0.0, 1.0, 2147483631.0, 2147483636.0, 1e12))


async def test_an_exporter_is_scraped_and_its_silence_is_a_loss():
    """Every interval; a scrape that fails shows nothing, one that works again shows all."""
    answer = {"text": SCRAPE, "status": 200}

    async def metrics(_):
        return web.Response(text=answer["text"], status=answer["status"])

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    telemetry, sink = Telemetry(), Sink()
    settings = {"endpoint": f"http://127.0.0.1:{port}/metrics", "interval": "10ms"}
    config = GpuConfig.model_validate({"source": "dcgm", "dcgm": settings})
    monitor = GpuMonitor(config, telemetry, SteppedClock(), alignment=Alignment(), readings=[sink])
    await monitor.start()
    try:
        await until(lambda: telemetry_value(telemetry, catalog.GPU_UP) == 1)
        assert telemetry_value(telemetry, catalog.GPU_MEMORY_USED_RATIO) == pytest.approx(0.84375)
        assert telemetry_value(telemetry, catalog.GPU_PRESSURE_LEVEL) == 1
        for broken in ({"status": 500}, {"status": 200, "text": "no metrics {"}):
            answer.update(broken)
            await until(lambda: telemetry_value(telemetry, catalog.GPU_UP) == 0)
            assert telemetry_value(telemetry, catalog.GPU_MEMORY_USED_RATIO) is None
        answer["text"] = SCRAPE
        await until(lambda: telemetry_value(telemetry, catalog.GPU_MEMORY_USED_RATIO))
    finally:
        await monitor.stop(1.0)
        await runner.cleanup()
    assert sink.of(catalog.GPU_UTILIZATION_RATIO, gpu_uuid="GPU-a")


def telemetry_value(telemetry, metric):
    """What a scrape of ours shows of the card."""
    samples = [one for family in telemetry.registry.collect() for one in family.samples]
    mine = (one.value for one in samples if one.name == metric.name and one.labels == {"gpu_uuid": "GPU-a"})
    return next(mine, None)


async def until(check):
    """Wait for something."""
    async with asyncio.timeout(60):
        while not check():  # noqa: ASYNC110 (what is waited for tells nobody)
            await asyncio.sleep(0.005)
