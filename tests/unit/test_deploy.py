"""deploy/: rendered as users render it, held to Kubernetes's schemas, and to least privilege."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

import kubernetes_validate
import pytest
import yaml

from otel_bridge import __version__
from otel_bridge.settings import load
from tests.support.processes import ROOT, collector_binary, needs_command

DEPLOY = ROOT / "deploy"
KUBERNETES = ("1.29", "1.31", "1.33")
KERNEL = {"BPF", "PERFMON", "SYS_PTRACE", "DAC_READ_SEARCH", "CHECKPOINT_RESTORE"}
"""Of the kernel component; otel_bridge/kernel/README.md says what each is for."""
NEEDED = {"node-agent": set(), "node-agent-kernel": KERNEL, "node-agent-gates": KERNEL | {"NET_ADMIN"}}
DROP_INS = {
    "kernel": KERNEL,
    "gates": {"BPF", "PERFMON", "NET_ADMIN", "SYS_PTRACE", "DAC_READ_SEARCH"},
}
"""Of the systemd unit; tests/kernel/test_gate_privileges.py tries those of gates."""
VARIANTS = tuple(NEEDED)
OPERATORS = {"PodMonitor", "ServiceMonitor"}
"""Kinds whose schemas are their operators', not Kubernetes's."""

variant = pytest.mark.parametrize("name", VARIANTS)


def rendered(name):
    """What `kubectl apply -k` would send."""
    kubectl = needs_command("kubectl", "kubernetes-client")
    done = subprocess.run(
        [kubectl, "kustomize", DEPLOY / "kubernetes" / name], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def daemon_set(name):
    (found,) = [one for one in rendered(name) if one["kind"] == "DaemonSet"]
    return found["spec"]["template"]["spec"]


@variant
def test_manifests_hold_to_the_schemas(name):
    """Of several Kubernetes versions, without unknown fields."""
    documents = rendered(name)
    assert {one["kind"] for one in documents} >= {"DaemonSet", "Service", "ConfigMap", *OPERATORS}
    for document in documents:
        if document["kind"] not in OPERATORS:
            for version in KUBERNETES:
                kubernetes_validate.validate(document, version, strict=True)


def test_a_wrong_manifest_would_be_noticed():
    """The schemas are really asked."""
    (wrong,) = [one for one in rendered("node-agent") if one["kind"] == "DaemonSet"]
    wrong["spec"]["template"]["spec"]["hostPIDs"] = True
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, KUBERNETES[0], strict=True)


@variant
def test_every_container_has_the_least_it_needs(name):
    """No capabilities but the probes', nothing writable but volumes, the runtime's seccomp profile."""
    pod = daemon_set(name)
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert pod.get("hostPID", False) is bool(NEEDED[name])
    assert not pod.get("hostNetwork", False)
    for container in pod["containers"]:
        allowed = NEEDED[name] if container["name"] == "bridge" else set()
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert context["capabilities"]["drop"] == ["ALL"]
        assert set(context["capabilities"].get("add", [])) == allowed
        assert not context.get("privileged", False)
        assert context.get("runAsNonRoot", pod["securityContext"]["runAsNonRoot"]) is not bool(allowed)
        assert "memory" in container["resources"]["limits"]


@variant
def test_the_supervisor_is_more_patient_than_the_bridge(name):
    """What is in flight is delivered before SIGKILL."""
    drain = load(DEPLOY / "kubernetes" / "base" / "bridge.yaml").service.drain_timeout
    assert daemon_set(name)["terminationGracePeriodSeconds"] > drain
    unit = (DEPLOY / "systemd" / "otel-bridge.service").read_text()
    (seconds,) = re.findall(r"^TimeoutStopSec=(\d+)s$", unit, re.MULTILINE)
    assert int(seconds) > drain


@pytest.mark.parametrize("name", ["bridge.yaml", "collector.yaml"])
def test_the_node_agents_files_are_those_of_collector_config(name):
    """Kustomize reads nothing above its folder, so they are there twice."""
    ours = (DEPLOY / "kubernetes" / "base" / name).read_text()
    assert ours == (ROOT / "collector-config" / "node-agent" / name).read_text()


@variant
def test_the_bridge_takes_its_environment(name, monkeypatch):
    """Its file and the variables of its container make a good configuration."""
    (bridge,) = [one for one in daemon_set(name)["containers"] if one["name"] == "bridge"]
    for variable in bridge["env"]:
        value = variable.get("value", "10.0.0.7").replace("$(POD_IP)", "10.0.0.7")
        monkeypatch.setenv(variable["name"], value)
    settings = load(DEPLOY / "kubernetes" / "base" / "bridge.yaml")
    assert settings.kernel.mode == ("auto" if NEEDED[name] else "off")
    assert settings.control.enabled is (name == "node-agent-gates")
    assert str(settings.service.telemetry.metrics.endpoint) == "10.0.0.7:9464"


def test_gates_find_a_place_for_their_pins_and_their_socket(monkeypatch):
    """Both are on volumes that can be written; bpffs is the node's own, and of all variants theirs alone."""
    pod = daemon_set("node-agent-gates")
    (bridge,) = [one for one in pod["containers"] if one["name"] == "bridge"]
    writable = {one["mountPath"]: one["name"] for one in bridge["volumeMounts"] if not one.get("readOnly")}
    for variable in bridge["env"]:
        monkeypatch.setenv(variable["name"], variable.get("value", "10.0.0.7"))
    control = load().control
    places = [control.actions.pins, control.operators.socket]
    assert all(any(place.is_relative_to(mount) for mount in writable) for place in places)
    (volume,) = [one for one in pod["volumes"] if one["name"] == writable["/sys/fs/bpf"]]
    assert volume["hostPath"] == {"path": "/sys/fs/bpf", "type": "Directory"}
    for name in ("node-agent", "node-agent-kernel"):
        assert "/sys/fs/bpf" not in str(daemon_set(name))


