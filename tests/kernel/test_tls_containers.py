"""OpenSSL is found wherever a process has it from (case ebpf-tls-functions), and whoever it is there."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import pytest

from otel_bridge.batch import PlanBuilder
from otel_bridge.contracts import SystemClock
from otel_bridge.kernel import openssl
from otel_bridge.kernel.openssl import Coverage
from otel_bridge.kernel.records import TLS_ABANDONED
from otel_bridge.model import KernelEventKind
from otel_bridge.mounts import PROC
from otel_bridge.processors.join.config import JoinConfig
from otel_bridge.processors.join.join import Join
from otel_bridge.receivers.otlp.codec import NativeCodec
from otel_bridge.telemetry import Telemetry
from otel_bridge.testing import attributes_of, spans_of, trace_request
from tests.support.kernel import eventually, monitoring
from tests.support.processes import needs_command

SOURCE = Path(__file__).parent / "handshakes.c"
PRIME = 23
SPAN_NS = 10_000_000_000


class Client:
    """The program at work.

    Attributes:
        own_pid: its process id as it says it itself.
        pid: the same as the initial pid namespace says it.
    """

    def __init__(self, command: list[str | Path]) -> None:
        self.process = subprocess.Popen(
            list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.own_pid = int(self._read())
        self.pid = self._innermost()

    def _innermost(self) -> int:
        """Of those who hand on the work (unshare, a shell), the last."""
        pid = self.process.pid
        while children := (PROC / str(pid) / "task" / str(pid) / "children").read_text().split():
            pid = int(children[0])
        return pid

    def _read(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"it ended with {self.process.wait()}"
        return line

    def begin_handshakes(self, times: int) -> None:
        """Begin as many and give each up."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{times}\n")
        self.process.stdin.flush()
        assert self._read() == "done\n"

    def stop(self) -> None:
        """End it."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(10)
        self.process.stdout.close()


@pytest.fixture
def start():
    """Starts clients, and ends them with the test."""
    clients: list[Client] = []

    def run(*command: str | Path) -> Client:
        clients.append(Client(list(command)))
        return clients[-1]

    yield run
    for client in clients:
        client.stop()


@pytest.fixture
def root(tmp_path, shared):
    """A root directory with the program and copies of its own of every library it needs."""
    directory = tmp_path / "root"
    directory.mkdir()
    shutil.copy(shared, directory / "client")
    needed = subprocess.run(["ldd", shared], capture_output=True, text=True, check=True).stdout.split()
    for library in {Path(word) for word in needed if word.startswith("/")}:
        copy = directory / library.relative_to("/")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, copy)
    return directory


def libssl_in(root: Path) -> Path:
    """The copy of libssl."""
    [path] = root.rglob("libssl*")
    return path


def container(root: Path) -> list[str]:
    """A command in mount and pid namespaces of its own, with another root."""
    needs_command("unshare", "util-linux")
    command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", f"--root={root}"]
    probe = subprocess.run([*command, "/client"], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if probe.returncode:
        pytest.skip(f"needs mount and pid namespaces: {probe.stderr.decode().strip()}")
    return command


def covered(monitor, path: Path) -> bool:
    """Whether programs are attached to a file."""
    return any(path.samefile(f"/proc/self/fd/{file.fd}") for file in monitor.files("tls"))


def abandoned(monitor, pid: int, times: int):
    """The handshakes of a process, once there are as many; a moment later there must not be more."""
    kind = KernelEventKind.TLS_HANDSHAKE
    eventually(f"{times} handshakes", lambda: len(monitor.events.of(kind, tgid=pid)) >= times)
    time.sleep(0.1)
    found = monitor.events.of(kind, tgid=pid)
    assert len(found) == times
    assert set(found["error"]) == {TLS_ABANDONED}
    return found


def libssl_of(client: Client) -> Path:
    """The libssl that a process has mapped."""
    [path] = {
        line.split()[-1]
        for line in (PROC / str(client.pid) / "maps").read_text().splitlines()
        if "libssl" in line
    }
    return Path(path)


@pytest.mark.parametrize("program", ["shared", "static"])
@pytest.mark.parametrize("when", ["before", "after", "after, from a shell"])
def test_processes_that_run_already_and_that_start_later(program, when, start, request):
    """Each handshake once; a new process is covered in time for its first, and never later than in 5 s."""
    path = request.getfixturevalue(program)
    client = start(path) if when == "before" else None
    with monitoring("tls") as monitor:
        if client is None:
            client = start("sh", "-c", f"sleep 0.2; exec {path}") if "shell" in when else start(path)
            file = path if program == "static" else libssl_of(client)
            eventually("it is covered", lambda: covered(monitor, file), timeout=5)
        client.begin_handshakes(PRIME)
        abandoned(monitor, client.pid, PRIME)


def test_a_container_with_a_libssl_of_its_own(root, start):
    """Another file, reached through the process, in another mount and pid namespace."""
    command = container(root)
    with monitoring("tls") as monitor:
        client = start(*command, "/client")
        eventually("its own copy is covered", lambda: covered(monitor, libssl_in(root)), timeout=5)
        assert client.own_pid == 1
        assert client.pid != client.own_pid
        client.begin_handshakes(PRIME)
        abandoned(monitor, client.pid, PRIME)


def test_programs_let_go_of_a_container_that_is_gone(root, start, monkeypatch):
    """They would keep its files: nothing could be unmounted, and no space given back."""
    monkeypatch.setattr("otel_bridge.kernel.discovery.LINGER", 0.2)
    command = container(root)
    with monitoring("tls") as monitor:
        client = start(*command, "/client")
        eventually("its own copy is covered", lambda: covered(monitor, libssl_in(root)))
        client.process.kill()
        eventually("it is let go", lambda: not covered(monitor, libssl_in(root)))


class Both:
    """The monitor's events go into a join."""

    def __init__(self, monitor) -> None:
        columns = PlanBuilder()
        self.join = Join(JoinConfig(), columns, Telemetry(), SystemClock())
        self.plan = columns.build()
        self._monitor = monitor
        self._taken = 0

    def pass_through(self, resource: dict) -> dict:
        """The attributes of a span of some resource, open all the time."""
        for batch in self._monitor.events.batches[self._taken :]:
            self.join.take(batch)
        self._taken = len(self._monitor.events.batches)
        now = time.time_ns()
        span = {"start_time_unix_nano": now - SPAN_NS, "end_time_unix_nano": now}
        batch = NativeCodec().scan(trace_request([span], resource=resource), self.plan)
        self.join.process(batch)
        (out,) = spans_of(batch.splice())
        return attributes_of(out.attributes)


