"""Functions by configuration: fields, latency, static tracepoints, spans handed from thread to thread."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import structlog

from otel_bridge.elf.file import ElfFile
from otel_bridge.model import KernelEventKind, Match
from tests.support.kernel import eventually, followed, monitoring, span_id
from tests.support.processes import needs_command

HERE = Path(__file__).parent
pytestmark = pytest.mark.usefixtures("each_attachment")

PRIME = 23
LIBRARY = r"functions\.so"
TASK_NUMBER = 8  # offset in struct task


@pytest.fixture(scope="module")
def functions(tmp_path_factory):
    """A library of functions to probe that publishes spans as well."""
    compiler = needs_command("cc", "gcc")
    header = [compiler, "-E", "-include", "sys/sdt.h", "-xc", "/dev/null"]
    if subprocess.run(header, capture_output=True, check=False).returncode:
        pytest.skip("needs <sys/sdt.h>: apt-get install systemtap-sdt-dev")
    path = tmp_path_factory.mktemp("functions") / "functions.so"
    sources = [HERE / "functions.c", HERE / "publisher.c"]
    flags = ["-shared", "-fPIC", "-O2", "-fno-inline", "-fno-optimize-sibling-calls", "-pthread"]
    subprocess.run([compiler, *flags, *sources, "-o", path], check=True)
    return path


def of(monitor, name):
    """The events of a function."""
    records = [batch.records for batch in monitor.events.batches if batch.probe == name]
    return np.concatenate(records) if records else np.zeros(0)


@pytest.fixture
def watch(functions, start_worker):
    """Probes functions of a worker's library; answers the monitor and a way to call them."""

    def start(*configured):
        worker = start_worker(functions)
        entries = [{"library": LIBRARY, **function} for function in configured]
        context = monitoring("user", user={"functions": entries})
        monitor = context.__enter__()
        contexts.append(context)
        followed(monitor, worker.pid)
        eventually("the library is covered", lambda: monitor.covered("user") == len(entries))
        return monitor, worker

    contexts = []
    yield start
    for context in contexts:
        context.__exit__(None, None, None)


def call(worker, function, *arguments, **job):
    """Have a function called, 23 times."""
    worker.do({"do": "call_function", "function": function, "arguments": arguments, "times": PRIME} | job)


def test_arguments_are_named_fields_of_their_own_type(watch):
    """Signed and unsigned, of every size, through a pointer; each call one event."""
    monitor, worker = watch(
        {
            "name": "six",
            "symbol": "six",
            "fields": {
                "a": {"argument": 1, "type": "i8"},
                "b": {"argument": 2, "type": "u16"},
                "c": {"argument": 3, "type": "i32"},
                "number": {"argument": 4, "type": "i32", "at": TASK_NUMBER},
                "e": {"argument": 5, "type": "i64"},
                "f": {"argument": 6, "type": "u64"},
            },
        }
    )
    call(worker, "six", -3, 65535, -70000, {"task": -11}, -(2**40), 2**63, span=1)
    monitor.close()
    events = of(monitor, "six")
    assert len(events) == PRIME
    values = {tuple(row) for row in events[["a", "b", "c", "number", "e", "f"]].tolist()}
    assert values == {(-3, 65535, -70000, -11, -(2**40), 2**63)}
    assert set(events["kind"]) == {KernelEventKind.USER}
    assert set(events["match"]) == {Match.THREAD}
    assert set(events["span_id"].tolist()) == {span_id(1)}


def test_latency_is_that_of_the_outermost_call(watch):
    """A function that calls itself is one event, with what it returned."""
    monitor, worker = watch(
        {
            "name": "slow",
            "symbol": "slow",
            "latency": True,
            "fields": {
                "depth": {"argument": 1, "type": "i32"},
                "result": {"argument": "return", "type": "i32"},
            },
        }
    )
    call(worker, "slow", 4, 2000, span=1)
    monitor.close()
    events = of(monitor, "slow")
    assert len(events) == PRIME
    assert {tuple(row) for row in events[["depth", "result"]].tolist()} == {(4, -3)}
    assert (events["duration"] >= 2_000_000).all()


