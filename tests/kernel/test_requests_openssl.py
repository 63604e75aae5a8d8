"""Encrypted requests are found wherever a program has OpenSSL from (case ebpf-tls-functions)."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from pathlib import Path

import pytest

from otel_bridge.kernel import openssl
from otel_bridge.kernel.openssl import Coverage
from otel_bridge.model import KernelEventKind
from otel_bridge.mounts import PROC
from tests.support.http_requests import Silent, answered, connected, numbers, refused, request, traceparent
from tests.support.kernel import eventually, monitoring

SOURCE = Path(__file__).parent / "tls_server.c"
PRIME = 7
PROGRAMS = pytest.mark.parametrize(
    "program", list(itertools.product(("shared", "bundled", "static"), ("SSL_read", "SSL_read_ex")))
)


@pytest.fixture
def bundled(compiled):
    """With a libssl that it brings along, renamed, as wheels do."""
    program = compiled("bundled", "-Wl,-rpath,$ORIGIN/libs", "-lssl", "-lcrypto")
    libraries = program.parent / "libs"
    if not libraries.exists():
        words = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout.split()
        [libssl] = [Path(word) for word in words if word.startswith("/") and "libssl" in word]
        libraries.mkdir()
        shutil.copy(libssl, libraries / "libssl-2f8a3c1d.so.3.0.0")
        (libraries / libssl.name).symlink_to("libssl-2f8a3c1d.so.3.0.0")
    return program


@pytest.fixture
def serve(request, identity):
    """Starts servers by their fixture's name, and ends them with the test; answers the path as well."""
    servers: list[Silent] = []

    def start(program: str, read: str) -> tuple[Silent, Path]:
        path = request.getfixturevalue(program)
        servers.append(Silent(str(path), read, identity[0]))
        return servers[-1], path

    yield start
    for server in servers:
        server.stop()


def libssl_of(pid: int, program: Path) -> Path:
    """The file that a process has OpenSSL's reads from."""
    maps = (PROC / str(pid) / "maps").read_text().splitlines()
    return next((Path(line.split()[-1]) for line in maps if "libssl" in line), program)


def ask(port: int, trusting, closed_port: int) -> None:
    """So many requests, each on a connection of its own."""
    for number in range(1, PRIME + 1):
        with connected(port, trusting) as connection:
            connection.sendall(request(traceparent(number), refused(number, closed_port)))
            answered(connection)


def covered(monitor, server: Silent, path: Path) -> None:
    """Wait until the file that a server has OpenSSL's reads from is."""
    libssl = libssl_of(server.pid, path)
    assert ("libs" in libssl.parts) == (path.name == "bundled")
    eventually(
        "its libssl is covered",
        lambda: any(libssl.samefile(f"/proc/self/fd/{file.fd}") for file in monitor.files("tls_requests")),
    )


@PROGRAMS
def test_requests_to_a_server_that_runs_already(program, serve, closed_port, identity):
    """Joined by their header, once each, by the length that the function tells in its own way."""
    server, path = serve(*program)
    with monitoring("tcp", "requests", "tls_requests") as monitor:
        covered(monitor, server, path)
        ask(server.port, identity[1], closed_port)
    found = numbers(monitor.events.of(KernelEventKind.TCP_CONNECT, tgid=server.pid))
    assert found == {(number, number): 3 for number in range(1, PRIME + 1)}


@PROGRAMS
def test_requests_to_a_server_that_starts_later(program, serve, closed_port, identity):
    """The same."""
    with monitoring("tcp", "requests", "tls_requests") as monitor:
        server, path = serve(*program)
        covered(monitor, server, path)
        ask(server.port, identity[1], closed_port)
    found = numbers(monitor.events.of(KernelEventKind.TCP_CONNECT, tgid=server.pid))
    assert found == {(number, number): 3 for number in range(1, PRIME + 1)}


def test_a_program_without_symbols_is_not_covered_and_said_to_be(serve, closed_port, identity):
    """No span, never a wrong one; and not in silence."""
    server, _ = serve("stripped", "SSL_read")
    with monitoring("tcp", "requests", "tls_requests") as monitor:
        ask(server.port, identity[1], closed_port)
    found = numbers(monitor.events.of(KernelEventKind.TCP_CONNECT, tgid=server.pid))
    assert found == {(number, 0): 3 for number in range(1, PRIME + 1)}
    files, _ = openssl.survey(PROC)
    mine = [file for file in files if any(f"({server.pid}" in process for process in file.processes)]
    assert [file.coverage for file in mine] == [Coverage.STRIPPED]
