"""Ports that programs of a test are told to listen on."""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
from functools import cache
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# Below those that the kernel itself chooses (32768 and up) for connections and for whoever binds to 0: one of
# these could be taken by anybody before the program that was told of it listens.
_FIRST, _LAST, _BLOCK = 10_240, 32_768, 512


def free_port() -> int:
    """A TCP port that nobody listens on now, and that this process was not given for a long time."""
    ports = _ports()
    while True:
        port = next(ports)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


@cache
def _ports() -> Iterator[int]:
    """This process's block of ports, over and over."""
    block = range(first := _own_block(), first + _BLOCK)
    return (block[number % _BLOCK] for number in count())


def _own_block() -> int:
    """The first port of a block that no other process of tests has, until this one ends."""
    for first in range(_FIRST, _LAST - _BLOCK, _BLOCK):
        path = Path(tempfile.gettempdir()) / f"otel-bridge-test-ports-{first}"
        try:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except PermissionError:  # another user's
            continue
        try:
            # Not closed: the lock goes with the process.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
        else:
            return first
    raise RuntimeError(f"all blocks of ports are taken: see {tempfile.gettempdir()}/otel-bridge-test-ports-*")
