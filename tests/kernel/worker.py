"""Does on request what the kernel has events for, with or without a span published.

Driven by tests/support/kernel.py: reads a list of jobs from each line of standard input, does each in a
thread of its own, and answers with a line.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import json
import mmap
import os
import socket
import ssl
import struct
import sys
import termios
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

TCP_INFO_TOTAL_RETRANS = 100  # offset in struct tcp_info
SO_MEMINFO = 55  # asm-generic/socket.h
SIOCOUTQ = 0x5411  # bytes sent and not acknowledged (linux/sockios.h)


def refuse(job: dict[str, Any]) -> int:
    """Connect to a port that nobody listens on."""
    for _ in range(job["times"]):
        with socket.socket() as client:
            assert client.connect_ex(("127.0.0.1", job["port"])) != 0
    return job["times"]


def connect(job: dict[str, Any]) -> list[int]:
    """Connect to a port that somebody listens on; answers the local ports."""
    ports = []
    for _ in range(job["times"]):
        with socket.create_connection((job.get("host", "127.0.0.1"), job["port"])) as client:
            ports.append(client.getsockname()[1])
    return ports


def exhaust(job: dict[str, Any]) -> list[int]:
    """Connect and close at once, so that each holds its port; answers the errors."""
    errors = []
    for _ in range(job["times"]):
        with socket.socket() as client:
            errors.append(client.connect_ex(("127.0.0.1", job["port"])))
    return errors


def abort(job: dict[str, Any]) -> int:
    """Connect, send, and end with a reset; the span can be given up before the reset."""
    for _ in range(job["times"]):
        client = socket.create_connection(("127.0.0.1", job["port"]))
        client.sendall(b"x")
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if job.get("clear_first"):
            publisher.clear()
            client.sendall(b"x")
        client.close()
        if job.get("clear_first"):
            begin(job)
    return job["times"]


def serve(job: dict[str, Any]) -> int:
    """Read whatever comes, in threads that go on after the job; answers the port."""
    server = socket.create_server(("127.0.0.1", 0), backlog=64)

    def read_all(connection: socket.socket) -> None:
        with connection:
            while connection.recv(1 << 16):
                pass

    def accept() -> None:
        while True:
            threading.Thread(target=read_all, args=(server.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return int(server.getsockname()[1])


def upload(job: dict[str, Any]) -> int:
    """Send so many pieces, each until the peer has it; answers how many segments were sent again."""
    with socket.create_connection(("127.0.0.1", job["port"])) as client:
        for _ in range(job["times"]):
            client.sendall(b"x" * job["size"])
            acknowledged(client)
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1) == b""
        return total_retransmits(client)


def upload_kept(job: dict[str, Any]) -> int:
    """Send on a connection that other jobs use as well; answers as `upload`, for this job alone."""
    client = kept.get(job["port"])
    before = total_retransmits(client) if client else 0
    if client is None:
        client = kept[job["port"]] = socket.create_connection(("127.0.0.1", job["port"]))
    client.sendall(b"x" * job["size"])
    acknowledged(client)
    return total_retransmits(client) - before


def acknowledged(client: socket.socket) -> None:
    """Wait until nothing is left that the peer's kernel does not have."""
    while struct.unpack("i", fcntl.ioctl(client, SIOCOUTQ, bytes(4)))[0]:
        time.sleep(0.005)


def total_retransmits(client: socket.socket) -> int:
    """Segments of a connection that were sent again so far, as the kernel says."""
    info = client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    return int(struct.unpack_from("I", info, TCP_INFO_TOTAL_RETRANS)[0])


kept: dict[int, socket.socket] = {}


def download(job: dict[str, Any]) -> int:
    """Receive until the peer has sent everything, but only once it can send no more.

    Answers how many bytes came.
    """
    total = 0
    for _ in range(job["times"]):
        with socket.create_connection(("127.0.0.1", job["port"])) as client:
            # Once it is full, for as long as told: a busy sender takes its time to fill it.
            before = 0
            while before == 0 or unread(client) != before:
                before = unread(client)
                time.sleep(job["seconds"])
            while piece := client.recv(1 << 20):
                total += len(piece)
    return total