def free_numbers() -> range:
    """Numbers that no process or thread has in this pid namespace, nor is given next."""
    for first in range(1000, 30_000, 64):
        numbers = range(first, first + 64)
        last_given = int((PROC / "loadavg").read_text().split()[-1])
        if abs(first - last_given) > 2 * len(numbers) and not any(
            (PROC / str(number)).exists() for number in numbers
        ):
            return numbers
    pytest.skip("needs 64 free process numbers in a row")


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_process_without_spans_of_its_thread_is_matched_by_the_pid_it_says(when, root, start):
    """The span says the number in its own namespace, the kernel the one in the initial namespace."""
    command = container(root)
    # Number 1 is taken many times over: let it be a child of a shell in the namespace.
    shell = shutil.copy("/bin/dash" if Path("/bin/dash").exists() else "/bin/sh", root / "sh")
    for word in subprocess.run(["ldd", shell], capture_output=True, text=True, check=True).stdout.split():
        if word.startswith("/") and not (root / word[1:]).exists():
            (root / word[1:]).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(word, root / word[1:])
    free = free_numbers()
    script = f"i=0; while [ $i -lt {free.start} ]; do (:); i=$((i+1)); done; /client; :"
    client = start(*command, "/sh", "-c", script) if when == "before" else None
    with monitoring("tls") as monitor:
        client = client or start(*command, "/sh", "-c", script)
        assert client.own_pid in free
        assert not (PROC / str(client.own_pid)).exists(), "the number is free here"
        eventually("it is covered", lambda: covered(monitor, libssl_in(root)))
        client.begin_handshakes(PRIME)
        abandoned(monitor, client.pid, PRIME)
        both = Both(monitor)
        attributes = both.pass_through({"process.pid": client.own_pid})
        assert attributes["kernel.match"] == "process"
        assert attributes["kernel.tls.handshake.time"] > 0
        assert "kernel.match" not in both.pass_through({"process.pid": client.pid})


def test_doctor_names_each_and_says_which_cannot_be_covered(shared, static, stripped, root, start):
    """By process; the stripped one with the reason."""
    command = container(root)
    clients = {
        "shared": (start(shared), Coverage.SHARED),
        "static": (start(static), Coverage.LINKED_IN),
        "stripped": (start(stripped), Coverage.STRIPPED),
        "container": (start(*command, "/client"), Coverage.SHARED),
    }
    files, _ = openssl.survey(PROC)
    for name, (client, coverage) in clients.items():
        by_process = [
            file
            for file in files
            for process in file.processes
            if f"({client.pid}" in process.partition(" ")[2]
        ]
        assert [file.coverage for file in by_process] == [coverage], name
    assert any("elsewhere" in process for file in files for process in file.processes)
    assert not any(file.path.endswith("libcrypto.so.3") for file in files)
