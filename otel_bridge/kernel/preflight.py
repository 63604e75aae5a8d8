"""What this machine lets the probes do, and what would mend the rest.

`survey` looks at the machine, `judge` draws conclusions from what was seen: data in, data out.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from otel_bridge import psi
from otel_bridge.findings import Finding, Verdict
from otel_bridge.kernel import bcc, openssl, privileges
from otel_bridge.kernel.backend import BTF, accounts, tracepoints
from otel_bridge.kernel.backend import choose as choose_backend
from otel_bridge.kernel.kernel_symbols import traced
from otel_bridge.kernel.loader import choose, object_path
from otel_bridge.kernel.openssl import Coverage, OpensslFile
from otel_bridge.kernel.probes import PROBES, is_wanted
from otel_bridge.libbpf import BUILD_COMMAND
from otel_bridge.libbpf.library import LibbpfError, Library
from otel_bridge.mounts import PROC, mounts

if TYPE_CHECKING:
    from pathlib import Path

    from otel_bridge.kernel.backend import Choice
    from otel_bridge.kernel.bcc import Headers
    from otel_bridge.kernel.config import KernelConfig
    from otel_bridge.kernel.probes.base import Probe

MINIMUM_KERNEL = (5, 12)
"""Compare-and-exchange in programs; task storage and the current task in tracing programs came before."""

_INITIAL_PID_NAMESPACE = 0xEFFFFFFC  # include/linux/proc_ns.h: PROC_PID_INIT_INO


@dataclass(frozen=True, slots=True)
class Machine:
    """What was seen.

    Attributes:
        release: of the kernel, as `uname -r` says it.
        btf: the kernel tells its types.
        tracefs: where it is mounted; empty when nowhere.
        bpffs: the same.
        capabilities: numbers of those held.
        libbpf: its version; empty when it cannot be used.
        libbpf_error: why it cannot.
        bcc: its version; empty when it is not there.
        headers: of a kernel, for BCC; None when there are none.
        initial_pid_namespace: processes have the same numbers here as in the kernel.
        tracepoints: of all that the probes ask for, which there are; empty when that cannot be told.
        accounts: programs can read what the scheduler accounts of threads.
        objects: names of the probes whose object is built.
        openssl: the files with OpenSSL that running processes have mapped.
        unreadable: processes that could not be looked into.
        pressure: the kernel counts how long tasks wait for memory.
    """

    release: str
    btf: bool = True
    tracefs: str = ""
    bpffs: str = ""
    capabilities: frozenset[int] = frozenset()
    libbpf: str = ""
    libbpf_error: str = ""
    bcc: str = ""
    headers: Headers | None = None
    initial_pid_namespace: bool = True
    tracepoints: dict[str, bool] = field(default_factory=dict)
    accounts: bool = False
    objects: frozenset[str] = frozenset()
    openssl: tuple[OpensslFile, ...] = ()
    unreadable: int = 0
    pressure: bool = True

    @property
    def version(self) -> tuple[int, int]:
        """Major and minor version of the kernel."""
        match = re.match(r"(\d+)\.(\d+)", self.release)
        return (int(match[1]), int(match[2])) if match else (0, 0)


@dataclass(frozen=True, slots=True)
class Report:
    """What `otel-bridge doctor` tells about the kernel.

    Attributes:
        machine: one finding for each thing that probes stand on.
        probes: one finding for each probe.
        openssl: one finding for each file with OpenSSL; `needed` names the processes that use it.
    """

    machine: tuple[Finding, ...]
    probes: tuple[Finding, ...]
    openssl: tuple[Finding, ...] = ()

    @property
    def ready(self) -> bool:
        """Whether every probe that is wanted can work, if perhaps in part."""
        return all(finding.verdict is not Verdict.MISSING for finding in self.probes)

    def as_dict(self) -> dict[str, Any]:
        """The report for `--json`."""
        return {
            "ready": self.ready,
            "machine": [finding.as_dict() for finding in self.machine],
            "probes": [finding.as_dict() for finding in self.probes],
            "openssl": [finding.as_dict() for finding in self.openssl],
        }


# Looking


def survey(proc: Path = PROC, *, headers: str = "") -> Machine:
    """Look at this machine; needs no privileges, and sees less without them.

    Args:
        proc: where procfs is mounted.
        headers: `kernel.bcc.headers` of the configuration.
    """
    version, error, tracepoints, told = _libbpf()
    openssl_files, unreadable = openssl.survey(proc)
    module = bcc.find_module()
    release = os.uname().release
    return Machine(
        release=release,
        btf=BTF.exists(),
        tracefs=_first("tracefs", proc),
        bpffs=_first("bpf", proc),
        capabilities=privileges.effective(),
        libbpf=version,
        libbpf_error=error,
        bcc=module.version if module else "",
        headers=bcc.find_headers(release, headers),
        initial_pid_namespace=(proc / "self/ns/pid").stat().st_ino == _INITIAL_PID_NAMESPACE,
        tracepoints=tracepoints,
        accounts=told,
        objects=frozenset(probe.name for probe in PROBES if object_path(probe).exists()),
        openssl=openssl_files,
        unreadable=unreadable,
        pressure=psi.read(proc / "pressure" / "memory") is not None,
    )


def _libbpf() -> tuple[str, str, dict[str, bool], bool]:
    try:
        library = Library()
    except LibbpfError as error:
        return "", str(error), {}, False
    names = sorted({program.tracepoint for probe in PROBES for program in probe.programs})
    try:
        return library.version, "", tracepoints(library, names), accounts(library)
    except LibbpfError:  # no BTF, which is a finding of its own
        return library.version, "", traced(names), False


def _first(kind: str, proc: Path) -> str:
    return next(map(str, mounts(kind, proc)), "")


# Judging


def judge(machine: Machine, config: KernelConfig) -> Report:
    """What a machine's state means for the probes of a configuration."""
    return Report(
        tuple(_machine_findings(machine, config)),
        tuple(_probe_finding(probe, machine, config) for probe in PROBES),
        tuple(_openssl_finding(file) for file in machine.openssl),
    )