def unread(client: socket.socket) -> int:
    """Bytes that came and wait."""
    return int.from_bytes(fcntl.ioctl(client, termios.FIONREAD, bytes(4)), sys.byteorder)


def stall(job: dict[str, Any]) -> int:
    """Send until the peer takes no more, wait, and give up; what was not sent is thrown away."""
    for _ in range(job["times"]):
        with socket.create_connection(("127.0.0.1", job["port"])) as client:
            client.settimeout(job["seconds"])
            with suppress(TimeoutError):
                # Each call has the whole time, so that it ends in a wait for the peer, however slow this is.
                while True:
                    client.send(bytes(1 << 20))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return int(job["times"])


def lose(job: dict[str, Any]) -> int:
    """Be sent packets until so many found no room; answers how many the kernel says."""
    ping = job["protocol"] == socket.IPPROTO_ICMP
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM, job["protocol"]) as receiver,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other,
    ):
        receiver.bind(("127.0.0.1", 0))
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        # Who pings itself is answered.
        sender = receiver if ping else other
        sender.connect(("127.0.0.1", receiver.getsockname()[1]))
        packet = bytes([8, 0, 0, 0, 0, 0, 0, 0]) + b"x" * 100
        sender.send(packet)
        receiver.recv(1 << 16)
        while lost_of(receiver) < job["times"]:
            sender.send(packet)
        return lost_of(receiver)


def lost_of(receiver: socket.socket) -> int:
    """How many packets found no room."""
    return int(struct.unpack_from("9I", receiver.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, 64))[8])


def sleep(job: dict[str, Any]) -> int:
    """Sleep; a job that waits for the others is told. Answers how long all that took, nanoseconds."""
    if job.get("tell"):
        working.wait()
    before = time.monotonic_ns()
    for _ in range(job["times"]):
        time.sleep(job["seconds"])
    return time.monotonic_ns() - before


def burn(job: dict[str, Any]) -> int:
    """Use a CPU for a while; answers how long the kernel says this thread waited for one, nanoseconds."""
    before = run_delay()
    if job.get("round_robin"):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    if "cpu" in job:
        os.sched_setaffinity(0, {job["cpu"]})
    end = time.thread_time() + job["seconds"]
    while time.thread_time() < end:
        pass
    return run_delay() - before


def run_delay() -> int:
    return int(Path(f"/proc/self/task/{threading.get_native_id()}/schedstat").read_text().split()[1])


def read_direct(job: dict[str, Any]) -> int:
    """Read blocks of a file past the page cache."""
    fd = os.open(job["path"], os.O_RDONLY | os.O_DIRECT)
    buffer = mmap.mmap(-1, job["size"])
    for i in range(job["times"]):
        assert os.preadv(fd, [buffer], i * job["size"]) == job["size"]
    os.close(fd)
    return job["times"]


def fill_memory(job: dict[str, Any]) -> int:
    """Touch memory, in pieces, once the other threads are at their jobs."""
    working.wait()
    pieces = []
    for _ in range(job["times"]):
        piece = bytearray(job["size"])
        pieces.append(piece)
    return len(pieces)


def read_file(job: dict[str, Any]) -> int:
    """Read a file through the page cache, again and again."""
    total = 0
    for _ in range(job["times"]):
        with Path(job["path"]).open("rb", buffering=0) as file:
            while chunk := file.read(1 << 20):
                total += len(chunk)
    return total


def tls_context(job: dict[str, Any]) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=job.get("cafile"))
    if "maximum" in job:
        context.maximum_version = ssl.TLSVersion[job["maximum"]]
    return context


