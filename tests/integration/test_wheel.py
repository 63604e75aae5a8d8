"""What a user installs: a wheel, in an empty environment, away from this tree; made as the image makes it."""

from __future__ import annotations

import fnmatch
import os
import shutil
import subprocess
import sys
import urllib.request
import zipfile
from contextlib import closing
from pathlib import Path

import grpc
import pytest

from otel_bridge import catalog
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


def probes_load() -> bool:
    """Whether BPF objects can be loaded here at all."""
    return os.geteuid() == 0 and Path("/sys/kernel/btf/vmlinux").exists()


def build_context(folder: Path) -> None:
    """What a container engine is handed of a clean checkout: all but what `.containerignore` names."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    patterns = (ROOT / ".containerignore").read_text().split()
    anywhere = [one.removeprefix("**/") for one in patterns if one.startswith("**/")]
    for name in filter(None, listed.stdout.split("\0")):
        first, *others = Path(name).parts
        left_out = any(fnmatch.fnmatch(first, one) for one in patterns)
        left_out |= any(fnmatch.fnmatch(part, one) for one in anywhere for part in (first, *others))
        # Somebody else at work may just have removed it.
        if not left_out and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)


def build_command(environment: Path, wheels: Path) -> str:
    """What the image's first stage runs in its context, with other places for what it makes."""
    text = (ROOT / "deploy" / "container" / "Containerfile").read_text().replace("\\\n", "")
    (stage,) = [part for part in text.split("FROM ") if " AS build" in part]
    (command,) = [
        line.removeprefix("RUN ")
        for line in stage.partition("COPY . .")[2].splitlines()
        if line.startswith("RUN ")
    ]
    return command.replace("/opt/otel-bridge", str(environment)).replace("/wheels", str(wheels))


@pytest.mark.slow
def test_a_wheel_installs_and_runs_in_an_empty_environment(tmp_path):
    """Built, installed with its dependencies, checked, run; a span goes through the native codec."""
    source, built, environment = tmp_path / "source", tmp_path / "wheels", tmp_path / "venv"
    build_context(source)
    assert not (source / "otel_bridge" / "kernel" / "objects").exists(), "the build must make them"
    done = subprocess.run(
        ["bash", "-c", build_command(environment, built)],
        cwd=source,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            # What was compiled before is not compiled again.
            "CARGO_TARGET_DIR": str(ROOT / "otel_bridge" / "_native" / "target"),
        },
    )
    assert done.returncode == 0, done.stdout[-4000:]
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

    shutil.rmtree(source)
    command = environment / "bin" / "otel-bridge"

    def said(*arguments: str) -> str:
        done = subprocess.run([command, *arguments], check=True, capture_output=True, text=True, cwd=tmp_path)
        return done.stdout

    assert "good" in said("check")
    assert "31 rules in 6 files: good" in said("rules", "check")
    said("bundle", "bundle")
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
            "kernel.mode": "required" if probes_load() else "off",
        }
        arguments = [f"--set={key}={value}" for key, value in overrides.items()]
        with running(Process([str(command), "run", *arguments], tmp_path / "log")) as bridge:
            bridge.wait_for_http(f"http://127.0.0.1:{metrics_port}/readyz")
            with closing(grpc.insecure_channel(f"127.0.0.1:{grpc_port}")) as channel:
                channel.unary_unary(f"/{SERVICES['traces']}/Export")(trace_request([{}] * 3), timeout=10)
            pages = f"http://127.0.0.1:{metrics_port}"
            for path in ("/ui", "/ui/runbook", f"/ui/trace/{1:032x}", "/ui/static/style.css"):
                bridge.wait_for_http(pages + path)
            with urllib.request.urlopen(f"{pages}/metrics", timeout=30) as answer:
                metrics = answer.read().decode()
            assert f'{catalog.RULES_LOADED.name}{{engine="both"}} 21.0' in metrics
            loaded = f'{catalog.KERNEL_PROBE_LOADED.name}{{probe="tcp"}} 1.0'
            assert (loaded in metrics) is probes_load()
            assert bridge.stop() == 0
        assert len(sink.spans()) == 3
