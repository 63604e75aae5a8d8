"""What a user installs: a wheel, in an empty environment, away from this tree."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from contextlib import closing

import grpc
import pytest

from otel_bridge.bundle.bundle import bundle, drift
from otel_bridge.testing import trace_request
from tests.support.ports import free_port
from tests.support.processes import ROOT, Process, running
from tests.support.sinks import SERVICES, GrpcSink

SHIPPED = {
    "otel_bridge/kernel/objects": "*.bpf.o",
    "dashboards/generated": "*.json",
    "alerts/generated": "*.yaml",
    "alerts/rules": "*.yaml",
    "collector-config": "bridge.yaml",
    "otel_bridge/ui/templates": "*.html",
    "otel_bridge/ui/static": "*",
    "otel_bridge/control/gateways": "*",
}
"""What a wheel has beside its modules, by the folder that it comes from."""


@pytest.mark.slow
def test_a_wheel_installs_and_runs_in_an_empty_environment(tmp_path):
    """Built, installed with its dependencies, checked, run; a span goes through the native codec."""
    pip = ["-m", "pip", "--disable-pip-version-check", "-q"]
    built = tmp_path / "dist"
    subprocess.run(
        [sys.executable, *pip, "wheel", "--no-deps", "--no-build-isolation", "-w", built, ROOT],
        check=True,
        cwd=tmp_path,
    )
    (wheel,) = built.glob("otel_bridge-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert any(name.startswith("otel_bridge/_native/wire") and name.endswith(".so") for name in names)
    assert any(name.startswith("otel_bridge/context/_record") and name.endswith(".so") for name in names)
    for folder, pattern in SHIPPED.items():
        shipped = {path.relative_to(ROOT / folder).as_posix() for path in (ROOT / folder).rglob(pattern)}
        assert len(shipped) > 1, folder
        place = folder if folder.startswith("otel_bridge/") else f"otel_bridge/bundle/shipped/{folder}"
        assert {f"{place}/{name}" for name in shipped} <= set(names), folder
    assert "otel_bridge/bundle/shipped/alerts/runbook.md" in names
    assert not [name for name in names if name.startswith(("tests/", "demo/")) or "/target/" in name]

    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    subprocess.run(
        [python, *pip, "install", "-c", ROOT / "requirements.lock", wheel], check=True, cwd=tmp_path
    )
    command = python.with_name("otel-bridge")
    assert (
        "good"
        in subprocess.run([command, "check"], check=True, capture_output=True, text=True, cwd=tmp_path).stdout
    )

    subprocess.run([command, "bundle", tmp_path / "bundle"], check=True, capture_output=True, cwd=tmp_path)
    assert drift(tmp_path / "bundle", bundle()) == []

    grpc_port, http_port, metrics_port = free_port(), free_port(), free_port()
    with GrpcSink() as sink:
        overrides = {
            "receivers.otlp.protocols.grpc.endpoint": f"127.0.0.1:{grpc_port}",
            "receivers.otlp.protocols.http.endpoint": f"127.0.0.1:{http_port}",
            "service.telemetry.metrics.endpoint": f"127.0.0.1:{metrics_port}",
            "service.codec": "native",
            "exporters": f"{{otlp: {{endpoint: '127.0.0.1:{sink.port}'}}}}",
            "storage.directory": str(tmp_path / "queue"),
            "kernel.mode": "off",
        }
        arguments = [f"--set={key}={value}" for key, value in overrides.items()]
        with running(Process([str(command), "run", *arguments], tmp_path / "log")) as bridge:
            bridge.wait_for_http(f"http://127.0.0.1:{metrics_port}/readyz")
            with closing(grpc.insecure_channel(f"127.0.0.1:{grpc_port}")) as channel:
                channel.unary_unary(f"/{SERVICES['traces']}/Export")(trace_request([{}] * 3), timeout=10)
            for path in ("/ui", f"/ui/trace/{1:032x}", "/ui/static/style.css"):
                bridge.wait_for_http(f"http://127.0.0.1:{metrics_port}{path}")
            assert bridge.stop() == 0
        assert len(sink.spans()) == 3
