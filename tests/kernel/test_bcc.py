"""The BCC back end beside what every probe's own tests hold it to: its limits, its compiler, its costs."""

from __future__ import annotations

from pathlib import Path

import pytest
import structlog

from otel_bridge import catalog
from otel_bridge.errors import StartError
from otel_bridge.kernel import bcc as bcc_module
from otel_bridge.kernel import monitor as monitor_module
from otel_bridge.kernel.backend import built
from otel_bridge.kernel.bcc import Compiler
from otel_bridge.kernel.bcc_object import map_numbers, programs_of
from otel_bridge.kernel.config import BccConfig, KernelConfig
from otel_bridge.kernel.probes import PROBES
from otel_bridge.libbpf.core_object import Object
from otel_bridge.libbpf.library import Library
from otel_bridge.model import KernelEventKind, Match
from tests.support.kernel import PROBES as PROBE_NAMES
from tests.support.kernel import Monitor, config, followed, monitoring

PRIME = 23
SHARED = [probe for probe in PROBES if not probe.needs_libbpf]


def link_into(directory: Path, *sources: Path) -> None:
    """Links to all that is in some directories; a later one's entry takes the place of an earlier one's."""
    directory.mkdir(parents=True)
    for source in sources:
        for entry in source.iterdir():
            link = directory / entry.name
            link.unlink(missing_ok=True)
            link.symlink_to(entry)


@pytest.fixture
def distribution_headers(tmp_path):
    """Debian's headers of some kernel, whose two halves are in two places, as one tree."""
    for build in sorted(Path("/lib/modules").glob("*/build")):
        source = build.parent / "source"
        [machine] = [path.name for path in (build / "arch").iterdir()]
        if (build / "include/generated").exists() and source.exists():
            for part in ("include", f"arch/{machine}/include"):
                link_into(tmp_path / "headers" / part, source / part, build / part)
            return tmp_path / "headers"
    pytest.skip("needs headers of some kernel: apt-get install linux-headers-amd64")


@pytest.mark.parametrize("probe", SHARED, ids=lambda probe: probe.name)
def test_every_shared_probe_compiles_with_a_distribution_s_headers(
    probe, bcc, distribution_headers, monkeypatch
):
    """They need not be this kernel's for that: what they bring along must not be in the way of our names."""
    monkeypatch.setattr(bcc_module, "fit", lambda *_: True)
    compiler = Compiler(BccConfig(headers=str(distribution_headers), cache=""))
    plan = Object(Library(), built(probe))
    try:
        programs, numbers = programs_of(plan), map_numbers(plan)
    finally:
        plan.close()
    code = compiler.compile(probe.name, programs, numbers)
    assert code.keys() == set(programs)
    assert all(len(instructions) > 1 for instructions in code.values())


def test_a_kernel_that_does_not_tell_its_types_is_served_by_bcc(
    bcc, worker, closed_port, monkeypatch, tmp_path
):
    """Without a word of configuration, and the log says why."""
    monkeypatch.setattr(monitor_module, "BTF", tmp_path / "none")
    with (
        structlog.testing.capture_logs() as lines,
        monitoring("tcp", **(bcc | {"backend": "auto"})) as monitor,
    ):
        followed(monitor, worker.pid)
        worker.do({"do": "refuse", "span": 1, "port": closed_port, "times": PRIME})
    assert monitor.events.per_span(KernelEventKind.TCP_CONNECT, match=Match.SOCKET) == {1: PRIME}
    [line] = [line for line in lines if line["event"] == "probes are loaded"]
    assert line["backend"] == "bcc"
    assert "CONFIG_DEBUG_INFO_BTF" in line["reason"]


def test_what_was_compiled_is_not_compiled_again(bcc, worker, closed_port, monkeypatch):
    """At the next start, and at a reload, which also goes on with the counters."""
    with monitoring("tcp", **bcc):
        pass
    monkeypatch.setattr(bcc_module, "_TIMEOUT", 0.0)
    with monitoring("tcp", **bcc) as monitor:
        followed(monitor, worker.pid)
        worker.do({"do": "refuse", "span": 1, "port": closed_port, "times": PRIME})
        monitor.reload(config("tcp", tcp={"connect_threshold": "1h"}, **bcc))
        worker.do({"do": "refuse", "span": 2, "port": closed_port, "times": PRIME})
    assert monitor.events.per_span(KernelEventKind.TCP_CONNECT, match=Match.SOCKET) == {1: PRIME, 2: PRIME}


def test_a_probe_that_bcc_cannot_load_is_named_with_the_reason(bcc):
    """And stops nothing but itself, unless all are required."""
    probes = {name: {"enabled": name in ("tcp", "requests")} for name in PROBE_NAMES}
    wanted = {"mode": "auto", "drop_privileges": False, "probes": probes, **bcc}
    monitor = Monitor(KernelConfig.model_validate(wanted))
    with structlog.testing.capture_logs() as lines:
        monitor.open()
    try:
        assert monitor.states["tcp"].loaded
        assert not monitor.states["requests"].loaded
        assert "needs the libbpf back end: the parser" in monitor.states["requests"].reason
    finally:
        monitor.close()
    assert [line["probe"] for line in lines if line["event"] == "a probe is not loaded"] == ["requests"]
    with pytest.raises(StartError, match="probe requests"):
        Monitor(KernelConfig.model_validate(wanted | {"mode": "required"})).open()


def test_static_tracepoints_are_said_to_be_left_out(bcc):
    """By the name of the function that asks for one."""
    function = {"name": "evict", "library": "none", "usdt": "kv_cache:evicted"}
    with (
        structlog.testing.capture_logs() as lines,
        monitoring("user", user={"functions": [function]}, **bcc) as on,
    ):
        assert on.states["user"].loaded
        assert on.states["user"].reason.startswith("without evict: static tracepoints")
    assert [line["probe"] for line in lines if line["event"] == "a probe is loaded in part"] == ["user"]


def test_headers_of_another_kernel_are_refused(tmp_path):
    """They would compile, and the probes would read what is not there."""
    path = tmp_path / "include/generated/utsrelease.h"
    path.parent.mkdir(parents=True)
    path.write_text('#define UTS_RELEASE "4.19.0"\n')
    with pytest.raises(StartError, match=r"are of 4\.19\.0; mend with: apt-get install python3-bpfcc"):
        Monitor(config("tcp", backend="bcc", bcc={"headers": str(tmp_path)})).open()


def test_each_program_s_cost_is_exported(each_backend, worker, closed_port):
    """In seconds, as the kernel itself times it, whichever back end loaded the program."""
    with monitoring("tcp", run_statistics=True) as monitor:
        followed(monitor, worker.pid)
        worker.do({"do": "refuse", "span": 1, "port": closed_port, "times": PRIME})
    cost = monitor.telemetry.value(catalog.KERNEL_PROGRAM_COST, probe="tcp", program="inet_sock_set_state")
    assert 0 < cost < 1, each_backend
