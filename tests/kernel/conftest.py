"""Fixtures of the kernel tests; what they alter is gone when a test ends."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
import trustme

from otel_bridge.kernel.bcc import INSTALL, find_module
from otel_bridge.libbpf import uprobe_multi
from tests.support import kernel
from tests.support.kernel import Worker, needs_bpf
from tests.support.kernel_headers import make_headers
from tests.support.processes import needs_command

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def _bpf():
    needs_bpf()


@pytest.fixture(scope="session")
def bcc(tmp_path_factory):
    """Settings for the BCC back end; what it compiles is kept for the session."""
    if find_module() is None:
        pytest.skip(f"needs BCC: {INSTALL}")
    headers = make_headers(tmp_path_factory.mktemp("headers"))
    cache = tmp_path_factory.mktemp("compiled")
    return {"backend": "bcc", "bcc": {"headers": str(headers), "cache": str(cache)}}


@pytest.fixture(params=["libbpf", "bcc"])
def each_backend(request, monkeypatch):
    """The test runs with probes that libbpf loads, and with the same ones compiled by BCC."""
    use_backend(request.param, request, monkeypatch)
    return request.param


def use_backend(name, request, monkeypatch):
    """Have monitors of a test load their probes by libbpf or BCC."""
    settings = request.getfixturevalue("bcc") if name == "bcc" else {"backend": name}
    monkeypatch.setattr(kernel, "backend", settings)


@pytest.fixture(params=["libbpf", "perf-events", "bcc"])
def each_attachment(request, monkeypatch):
    """As `each_backend`, and with uprobes that are perf events, as before Linux 6.6."""
    name = request.param
    use_backend("bcc" if name == "bcc" else "libbpf", request, monkeypatch)
    if name == "perf-events":
        monkeypatch.setattr(uprobe_multi, "available", lambda: False)
    elif name == "libbpf" and not uprobe_multi.available():
        pytest.skip("needs links for uprobes: Linux 6.6 or later")
    return name


@pytest.fixture(scope="session")
def build(tmp_path_factory):
    """Compiles the publisher with a TLS model; answers the library's path."""
    directory = tmp_path_factory.mktemp("publisher")

    def compile_with(*flags: str) -> Path:
        needs_command("cc", "gcc")
        path = directory / f"publisher{''.join(flags)}.so"
        if not path.exists():
            source = HERE / "publisher.c"
            subprocess.run(["cc", "-shared", "-fPIC", "-O2", *flags, source, "-o", path], check=True)
        return path

    return compile_with


@pytest.fixture
def publisher(build):
    """The publisher's library, built as most are."""
    return build("-ftls-model=global-dynamic")


@pytest.fixture(scope="module")
def compiled(request, tmp_path_factory):
    """Builds the module's SOURCE, a program that uses OpenSSL."""
    source = request.module.SOURCE
    directory = tmp_path_factory.mktemp(source.stem)

    def build(name: str, *flags: str) -> Path:
        path = directory / name
        if not path.exists():
            command = [needs_command("cc", "gcc"), "-O1", source, "-o", path, *flags]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"needs OpenSSL to compile with: apt-get install libssl-dev; {done.stderr[:200]}")
        return path

    return build


@pytest.fixture
def shared(compiled):
    """With the machine's libssl."""
    return compiled("shared", "-lssl", "-lcrypto")


@pytest.fixture
def static(compiled):
    """With OpenSSL linked in."""
    return compiled("static", "-static", "-lssl", "-lcrypto")


@pytest.fixture
def stripped(compiled):
    """With OpenSSL linked in and its symbols gone."""
    return compiled("stripped", "-static", "-s", "-lssl", "-lcrypto")


@pytest.fixture
def start_worker(publisher):
    """Starts workers, and ends them with the test."""
    workers: list[Worker] = []

    def start(library: Path = publisher, **options) -> Worker:
        workers.append(Worker(library, **options))
        return workers[-1]

    yield start
    for worker in workers:
        worker.stop()


@pytest.fixture
def worker(start_worker):
    """One worker."""
    return start_worker()


@contextmanager
def sinkhole(*, answer: bytes = b""):
    """A server on loopback that reads until the end; answers the port."""
    server = socket.create_server(("127.0.0.1", 0), backlog=128)

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=drain, args=(connection,), daemon=True).start()

    def drain(connection: socket.socket) -> None:
        with connection:
            try:
                while connection.recv(1 << 16):
                    if answer:
                        connection.sendall(answer)
            except ConnectionResetError:
                pass  # what some tests are about

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield server.getsockname()[1]
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join()


@pytest.fixture
def listening_port():
    """A port that somebody listens on."""
    with sinkhole() as port:
        yield port


@pytest.fixture
def closed_port():
    """A port that nobody listens on, kept free for the time of the test."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


@pytest.fixture(scope="session")
def bpffs(tmp_path_factory):
    """A bpffs of this session's own: not every machine has one, and what is pinned here is nobody else's."""
    place = tmp_path_factory.mktemp("bpffs")
    mounted = subprocess.run(
        ["mount", "-t", "bpf", "bpf", place], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"needs bpffs in the kernel: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


@pytest.fixture
def namespace():
    """A network namespace of the test's own."""
    needs_command("ip", "iproute2")
    name = f"otel-bridge-test-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"needs network namespaces: {made.stderr.strip()}")
    inside = ("ip", "netns", "exec", name)
    subprocess.run([*inside, "ip", "link", "set", "lo", "up"], check=True)
    yield inside
    subprocess.run(["ip", "netns", "delete", name], check=True)


@pytest.fixture(scope="session")
def identity(tmp_path_factory):
    """A certificate with its key in a file, and what a client needs to trust it."""
    authority = trustme.CA()
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(path)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    return str(path), trusting
