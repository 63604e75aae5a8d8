"""The slow request: what is shown of it, what must be true of it, and what is said where it cannot be."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console

from demo.slow import show
from demo.slow.run import Story, missing
from demo.spans import Kind, RecordedEvent, RecordedSpan

MS = 1_000_000
START = 1_700_000_000_000 * MS
WAIT = RecordedEvent(
    "kernel.sched.wait",
    START + 640 * MS,
    {
        "kernel.match": "thread",
        "kernel.duration": 600 * MS,
        "kernel.sched.off_cpu.time": 600 * MS,
        "code.stacktrace": "poll+0x4f (libc.so.6)",
    },
)
AGAIN = RecordedEvent(
    "kernel.tcp.retransmit",
    START + 200 * MS,
    {"kernel.match": "socket", "network.local.port": 5555, "network.peer.port": 8000},
)
SPAN = RecordedSpan(
    service="client-slow",
    scope="demo.clients",
    name="POST /v1/chat/completions",
    kind=Kind.CLIENT,
    trace_id="0af7651916cd43dd8448eb211c80319c",
    span_id="b7ad6b7169203331",
    parent_id="",
    attributes={"kernel.tcp.retransmits": 1, "kernel.sched.off_cpu.time": 600 * MS, "other": 1},
    start_ns=START,
    end_ns=START + 650 * MS,
    events=(WAIT, AGAIN),
)


def printed(act) -> str:
    """What it prints for people."""
    console = Console(width=130)
    with console.capture() as capture:
        act(console)
    return capture.get()


def test_the_timeline_is_in_order_with_times_from_the_span_s_start():
    """Its duration, each event with its time, and the kernel's attributes."""
    text = printed(lambda console: show.why(console, Story(0.02, SPAN)))
    lines = text.splitlines()
    assert "took 650 ms" in text
    assert "before: 20 ms" in text
    order = [line.split()[0] for line in lines if " ms " in line and ("●" in line)]
    assert order == ["0", "200", "640", "650"]
    assert "match socket, port 5555 → 8000" in text
    assert "poll+0x4f (libc.so.6)" in text
    assert any(line.startswith("kernel.sched.off_cpu.time") and "600 ms" in line for line in lines)
    assert "other" not in text


def test_a_span_that_names_its_cause_passes():
    """A retransmit inside it, and a wait that is most of it."""
    assert show.check(Story(0.02, SPAN)).ok


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"events": (WAIT,)}, "no retransmit"),
        ({"events": (AGAIN,)}, "it waited 0 ms of 650 ms"),
        ({"attributes": {}}, "less than its events"),
        ({"events": (WAIT, replace(AGAIN, time_ns=START - 1))}, "outside"),
    ],
)
def test_a_span_that_does_not_name_its_cause_fails(change, reason):
    """With what is missing."""
    check = show.check(Story(0.02, replace(SPAN, **change)))
    assert not check.ok
    assert reason in check.found


def test_without_root_it_says_what_is_missing_and_the_command(monkeypatch):
    """And asks nobody who is not there."""
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr("demo.slow.run.nft", lambda: None)
    lacks = missing(None)
    text = printed(lambda console: show.cannot(console, lacks))
    assert "sudo make demo" in text
    assert "apt-get install nftables" in text
