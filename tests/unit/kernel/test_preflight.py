"""What a machine's state means, machine by machine; and what this one says."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from otel_bridge.findings import Verdict
from otel_bridge.kernel.bcc import Headers
from otel_bridge.kernel.config import KernelConfig
from otel_bridge.kernel.doctor import render
from otel_bridge.kernel.openssl import Coverage, OpensslFile
from otel_bridge.kernel.preflight import Machine, judge, survey
from otel_bridge.kernel.privileges import Capability
from otel_bridge.kernel.probes import PROBES

ALL_TRACEPOINTS = {program.tracepoint: True for probe in PROBES for program in probe.programs}
GOOD = Machine(
    release="6.18.44-cloud",
    tracefs="/sys/kernel/tracing",
    bpffs="/sys/fs/bpf",
    capabilities=frozenset(Capability),
    libbpf="v1.1",
    bcc="0.26.0",
    headers=Headers(Path("/lib/modules/6.18.44-cloud/build"), "6.18.44-cloud"),
    tracepoints=ALL_TRACEPOINTS,
    objects=frozenset(probe.name for probe in PROBES),
    openssl=(OpensslFile("/usr/lib/libssl.so.3", Coverage.SHARED, ("nginx (7)", "python3 (8, elsewhere)")),),
)


OTHER_HEADERS = Headers(Path("/usr/src/linux-headers-6.1"), "6.1.0-57-amd64")

EVERYTHING = {"probes": {"user": {"presets": ["llama.cpp"]}, "tls_requests": {"enabled": True}}}


def findings(machine, **config):
    """The report's lines by their subject."""
    report = judge(machine, KernelConfig.model_validate(config or EVERYTHING))
    return {finding.subject: finding for finding in (*report.machine, *report.probes)}


def test_where_all_is_there_all_is_well():
    """Nothing to mend."""
    report = judge(GOOD, KernelConfig.model_validate(EVERYTHING))
    assert report.ready
    assert {finding.verdict for finding in (*report.machine, *report.probes)} == {Verdict.OK}
    assert not any(finding.mend for finding in (*report.machine, *report.probes))


@pytest.mark.parametrize(
    ("lacking", "subject", "mend"),
    [
        ({"release": "5.4.0-generic"}, "kernel", "next release"),
        ({"btf": False, "bcc": ""}, "BCC", "apt-get install python3-bpfcc"),
        ({"btf": False, "headers": None}, "kernel headers", "linux-headers-$(uname -r)"),
        ({"btf": False, "headers": OTHER_HEADERS}, "kernel headers", "kernel.bcc.headers"),
        ({"libbpf": "", "libbpf_error": "no such file"}, "libbpf", "apt-get install libbpf1"),
        ({"initial_pid_namespace": False}, "pid namespace", "hostPID: true"),
        ({"capabilities": frozenset()}, "CAP_BPF", "AmbientCapabilities=CAP_BPF"),
    ],
)
def test_what_every_probe_needs_stops_every_probe_and_says_what_mends_it(lacking, subject, mend):
    """The reason stands with the thing and with each probe."""
    found = findings(replace(GOOD, **lacking))
    assert found[subject].verdict is Verdict.MISSING
    assert mend in found[subject].mend
    for probe in PROBES:
        assert found[probe.name].verdict is Verdict.MISSING
        assert found[probe.name].mend


@pytest.mark.parametrize(
    ("lacking", "subject", "mend"),
    [
        ({"tracefs": ""}, "tracefs", "mount -t tracefs tracefs /sys/kernel/tracing"),
        ({"bpffs": ""}, "bpffs", "mount -t bpf bpf /sys/fs/bpf"),
        ({"bcc": ""}, "BCC", "apt-get install python3-bpfcc linux-headers-$(uname -r)"),
        ({"headers": None}, "kernel headers", "linux-headers-$(uname -r)"),
        ({"pressure": False}, "PSI", "boot with psi=1"),
        ({"openssl": ()}, "OpenSSL", ""),
        ({"unreadable": 3}, "processes", "setcap cap_bpf,"),
    ],
)
def test_what_only_some_need_stops_nothing(lacking, subject, mend):
    """It is told all the same."""
    machine = replace(GOOD, **lacking)
    assert judge(machine, KernelConfig()).ready
    finding = findings(machine)[subject]
    assert finding.verdict in (Verdict.OPTIONAL, Verdict.PARTIAL)
    assert mend in finding.mend


