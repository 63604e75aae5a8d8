"""Runs the clients side by side and collects what each says it did."""

from __future__ import annotations

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from demo.environments import OF_CLIENT
from demo.errors import DemoError
from demo.places import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CLIENT_TIMEOUT = 180.0


@dataclass(frozen=True)
class Exchange:
    """One thing a client did; see demo/clients/__main__.py.

    Attributes:
        exchange: its name.
        trace_id: the trace of the application's span around it.
        ok: it ended as meant, a refusal included.
        prompt_bytes: UTF-8 bytes of prompt text of each answered request.
        outcome: for people.
    """

    exchange: str
    trace_id: str
    ok: bool
    prompt_bytes: list[int]
    outcome: str

    @property
    def requests(self) -> int:
        """HTTP requests that it made; a refused one is one."""
        return len(self.prompt_bytes) or 1


@dataclass(frozen=True)
class ClientRun:
    """What one client did.

    Attributes:
        client: its name.
        exchanges: in order.
        spans: how many spans it exported.
    """

    client: str
    exchanges: list[Exchange]
    spans: int


def drive(server: str, otlp: str, logs: Path, tell: Callable[[str, Exchange], None]) -> list[ClientRun]:
    """Run every client to its end.

    Args:
        server: base URL of the OpenAI API.
        otlp: OTLP/gRPC URL for their spans.
        logs: folder for their logs.
        tell: called with the client and each exchange as it ends.

    Raises:
        DemoError: a client broke off.
    """

    def run(client: str) -> ClientRun:
        log = logs / f"client-{client}.log"
        command = [str(OF_CLIENT[client].python), "-m", "demo.clients", client]
        command += ["--server", server, "--otlp", otlp]
        exchanges = []
        with (
            log.open("ab") as errors,
            subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True
            ) as child,
        ):
            assert child.stdout is not None
            spans = None
            for line in child.stdout:
                document = json.loads(line)
                if "spans" in document:
                    spans = document["spans"]
                else:
                    exchanges.append(Exchange(**document))
                    tell(client, exchanges[-1])
            child.wait(CLIENT_TIMEOUT)
        if spans is None:
            raise DemoError(
                f"the client {client} broke off with exit code {child.returncode}", "its log says why", log
            )
        return ClientRun(client, exchanges, spans)

    with ThreadPoolExecutor(len(OF_CLIENT)) as pool:
        return list(pool.map(run, OF_CLIENT))
