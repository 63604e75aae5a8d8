"""Whom the servers under test talk to: an upstream behind a lossy link, and a slow TLS peer.

python -m tests.bench.join.peers DIRECTORY   (prints its `Addresses`, then serves until its input ends)
"""

from __future__ import annotations

import json
import socket
import ssl
import struct
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import trustme

if TYPE_CHECKING:
    from collections.abc import Callable

LOOPBACK = "127.0.0.1"
LENGTH = struct.Struct("!I")
DONE = b"!"
_PROGRESS = b"."
_PROGRESS_EVERY = 16 << 10
_HOLD = 0.02
"""Seconds the TLS peer keeps its first flight back: less than what makes a wait long."""


@dataclass(frozen=True)
class Addresses:
    """Where the peers are.

    Attributes:
        upstream: port that takes uploads.
        tls: port that answers handshakes late.
        cafile: of the authority that the TLS peer is known by.
    """

    upstream: int
    tls: int
    cafile: str


def take_uploads(connection: socket.socket) -> None:
    """Read uploads, each with its length in front; say how far they are now and then, and when all is here.

    Word comes while the sender still sends, as it does in HTTP/2.
    """
    with suppress(OSError), connection, connection.makefile("rb") as stream:
        while head := stream.read(LENGTH.size):
            (left,) = LENGTH.unpack(head)
            while left:
                left -= len(stream.read(min(left, _PROGRESS_EVERY)))
                connection.sendall(_PROGRESS if left else DONE)


def answer_late(context: ssl.SSLContext) -> Callable[[socket.socket], None]:
    """Handshakes that take their time."""

    def answer(connection: socket.socket) -> None:
        with suppress(OSError):
            connection.recv(1, socket.MSG_PEEK)
            time.sleep(_HOLD)
            with connection, context.wrap_socket(connection, server_side=True) as secure:
                while secure.recv(1024):
                    pass

    return answer


def serve(answer: Callable[[socket.socket], None]) -> int:
    """A thread a connection; returns the port."""
    listener = socket.create_server((LOOPBACK, 0), backlog=256)

    def accept() -> None:
        while True:
            threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    port: int = listener.getsockname()[1]
    return port


def main() -> None:
    """Serve until standard input ends."""
    authority = trustme.CA()
    cafile = Path(sys.argv[1]) / "ca.pem"
    authority.cert_pem.write_to_path(str(cafile))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    print(
        json.dumps(asdict(Addresses(serve(take_uploads), serve(answer_late(context)), str(cafile)))),
        flush=True,
    )
    sys.stdin.read()


if __name__ == "__main__":
    main()