def _machine_findings(machine: Machine, config: KernelConfig) -> list[Finding]:
    choice = choose_backend(config, btf=machine.btf)
    new_enough = machine.version >= MINIMUM_KERNEL
    needed = ".".join(map(str, MINIMUM_KERNEL))
    return [
        Finding(
            "kernel",
            Verdict.OK if new_enough else Verdict.MISSING,
            machine.release,
            f"{needed} or later; 6.3 to find spans through sockets",
            "" if new_enough else "boot a kernel of the distribution's next release",
        ),
        Finding("back end", Verdict.OK, choice.name, choice.reason),
        Finding(
            "BTF",
            _verdict(machine.btf, needed=choice.name == "libbpf"),
            str(BTF) if machine.btf else "none",
            "libbpf: the kernel's own types, so that objects fit every kernel",
            "" if machine.btf else _BTF_KERNEL,
        ),
        _library(machine),
        *(_capability(need, machine.capabilities) for need in privileges.NEEDS),
        Finding(
            "pid namespace",
            Verdict.OK if machine.initial_pid_namespace else Verdict.MISSING,
            "the initial one" if machine.initial_pid_namespace else "a nested one",
            "processes numbered as the kernel numbers them",
            "" if machine.initial_pid_namespace else "set hostPID: true (Kubernetes), --pid=host (docker)",
        ),
        _mount("tracefs", machine.tracefs, "/sys/kernel/tracing", "tools beside the probes"),
        _mount("bpf", machine.bpffs, "/sys/fs/bpf", "pinned maps: the gate, other agents' contexts"),
        Finding(
            "BCC",
            _verdict(bool(machine.bcc), needed=choice.name == "bcc"),
            machine.bcc or "none",
            "kernels without BTF only",
            "" if machine.bcc else bcc.INSTALL,
        ),
        _headers(machine, choice),
        Finding(
            "PSI",
            Verdict.OK if machine.pressure else Verdict.OPTIONAL,
            "/proc/pressure/memory" if machine.pressure else "none",
            "memory pressure of the machine and of cgroups",
            "" if machine.pressure else "boot with psi=1 (Linux 4.20 or later, CONFIG_PSI=y)",
        ),
        Finding(
            "OpenSSL",
            Verdict.OK if machine.openssl else Verdict.OPTIONAL,
            _openssl_in_all(machine.openssl),
            "TLS handshakes",
        ),
        Finding(
            "processes",
            Verdict.PARTIAL if machine.unreadable else Verdict.OK,
            f"{machine.unreadable} cannot be looked into" if machine.unreadable else "all can be looked into",
            "finding where threads keep their span",
            f"sudo setcap {_SETCAP} $(readlink -f $(command -v python3))" if machine.unreadable else "",
        ),
    ]


