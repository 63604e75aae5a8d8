"""Requests that name a span, to servers that publish none, and on which spans their events are.

What a server is asked to do is seen as refused connections, whose address tells which request they were for.
"""

from __future__ import annotations

import ipaddress
import socket
import subprocess
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

from otel_bridge.model import Match
from tests.support.kernel import span_id, trace_id

if TYPE_CHECKING:
    import ssl


def traceparent(number: int) -> str:
    """The header of a request that this span made."""
    return f"traceparent: 00-{trace_id(number).hex()}-{span_id(number).hex()}-01\r\n"


def request(*headers: str, body: bytes = b"") -> bytes:
    """A request; each header with its line end."""
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n" + "".join(headers)
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def refused(number: int, port: int, times: int = 3) -> str:
    """The order for a request: as many connections, to an address that tells its number."""
    return f"x-refuse: 127.0.1.{number} {port} {times}\r\n"


def answered(connection: socket.socket) -> None:
    """Wait for the whole answer."""
    received = b""
    while not received.endswith(b"ok"):
        piece = connection.recv(1 << 16)
        assert piece, "the server went away"
        received += piece


@contextmanager
def connected(port: int, tls: ssl.SSLContext | None = None):
    """A connection to a server."""
    with socket.create_connection(("127.0.0.1", port)) as plain:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is None:
            yield plain
        else:
            with tls.wrap_socket(plain, server_hostname="localhost") as secure:
                yield secure


class Silent:
    """A server in a process of its own, that publishes nothing; it prints its port."""

    def __init__(self, *command: str) -> None:
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    @property
    def pid(self) -> int:
        """Of the process."""
        return self.process.pid

    def stop(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def numbers(records) -> Counter[tuple[int, int]]:
    """Refused connections, counted by the request they were for and the span they are on (0: none)."""
    found: Counter[tuple[int, int]] = Counter()
    for record in records:
        address = ipaddress.ip_address(bytes(record["remote_address"])).ipv4_mapped
        assert address is not None
        span = int.from_bytes(bytes(record["span_id"]), "big")
        assert record["match"] == (Match.HEADER if span else Match.NONE)
        assert not span or bytes(record["trace_id"]) == trace_id(span)
        found[address.packed[3], span] += 1
    return found
