"""What OBI says about threads counts where nothing is published; its table is believed only as laid out."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from otel_bridge.errors import BridgeError, StartError
from otel_bridge.kernel.obi_table import open_table
from otel_bridge.kernel.records import SHARED_CONTEXT, U8
from otel_bridge.libbpf.core_object import Object
from otel_bridge.libbpf.library import Library, Map
from otel_bridge.model import KernelEventKind, Match
from tests.support.kernel import Monitor, config, followed, monitoring, span_id, trace_id
from tests.support.processes import needs_command

PRIME = 23
TCP_CONNECT = KernelEventKind.TCP_CONNECT
SOURCE = Path(__file__).parent / "obi_tables.bpf.c"

# Publishes nothing; connects in vain from its main thread, once for each line.
SILENT = """
import socket, sys
print(flush=True)
for line in sys.stdin:
    with socket.socket() as client:
        client.connect_ex(("127.0.0.1", int(line)))
    print(flush=True)
"""


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """The tables of obi_tables.bpf.c, made."""
    clang = needs_command("clang", "clang")
    path = tmp_path_factory.mktemp("tables") / "obi_tables.bpf.o"
    multiarch = f"/usr/include/{platform.machine()}-linux-gnu"
    flags = ["-g", "-O2", "-target", "bpf", "-isystem", multiarch]
    subprocess.run([clang, *flags, "-c", SOURCE, "-o", path], check=True)
    tables = Object(Library(), path)
    tables.load()
    yield tables
    tables.close()


@pytest.fixture
def pinned(tables, bpffs):
    """Pins a table; answers its path."""
    paths: list[Path] = []
    pin = ctypes.CDLL("libbpf.so.1").bpf_obj_pin

    def pin_one(name: str) -> str:
        path = bpffs / name
        assert pin(tables.map_fd(name), os.fsencode(path)) == 0
        paths.append(path)
        return str(path)

    yield pin_one
    for path in paths:
        path.unlink()


@pytest.fixture
def silent():
    """A process that publishes nothing."""
    process = subprocess.Popen(
        [sys.executable, "-c", SILENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.communicate()


def connect(process: subprocess.Popen[str], port: int, times: int) -> None:
    """Have it connect in vain."""
    assert process.stdin is not None
    assert process.stdout is not None
    for _ in range(times):
        process.stdin.write(f"{port}\n")
        process.stdin.flush()
        process.stdout.readline()


def table(tables, name: str = "as_obi_does") -> Map:
    """The table, to be written as OBI does."""
    return Map(Library(), tables.map_fd(name), U8, SHARED_CONTEXT)


def at(number: int) -> np.void:
    """What OBI says when a thread is at a span."""
    return np.array((trace_id(number), span_id(number)), SHARED_CONTEXT)[()]


@pytest.mark.usefixtures("each_backend")
def test_a_thread_is_where_obi_says(tables, pinned, silent, closed_port):
    """While it says so; what it says of zero ids is no span."""
    contexts, thread = table(tables), silent.pid << 32 | silent.pid
    with monitoring("tcp", obi_table=pinned("as_obi_does")) as monitor:
        contexts.set(thread, at(1))
        connect(silent, closed_port, PRIME)
        contexts.set(thread, at(2))
        connect(silent, closed_port, 7)
        contexts.set(thread, np.zeros((), SHARED_CONTEXT)[()])
        connect(silent, closed_port, 3)
        contexts.discard(thread)
        connect(silent, closed_port, 5)
    assert monitor.events.per_span(TCP_CONNECT, match=Match.SOCKET) == {1: PRIME, 2: 7}
    assert len(monitor.events.of(TCP_CONNECT, tgid=silent.pid)) == PRIME + 7 + 3 + 5


@pytest.mark.usefixtures("each_backend")
def test_what_a_process_publishes_goes_before_what_obi_says(tables, pinned, worker, closed_port):
    """Also when it says that there is no span."""
    with monitoring("tcp", obi_table=pinned("as_obi_does")) as monitor:
        followed(monitor, worker.pid)
        table(tables).set(worker.pid << 32 | worker.pid, at(9))
        worker.do({"do": "refuse", "span": 1, "port": closed_port, "times": PRIME})
        worker.do({"do": "refuse", "port": closed_port, "times": PRIME})
    assert monitor.events.per_span(TCP_CONNECT, match=Match.SOCKET) == {1: PRIME}


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("no_lru", "a map of type 1, not an LRU hash"),
        ("other_order", r"values of span_id\[8\] at bit 0, trace_id\[16\] at bit 64"),
        ("other_members", r"values of trace_id\[16\] at bit 0, span_id\[0\] at bit 128"),
        ("other_key", "a map whose keys are no numbers"),
        ("other_size", "keys and values of 4 and 24 bytes"),
        ("no_structure", "a map whose values are no structure"),
    ],
)
def test_a_table_of_another_layout_is_refused(pinned, name, found):
    """What was found and what was expected are both said."""
    with pytest.raises(BridgeError, match=found) as error:
        open_table(Library(), pinned(name))
    assert "trace_id[16] and span_id[8]" in str(error.value)


def test_a_table_without_type_information_is_refused(bpffs):
    """Nothing says what its bytes are."""
    needs_command("bpftool", "bpftool")
    path = str(bpffs / "untyped")
    sizes = ["key", "8", "value", "24", "entries", "64", "name", "untyped"]
    subprocess.run(["bpftool", "map", "create", path, "type", "lru_hash", *sizes], check=True)
    try:
        with pytest.raises(BridgeError, match="without type information"):
            open_table(Library(), path)
    finally:
        Path(path).unlink()


def test_a_table_that_is_not_there_stops_only_who_requires_it(bpffs, silent, closed_port):
    """What mends it is said."""
    missing = str(bpffs / "nowhere")
    with pytest.raises(StartError, match=r"ENOENT.*start OBI first"):
        Monitor(config("tcp", obi_table=missing)).open()
    with monitoring("tcp", obi_table=missing, mode="auto") as monitor:
        connect(silent, closed_port, PRIME)
    assert len(monitor.events.of(TCP_CONNECT, tgid=silent.pid)) == PRIME
