"""The work itself: each kind causes its events by real means and measures them by other means than probes."""

from __future__ import annotations

import asyncio
import mmap
import os
import queue
import socket
import ssl
import struct
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench.join.causes import Caused, Job, Kind
from tests.bench.join.peers import DONE, LENGTH, LOOPBACK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.bench.join.peers import Addresses

_TCP_INFO_TOTAL_RETRANS = 100
_CHUNK = 1 << 16

_Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def retransmits(sock: socket.socket) -> int:
    """How many segments of a connection were sent again so far, as the kernel tells its owner."""
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    return int(struct.unpack_from("I", info, _TCP_INFO_TOTAL_RETRANS)[0])


def run_delay() -> int:
    """How long this thread has waited for a CPU so far, nanoseconds, by the scheduler's own account."""
    return int(Path(f"/proc/self/task/{threading.get_native_id()}/schedstat").read_text().split()[1])


@contextmanager
def moment(caused: Caused) -> Iterator[None]:
    """Note when this thread does something that lets it do nothing else meanwhile."""
    caused.tid = threading.get_native_id()
    begin = time.time_ns()
    yield
    caused.moments.append((begin, time.time_ns()))


class OnThread:
    """What a thread does without letting go of its request."""

    def __init__(self, disk_file: Path, sparse_file: Path) -> None:
        self._disk_file = disk_file
        self._sparse_file = sparse_file

    def nothing(self, job: Job, caused: Caused) -> None:
        """Take the request and answer it."""

    def sleep(self, job: Job, caused: Caused) -> None:
        """Wait for nothing."""
        for _ in range(job.times):
            with moment(caused):
                time.sleep(job.seconds)
        caused.count = job.times

    def hog(self, job: Job, caused: Caused) -> None:
        """Need a CPU that others use as well."""
        before = run_delay()
        with moment(caused):
            end = time.thread_time() + job.seconds
            while time.thread_time() < end:
                pass
        caused.amount = run_delay() - before
        caused.count = 1

    def read(self, job: Job, caused: Caused) -> None:
        """Read from the disk itself."""
        fd = os.open(self._disk_file, os.O_RDONLY | os.O_DIRECT)
        with mmap.mmap(-1, job.size) as buffer:
            for number in range(job.times):
                with moment(caused):
                    caused.amount += os.preadv(fd, [buffer], number * job.size)
        os.close(fd)
        caused.count = job.times

    def reclaim(self, job: Job, caused: Caused) -> None:
        """Read through the page cache; the kernel's own trace has the count, by thread and moment."""
        with moment(caused), self._sparse_file.open("rb", buffering=0) as file:
            file.seek(job.offset)
            left = job.size
            while left:
                left -= len(file.read(min(_CHUNK, left)))


class Blocking(OnThread):
    """For servers with a thread a request."""

    def __init__(self, addresses: Addresses, disk_file: Path, sparse_file: Path) -> None:
        super().__init__(disk_file, sparse_file)
        self._addresses = addresses
        self._pool: queue.LifoQueue[socket.socket] = queue.LifoQueue()
        self._tls = ssl.create_default_context(cafile=addresses.cafile)

    def do(self, job: Job) -> Caused:
        """Cause it."""
        caused = Caused(job.kind)
        getattr(self, job.kind)(job, caused)
        return caused

    def retransmit(self, job: Job, caused: Caused) -> None:
        """Send over a connection of its own, then over kept ones that other requests use before and after."""
        with self._connect() as own:
            self._upload(own, job.size)
            own.shutdown(socket.SHUT_WR)
            assert own.recv(1) == b""
            note(own, 0, caused)
        for _ in range(job.times):
            try:
                kept = self._pool.get_nowait()
                before = retransmits(kept)
            except queue.Empty:
                kept, before = self._connect(), 0
            self._upload(kept, job.size)
            note(kept, before, caused)
            self._pool.put(kept)

    def _connect(self) -> socket.socket:
        return socket.create_connection((LOOPBACK, self._addresses.upstream))

    def _upload(self, sock: socket.socket, size: int) -> None:
        sock.sendall(LENGTH.pack(size) + bytes(size))
        while not sock.recv(_CHUNK).endswith(DONE):
            pass

    def handshake(self, job: Job, caused: Caused) -> None:
        """Handshakes over blocking sockets."""
        for _ in range(job.times):
            with (
                socket.create_connection((LOOPBACK, self._addresses.tls)) as plain,
                self._tls.wrap_socket(plain, server_hostname="localhost"),
            ):
                caused.count += 1


class Concurrent(OnThread):
    """For servers that take all requests in one thread."""

    def __init__(self, addresses: Addresses, disk_file: Path, sparse_file: Path) -> None:
        super().__init__(disk_file, sparse_file)
        self._addresses = addresses
        self._pool: list[_Stream] = []
        self._tls = ssl.create_default_context(cafile=addresses.cafile)

    async def do(self, job: Job) -> Caused:
        """Cause it; what blocks a thread blocks the loop's, save every other disk read."""
        caused = Caused(job.kind)
        if job.kind in (Kind.RETRANSMIT, Kind.HANDSHAKE):
            await getattr(self, job.kind)(job, caused)
        elif job.kind is Kind.READ and job.times % 2:
            await asyncio.to_thread(self.read, job, caused)
        else:
            getattr(self, job.kind)(job, caused)
        return caused

    async def retransmit(self, job: Job, caused: Caused) -> None:
        """As `Blocking.retransmit`, over streams."""
        own = await self._connect()
        await self._upload(own, job.size)
        own[1].write_eof()
        assert await own[0].read() == b""
        note(_socket(own), 0, caused)
        own[1].close()
        for _ in range(job.times):
            if self._pool:
                kept = self._pool.pop()
                before = retransmits(_socket(kept))
            else:
                kept, before = await self._connect(), 0
            await self._upload(kept, job.size)
            note(_socket(kept), before, caused)
            self._pool.append(kept)

    async def _connect(self) -> _Stream:
        return await asyncio.open_connection(LOOPBACK, self._addresses.upstream)

    async def _upload(self, stream: _Stream, size: int) -> None:
        reader, writer = stream
        writer.write(LENGTH.pack(size) + bytes(size))
        await writer.drain()
        await reader.readuntil(DONE)

    async def handshake(self, job: Job, caused: Caused) -> None:
        """Handshakes over asyncio, where OpenSSL has no socket and is called again and again."""
        for _ in range(job.times):
            _, writer = await asyncio.open_connection(
                LOOPBACK, self._addresses.tls, ssl=self._tls, server_hostname="localhost"
            )
            caused.count += 1
            writer.close()


def note(sock: socket.socket, before: int, caused: Caused) -> None:
    """Add what a connection has sent again since `before`."""
    caused.count += retransmits(sock) - before
    caused.ports.append(sock.getsockname()[1])


def _socket(stream: _Stream) -> socket.socket:
    found: socket.socket = stream[1].get_extra_info("socket")
    return found
