"""Nothing is lost unseen (case ebpf-drops), and one probe is swapped without loss for the others."""

from __future__ import annotations

import mmap
import time
from collections import Counter

import pytest
import structlog

from otel_bridge import catalog
from otel_bridge.batch import PlanBuilder
from otel_bridge.contracts import SystemClock
from otel_bridge.errors import BridgeError
from otel_bridge.kernel import accounts
from otel_bridge.kernel.records import ROWS_A_LOT
from otel_bridge.libbpf.library import Library
from otel_bridge.model import KernelEventKind, Match
from otel_bridge.processors.join.config import JoinConfig
from otel_bridge.processors.join.join import Join
from otel_bridge.receivers.otlp.codec import NativeCodec
from otel_bridge.telemetry import Telemetry
from otel_bridge.testing import trace_request
from tests.support.kernel import (
    ROOT,
    config,
    eventually,
    followed,
    held,
    monitoring,
    nothing_more_held,
    span_id,
    trace_id,
)

pytestmark = pytest.mark.usefixtures("each_backend")

PRIME = 23
STORM = 10_007
HALF_OF_STORM = 50_021


def total(monitor, metric, **labels):
    """The sum of a counter's samples that carry these labels."""
    return sum(value for found, value in monitor.telemetry.values(metric) if labels.items() <= found.items())


def delivered(monitor, probe):
    """How many events were handed on."""
    return sum(len(batch) for batch in monitor.events.batches if batch.probe == probe)


def through_a_join(batches) -> tuple[Counter[str], float]:
    """What becomes of events when the span 1 comes, then is swept; and what the join holds after that."""
    columns, telemetry = PlanBuilder(), Telemetry()
    join = Join(JoinConfig(), columns, telemetry, SystemClock())
    for batch in batches:
        join.take(batch)
    span = {
        "trace_id": trace_id(1),
        "span_id": span_id(1),
        "start_time_unix_nano": 1,
        "end_time_unix_nano": time.time_ns(),
    }
    join.process(NativeCodec().scan(trace_request([span]), columns.build()))
    join.sweep(everything=True)
    outcomes = Counter(
        {
            labels["outcome"]: int(value)
            for labels, value in telemetry.values(catalog.JOIN_EVENTS)
            if labels["probe"] == "tcp"
        }
    )
    return outcomes, telemetry.value(catalog.JOIN_WAITING_BYTES)


def test_what_is_produced_is_delivered_or_counted_as_dropped(worker, closed_port, monkeypatch):
    """A ring of one page, 100,000 events while the reader is away for two seconds, then normal."""
    # However long the storm takes, it is said once.
    monkeypatch.setattr(accounts, "QUIET_SECONDS", 3600.0)
    with (
        structlog.testing.capture_logs() as lines,
        monitoring("tcp", tcp={"ring_size": mmap.PAGESIZE}, read_interval="2s") as monitor,
    ):
        followed(monitor, worker.pid)
        assert total(monitor, catalog.KERNEL_DROPPED, probe="tcp", reason="full") == 0
        # Each is refused and told of as a reset as well.
        storm = {"do": "call_function", "function": "refuse", "arguments": [closed_port, HALF_OF_STORM]}
        worker.do({**storm, "span": 1, "times": 1})
    produced = total(monitor, catalog.KERNEL_PRODUCED, probe="tcp")
    dropped = total(monitor, catalog.KERNEL_DROPPED, probe="tcp", reason="full")
    assert produced >= 2 * HALF_OF_STORM >= 100_000
    assert dropped > HALF_OF_STORM
    assert delivered(monitor, "tcp") > 0
    outcomes, held = through_a_join(monitor.events.batches)
    assert outcomes["socket"] > 0
    assert produced == sum(outcomes.values()) + dropped
    assert held == 0
    assert total(monitor, catalog.KERNEL_EVENTS, probe="tcp") == delivered(monitor, "tcp")
    assert len([line for line in lines if "lost" in line["event"]]) == 1
    with monitoring("tcp") as monitor:
        followed(monitor, worker.pid)
        worker.do({"do": "refuse", "span": 2, "port": closed_port, "times": PRIME})
    assert monitor.events.per_span(KernelEventKind.TCP_CONNECT, match=Match.SOCKET) == {2: PRIME}
    assert total(monitor, catalog.KERNEL_DROPPED, probe="tcp") == 0


def test_what_happens_while_a_probe_ends_is_delivered_if_it_is_counted(worker, closed_port):
    """The storm goes on beyond the probe's end."""
    with monitoring("tcp", tcp={"ring_size": "4MiB"}) as monitor:
        followed(monitor, worker.pid)
        worker.send({"do": "refuse", "span": 1, "port": closed_port, "times": 2 * STORM})
        eventually("it has begun", lambda: delivered(monitor, "tcp"))
    worker.answers()
    dropped = total(monitor, catalog.KERNEL_DROPPED, probe="tcp")
    assert total(monitor, catalog.KERNEL_PRODUCED, probe="tcp") == delivered(monitor, "tcp") + dropped


