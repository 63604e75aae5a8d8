"""A whole bridge with a gate: it has given its privileges up, and an operator opens the breaker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from otel_bridge import catalog
from otel_bridge.control.gate.attachment import sweep
from otel_bridge.libbpf.library import Library
from tests.support.gates import service
from tests.support.kernel import eventually
from tests.support.processes import Bridge, running

PRIME = 53


def configuration(directory, pins):
    """A gate on a process with a name of this test's own; probes, so that privileges are dropped."""
    probes = {name: {"enabled": False} for name in ("sched", "block", "memory", "tls", "user", "requests")}
    return {
        "kernel": {"mode": "auto", "probes": probes},
        "control": {
            "enabled": True,
            "state": {"file": str(directory / "control.sqlite")},
            "operators": {"socket": str(directory / "control.sock")},
            "decisions": {"http": {"enabled": False}},
            "actions": {
                "pins": str(pins),
                "scan_interval": 0.1,
                "gates": {
                    "llama": {
                        "targets": ["llama"],
                        "process": f"*gate-service-{os.getpid()}*",
                        # On a busy machine a killed process takes its time to end, and another one to start.
                        "lease": "10m",
                    }
                },
            },
        },
    }


def order(bridge, *arguments):
    """One of `otel-bridge breaker`."""
    command = [sys.executable, "-m", "otel_bridge", "breaker", "-c", str(bridge.config), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_an_operator_shuts_the_gate_and_it_stays_shut_over_a_crash(tmp_path, bpffs):
    """The service comes after the bridge, whose main thread can attach nothing any more."""
    pins = bpffs / "gates"
    bridge = Bridge(tmp_path, configuration(tmp_path, pins))
    with running(bridge), service(name=f"gate-service-{os.getpid()}") as guarded:
        gauge = catalog.CONTROL_GATE_NAMESPACES.name
        eventually("it is guarded", lambda: bridge.total(gauge, gate="llama") == 1)
        order(bridge, "open", "llama", "--for", "10m", "--reason", "test")
        assert guarded.knock(PRIME) == {"refused": PRIME}
        assert "privileges dropped" in bridge.output()
        refused = catalog.CONTROL_GATE_CONNECTIONS.name + "_total"
        eventually("it is counted", lambda: bridge.total(refused, result="refused") == PRIME)
        bridge.stop(signal.SIGKILL)
        assert guarded.knock(PRIME) == {"refused": PRIME}
        with running(Bridge(tmp_path, configuration(tmp_path, pins))) as again:
            assert guarded.knock(PRIME) == {"refused": PRIME}
            assert "taken_over" in again.output()
            order(again, "close", "llama", "--reason", "test")
            assert guarded.knock(PRIME) == {"admitted": PRIME}
            history = order(again, "history", "llama", "--json")
    assert '"actor":"llama"' in history.replace(" ", "")
    sweep(Library(), pins)
    assert not list(pins.iterdir())
    pins.rmdir()
