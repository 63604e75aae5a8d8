"""What doctor says of GPUs, whatever answers or does not."""

from __future__ import annotations

import os
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from otel_bridge.findings import Verdict
from otel_bridge.gpu.config import GpuConfig
from otel_bridge.gpu.preflight import look
from tests.support.gpu import gpu
from tests.unit.gpu.test_dcgm import SCRAPE

BUSY = "occupancy constant 60"


@pytest.fixture
def found(libraries, scenario):
    """What is said of a scenario."""

    def of(*lines, **settings):
        scenario.play(*lines)
        given = {"library": str(libraries / "libnvidia-ml.so.1"), **settings}
        return look(GpuConfig.model_validate(given))

    return of


def test_cards_that_tell_everything(found):
    """Nothing to mend."""
    said = found(gpu("GPU-a"), BUSY, f"process {os.getpid()} 100", gpu("GPU-b"), BUSY)
    assert (said.verdict, said.found, said.mend) == (Verdict.OK, "driver 570.00.stand-in, 2 GPUs", "")


def test_a_card_without_gpm_is_well_and_says_what_is_not_told(found):
    """Before Hopper there is none, and nothing mends that."""
    said = found(gpu("GPU-a"))
    assert (said.verdict, said.mend) == (Verdict.OK, "")
    assert "GPU 0 has no GPM" in said.found
    assert "preemption" in said.found


@pytest.mark.parametrize(
    ("line", "text", "mend"),
    [
        ("error nvmlDeviceGetUUID 1 15", "GPU 1 does not answer: gpu is lost", "nvidia-smi says more"),
        ("error nvmlDeviceGetHandle 1 4", "GPU 1 does not answer: no permission", "/dev/nvidia*"),
    ],
)
def test_a_card_that_does_not_answer_leaves_the_others(found, line, text, mend):
    """The rest of them are read."""
    said = found(line, gpu("GPU-a"), BUSY, gpu("GPU-b"), BUSY)
    assert said.verdict is Verdict.PARTIAL
    assert said.found == f"driver 570.00.stand-in, 2 GPUs; {text}"
    assert mend in said.mend


def test_processes_that_are_not_seen_here(found):
    """NVML tells numbers of the initial namespace: the bridge must see it."""
    said = found(gpu("GPU-a"), BUSY, f"process {os.getpid()} 100", "process 4194303 100")
    assert said.verdict is Verdict.PARTIAL
    assert "1 processes of GPU 0 are not seen here" in said.found
    assert "hostPID: true" in said.mend
    told = found("error nvmlDeviceGetComputeRunning * 3", gpu("GPU-a"), BUSY)
    assert (told.verdict, told.mend) == (Verdict.OK, "")
    assert "tells no processes: not supported" in told.found


@pytest.mark.parametrize(("mode", "verdict"), [("auto", Verdict.OPTIONAL), ("required", Verdict.MISSING)])
@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (["init 9"], "driver not loaded"),
        (["init 18", gpu("GPU-a")], "lib rm version mismatch"),
        (["error nvmlDeviceGetCount * 999", gpu("GPU-a")], "unknown"),
        ([""], "0 GPUs"),
    ],
)
def test_no_card_is_missed_where_one_is_required(found, lines, text, mode, verdict):
    """Each with what mends it."""
    said = found(*lines, mode=mode)
    assert said.verdict is verdict
    assert text in said.found
    assert said.mend


@pytest.fixture
def exporter():
    """Serves whatever a test has put into it."""
    answer = {"text": SCRAPE, "status": 200}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(answer["status"])
            self.end_headers()
            self.wfile.write(answer["text"].encode())

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    answer["endpoint"] = f"http://127.0.0.1:{server.server_port}/metrics"
    yield answer
    server.shutdown()
    server.server_close()
    thread.join()


def of_exporter(endpoint, **settings):
    """What is said of it."""
    return look(GpuConfig.model_validate({"source": "dcgm", "dcgm": {"endpoint": endpoint}, **settings}))


def test_an_exporter_that_answers(exporter):
    """With how many cards and instances it tells of."""
    said = of_exporter(exporter["endpoint"])
    assert (said.verdict, said.found, said.mend) == (Verdict.OK, f"{exporter['endpoint']}: 2 GPUs", "")


@pytest.mark.parametrize(
    ("answer", "text", "mend"),
    [
        ({"status": 503}, "503", "start dcgm-exporter"),
        ({"text": "no metrics {"}, "not in Prometheus's text format", "gpu.dcgm.endpoint"),
        ({"text": 'a{UUID="x", ="c"} 5'}, "not in Prometheus's text format", "gpu.dcgm.endpoint"),
        ({"text": "up 1\n"}, "no GPU", "DCGM_FI_DEV_FB_USED"),
    ],
)
def test_an_exporter_that_tells_nothing(exporter, answer, text, mend):
    """Another service's port, one that is starting, one without the counters."""
    exporter.update(answer)
    said = of_exporter(exporter["endpoint"])
    assert said.verdict is Verdict.OPTIONAL
    assert text in said.found
    assert mend in said.mend


def test_no_exporter():
    """Nobody listens: missed where one is required."""
    for mode, verdict in (("auto", Verdict.OPTIONAL), ("required", Verdict.MISSING)):
        said = of_exporter("http://127.0.0.1:9/metrics", mode=mode)
        assert said.verdict is verdict
        assert "refused" in said.found
