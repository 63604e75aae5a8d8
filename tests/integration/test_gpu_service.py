"""The bridge on a machine with a GPU, played by stand-in libraries: scraped, on spans, in doctor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from contextlib import closing

import pytest

from otel_bridge import catalog
from otel_bridge.testing import attributes_of, trace_request
from tests.integration.test_service import channel_to, export, to
from tests.support.gpu import SCENARIO, Scenario, build, gpu
from tests.support.processes import Bridge, eventually, running
from tests.support.sinks import GrpcSink

SECOND = 1_000_000_000


@pytest.fixture
def scenario(tmp_path):
    """One card at 96 %, used by this process."""
    card = (gpu("GPU-a", memory="constant 78643"), "utilization constant 91", "occupancy constant 60")
    made = Scenario(tmp_path / "scenario")
    made.play(*card, f"process {os.getpid()} 70000")
    return made


@pytest.fixture
def library(tmp_path, scenario, monkeypatch):
    """NVML's stand-in."""
    monkeypatch.setenv(SCENARIO, str(scenario.path))
    directory = tmp_path / "driver"
    directory.mkdir()
    return build(directory) / "libnvidia-ml.so.1"


def test_spans_and_scrapes_tell_of_the_gpu(tmp_path, library):
    """A span of this process says how full the card was; the process's memory has the span's service."""
    with (
        GrpcSink() as sink,
        running(Bridge(tmp_path, to(sink, gpu={"library": str(library)}, kernel={"mode": "off"}))) as bridge,
        closing(channel_to(bridge)) as channel,
    ):

        def scrape():
            with urllib.request.urlopen(f"http://127.0.0.1:{bridge.metrics_port}/metrics") as answer:
                return answer.read().decode()

        eventually("the process is shown", lambda: f'pid="{os.getpid()}"' in scrape())
        end = time.time_ns()
        span = {"start_time_unix_nano": end - SECOND // 2, "end_time_unix_nano": end}
        resource = {"service.name": "llama", "process.pid": os.getpid()}

        def told():
            export(channel, trace_request([span], resource=resource))
            attributes = attributes_of(sink.spans()[-1].attributes)
            return attributes if catalog.GPU_MEMORY_MAX.key in attributes else None

        found = eventually("the span is told", told)
        eventually("the service is learnt", lambda: 'service="llama"' in scrape())
        text = scrape()
    assert found[catalog.HW_ID.key] == "GPU-a"
    assert found[catalog.GPU_MATCH.key] == "process"
    assert found[catalog.GPU_MEMORY_MAX.key] == pytest.approx(0.96, abs=0.001)
    assert found[catalog.GPU_UTILIZATION_MAX.key] == pytest.approx(0.91)
    assert f'{catalog.GPU_PRESSURE_LEVEL.name}{{gpu_uuid="GPU-a"}} 2.0' in text


def test_a_card_over_95_percent_for_30_seconds_opens_the_breaker_and_its_first_xid_alerts(
    tmp_path, library, scenario
):
    """By the rules that ship, as they ship; lost for a while, nothing of it changes."""
    config = {
        "gpu": {"library": str(library)},
        "kernel": {"mode": "off"},
        "control": {
            "enabled": True,
            "state": {"file": str(tmp_path / "control.sqlite")},
            "operators": {"socket": str(tmp_path / "s")},
            "decisions": {"http": {"enabled": False}},
        },
    }
    full = gpu("GPU-a", memory="constant 78643")
    with running(Bridge(tmp_path, config)) as bridge:

        def alert(name):
            return bridge.total(catalog.RULES_ALERTS.name, alertname=name, gpu_uuid="GPU-a")

        def is_open():
            return bridge.total(catalog.CONTROL_STATE.name, target="node") == 2

        scenario.play(full, "xid 79 0")
        eventually("its Xid alerts", lambda: alert("GpuXid"))
        assert not is_open()
        eventually("the breaker opens", is_open)
        assert alert("GpuMemoryCritical")
        scenario.play("error * * 999", "init 999", full)
        up = f'{catalog.GPU_UP.name}{{gpu_uuid="GPU-a"}}'
        eventually("it is lost", lambda: bridge.metrics().get(up) == 0)
        eventually("its memory is shown no more", lambda: not bridge.total(catalog.GPU_MEMORY_USED.name))
        assert is_open()
        assert alert("GpuMemoryCritical")


def doctor(*settings):
    """What doctor says of GPUs, and whether all is well."""
    sets = [text for setting in settings for text in ("--set", setting)]
    command = [sys.executable, "-m", "otel_bridge", "doctor", "--json", *sets, "--set", "kernel.mode=off"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return json.loads(done.stdout)["gpus"], done.returncode


def test_doctor_says_what_the_driver_answers(library, tmp_path):
    """There, not there and not needed, not there and needed, off."""
    found, _ = doctor(f"gpu.library={library}")
    assert (found["verdict"], found["found"]) == ("ok", "driver 570.00.stand-in, 1 GPUs")
    missing = f"gpu.library={tmp_path / 'none.so'}"
    found, code = doctor(missing)
    assert (found["verdict"], code) == ("optional", 0)
    assert "library not found" in found["found"]
    assert found["mend"]
    found, code = doctor(missing, "gpu.mode=required")
    assert (found["verdict"], code) == ("missing", 1)
    assert doctor("gpu.mode=off")[0]["verdict"] == "off"
