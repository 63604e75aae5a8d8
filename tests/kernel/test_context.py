"""The span of a thread: whole records only, wherever a process keeps them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from otel_bridge import catalog
from otel_bridge.model import KernelEventKind, Match
from tests.support.kernel import eventually, followed, monitoring, span_id, trace_id

pytestmark = pytest.mark.usefixtures("each_backend")

PRIME = 23


def spans_after(worker, closed_port, job):
    """The matches of connections refused after a job that spoils the record; and the monitor."""
    with monitoring("tcp") as monitor:
        followed(monitor, worker.pid)
        worker.do({"do": "call", "port": closed_port, "times": PRIME, **job})
    events = monitor.events.of(KernelEventKind.TCP_CONNECT, tgid=worker.pid)
    assert len(events) == PRIME
    return set(events["match"].tolist()), monitor


def test_a_half_written_record_is_no_span(worker, closed_port):
    """Its validity byte is not set. Of any writer that looks as if there were no span: it is not counted."""
    matches, monitor = spans_after(worker, closed_port, {"function": "tear"})
    assert matches == {Match.NONE}
    assert monitor.telemetry.value(catalog.KERNEL_BAD_CONTEXTS, probe="tcp", reason="torn") == 0


def test_a_half_written_record_of_ours_is_counted(start_worker, publisher, closed_port, tmp_path):
    """It says how often it was changed, which is odd while it is written. One that was withdrawn is whole."""
    ours = tmp_path / "otel_bridge" / "context" / "_record.publisher.so"
    ours.parent.mkdir(parents=True)
    shutil.copy(publisher, ours)
    for function, torn in (("tear", PRIME), ("clear", 0)):
        matches, monitor = spans_after(start_worker(ours), closed_port, {"function": function})
        assert matches == {Match.NONE}
        counted = monitor.telemetry.value(catalog.KERNEL_BAD_CONTEXTS, probe="tcp", reason="torn")
        assert counted == torn


def test_a_record_that_is_not_there_is_no_span_and_counted(worker, closed_port):
    """A pointer into nowhere."""
    matches, monitor = spans_after(worker, closed_port, {"function": "misplace"})
    assert matches == {Match.NONE}
    assert monitor.telemetry.value(catalog.KERNEL_BAD_CONTEXTS, probe="tcp", reason="unreadable") == PRIME


def test_zero_ids_are_no_span_and_counted(worker, closed_port):
    """Of the trace, or of the span."""
    with monitoring("tcp") as monitor:
        followed(monitor, worker.pid)
        for trace, span in ((bytes(16), span_id(1)), (trace_id(1), bytes(8))):
            worker.do(
                {
                    "do": "refuse",
                    "trace_id": trace.hex(),
                    "span_id": span.hex(),
                    "port": closed_port,
                    "times": PRIME,
                }
            )
    events = monitor.events.of(KernelEventKind.TCP_CONNECT, tgid=worker.pid)
    assert len(events) == 2 * PRIME
    assert set(events["match"]) == {Match.NONE}
    assert monitor.telemetry.value(catalog.KERNEL_BAD_CONTEXTS, probe="tcp", reason="zero") == 2 * PRIME


def test_a_thread_that_never_published_has_none_where_others_have(worker, closed_port):
    """Its block of thread-local storage may not even exist."""
    with monitoring("tcp") as monitor:
        followed(monitor, worker.pid)
        worker.do(
            {"do": "refuse", "span": 1, "port": closed_port, "times": PRIME},
            {"do": "refuse", "port": closed_port, "times": PRIME},
        )
    events = monitor.events.of(KernelEventKind.TCP_CONNECT, tgid=worker.pid)
    assert len(events) == 2 * PRIME
    assert sorted(events["match"].tolist()) == [Match.NONE] * PRIME + [Match.SOCKET] * PRIME


def test_forked_children_are_followed_from_their_first_moment(worker, closed_port):
    """They end before anybody could look at them."""
    spans = list(range(1, PRIME + 1))
    with monitoring("tcp") as monitor:
        followed(monitor, worker.pid)
        [pids] = worker.do(
            {
                "do": "fork",
                "spans": spans,
                "trace_ids": {n: trace_id(n).hex() for n in spans},
                "port": closed_port,
                "times": 3,
            }
        )
    counted = monitor.events.per_span(KernelEventKind.TCP_CONNECT, match=Match.SOCKET)
    assert counted == dict.fromkeys(spans, 3)
    events = monitor.events.of(KernelEventKind.TCP_CONNECT)
    assert {int(event["tgid"]) for event in events if bytes(event["trace_id"])[:8] == trace_id(0)[:8]} == set(
        pids
    )


def test_a_process_that_starts_later_is_found(start_worker, closed_port):
    """By its exec, without configuration."""
    with monitoring("tcp", scan_interval="1h") as monitor:
        worker = start_worker()
        followed(monitor, worker.pid)
        worker.do({"do": "refuse", "span": 1, "port": closed_port, "times": PRIME})
    assert monitor.events.per_span(KernelEventKind.TCP_CONNECT, match=Match.SOCKET) == {1: PRIME}


def _runs(pid: int) -> bool:
    """Whether there is such a process; others on this machine may come and go meanwhile."""
    return Path(f"/proc/{pid}").exists()


def test_a_thousand_short_lived_processes_leave_nothing_behind(worker):
    """Neither in the kernel's table nor in ours."""
    with monitoring("tcp") as monitor:
        followed(monitor, worker.pid)
        script = "for i in $(seq 1009); do /bin/true; done"
        subprocess.run(["/bin/sh", "-c", script], check=True)
        worker.do({"do": "fork", "spans": [], "port": 1, "times": 0})
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        eventually("only running processes are known", lambda: monitor.known_processes() < 1009)
        eventually("the table holds none that ended", lambda: all(map(_runs, monitor.table_of_processes())))
        assert worker.pid in monitor.table_of_processes()
