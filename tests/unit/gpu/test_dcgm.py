"""dcgm-exporter as the source: its names, its blanks, its silence."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from otel_bridge import catalog
from otel_bridge.errors import StartError
from otel_bridge.gpu.absent import Absences
from otel_bridge.gpu.assess import Assessor
from otel_bridge.gpu.config import GpuConfig
from otel_bridge.gpu.dcgm import is_blank, read_scrape
from otel_bridge.gpu.monitor import GpuMonitor
from otel_bridge.kernel.clock import Alignment
from otel_bridge.readings import Reading
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
    found = read_scrape(SCRAPE, 7, Absences(Telemetry())).readings
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
    found = read_scrape(text + f"DCGM_FI_DEV_FB_FREE{{{LABELS}}} 100\n", 7, Absences(telemetry))
    assert found.readings.get("GPU-a", []) == []
    for name in names:
        absent = {"gpu_uuid": "GPU-a", "reading": name, "reason": "blank"}
        assert telemetry.value(catalog.GPU_ABSENT_READINGS, **absent) == 1
    for first in (2147483632, 140737488355328, 9223372036854775792):
        assert all(is_blank(float(first + more)) for more in range(4))
    assert not any(is_blank(value) for value in (0.0, 1.0, 2147483631.0, 2147483636.0, 1e12))


def test_throttling_is_told_by_reason():
    """The driver's bits, under either of their names."""
    for name in ("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "DCGM_FI_DEV_CLOCKS_EVENT_REASONS"):
        found = read_scrape(f"{name}{{{LABELS}}} {0x4 | 0x80}\n", 7, Absences(Telemetry()))
        held = {one.labels["reason"]: one.value for one in found.readings["GPU-a"]}
        assert held == {
            "power_cap": 1,
            "hardware_slowdown": 0,
            "thermal": 0,
            "power_brake": 1,
            "sync_boost": 0,
        }


@pytest.fixture
async def exporter():
    """Serves whatever a test has put into it."""
    answer = {"text": SCRAPE, "status": 200}

    async def metrics(_):
        return web.Response(text=answer["text"], status=answer["status"])

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    answer["endpoint"] = f"http://127.0.0.1:{runner.addresses[0][1]}/metrics"
    yield answer
    await runner.cleanup()


class Scraped:
    """The bridge's part, scraping an exporter."""

    def __init__(self, exporter, **settings):
        self.telemetry, self.sink, self.clock = Telemetry(), Sink(), SteppedClock()
        given = {"endpoint": exporter["endpoint"], "interval": "10ms", **settings}
        self.monitor = GpuMonitor(
            GpuConfig.model_validate({"source": "dcgm", "dcgm": given}),
            self.telemetry,
            self.clock,
            alignment=Alignment(),
            readings=[self.sink],
        )

    async def __aenter__(self):
        await self.monitor.start()
        return self

    async def __aexit__(self, *_):
        await self.monitor.stop(1.0)

    def shown(self, metric, **more):
        """What a scrape of ours shows of the card."""
        labels = {"gpu_uuid": "GPU-a", **more}
        samples = [one for family in self.telemetry.registry.collect() for one in family.samples]
        names = (metric.name, f"{metric.name}_total")
        return next((one.value for one in samples if one.name in names and one.labels == labels), None)


async def test_xid_errors_are_told_when_their_number_changes(exporter):
    """It is never taken back: what stood there at first is of any time, and no alarm of now."""
    xid = f"DCGM_FI_DEV_XID_ERRORS{{{LABELS}}} "
    exporter["text"] = SCRAPE + xid + "31\n"
    async with Scraped(exporter) as one:
        await until(lambda: one.shown(catalog.GPU_UP) == 1)
        for text in (SCRAPE, f"{SCRAPE}{xid}2147483632\n", f"{SCRAPE}{xid}31\n", f"{SCRAPE}{xid}79\n"):
            exporter["text"] = text
            before = len(one.sink.of(catalog.GPU_UP))
            await until(lambda before=before: len(one.sink.of(catalog.GPU_UP)) > before + 2)
        assert not one.sink.of(catalog.GPU_XID_ERRORS, xid="31")
        assert one.sink.of(catalog.GPU_XID_ERRORS, xid="79")[:2] == [0, 1]
        assert one.sink.of(catalog.GPU_XID_ERRORS, xid="79")[-1] == 1


async def test_an_interval_as_long_as_the_exporter_s_own_leaves_no_gaps(exporter):
    """What was scraped is shown until the next scrape is due, and not for ever."""
    async with Scraped(exporter, interval="30s") as one:
        await until(lambda: one.shown(catalog.GPU_UP) == 1)
        one.clock.ahead += 31
        for metric in (catalog.GPU_UP, catalog.GPU_MEMORY_USED_RATIO, catalog.GPU_UTILIZATION_RATIO):
            assert one.shown(metric) is not None, metric.name
        one.clock.ahead += 100
        assert one.shown(catalog.GPU_MEMORY_USED_RATIO) is None


def test_nearly_full_memory_is_seen_however_seldom_it_is_read():
    """Readings 10 s apart are no silence where they come each 10 s."""
    seldom = GpuConfig.model_validate({"source": "dcgm", "dcgm": {"interval": "10s"}})
    for config, expected in ((seldom, [0, 0, 0, 1]), (GpuConfig(), [0, 0, 0, 0])):
        assessor = Assessor("GPU-a", config)
        said = [
            assessor.take_memory(
                Reading(catalog.GPU_MEMORY_USED_RATIO.name, {}, 0.96, second * 1_000_000_000)
            )
            for second in (10, 20, 30, 40)
        ]
        assert [saturated.value for _, saturated in said] == expected


async def test_memory_that_turns_blank_has_no_level(exporter):
    """The last one says nothing about now."""
    async with Scraped(exporter) as one:
        await until(lambda: one.shown(catalog.GPU_PRESSURE_LEVEL) == 1)
        exporter["text"] = SCRAPE.replace("69120", "2147483632")
        await until(lambda: one.shown(catalog.GPU_PRESSURE_LEVEL) is None)
        assert one.shown(catalog.GPU_UP) == 1
        assert one.shown(catalog.GPU_UTILIZATION_RATIO) == pytest.approx(0.91)


async def test_an_exporter_that_is_required_must_answer_at_the_start(exporter):
    """One that is not is asked again and again."""
    config = {"source": "dcgm", "mode": "required", "dcgm": {"endpoint": exporter["endpoint"]}}

    def monitor(**settings):
        made = GpuConfig.model_validate({**config, **settings})
        return GpuMonitor(made, Telemetry(), SteppedClock(), alignment=Alignment())

    exporter["status"] = 503
    with pytest.raises(StartError, match=r"503.*gpu\.dcgm\.endpoint"):
        await monitor().start()
    for settings, status in (({"mode": "auto"}, 503), ({}, 200)):
        exporter["status"] = status
        one = monitor(**settings)
        await one.start()
        await one.stop(1.0)


async def test_an_exporter_is_scraped_and_its_silence_is_a_loss(exporter):
    """Every interval; a scrape that fails shows nothing, one that works again shows all."""
    async with Scraped(exporter) as one:
        await until(lambda: one.shown(catalog.GPU_UP) == 1)
        assert one.shown(catalog.GPU_MEMORY_USED_RATIO) == pytest.approx(0.84375)
        assert one.shown(catalog.GPU_PRESSURE_LEVEL) == 1
        # The last one makes the parser run off its end.
        for broken in (
            {"status": 500},
            {"status": 200, "text": "no metrics {"},
            {"text": 'a{UUID="x", ="c"} 5'},
        ):
            exporter.update({"text": SCRAPE, "status": 200})
            await until(lambda: one.shown(catalog.GPU_MEMORY_USED_RATIO))
            exporter.update(broken)
            await until(lambda: one.shown(catalog.GPU_UP) == 0)
            assert one.shown(catalog.GPU_MEMORY_USED_RATIO) is None
        exporter["text"] = SCRAPE
        await until(lambda: one.shown(catalog.GPU_MEMORY_USED_RATIO))
    assert one.sink.of(catalog.GPU_UTILIZATION_RATIO, gpu_uuid="GPU-a")


async def until(check):
    """Wait for something."""
    async with asyncio.timeout(60):
        while not check():  # noqa: ASYNC110 (what is waited for tells nobody)
            await asyncio.sleep(0.005)