_BTF_KERNEL = "boot a kernel with CONFIG_DEBUG_INFO_BTF=y"


def _verdict(found: bool, *, needed: bool) -> Verdict:  # noqa: FBT001 (what the verdict is on)
    if found:
        return Verdict.OK
    return Verdict.MISSING if needed else Verdict.OPTIONAL


def _headers(machine: Machine, choice: Choice) -> Finding:
    headers = machine.headers
    found = "none" if headers is None else f"{headers.path} ({headers.release or 'of unknown release'})"
    fit = bcc.fit(headers, machine.release)
    return Finding(
        "kernel headers",
        _verdict(fit, needed=choice.name == "bcc"),
        found,
        f"BCC: those of {machine.release}",
        "" if fit else f"{bcc.INSTALL}, or set kernel.bcc.headers",
    )


def _openssl_in_all(files: tuple[OpensslFile, ...]) -> str:
    covered = sum(file.coverage.covered for file in files)
    return f"{covered} of {len(files)} files are covered" if files else "no running process uses it"


def _openssl_finding(file: OpensslFile) -> Finding:
    if file.coverage.covered:
        return Finding(file.path, Verdict.OK, file.coverage.value, ", ".join(file.processes))
    mend = {
        Coverage.STRIPPED: "not coverable as it is; build it without strip, or link it to libssl.so",
        Coverage.UNREADABLE: "run as root, or with CAP_DAC_READ_SEARCH and CAP_SYS_PTRACE",
    }[file.coverage]
    return Finding(file.path, Verdict.MISSING, file.coverage.value, ", ".join(file.processes), mend)


_SETCAP = ",".join(privileges.name_of(need.capability).lower() for need in privileges.NEEDS) + "+ep"


def _library(machine: Machine) -> Finding:
    if machine.libbpf:
        return Finding("libbpf", Verdict.OK, machine.libbpf, "1.0 or later")
    return Finding("libbpf", Verdict.MISSING, machine.libbpf_error, "1.0 or later", "apt-get install libbpf1")


def _capability(need: privileges.Need, held: frozenset[int]) -> Finding:
    name = privileges.name_of(need.capability)
    purpose = "; then ".join(part for part in (need.loading, need.reading) if part)
    if need.capability in held:
        return Finding(name, Verdict.OK, "held", purpose)
    if need.instead is not None and need.instead in held:
        return Finding(name, Verdict.OK, f"{privileges.name_of(need.instead)} instead", purpose)
    essential = need.capability in (privileges.Capability.BPF, privileges.Capability.PERFMON)
    return Finding(
        name,
        Verdict.MISSING if essential else Verdict.OPTIONAL,
        "not held",
        purpose,
        f"run as root, or in the systemd unit: AmbientCapabilities={name}",
    )


