"""What the bridge holds and loads when it may not, or shall not: whichever back end would."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from otel_bridge.kernel.config import KernelConfig
from otel_bridge.libbpf import uprobe_multi
from tests.support.kernel import ROOT, Monitor

PRIME = 23


def test_privileges_are_given_up_after_loading_and_reading_goes_on(closed_port):
    """In a process of its own, since what is given up is gone."""
    code = f"""
import json, os, socket
from otel_bridge.kernel import privileges
from otel_bridge.model import KernelEventKind
from tests.support.kernel import Monitor, config
monitor = Monitor(config("tcp", drop_privileges=True))
monitor.open()
for _ in range({PRIME}):
    with socket.socket() as client:
        client.connect_ex(("127.0.0.1", {closed_port}))
monitor.close()
seen = len(monitor.events.of(KernelEventKind.TCP_CONNECT, tgid=os.getpid()))
held = sorted(privileges.name_of(number) for number in privileges.effective())
try:
    monitor.open()
    again = "loaded"
except Exception as error:
    again = str(error)
print(json.dumps([seen, held, again]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    seen, held, again = json.loads(done.stdout.splitlines()[-1])
    assert seen == PRIME
    assert held == ["CAP_DAC_READ_SEARCH", "CAP_SYS_PTRACE"]
    assert "EPERM" in again


def test_switched_off_nothing_is_loaded():
    """And nothing is asked of the machine."""
    monitor = Monitor(KernelConfig(mode="off"))
    monitor.open()
    assert monitor.states == {}
    monitor.close()


def test_libraries_of_later_processes_are_covered_without_privileges_over_the_kernel(tmp_path):
    """A libssl that nobody had mapped when they were given up, by links of their own kind."""
    if not uprobe_multi.available():
        pytest.skip("needs Linux 6.6: uprobes as links of their own kind")
    library = tmp_path / "libssl.so.3.later"
    code = f"""
import json, shutil, ssl, subprocess, sys
from otel_bridge.kernel import privileges
from tests.support.kernel import Monitor, config, covers
from tests.support.processes import eventually
[mapped] = {{line.split()[-1] for line in open("/proc/self/maps") if "/libssl" in line}}
monitor = Monitor(config("tls", drop_privileges=True))
monitor.open()
held = sorted(privileges.name_of(number) for number in privileges.effective())
shutil.copy(mapped, {str(library)!r})
load = "import ctypes, sys; ctypes.CDLL({str(library)!r}); print(flush=True); sys.stdin.read()"
with subprocess.Popen([sys.executable, "-c", load], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
    process.stdout.readline()
    eventually("it is covered", lambda: covers(monitor, "tls", process.pid, {library.name!r}))
    process.stdin.close()
monitor.close()
print(json.dumps(held))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    held = json.loads(done.stdout.splitlines()[-1])
    assert held == ["CAP_CHECKPOINT_RESTORE", "CAP_DAC_READ_SEARCH", "CAP_SYS_PTRACE"]