CELLS = {"argument": 1, "type": "i64", "at": [8, 0], "index": {"field": "which", "times": 8}}


def test_what_lies_behind_several_pointers_and_what_a_call_changed(watch):
    """An element of an array that an object points to: what it was, by how much it fell, what comes of it."""
    fields = {
        "which": {"argument": 2, "type": "i32"},
        "amount": {"argument": 3, "type": "i64", "told": False},
        "before": CELLS,
        "fell": {**CELLS, "falls": True},
        "pairs_left": {**CELLS, "less": "amount", "per": 2},
        "depth": {"argument": "stack_depth", "type": "u32"},
        "place": {"argument": 2, "type": "i32", "told": False},
        "worth": {"argument": 3, "type": "i64", "plus": "amount", "times": ["place", "fell"]},
    }
    monitor, worker = watch({"name": "release", "symbol": "release", "latency": True, "fields": fields})
    orders = [(3, 50), (0, 7), (3, -20), (1, 0)]
    for order in orders:
        call = {"do": "call_function", "function": "release_some", "arguments": list(order), "times": 1}
        worker.do(call)
    eventually("all calls", lambda: len(of(monitor, "release")) == len(orders))
    found = of(monitor, "release")
    assert found["which"].tolist() == [3, 0, 3, 1]
    assert found["before"].tolist() == [400, 100, 350, 200]
    assert found["fell"].tolist() == [50, 7, -20, 0]
    assert found["pairs_left"].tolist() == [175, 46, 185, 100]
    assert found["worth"].tolist() == [15000, 0, 2400, 0]
    assert (found["depth"] >= 1).all()
    assert "amount" not in (found.dtype.names or ())


def test_a_function_of_another_version_is_left_alone(functions, start_worker):
    """Told by its code; the log says so."""
    worker = start_worker(functions)
    with ElfFile(str(functions)) as elf:
        place = elf.offset_of(b"evict")
    assert place is not None
    code = functions.read_bytes()[place : place + 4]
    other = code[:-1] + bytes([code[-1] ^ 1])
    entry = {"library": LIBRARY, "symbol": "evict"}
    entries = [
        {**entry, "name": "same", "begins": code.hex()},
        {**entry, "name": "other", "begins": other.hex()},
    ]
    with (
        structlog.testing.capture_logs() as lines,
        monitoring("user", user={"functions": entries}) as monitor,
    ):
        followed(monitor, worker.pid)
        eventually("it is covered", lambda: monitor.covered("user") == 1)
        worker.do({"do": "call_function", "function": "evict", "arguments": [1, 2], "times": PRIME})
    assert len(of(monitor, "same")) == PRIME
    assert len(of(monitor, "other")) == 0
    assert [line["function"] for line in lines if "another version" in line["event"]] == ["evict"]


def test_calls_faster_than_the_threshold_are_no_events(watch):
    """Only what was slow is worth telling."""
    monitor, worker = watch({"name": "slow", "symbol": "slow", "latency": True, "threshold": "500ms"})
    call(worker, "slow", 0, 1, span=1)
    call(worker, "slow", 0, 501_000, span=2, times=3)
    monitor.close()
    events = of(monitor, "slow")
    assert set(events["span_id"].tolist()) == {span_id(2)}
    assert len(events) == 3