def _mount(kind: str, found: str, usual: str, purpose: str) -> Finding:
    subject = {"bpf": "bpffs"}.get(kind, kind)
    if found:
        return Finding(subject, Verdict.OK, found, purpose)
    return Finding(subject, Verdict.OPTIONAL, "not mounted", purpose, f"mount -t {kind} {kind} {usual}")


def _probe_finding(probe: Probe, machine: Machine, config: KernelConfig) -> Finding:
    if config.mode == "off":
        return Finding(probe.name, Verdict.OFF, "kernel.mode: off", probe.gives, "kernel.mode: auto")
    if not is_wanted(probe, config.probes):
        own = probe.config_of(config.probes)
        if own is not None and own.enabled:
            key = f"kernel.probes.{probe.name}"
            return Finding(probe.name, Verdict.OFF, f"{key} names none", probe.gives, f"{key}.functions")
        off = f"kernel.probes.{probe.name}.enabled"
        return Finding(probe.name, Verdict.OFF, f"{off}: false", probe.gives, f"{off}: true")
    for finding in _machine_findings(machine, config):
        if finding.verdict is Verdict.MISSING:
            found = f"{finding.subject}: {finding.found}"
            return Finding(probe.name, Verdict.MISSING, found, probe.gives, finding.mend)
    if probe.optional and not any(machine.tracepoints.get(one.tracepoint) for one in probe.programs):
        names = ", ".join(program.tracepoint for program in probe.programs)
        found = f"no {names}: {probe.optional}"
        return Finding(probe.name, Verdict.OPTIONAL, found, probe.gives, _drivers(probe))
    by_bcc = choose_backend(config, btf=machine.btf).name == "bcc"
    if by_bcc and probe.needs_libbpf:
        mend = f"{_BTF_KERNEL}, or kernel.probes.{probe.name}.enabled: false"
        return Finding(probe.name, Verdict.MISSING, f"not by BCC: {probe.needs_libbpf}", probe.gives, mend)
    if probe.name not in machine.objects:
        return Finding(
            probe.name, Verdict.MISSING, f"{probe.name}.bpf.o is not built", probe.gives, BUILD_COMMAND
        )
    limits = bcc.limits(probe, config.probes) if by_bcc else ""
    return _by_tracepoints(probe, replace(machine, accounts=machine.accounts and not by_bcc), limits)


def _drivers(probe: Probe) -> str:
    modules = " or ".join(f"modprobe {program.module}" for program in probe.programs if program.module)
    return f"where there is such a GPU: {modules}, then restart the bridge"


def _by_tracepoints(probe: Probe, machine: Machine, limits: str) -> Finding:
    known = {program.tracepoint: False for program in probe.programs} | machine.tracepoints
    chosen, missing = choose(probe.programs, known, accounts=machine.accounts)
    lacking = "; ".join(
        dict.fromkeys(f"no {one.tracepoint} (Linux {one.since}): without {one.gives}" for one in missing)
    )
    upgrade = f"boot Linux {max((p.since for p in missing), key=_version, default='')} or later"
    if probe.programs and not chosen:
        return Finding(probe.name, Verdict.MISSING, lacking, probe.gives, upgrade)
    gives = {program.name: program.gives for program in probe.programs}
    stand_ins = "; ".join(
        f"by {program.tracepoint}: {program.gives}"
        for program in chosen
        if program.stands_in_for and program.gives != gives[program.stands_in_for]
    )
    if lacking or stand_ins or limits:
        found = "; ".join(part for part in (lacking, stand_ins, limits) if part)
        return Finding(probe.name, Verdict.PARTIAL, found, probe.gives, upgrade if lacking else "")
    if len(chosen) < len(probe.programs):
        names = ", ".join(program.tracepoint for program in chosen)
        return Finding(probe.name, Verdict.OK, names, probe.gives)
    return Finding(probe.name, Verdict.OK, "all its tracepoints", probe.gives)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))
