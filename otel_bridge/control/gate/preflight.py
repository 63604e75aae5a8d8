"""What this machine lets gates do, for `otel-bridge doctor`."""

from __future__ import annotations

import errno
from contextlib import closing
from typing import TYPE_CHECKING

from otel_bridge.control.gate.attachment import ALLOCATIONS, INGRESS, KILLS, LOOKUP
from otel_bridge.control.gate.namespaces import Processes, find
from otel_bridge.findings import Finding, Verdict
from otel_bridge.libbpf import BUILD_COMMAND, OBJECTS
from otel_bridge.libbpf.core_object import Object
from otel_bridge.libbpf.library import LibbpfError, Library
from otel_bridge.mounts import mounts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_bridge.control.actions.config import ActionsConfig
    from otel_bridge.control.gate.config import GateConfig

_GIVES = {
    LOOKUP: "new connections are refused with a reset",
    INGRESS: "instead of it: new connections are dropped in silence",
    KILLS: "the kernel trips by itself after OOM kills",
    ALLOCATIONS: "the kernel trips by itself after failed allocations of a library",
}
_SUBJECTS = {
    LOOKUP: "sk_lookup",
    INGRESS: "cgroup_skb",
    KILLS: "OOM kills",
    ALLOCATIONS: "failed allocations",
}
_CAPABILITIES = "run as root, or in the systemd unit: AmbientCapabilities=CAP_BPF CAP_PERFMON CAP_NET_ADMIN"


def look(config: ActionsConfig) -> tuple[Finding, ...]:
    """One finding for each program, loaded in earnest and thrown away, and one for each gate."""
    gates = config.gates.values()
    processes = Processes()
    wanted = {
        LOOKUP: any(gate.mechanism != "cgroup" for gate in gates),
        INGRESS: any(gate.mechanism == "cgroup" for gate in gates),
        KILLS: any(gate.kills is not None for gate in gates),
        ALLOCATIONS: any(gate.kills is not None and gate.kills.allocations is not None for gate in gates),
    }
    return (
        *(_program(name, wanted) for name in wanted),
        _pins(config),
        *(_gate(name, gate, processes) for name, gate in config.gates.items()),
    )


def _program(name: str, wanted: Mapping[str, bool]) -> Finding:
    try:
        _load(name)
    except LibbpfError as error:
        verdict = Verdict.MISSING if wanted[name] else Verdict.OPTIONAL
        return Finding(_SUBJECTS[name], verdict, str(error), _GIVES[name], _mend(error))
    return Finding(_SUBJECTS[name], Verdict.OK, "the kernel takes it", _GIVES[name])


def _load(name: str) -> None:
    with closing(Object(Library(), OBJECTS / "gate.bpf.o")) as loaded:
        for other in _GIVES.keys() - {name}:
            loaded.leave_out(other)
        loaded.load()


def _mend(error: LibbpfError) -> str:
    if not (OBJECTS / "gate.bpf.o").exists():
        return BUILD_COMMAND
    if error.errno in {errno.EPERM, errno.EACCES}:
        return _CAPABILITIES
    return "boot Linux 5.12 or later (5.15 for failed allocations, 6.8 for OOM kills)"


def _pins(config: ActionsConfig) -> Finding:
    purpose = "gates outlive a restart of the bridge"
    if config.pins is None:
        return Finding("pins", Verdict.OFF, "control.actions.pins: null", purpose)
    if any(config.pins.is_relative_to(mount) for mount in mounts("bpf")):
        return Finding("pins", Verdict.OK, str(config.pins), purpose)
    return Finding(
        "pins",
        Verdict.MISSING if config.gates else Verdict.OPTIONAL,
        f"no bpffs at {config.pins}",
        purpose,
        "mount -t bpf bpf /sys/fs/bpf",
    )


def _gate(name: str, config: GateConfig, processes: Processes) -> Finding:
    purpose = f"gate {name} for {', '.join(config.targets)}"
    found = find(config, processes)
    if found.missing:
        return Finding(
            f"gate {name}",
            Verdict.PARTIAL,
            found.missing,
            purpose,
            f"start the service, or correct control.actions.gates.{name}",
        )
    places = ", ".join(str(namespace.path) for namespace in found.namespaces.values())
    return Finding(
        f"gate {name}", Verdict.OK, f"{len(found.namespaces)} network namespaces: {places}", purpose
    )
