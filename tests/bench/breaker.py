"""From the deciding event to the first refused connection, over hundreds of trips; needs root.

    python -m tests.bench.breaker [--trips N]

A server in a network namespace of its own, and a client beside it that connects again and again without
rest. Each trip: five slow calls are told to the breakers as the data path tells them, the breaker opens, its
gate is flipped, and the client notes when a connection was refused for the first time. The time of the
connection is in the figure. The bare figure is one connection of the same client to a port without listener,
in the same run: what a refusal costs where nothing has to be decided.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import subprocess
import sys
import time

import numpy as np
from rich.console import Console

from otel_bridge.breakers import State
from otel_bridge.contracts import SystemClock
from otel_bridge.control import machine
from otel_bridge.control.actions.limits import ActionConfig, RateLimitConfig
from otel_bridge.control.breaker import Calls
from otel_bridge.control.config import ControlConfig
from otel_bridge.control.control import Control
from otel_bridge.telemetry import Telemetry, configure_logging
from tests.bench import figures

TARGET = "llama"
SLOW = 5

SERVER = """
import socket
server = socket.create_server(("127.0.0.1", 0), backlog=512)
print(server.getsockname()[1], flush=True)
while True:
    server.accept()[0].close()
"""

CLIENT = """
import socket, struct, sys, time
port, times = int(sys.argv[1]), int(sys.argv[2])
reset = struct.pack("ii", 1, 0)  # no TIME_WAIT, or ports run out
def knock(port):
    began = time.monotonic_ns()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        try:
            client.connect(("127.0.0.1", port))
        except ConnectionRefusedError:
            return began, time.monotonic_ns(), "refused"
        ended = time.monotonic_ns()
        client.recv(1)  # until it was accepted, or the queue overflows and a connection takes a second
        return began, ended, "admitted"
with socket.socket() as holder:
    holder.bind(("127.0.0.1", 0))
    for _ in range(times):
        began, ended, _ = knock(holder.getsockname()[1])
        print(ended - began)
before = None
while True:
    _, ended, result = knock(port)
    if result != before:
        before = result
        print(result, ended, flush=True)
"""


class Recorder:
    """A gate that keeps when it was decided."""

    name = "recorder"
    decided = 0

    def apply(self, change) -> None:  # type: ignore[no-untyped-def]
        """Keep an open's."""
        if change.state is State.OPEN and not change.renewal:
            self.decided = change.decided


def slow_calls(clock: SystemClock) -> Calls:
    """Enough to trip."""
    return Calls(
        np.full(SLOW, 3.0),
        np.zeros(SLOW, bool),
        np.zeros(SLOW, bool),
        np.full(SLOW, clock.time_ns() - 3_000_000_000, "<u8"),
        np.zeros(SLOW, "V16"),
    )


def measure(control: Control, client: subprocess.Popen[str], trips: int) -> tuple[list[float], list[float]]:
    """Seconds to the decision, and from the decision to the first refused connection, of each trip."""
    assert client.stdout is not None
    recorder = Recorder()
    often = RateLimitConfig(changes=10 * trips)
    control.board.add_gate(recorder, ActionConfig(targets=("*",), rate_limit=often))
    decisions, refusals = [], []
    for _ in range(trips):
        line = client.stdout.readline().split()
        assert line[0] == "admitted", line
        time.sleep(random.uniform(0.005, 0.015))  # at any point of the client's round
        event = time.monotonic_ns()
        control.sources.take_calls(TARGET, slow_calls(SystemClock()), event)
        result, ended = client.stdout.readline().split()
        assert result == "refused", result
        decisions.append((recorder.decided - event) / 1e9)
        refusals.append((int(ended) - recorder.decided) / 1e9)
        breaker = control.board.find(TARGET)
        assert breaker is not None
        control.board.operate(breaker, breaker.step(machine.close, "bench"), "bench", "bench")
    return decisions, refusals


def start(*command: str) -> subprocess.Popen[str]:
    """A process that prints lines."""
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


async def run(trips: int) -> tuple[list[float], list[float], list[float]]:
    """All of it; also the bare refusals."""
    prefix = ["unshare", "-n", "sh", "-c", 'ip link set lo up; exec "$@"', "sh"]
    server = start(*prefix, sys.executable, "-c", SERVER)
    assert server.stdout is not None
    port = server.stdout.readline().strip()
    gate = {"targets": [TARGET], "pid": server.pid, "rate_limit": {"changes": 10 * trips}}
    config = ControlConfig.model_validate(
        {
            "enabled": True,
            "state": {"file": None},
            "operators": {"socket": None},
            "decisions": {"http": {"enabled": False}},
            "actions": {"gates": {TARGET: gate}, "pins": None},
        }
    )
    control = Control(config, Telemetry(), SystemClock())
    await control.start()
    enter = ["nsenter", f"--net=/proc/{server.pid}/ns/net"]
    client = start(*enter, sys.executable, "-c", CLIENT, port, str(trips))
    assert client.stdout is not None
    try:
        bare = [int(client.stdout.readline()) / 1e9 for _ in range(trips)]
        found = await asyncio.to_thread(measure, control, client, trips)
    finally:
        for process in (client, server):
            process.kill()
            process.wait()
        await control.stop(1.0)
    return *found, bare


def main() -> None:
    """Measure, print beside E4's figures, keep."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.breaker", description=__doc__)
    parser.add_argument("--trips", type=int, default=300)
    parser.add_argument("--no-results", action="store_true", help="leave results.json as it is")
    options = parser.parse_args()
    configure_logging(level="error")
    decisions, refusals, bare = asyncio.run(run(options.trips))
    console = Console()
    for name, seconds, limit in (
        ("decision", decisions, "≤ 1 ms"),
        ("first refused, after the decision", refusals, "≤ 1 ms; published 2.1 ms"),
        ("a refusal by itself", bare, ""),
    ):
        p50, p99 = np.percentile(seconds, [50, 99]) * 1e3
        console.print(f"{name}: P50 {p50:.3f} ms, P99 {p99:.3f} ms over {len(seconds)} ({limit or 'bare'})")
    if not options.no_results:
        figures.merge(
            {
                "breaker.decision_p99_ms": float(np.percentile(decisions, 99)) * 1e3,
                "breaker.first_refused_p99_ms": float(np.percentile(refusals, 99)) * 1e3,
                "breaker.first_refused_p50_ms": float(np.percentile(refusals, 50)) * 1e3,
                "breaker.bare_refused_p99_ms": float(np.percentile(bare, 99)) * 1e3,
            }
        )


if __name__ == "__main__":
    main()