@pytest.mark.collector
def test_the_operators_collector_is_a_good_one(tmp_path):
    """Its configuration, by the Collector itself; the bridge beside it is least privileged."""
    document = yaml.safe_load((DEPLOY / "kubernetes" / "opentelemetry-collector.yaml").read_text())
    config = tmp_path / "collector.yaml"
    config.write_text(yaml.safe_dump(document["spec"]["config"]))
    done = subprocess.run(
        [collector_binary(), "validate", f"--config={config}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (bridge,) = document["spec"]["additionalContainers"]
    assert bridge["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_images_are_named_alike():
    """One version of the bridge, and the Collector that the configurations are tested with."""
    manifest = yaml.safe_load((ROOT / "collector-config" / "manifest.yaml").read_text())
    texts = "\n".join(path.read_text() for path in DEPLOY.rglob("*.yaml"))
    assert set(re.findall(r"image: otel-bridge:(\S+)", texts)) == {__version__}
    collectors = set(re.findall(r"image: otel/opentelemetry-collector-contrib:(\S+)", texts))
    assert collectors == {manifest["dist"]["version"]}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize(
    "drop_ins",
    [(), ("kernel",), ("gates",), ("kernel", "gates")],
    ids=lambda found: "+".join(found) or "plain",
)
def test_the_unit_is_a_good_one(tmp_path, drop_ins):
    """By systemd's own check, with a program in the place of the bridge, and with the drop-ins."""
    unit = tmp_path / "otel-bridge.service"
    text = (DEPLOY / "systemd" / "otel-bridge.service").read_text()
    unit.write_text(text.replace("/opt/otel-bridge/bin/otel-bridge", "/bin/true"))
    folder = tmp_path / "otel-bridge.service.d"
    folder.mkdir()
    for name in drop_ins:
        shutil.copy(DEPLOY / "systemd" / f"otel-bridge-{name}.conf", folder / f"{name}.conf")
    environment = {**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:"}
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", unit],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", DROP_INS)
def test_a_drop_in_names_the_least_capabilities(name):
    """Those of kernel probes are those of the pod."""
    text = (DEPLOY / "systemd" / f"otel-bridge-{name}.conf").read_text()
    for key in ("CapabilityBoundingSet", "AmbientCapabilities"):
        (names,) = re.findall(rf"^{key}=(.*)$", text, re.MULTILINE)
        assert {found.removeprefix("CAP_") for found in names.split()} == DROP_INS[name]


def test_the_compose_file_mounts_what_there_is():
    """Every file of this tree that it names exists; bundle/ is what `otel-bridge bundle` writes."""
    folder = DEPLOY / "compose"
    document = yaml.safe_load((folder / "compose.yaml").read_text())
    mounts = [
        volume.split(":")[0]
        for service in document["services"].values()
        for volume in service.get("volumes", [])
        if volume.startswith(".")
    ]
    assert len(mounts) == 7
    for mount in mounts:
        assert mount.startswith("./bundle/") or (folder / mount).exists(), mount
    assert document["services"]["bridge"]["cap_drop"] == ["ALL"]
