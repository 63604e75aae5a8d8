"""A new configuration takes effect probe by probe, on a live monitor and by SIGHUP."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading

import pytest
import yaml

from otel_bridge import catalog
from otel_bridge.kernel.monitor import ReloadError
from otel_bridge.kernel.probes import PROBES, is_wanted
from otel_bridge.model import KernelEventKind, Match
from otel_bridge.mounts import PROC
from tests.support.kernel import PROBES as PROBE_NAMES
from tests.support.kernel import ROOT, config, eventually, followed, held, monitoring, nothing_more_held
from tests.support.processes import Bridge, needs_command, running

PRIME = 23
STORM = 10_007
BIG = {"ring_size": "4MiB"}


def loaded(monitor) -> set[str]:
    """The probes at work."""
    return {name for name, state in monitor.states.items() if state.loaded}


def wanted(monitor) -> set[str]:
    """The probes that the configuration in effect asks for."""
    return {probe.name for probe in PROBES if is_wanted(probe, monitor.config.probes)}


def test_probes_come_and_go_while_every_event_of_another_is_counted(worker, closed_port):
    """Switched on, swapped and switched off, four times over, in the middle of a storm."""
    with monitoring("tcp", tcp=BIG) as monitor:
        followed(monitor, worker.pid)
        worker.send({"do": "refuse", "span": 1, "port": closed_port, "times": STORM})
        for round_ in range(4):
            monitor.reload(config("tcp", "sched", "block", "tls", tcp=BIG))
            monitor.reload(
                config("tcp", "sched", "memory", tcp=BIG, sched={"off_cpu_threshold": f"{round_ + 1}ms"})
            )
            monitor.reload(config("tcp", tcp=BIG))
        worker.answers()
        assert loaded(monitor) == wanted(monitor)
    counted = monitor.events.per_span(KernelEventKind.TCP_CONNECT, match=Match.SOCKET)
    assert counted == {1: STORM}


def test_a_probe_that_is_switched_on_sees_what_comes_and_off_hands_over_what_it_had(worker):
    """Prime numbers of waits: before, while and after the probe was at work."""
    waits = {"off_cpu_threshold": "10ms", "run_queue_threshold": "10s"}
    with monitoring("tcp", sum_interval="60s") as monitor:
        followed(monitor, worker.pid)
        sleep = {"do": "sleep", "seconds": 0.012}
        worker.do({**sleep, "span": 1, "times": 7})
        monitor.reload(config("tcp", "sched", sched=waits, sum_interval="60s"))
        worker.do({**sleep, "span": 2, "times": 11})
        # The sums were not taken yet: the interval is a minute.
        monitor.reload(config("tcp", sum_interval="60s"))
        worker.do({**sleep, "span": 3, "times": 13})
        monitor.reload(config("tcp", "sched", sched=waits, sum_interval="60s"))
        worker.do({**sleep, "span": 4, "times": 17})
    kinds = (KernelEventKind.SCHED_WAIT, KernelEventKind.SCHED_SUM)
    waits, rows = ([len(monitor.events.on_span(kind, n)) for n in (1, 2, 3, 4)] for kind in kinds)
    assert rows == [0, 1, 0, 1]
    assert waits[0] == waits[2] == 0
    assert waits[1] == 11
    assert waits[3] == 17
    sums = monitor.events.on_span(KernelEventKind.SCHED_SUM, 4)
    assert sums["off_cpu_count"].sum() >= waits[3]
    shown = monitor.telemetry.registry.get_sample_value(catalog.KERNEL_PROBE_LOADED.name, {"probe": "sched"})
    assert shown == 1


def test_a_wait_that_was_under_way_when_the_probe_was_switched_off_is_over(worker):
    """Its end was not seen; when the probe is on again, the thread waits for something else."""
    waits = {"off_cpu_threshold": "10ms", "run_queue_threshold": "10s"}
    with monitoring("tcp", "sched", sched=waits) as monitor:
        followed(monitor, worker.pid)
        worker.send({"do": "sleep", "span": 1, "seconds": 0.5, "times": 1})
        eventually("it sleeps", lambda: "nanosleep" in (PROC / str(worker.pid) / "wchan").read_text())
        monitor.reload(config("tcp"))
        worker.answers()
        monitor.reload(config("tcp", "sched", sched=waits))
        worker.do({"do": "sleep", "span": 2, "seconds": 0.012, "times": 7})
    assert not len(monitor.events.on_span(KernelEventKind.SCHED_WAIT, 1))
    assert not len(monitor.events.on_span(KernelEventKind.SCHED_SUM, 1))
    assert len(monitor.events.on_span(KernelEventKind.SCHED_WAIT, 2)) == 7


def test_thresholds_change(worker):
    """What was too short to be an event is one, and no more again."""
    with monitoring("sched", sched={"off_cpu_threshold": "10s"}) as monitor:
        followed(monitor, worker.pid)
        for span, threshold in ((1, "10s"), (2, "5ms"), (3, "10s")):
            monitor.reload(
                config("sched", sched={"off_cpu_threshold": threshold, "run_queue_threshold": "10s"})
            )
            worker.do({"do": "sleep", "span": span, "seconds": 0.03, "times": PRIME})
    before, between, after = (
        len(monitor.events.on_span(KernelEventKind.SCHED_WAIT, span)) for span in (1, 2, 3)
    )
    assert before == after == 0
    assert between == PRIME


@pytest.fixture(scope="module")
def functions(tmp_path_factory):
    """A library of functions that publishes spans as well."""
    compiler = needs_command("cc", "gcc")
    path = tmp_path_factory.mktemp("functions") / "functions.so"
    sources = [ROOT / "tests/kernel/reload_functions.c", ROOT / "tests/kernel/publisher.c"]
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", *sources, "-o", path], check=True)
    return path


def test_other_functions_are_watched(functions, start_worker):
    """First one, then another in its place, then both; in a library that is known already."""
    one = {"name": "one", "library": r"functions\.so", "symbol": "one"}
    two = {"name": "two", "library": r"functions\.so", "symbol": "two"}
    worker = start_worker(functions)
    seen: dict[str, int] = {}
    with monitoring("user", user={"functions": [one]}) as monitor:
        followed(monitor, worker.pid)
        for configured in ([one], [two], [two, one]):
            monitor.reload(config("user", user={"functions": configured}))
            count = len(configured)
            eventually("the library is covered", lambda count=count: monitor.covered("user") == count)
            for name in ("one", "two"):
                worker.do(
                    {"do": "call_function", "span": 1, "function": name, "arguments": [], "times": PRIME}
                )
    for batch in monitor.events.batches:
        if batch.probe in ("one", "two"):
            seen[batch.probe] = seen.get(batch.probe, 0) + len(batch)
    assert seen == {"one": 2 * PRIME, "two": 2 * PRIME}


def test_what_needs_a_restart_is_said_and_the_rest_is_done(worker):
    """Sizes are fixed once the maps are there."""
    with monitoring("sched") as monitor:
        followed(monitor, worker.pid)
        asked = config(
            "sched", sched={"off_cpu_threshold": "5ms", "ring_size": "8MiB"}, max_spans=99, read_interval="1s"
        )
        with pytest.raises(ReloadError) as refused:
            monitor.reload(asked)
        assert sorted(str(refused.value).splitlines()) == [
            "kernel.max_spans: takes effect after a restart",
            "kernel.probes.sched.ring_size: a ring buffer keeps its size until a restart",
            "kernel.read_interval: takes effect after a restart",
        ]
        assert monitor.config.probes.sched.off_cpu_threshold == 0.005
        assert monitor.config.max_spans != 99
        worker.do({"do": "sleep", "span": 1, "seconds": 0.03, "times": PRIME})
    assert len(monitor.events.on_span(KernelEventKind.SCHED_WAIT, 1)) == PRIME


def test_without_privileges_what_can_be_done_is_done(closed_port):
    """In a process of its own: nothing can be loaded any more, but switched off."""
    code = f"""