def test_libbpf_asked_for_needs_the_types_of_the_kernel():
    """Whatever else could load the probes."""
    found = findings(replace(GOOD, btf=False), backend="libbpf")
    assert (found["back end"].found, found["back end"].needed) == ("libbpf", "kernel.backend: libbpf")
    assert found["BTF"].verdict is Verdict.MISSING
    assert "CONFIG_DEBUG_INFO_BTF=y" in found["tcp"].mend


def test_a_kernel_that_does_not_tell_its_types_does_with_bcc():
    """What BCC cannot load is named, with the reason; the rest works."""
    static = {"name": "evict", "library": "x", "usdt": "a:b"}
    found = findings(replace(GOOD, btf=False), probes={"user": {"functions": [static]}})
    assert found["back end"].found == "bcc"
    assert "does not tell its types" in found["back end"].needed
    assert found["BTF"].verdict is Verdict.OPTIONAL
    assert found["requests"].verdict is Verdict.MISSING
    assert "not by BCC: the parser" in found["requests"].found
    assert "kernel.probes.requests.enabled: false" in found["requests"].mend
    assert found["user"].verdict is Verdict.PARTIAL
    assert found["user"].found.startswith("without evict: static tracepoints")
    assert found["drm"].verdict is Verdict.MISSING
    assert "modules" in found["drm"].found
    others = {probe.name for probe in PROBES} - {"requests", "tls_requests", "user", "drm"}
    assert {found[name].verdict for name in others} == {Verdict.OK}


def test_the_all_powerful_capability_does_instead():
    """Kernels and runtimes that know only CAP_SYS_ADMIN."""
    held = frozenset({Capability.SYS_ADMIN, Capability.SYS_PTRACE, Capability.DAC_READ_SEARCH})
    found = findings(replace(GOOD, capabilities=held))
    assert found["CAP_BPF"].verdict is Verdict.OK
    assert found["CAP_BPF"].found == "CAP_SYS_ADMIN instead"
    assert found["tcp"].verdict is Verdict.OK


def test_an_older_kernel_does_in_part():
    """Sockets are not stamped, block I/O by what there is; the version that brings the rest is named."""
    late = ("tcp_sendmsg_locked", "sock_send_length", "sock_recv_length", "block_io_start")
    gone = dict.fromkeys(late, False)
    found = findings(replace(GOOD, release="5.15.0", tracepoints=ALL_TRACEPOINTS | gone))
    assert found["socket"].verdict is Verdict.MISSING
    assert found["socket"].mend == "boot Linux 6.16 or later"
    assert found["block"].verdict is Verdict.PARTIAL
    assert "block_rq_issue" in found["block"].found
    assert found["tcp"].verdict is Verdict.OK


NO_DRIVER = ALL_TRACEPOINTS | {"amdgpu_bo_move": False, "xe_bo_move": False}


@pytest.mark.parametrize("btf", [True, False])
def test_a_machine_without_amd_s_and_intel_s_drivers_misses_nothing(btf):
    """It says what there would be with them, and what an NVIDIA card has instead."""
    machine = replace(GOOD, tracepoints=NO_DRIVER, btf=btf)
    config = KernelConfig.model_validate({"probes": {"requests": {"enabled": False}}})
    report = judge(machine, config)
    [found] = [finding for finding in report.probes if finding.subject == "drm"]
    assert report.ready
    assert found.verdict is Verdict.OPTIONAL
    assert found.found.startswith("no amdgpu_bo_move, xe_bo_move: neither driver is there")
    assert "cuda" in found.found
    assert "evicted" in found.needed
    assert "modprobe amdgpu or modprobe xe" in found.mend
    assert {finding["subject"]: finding["verdict"] for finding in report.as_dict()["probes"]}[
        "drm"
    ] == "optional"