def test_a_span_is_handed_over_with_the_number_of_its_task(watch, each_attachment):
    """The decoding thread publishes nothing; by task at first, then by what only the task's end knows."""
    task = {"number": {"argument": 1, "type": "i32", "at": TASK_NUMBER}}
    # BCC has no static tracepoints (test_bcc.py); this one passes the arguments of the function it is in.
    evicted = {"usdt": "kv_cache:evicted"} if each_attachment != "bcc" else {"symbol": "evict"}
    monitor, worker = watch(
        {
            "name": "number",
            "symbol": "new_number",
            "latency": True,
            "event": False,
            "fields": {"number": {"argument": "return", "type": "i32"}},
            "gives": {"group": "task", "field": "number"},
        },
        {
            "name": "decode",
            "symbol": "decode",
            "fields": task,
            "takes": {"group": "task", "field": "number"},
            "gives": {"group": "slot", "field": "number"},
        },
        {
            "name": "evict",
            **evicted,
            "fields": {"number": {"argument": 1, "type": "i32"}, "bytes": {"argument": 2, "type": "u64"}},
            "takes": {"group": "slot", "field": "number"},
        },
    )
    call(worker, "hand_over", 41, span=1)
    call(worker, "hand_over", 42, span=2)
    # The same number without a span: the last task's would be wrong.
    call(worker, "hand_over", 42)
    monitor.close()
    assert not len(of(monitor, "number"))
    for name in ("decode", "evict"):
        events = of(monitor, name)
        assert len(events) == 3 * PRIME
        found = [(bytes(row["span_id"]), row["match"], row["number"]) for row in events]
        assert found.count((span_id(1), Match.HAND_OVER, 41)) == PRIME
        assert found.count((span_id(2), Match.HAND_OVER, 42)) == PRIME
        assert found.count((bytes(8), Match.NONE, 42)) == PRIME
    assert set(of(monitor, "evict")["bytes"]) == {4096}


def test_a_symbol_that_does_not_exist_is_said_and_the_others_work(functions, start_worker):
    """With the file and the symbol."""
    worker = start_worker(functions)
    entries = [{"name": name, "library": LIBRARY, "symbol": name} for name in ("nonsense", "decode")]
    with (
        structlog.testing.capture_logs() as lines,
        monitoring("user", user={"functions": entries}) as monitor,
    ):
        followed(monitor, worker.pid)
        assert monitor.covered("user") == 1
        call(worker, "decode", {"task": 1}, span=1)
    assert len(of(monitor, "decode")) == PRIME
    [line] = [line for line in lines if "not covered" in line["event"]]
    assert line["path"] == str(functions)
    assert "nonsense" in line["reason"]


def test_an_unreadable_elf_is_said(start_worker, functions, tmp_path):
    """A file of that name whose symbols cannot be read."""
    broken = tmp_path / "functions.so"
    image = bytearray(functions.read_bytes())
    image[40:48] = (2**40).to_bytes(8, "little")  # where the section headers are said to be
    broken.write_bytes(image)
    start_worker(broken)
    entry = {"name": "decode", "library": LIBRARY, "symbol": "decode"}
    with structlog.testing.capture_logs() as lines, monitoring("user", user={"functions": [entry]}):
        eventually("it is said", lambda: any("not covered" in line["event"] for line in lines))
    [line] = [line for line in lines if "not covered" in line["event"]]
    assert line["path"] == str(broken)


def test_containers_of_one_image_are_covered_once(functions, start_worker, tmp_path):
    """Each has the library in an overlay of its own; below, it is one file, and a call is one event."""
    (tmp_path / "lower").mkdir()
    shutil.copy(functions, tmp_path / "lower")
    mounts = []
    try:
        for name in ("one", "two"):
            upper, work, merged = (tmp_path / f"{name}-{part}" for part in ("upper", "work", "merged"))
            for directory in (upper, work, merged):
                directory.mkdir()
            options = f"lowerdir={tmp_path / 'lower'},upperdir={upper},workdir={work}"
            command = ["mount", "-t", "overlay", "overlay", "-o", options, merged]
            mounted = subprocess.run(command, capture_output=True, text=True, check=False)
            if mounted.returncode:
                pytest.skip(f"needs overlayfs: {mounted.stderr.strip()}")
            mounts.append(merged)
        workers = [start_worker(merged / functions.name) for merged in mounts]
        configured = {"name": "six", "library": LIBRARY, "symbol": "six"}
        with monitoring("user", user={"functions": [configured]}) as monitor:
            for worker in workers:
                followed(monitor, worker.pid)
            job = {"do": "call_function", "function": "six", "arguments": [1, 2, 3, 0, 5, 6]}
            for number, worker in enumerate(workers, 1):
                worker.do({**job, "span": number, "times": PRIME})
        by_process = [np.count_nonzero(of(monitor, "six")["tgid"] == worker.pid) for worker in workers]
        assert by_process == [PRIME, PRIME]
    finally:
        for worker in workers:
            worker.stop()
        for merged in mounts:
            subprocess.run(["umount", "-l", merged], check=True)