import json, os, socket
from otel_bridge.kernel.monitor import ReloadError
from otel_bridge.model import KernelEventKind
from tests.support.kernel import Monitor, config
monitor = Monitor(config("tcp", "sched", drop_privileges=True))
monitor.open()
def reload(*probes, **settings):
    try:
        monitor.reload(config(*probes, drop_privileges=True, **settings))
    except ReloadError as error:
        return str(error).splitlines()
    return []
said = [
    reload("tcp", "sched", "block", sched={{"off_cpu_threshold": "1ms"}}),
    reload("tcp", "sched"),
    reload("tcp"),
    reload("tcp", "sched"),
]
for _ in range({PRIME}):
    with socket.socket() as client:
        client.connect_ex(("127.0.0.1", {closed_port}))
monitor.close()
seen = len(monitor.events.of(KernelEventKind.TCP_CONNECT, tgid=os.getpid()))
print(json.dumps([said, seen]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    (swapped, back, off, on), seen = json.loads(done.stdout.splitlines()[-1])
    assert [line.partition(":")[0] for line in swapped] == ["kernel.probes.sched", "kernel.probes.block"]
    assert all(
        "restart the bridge, or keep them with kernel.drop_privileges: false" in line for line in swapped
    )
    assert back == off == []  # as it was: nothing to do; and off: done
    assert [line.partition(":")[0] for line in on] == ["kernel.probes.sched"]
    assert seen == PRIME


def test_two_reloads_at_once_are_one_after_the_other():
    """SIGHUP may come while one is under way, and the end as well."""
    with monitoring("tcp", "sched") as monitor:
        threads = [
            threading.Thread(target=monitor.reload, args=(config("tcp", *more),))
            for more in ((), ("sched",), ("block",), ("sched", "memory"))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert loaded(monitor) == wanted(monitor)


def test_sighup(tmp_path, worker, closed_port):
    """The file is read again: a probe comes, another goes, a mistake is refused, and nothing is lost."""

    def write(bridge, **probes):
        document = yaml.safe_load(bridge.config.read_text())
        document["kernel"] = {
            "mode": "required",
            "drop_privileges": False,
            "probes": {name: probes.get(name, {"enabled": False}) for name in PROBE_NAMES},
        }
        bridge.config.write_text(yaml.safe_dump(document))

    only_tcp = {name: {"enabled": False} for name in PROBE_NAMES} | {"tcp": BIG}
    kernel = {"mode": "required", "drop_privileges": False, "probes": only_tcp}
    bridge = Bridge(tmp_path, {"kernel": kernel, "exporters": {"otlp": {"endpoint": "127.0.0.1:1"}}})
    with running(bridge):
        eventually(
            "the worker is followed", lambda: bridge.total("otel_bridge_kernel_followed_processes") >= 1
        )
        worker.send({"do": "refuse", "span": 1, "port": closed_port, "times": STORM})
        for round_ in range(1, 4):
            write(bridge, tcp=BIG, sched={"off_cpu_threshold": f"{round_}s"})
            bridge.child.send_signal(signal.SIGHUP)
            eventually(
                "sched is on", lambda: bridge.total("otel_bridge_kernel_probe_loaded", probe="sched") == 1
            )
            write(bridge, tcp=BIG)
            bridge.child.send_signal(signal.SIGHUP)
            eventually(
                "sched is off", lambda: bridge.total("otel_bridge_kernel_probe_loaded", probe="sched") == 0
            )
        worker.answers()

        def connects() -> float:
            return bridge.total(
                "otel_bridge_kernel_events_total", probe="tcp", kind="tcp_connect", match="socket"
            )

        eventually("every attempt was read", lambda: connects() >= STORM)
        assert bridge.total("otel_bridge_kernel_dropped_events_total", probe="tcp") == 0
        assert bridge.stop() == 0


def test_nothing_is_left_after_many_swaps():
    """Descriptors and threads."""
    with monitoring("tcp") as monitor:
        monitor.reload(config("tcp", "sched", "tls"))
        monitor.reload(config("tcp"))
        before = held()
        for _ in range(5):
            monitor.reload(config("tcp", "sched", "tls"))
            monitor.reload(config("tcp"))
        nothing_more_held(before)