@pytest.mark.parametrize("driver", ["amdgpu_bo_move", "xe_bo_move"])
def test_one_driver_is_all_that_a_machine_needs(driver):
    """The other one is not missed."""
    found = findings(replace(GOOD, tracepoints=NO_DRIVER | {driver: True}))["drm"]
    assert (found.verdict, found.found, found.mend) == (Verdict.OK, driver, "")


def test_evictions_that_nobody_wants_are_off():
    """By configuration, with drivers or without."""
    found = findings(replace(GOOD, tracepoints=NO_DRIVER), probes={"drm": {"enabled": False}})["drm"]
    assert (found.verdict, found.mend) == (Verdict.OFF, "kernel.probes.drm.enabled: true")


def test_an_object_that_is_not_built_is_named():
    """With what builds it."""
    found = findings(replace(GOOD, objects=GOOD.objects - {"tls"}))
    assert (found["tls"].verdict, found["tls"].mend) == (Verdict.MISSING, "make -C bpf")
    assert found["tcp"].verdict is Verdict.OK


def test_what_is_switched_off_is_not_missed():
    """By probe, or all."""
    found = findings(GOOD, probes={"tcp": {"enabled": False}})
    assert found["tcp"].verdict is found["socket"].verdict is Verdict.OFF
    assert found["user"].verdict is Verdict.OFF
    assert {findings(GOOD, mode="off")[probe.name].verdict for probe in PROBES} == {Verdict.OFF}


def test_each_process_with_openssl_is_named_with_its_verdict():
    """A stripped one is no reason not to start, and nobody is left out in silence."""
    stripped = OpensslFile("/app/server", Coverage.STRIPPED, ("server (9)",))
    report = judge(replace(GOOD, openssl=(*GOOD.openssl, stripped)), KernelConfig())
    assert report.ready
    shared, static = report.openssl
    assert (shared.verdict, shared.needed) == (Verdict.OK, "nginx (7), python3 (8, elsewhere)")
    assert (static.verdict, static.needed) == (Verdict.MISSING, "server (9)")
    assert "without strip" in static.mend
    [overall] = [finding for finding in report.machine if finding.subject == "OpenSSL"]
    assert overall.found == "1 of 2 files are covered"
    console = Console(width=200, record=True, file=open(os.devnull, "w"))  # noqa: SIM115, PTH123
    console.print(render(report))
    text = console.export_text()
    console.file.close()
    assert "/app/server" in text
    assert "linked in, without symbols" in text


def test_the_report_is_json():
    """For scripts."""
    document = json.loads(json.dumps(judge(GOOD, KernelConfig()).as_dict()))
    assert document["ready"] is True
    assert [probe["subject"] for probe in document["probes"]] == [probe.name for probe in PROBES]
    assert {"subject", "verdict", "found", "needed", "mend"} == document["machine"][0].keys()


def test_the_table_shows_every_finding_and_its_mend():
    """Brackets in what was found are shown, not taken for markup."""
    machine = replace(GOOD, libbpf="", libbpf_error="[bold]no[/bold] such file")
    console = Console(width=400, record=True, file=open(os.devnull, "w"))  # noqa: SIM115, PTH123
    console.print(render(judge(machine, KernelConfig())))
    text = console.export_text()
    console.file.close()
    assert "[bold]no[/bold] such file" in text
    assert "apt-get install libbpf1" in text
    for probe in PROBES:
        assert probe.gives in text


def test_this_machine_can_be_surveyed_without_privileges():
    """Whatever there is: no exception, and what is certain is right."""
    machine = survey()
    assert machine.release == os.uname().release
    assert machine.version >= (2, 6)
    report = judge(machine, KernelConfig())
    for finding in (*report.machine, *report.probes):
        assert finding.found
        if finding.verdict is Verdict.MISSING:
            assert finding.mend
