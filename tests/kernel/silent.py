"""Serves HTTP/1.1 and publishes nothing: what can be known of its requests is what the requests say.

    silent.py threads|asyncio|ssl_read [certificate]

Prints its port. A request orders by headers what is to be done for it: `x-refuse: ADDRESS PORT TIMES` has so
many connections refused, `x-sleep: SECONDS` waits first, `x-late: 1` answers before it does as told,
`x-wait: 1` prints a line and waits for the client to go away.
"""

from __future__ import annotations

import asyncio
import ctypes
import socket
import ssl
import sys
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"


def refuse(order: str | None) -> None:
    """Connect in vain, so many times."""
    if order is None:
        return
    address, port, times = order.split()
    for _ in range(int(times)):
        with socket.socket() as client:
            assert client.connect_ex((address, int(port))) != 0


class Handler(BaseHTTPRequestHandler):
    """A thread for each connection."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Do as told, and answer in two parts."""
        self.rfile.read(int(self.headers.get("content-length", 0)))
        time.sleep(float(self.headers.get("x-sleep", 0)))
        late = "x-late" in self.headers
        if not late:
            refuse(self.headers["x-refuse"])
        if "x-wait" in self.headers:
            sys.stdout.write("at it\n")
            sys.stdout.flush()
            self.rfile.read(1)
        self.wfile.write(ANSWER)
        self.wfile.write(b"ok")
        if late:
            refuse(self.headers["x-refuse"])

    do_GET = do_POST  # noqa: N815 (http.server's name)


class Server(ThreadingHTTPServer):
    """Clients that go away in the middle are what some tests are about."""

    request_queue_size = 128
    daemon_threads = True
    tls: ssl.SSLContext | None = None

    def finish_request(self, request: socket.socket, address: object) -> None:
        """In the connection's thread, so that a slow handshake holds up nobody."""
        with suppress(OSError):
            secure = self.tls.wrap_socket(request, server_side=True) if self.tls else request
            super().finish_request(secure, address)


def serve_threads(tls: ssl.SSLContext | None) -> None:
    """http.server, as it comes."""
    server = Server(("127.0.0.1", 0), Handler)
    server.tls = tls
    announce(server.server_address[1])
    server.serve_forever()


async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer one request after the other, while others do the same on this thread."""
    with suppress(OSError, asyncio.IncompleteReadError):
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            headers = {
                name.lower(): value
                for name, _, value in (line.partition(": ") for line in head.split("\r\n"))
            }
            await asyncio.sleep(float(headers.get("x-sleep", 0)))
            refuse(headers.get("x-refuse"))
            writer.write(ANSWER + b"ok")
            await writer.drain()


async def serve_asyncio(tls: ssl.SSLContext | None) -> None:
    """All connections in one thread."""
    server = await asyncio.start_server(converse, "127.0.0.1", 0, ssl=tls, backlog=128)
    announce(server.sockets[0].getsockname()[1])
    await server.serve_forever()


def serve_ssl_read(certificate: str) -> None:
    """By SSL_read(), which Python has not called since 3.10; one request a connection."""
    library = ctypes.CDLL("libssl.so.3")
    for name in ("TLS_server_method", "SSL_CTX_new", "SSL_new"):
        getattr(library, name).restype = ctypes.c_void_p
    context = ctypes.c_void_p(library.SSL_CTX_new(ctypes.c_void_p(library.TLS_server_method())))
    assert library.SSL_CTX_use_certificate_chain_file(context, certificate.encode()) == 1
    assert library.SSL_CTX_use_PrivateKey_file(context, certificate.encode(), 1) == 1
    listener = socket.create_server(("127.0.0.1", 0))
    announce(listener.getsockname()[1])
    buffer = ctypes.create_string_buffer(1 << 14)
    while True:
        plain, _ = listener.accept()
        session = ctypes.c_void_p(library.SSL_new(context))
        library.SSL_set_fd(session, plain.fileno())
        assert library.SSL_accept(session) == 1
        size = library.SSL_read(session, buffer, len(buffer))
        head = buffer.raw[:size].decode()
        refuse(next(line[10:] for line in head.split("\r\n") if line.startswith("x-refuse: ")))
        library.SSL_write(session, ANSWER + b"ok", len(ANSWER) + 2)
        library.SSL_free(session)
        plain.close()


def announce(port: int) -> None:
    """Tell who started this where it listens."""
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()


def main() -> None:
    """Serve until killed."""
    kind, *certificate = sys.argv[1:]
    tls = None
    if certificate:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(certificate[0])
    if kind == "threads":
        serve_threads(tls)
    elif kind == "asyncio":
        asyncio.run(serve_asyncio(tls))
    else:
        serve_ssl_read(certificate[0])


if __name__ == "__main__":
    main()