def test_a_rate_limit_is_counted_apart(worker, closed_port):
    """What a storm has too much of is not handed over."""
    with monitoring("tcp", tcp={"events_per_second": 100, "ring_size": "1MiB"}) as monitor:
        followed(monitor, worker.pid)
        worker.do({"do": "refuse", "span": 1, "port": closed_port, "times": STORM})
    produced = total(monitor, catalog.KERNEL_PRODUCED, probe="tcp")
    limited = total(monitor, catalog.KERNEL_DROPPED, probe="tcp", reason="limited")
    assert limited > STORM
    assert produced == delivered(monitor, "tcp") + limited
    assert total(monitor, catalog.KERNEL_DROPPED, probe="tcp", reason="full") == 0


def test_sums_that_find_no_room_are_counted(worker):
    """Spans beyond the table's size."""
    with monitoring("sched", max_spans=4, sum_interval="30s") as monitor:
        followed(monitor, worker.pid)
        # Besides, what CPUs may leave of their last rows.
        spans = 2 * (4 + ROWS_A_LOT * (1 + Library().possible_cpus))
        worker.do(*({"do": "sleep", "span": n, "seconds": 1e-4, "times": 1} for n in range(1, spans)))
    produced = total(monitor, catalog.KERNEL_PRODUCED, probe="sched")
    dropped = total(monitor, catalog.KERNEL_DROPPED, probe="sched", reason="full")
    assert dropped > 0
    assert produced == delivered(monitor, "sched") + dropped


def test_a_probe_is_swapped_without_loss_for_the_others(worker, closed_port):
    """The scheduler's, nine times, while every refused connection is counted."""
    # Room for the whole storm: what a busy machine cannot read in time is another test's subject.
    tcp = {"ring_size": "4MiB"}
    with monitoring("tcp", "sched", tcp=tcp) as monitor:
        followed(monitor, worker.pid)
        worker.send({"do": "refuse", "span": 1, "port": closed_port, "times": STORM})
        for round_ in range(9):
            threshold = {"run_queue_threshold": f"{round_ + 1}ms"}
            monitor.reload(config("tcp", "sched", tcp=tcp, sched=threshold))
        worker.answers()
    counted = monitor.events.per_span(KernelEventKind.TCP_CONNECT, match=Match.SOCKET)
    assert counted == {1: STORM}
    assert total(monitor, catalog.KERNEL_DROPPED, probe="tcp") == 0


def test_a_swapped_probe_works_as_newly_configured_and_goes_on_with_its_counters(worker, closed_port):
    """Thresholds take effect; what was counted stays counted; no context is lost."""
    with monitoring("tcp") as monitor:
        followed(monitor, worker.pid)
        worker.do({"do": "refuse", "span": 1, "port": closed_port, "times": PRIME})
        monitor.reload(config("tcp", tcp={"events_per_second": 1}))
        worker.do({"do": "refuse", "span": 2, "port": closed_port, "times": PRIME})
        monitor.reload(config("tcp"))
        worker.do({"do": "refuse", "span": 3, "port": closed_port, "times": PRIME})
    counted = monitor.events.per_span(KernelEventKind.TCP_CONNECT, match=Match.SOCKET)
    assert counted[1] == counted[3] == PRIME
    assert counted[2] < PRIME
    produced = total(monitor, catalog.KERNEL_PRODUCED, probe="tcp")
    assert produced == delivered(monitor, "tcp") + total(monitor, catalog.KERNEL_DROPPED, probe="tcp")


def test_a_probe_that_is_refused_leaves_the_old_one_at_work(worker, closed_port, monkeypatch):
    """A reload that fails is no outage."""
    with monitoring("tcp") as monitor:
        followed(monitor, worker.pid)
        with monkeypatch.context() as patch:
            patch.setattr("otel_bridge.kernel.loader.OBJECTS", ROOT / "nowhere")
            with pytest.raises(BridgeError, match="make -C bpf"):
                monitor.reload(config("tcp", tcp={"connect_threshold": 1}))
        worker.do({"do": "refuse", "span": 1, "port": closed_port, "times": PRIME})
    assert monitor.events.per_span(KernelEventKind.TCP_CONNECT, match=Match.SOCKET) == {1: PRIME}


def test_nothing_is_left_in_the_kernel_nor_in_the_process():
    """Programs, maps, threads and descriptors, over many starts and stops."""
    with monitoring("tcp", "sched", "tls"):
        pass
    before = held()
    for _ in range(3):
        with monitoring("tcp", "sched", "tls"):
            pass
    nothing_more_held(before)