def tls(job: dict[str, Any]) -> list[str]:
    """Handshakes over blocking sockets; answers the versions, or the errors."""
    outcomes = []
    for _ in range(job["times"]):
        plain = socket.create_connection(("127.0.0.1", job["port"]), timeout=job.get("timeout"))
        try:
            with tls_context(job).wrap_socket(plain, server_hostname="localhost") as client:
                client.sendall(b"x")
                assert client.recv(1) == b"x"
                outcomes.append(client.version() or "")
        except OSError as error:
            outcomes.append(type(error).__name__)
        finally:
            plain.close()
    return outcomes


def tls_asyncio(job: dict[str, Any]) -> list[int]:
    """Over asyncio, where OpenSSL has no socket and is called again and again; answers how long each took."""

    async def handshakes() -> list[int]:
        elapsed = []
        for _ in range(job["times"]):
            before = time.monotonic_ns()
            _, writer = await asyncio.open_connection(
                "127.0.0.1", job["port"], ssl=tls_context(job), server_hostname="localhost"
            )
            elapsed.append(time.monotonic_ns() - before)
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
        return elapsed

    return asyncio.run(handshakes())


def tls_connect(job: dict[str, Any]) -> list[int]:
    """Handshakes by SSL_connect(), which calls SSL_do_handshake() itself; answers what it returned."""
    library = ctypes.CDLL("libssl.so.3")
    for name in ("TLS_client_method", "SSL_CTX_new", "SSL_new"):
        getattr(library, name).restype = ctypes.c_void_p
    context = ctypes.c_void_p(library.SSL_CTX_new(ctypes.c_void_p(library.TLS_client_method())))
    results = []
    for _ in range(job["times"]):
        with socket.create_connection(("127.0.0.1", job["port"])) as plain:
            session = ctypes.c_void_p(library.SSL_new(context))
            library.SSL_set_fd(session, plain.fileno())
            results.append(library.SSL_connect(session))
            # Once more: it only says that it is done.
            results.append(library.SSL_do_handshake(session))
            library.SSL_free(session)
    library.SSL_CTX_free(context)
    return results


def fork(job: dict[str, Any]) -> list[int]:
    """Fork children that publish a span of their own and are refused; answers their process ids."""
    pids = []
    for number in job["spans"]:
        pid = os.fork()
        if pid == 0:
            begin({"trace_id": job["trace_ids"][str(number)], "span_id": number.to_bytes(8, "big").hex()})
            refuse(job)
            os._exit(0)
        pids.append(pid)
    for pid in pids:
        assert os.waitpid(pid, 0)[1] == 0
    return pids


def call(job: dict[str, Any]) -> int:
    """Call one of the publisher's functions, then connect in vain."""
    getattr(publisher, job["function"])()
    return refuse(job)


class Task(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_uint64), ("number", ctypes.c_int32))


def call_function(job: dict[str, Any]) -> int:
    """Call a function of the library; {"task": n} becomes a pointer to a task of that number."""
    arguments = [
        ctypes.byref(Task(1, argument["task"])) if isinstance(argument, dict) else ctypes.c_int64(argument)
        for argument in job["arguments"]
    ]
    for _ in range(job["times"]):
        getattr(publisher, job["function"])(*arguments)
    return job["times"]


def begin(job: dict[str, Any]) -> None:
    if "span_id" in job:
        publisher.publish(bytes.fromhex(job["trace_id"]), bytes.fromhex(job["span_id"]))


working = threading.Barrier(2)


def run(job: dict[str, Any], answers: dict[int, Any], index: int) -> None:
    begin(job)
    try:
        answers[index] = globals()[job["do"]](job)
    finally:
        publisher.clear()


def answer(document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Serve until standard input ends."""
    answer({"pid": os.getpid()})
    for line in sys.stdin:
        answers: dict[int, Any] = {}
        jobs = json.loads(line)
        if len(jobs) == 1:
            # In the main thread, alone: nobody else takes the interpreter's lock.
            run(jobs[0], answers, 0)
        else:
            threads = [threading.Thread(target=run, args=(job, answers, i)) for i, job in enumerate(jobs)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        answer({"answers": [answers.get(i) for i in range(len(jobs))]})


publisher = ctypes.CDLL(sys.argv[1])

if __name__ == "__main__":
    main()
