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
EXPOSURE = {(): 1.3, ("kernel",): 3.0, ("gates",): 2.9, ("kernel", "gates"): 3.4}
"""What `systemd-analyze security` finds of the unit with these drop-ins; a service without any has 9.6."""
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
def test_monitors_find_what_is_to_be_scraped(name):
    """The Prometheus Operator's: each selects by labels that there are, and asks ports of that name."""
    documents = {(one["kind"], one["metadata"]["name"]): one for one in rendered(name)}
    (pods,) = [one for (kind, _), one in documents.items() if kind == "PodMonitor"]
    (services,) = [one for (kind, _), one in documents.items() if kind == "ServiceMonitor"]
    service = documents["Service", "otel-bridge"]
    template = documents["DaemonSet", "otel-bridge"]["spec"]["template"]
    ports = {port["name"] for one in template["spec"]["containers"] for port in one["ports"]}
    asked = {
        "pods": (pods["spec"]["podMetricsEndpoints"], pods, template["metadata"]["labels"], ports),
        "services": (
            services["spec"]["endpoints"],
            services,
            service["metadata"]["labels"],
            {port["name"] for port in service["spec"]["ports"]},
        ),
    }
    for endpoints, monitor, labels, known in asked.values():
        assert endpoints
        assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
        # A monitor looks in its own namespace; without one it would be the default of whoever applies it.
        assert monitor["metadata"].get("namespace") == service["metadata"]["namespace"]
        assert {one["port"] for one in endpoints} <= known
        assert all(one["interval"] == "15s" for one in endpoints), "rules are built for it"
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports


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


def analyzed(directory, drop_ins, *command):
    """What systemd-analyze says of the unit, with a program in the place of the bridge, and with drop-ins."""
    unit = directory / "otel-bridge.service"
    text = (DEPLOY / "systemd" / "otel-bridge.service").read_text()
    unit.write_text(text.replace("/opt/otel-bridge/bin/otel-bridge", "/bin/true"))
    folder = directory / "otel-bridge.service.d"
    folder.mkdir()
    for name in drop_ins:
        shutil.copy(DEPLOY / "systemd" / f"otel-bridge-{name}.conf", folder / f"{name}.conf")
    return subprocess.run(
        [needs_command("systemd-analyze", "systemd"), *command, unit],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "SYSTEMD_UNIT_PATH": f"{directory}:"},
    )


@pytest.mark.parametrize("drop_ins", EXPOSURE, ids=lambda found: "+".join(found) or "plain")
def test_the_unit_is_a_good_one(tmp_path, drop_ins):
    """By systemd's own check."""
    done = analyzed(tmp_path, drop_ins, "verify", "--man=no")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("drop_ins", EXPOSURE, ids=lambda found: "+".join(found) or "plain")
def test_the_unit_is_exposed_to_little(tmp_path, drop_ins):
    """By systemd's own reckoning, from 0 to 10: no line of the hardening goes unnoticed."""
    threshold = f"--threshold={EXPOSURE[drop_ins] * 10:.0f}"
    done = analyzed(tmp_path, drop_ins, "security", "--offline=true", "--no-pager", threshold)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", DROP_INS)
def test_a_drop_in_names_the_least_capabilities(name):
    """Those of kernel probes are those of the pod."""
    text = (DEPLOY / "systemd" / f"otel-bridge-{name}.conf").read_text()
    for key in ("CapabilityBoundingSet", "AmbientCapabilities"):
        (names,) = re.findall(rf"^{key}=(.*)$", text, re.MULTILINE)
        assert {found.removeprefix("CAP_") for found in names.split()} == DROP_INS[name]


def test_the_image_has_two_stages_and_no_tools():
    """What compiles stays behind; what is left is the environment that was made, and it is not root's."""
    text = (DEPLOY / "container" / "Containerfile").read_text().replace("\\\n", "")
    steps = [line.split(None, 1) for line in text.splitlines() if line and line[0] not in "# "]
    stages = [at for at, (word, _) in enumerate(steps) if word == "FROM"]
    assert len(stages) == 2
    assert steps[stages[0]][1].endswith(" AS build")
    last = steps[stages[1] :]
    copied = [rest for word, rest in last if word == "COPY"]
    assert copied == ["--from=build /opt/otel-bridge /opt/otel-bridge"]
    installed = " ".join(rest for word, rest in last if word == "RUN")
    assert not re.search(r"\b(gcc|clang|llvm|make|cargo\S*|rustc\S*|\S+-dev)\b", installed)
    (user,) = [rest for word, rest in last if word == "USER"]
    assert user == "10001:10001"
    assert {"USER", "ENTRYPOINT"} <= {word for word, _ in last}
    ignored = (ROOT / ".containerignore").read_text()
    assert ignored == (ROOT / ".dockerignore").read_text()
    assert {".git", ".venv", "tests"} <= set(ignored.split())


def test_the_compose_files_prometheus_is_a_good_one(tmp_path):
    """By promtool; where the container has rules, the bundle's are."""
    promtool = needs_command("promtool", "prometheus")
    text = (DEPLOY / "compose" / "prometheus.yaml").read_text()
    rules = ROOT / "alerts" / "generated" / "prometheus"
    config = tmp_path / "prometheus.yaml"
    config.write_text(text.replace("/etc/prometheus/rules", str(rules)))
    done = subprocess.run([promtool, "check", "config", config], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("rules found") == len([*rules.glob("*.yaml")])


def test_the_compose_files_bridge_takes_its_environment(monkeypatch):
    """And Prometheus has the token that its pages ask for."""
    document = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())
    for name, value in document["services"]["bridge"]["environment"].items():
        monkeypatch.setenv(name, value)
    metrics = load(ROOT / "collector-config" / "sidecar" / "bridge.yaml").service.telemetry.metrics
    assert str(metrics.endpoint) == "0.0.0.0:9464"
    (job,) = yaml.safe_load((DEPLOY / "compose" / "prometheus.yaml").read_text())["scrape_configs"]
    tokens = [token.get_secret_value() for token in metrics.auth.bearer_tokens]
    assert tokens == [job["authorization"]["credentials"]]


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
