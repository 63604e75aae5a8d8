"""Services behind gates: a network namespace with a server in it, and clients that knock."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from otel_bridge.breakers import Change, State

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE = 60.0
"""Seconds for an answer that is to come."""

SERVICE = """
import json, socket, sys, threading
servers = [socket.create_server(("127.0.0.1", 0), backlog=512) for _ in range(int(sys.argv[1]))]
print(json.dumps([server.getsockname()[1] for server in servers]), flush=True)
def echo(connection):
    while data := connection.recv(100):
        connection.sendall(data)
def accept(server):
    while True:
        threading.Thread(target=echo, args=(server.accept()[0],), daemon=True).start()
for server in servers:
    threading.Thread(target=accept, args=(server,), daemon=True).start()
sys.stdin.read()
"""

CLIENT = """
import json, socket, sys
kept = []
def knock(port, patience):
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=patience):
            return "admitted"
    except ConnectionRefusedError:
        return "refused"
    except TimeoutError:
        return "silence"
for line in sys.stdin:
    what, port, times, patience = json.loads(line)
    if what == "knock":
        answers = [knock(port, patience) for _ in range(times)]
        answer = {name: answers.count(name) for name in sorted(set(answers))}
    elif what == "keep":
        kept.append(socket.create_connection(("127.0.0.1", port), timeout=patience))
        answer = True
    else:
        kept[-1].sendall(b"still there?")
        answer = kept[-1].recv(100) == b"still there?"
    print(json.dumps(answer), flush=True)
"""


class Service:
    """A server with some ports in a namespace of its own, and a client beside it.

    Args:
        ports: how many.
        cgroup: the server's control group, a directory.
        name: stands in the server's command line.
    """

    def __init__(self, ports: int = 1, cgroup: Path | None = None, name: str = "") -> None:
        enter = f"echo $$ > {cgroup}/cgroup.procs; " if cgroup else ""
        self.server = self._start(
            ["unshare", "-n", "sh", "-c", f'{enter}ip link set lo up; exec "$@"', "sh"],
            SERVICE,
            str(ports),
            name,
        )
        assert self.server.stdout is not None
        self.ports: list[int] = json.loads(self.server.stdout.readline())
        self.pid = self.server.pid
        self.client = self._start(["nsenter", f"--net=/proc/{self.pid}/ns/net"], CLIENT)

    @property
    def inode(self) -> int:
        """Its namespace's."""
        return Path(f"/proc/{self.pid}/ns/net").stat().st_ino

    @property
    def port(self) -> int:
        """The first port."""
        return self.ports[0]

    @staticmethod
    def _start(prefix: list[str], program: str, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*prefix, sys.executable, "-c", program, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def _ask(self, what: str, port: int, times: int, patience: float = PATIENCE) -> Any:
        assert self.client.stdin is not None
        assert self.client.stdout is not None
        self.client.stdin.write(json.dumps([what, port, times, patience]) + "\n")
        self.client.stdin.flush()
        return json.loads(self.client.stdout.readline())

    def knock(self, times: int = 1, port: int = 0, patience: float = PATIENCE) -> dict[str, int]:
        """How so many new connections ended: admitted, refused, silence (for so many seconds)."""
        answer: dict[str, int] = self._ask("knock", port or self.port, times, patience)
        return answer

    def keep(self) -> None:
        """Open a connection, and keep it."""
        assert self._ask("keep", self.port, 1)

    def goes_on(self) -> bool:
        """Whether the connection kept last still carries data both ways."""
        return bool(self._ask("use", self.port, 1))

    def stop(self) -> None:
        """End both."""
        for process in (self.client, self.server):
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()


@contextmanager
def service(ports: int = 1, **options: Any) -> Iterator[Service]:
    """A service for the time of a block."""
    found = Service(ports, **options)
    try:
        yield found
    finally:
        found.stop()


def change(target: str, state: State, until: float = 0.0, before: State = State.CLOSED) -> Change:
    """A change as the board tells it."""
    return Change(target, before, state, "operator", "test", until, 5, 1)
