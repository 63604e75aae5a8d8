"""Discovery by the kernel's own news: late libraries, a thousand short-lived processes, nothing to do."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from otel_bridge.kernel import discovery
from otel_bridge.kernel.discovery import GATHER, Discovery
from otel_bridge.kernel.mappings import MappingNews
from tests.support.kernel import eventually, followed, monitoring

SHORT_LIVED = 1009


def test_mappings_of_another_process_are_told():
    """With the path and the process, by the kernel itself."""
    news = MappingNews()
    try:
        done = subprocess.Popen([sys.executable, "-c", "import _ctypes"])
        done.wait()
        found = [mapped for mapped in news.take(set()) if mapped.pid == done.pid]
    finally:
        news.close()
    assert any("_ctypes" in mapped.path for mapped in found)
    assert all(mapped.key[2] for mapped in found)


def test_a_library_that_is_loaded_late_is_found_at_once(publisher):
    """Long after the exec; no look was due."""
    code = f"import sys, ctypes; sys.stdin.readline(); ctypes.CDLL({str(publisher)!r}); sys.stdin.readline()"
    with (
        monitoring("sched", scan_interval="1h") as monitor,
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, text=True) as process,
    ):
        time.sleep(1.0)
        assert process.pid not in monitor.followed
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        followed(monitor, process.pid)
        assert process.pid in monitor.table_of_processes()
        process.communicate("\n")


@pytest.fixture
def looks(monkeypatch):
    """The processes that are looked at."""
    seen: list[int] = []
    look = Discovery._look

    def counting(self, pid, process, now):
        seen.append(pid)
        look(self, pid, process, now)

    monkeypatch.setattr(Discovery, "_look", counting)
    return seen


def test_a_thousand_short_lived_processes_cost_little(looks, worker):
    """None is looked at, none is left over, and one that publishes its spans is found among them."""
    with monitoring("sched", scan_interval="1h") as monitor:
        followed(monitor, worker.pid)
        looks.clear()
        script = f"i=0; while [ $i -lt {SHORT_LIVED} ]; do (:); i=$((i+1)); done; echo $$"
        done = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, text=True)
        shell = done.communicate()[0]
        assert int(shell) == done.pid
        time.sleep(2 * GATHER + discovery.AFTER_EXEC)
        mine = [pid for pid in looks if done.pid < pid <= done.pid + SHORT_LIVED]
        # Those that the scheduler kept waiting for longer than a new process is left alone.
        assert len(mine) < SHORT_LIVED // 20
        assert monitor.telemetry.registry.get_sample_value(
            "otel_bridge_kernel_dropped_events_total", {"probe": "process", "cpu": "0", "reason": "full"}
        ) in (0, None)
        eventually("nobody is left over", lambda: monitor.known_processes() < SHORT_LIVED)
        assert worker.pid in monitor.followed


def test_a_process_that_does_nothing_new_is_never_looked_at_again(looks, worker):
    """While others come and go."""
    with monitoring("sched", scan_interval="1h") as monitor:
        followed(monitor, worker.pid)
        time.sleep(1.0)
        looks.clear()
        for _ in range(7):
            subprocess.run(["true"], check=True)
            time.sleep(0.1)
        assert worker.pid not in looks
        assert worker.pid in monitor.followed


def test_new_processes_are_known_and_ended_ones_forgotten(worker):
    """Without a scan."""
    with monitoring("sched", scan_interval="1h") as monitor:
        followed(monitor, worker.pid)
        child = subprocess.Popen(["sleep", "30"])
        try:
            eventually("it is known", lambda: monitor.knows(child.pid))
        finally:
            child.kill()
            child.wait()
        eventually("it is forgotten", lambda: not monitor.knows(child.pid))
        assert worker.pid in monitor.followed
