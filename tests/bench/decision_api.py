"""How long a gateway waits for a decision: 5,000 a second on one core, against a bare server in the same run.

    python -m tests.bench.decision_api

The server has one core for itself where there are two, and the client the other: both run before all else
there (SCHED_FIFO, which takes root). Requests leave at fixed times, whether or not earlier ones were
answered, so that a stall counts for each request that it delays; how late the client itself was is told
beside. They come over 16 kept connections, as a gateway's would, with the headers of a real one; a tenth asks
for a target whose breaker is open. The bare server is aiohttp's with a handler that answers at once. Then the
same questions are held to a rate limit by user, in process; then there is no limit, but a Redis for replicas
that takes connections and answers nothing.

Then, without either, while spans come: twenty requests of a thousand spans a second are scanned, and told to
the breakers, on the loop that decides; once with the decision API there, once in a process of its own. Here
the kernel shares the core out as it does among any processes.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from aiohttp import web
from rich.console import Console

from otel_bridge.batch import PlanBuilder
from otel_bridge.contracts import SystemClock
from otel_bridge.control import machine
from otel_bridge.control.config import ControlConfig
from otel_bridge.control.control import Control
from otel_bridge.memory import prepare_to_serve
from otel_bridge.receivers.otlp.codec import choose_codec
from otel_bridge.telemetry import Telemetry, configure_logging
from otel_bridge.testing import trace_request
from tests.bench import figures
from tests.bench.scheduling import CLIENTS, INSTRUMENT, go_as_others, go_first

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

RATE = 5_000
CONNECTIONS = 16
WARM_UP = 1.0
TARGETS, USERS = 200, 1_000
SPANS_INTERVAL = 0.05
NAP = 50e-6
"""Seconds between two looks at the time; half of it is in the figures."""


async def serve_control(
    *, process: str = "shared", spans: bool = False, limited: bool = False, cut_off: bool = False
) -> int:
    """The decision API with 200 breakers, one of them open."""
    rules = {"users": {"by": ["user"], "amount": 1_000_000}} if limited else {}
    # Connections are made, since the kernel takes them, and nothing is ever answered.
    silence = socket.create_server(("127.0.0.1", 0))
    KEPT.append(silence)
    redis = {"url": f"redis://127.0.0.1:{silence.getsockname()[1]}/0"} if cut_off else None
    config = ControlConfig.model_validate(
        {
            "enabled": True,
            "state": {"file": None},
            "operators": {"socket": None},
            "decisions": {"http": {"endpoint": "127.0.0.1:0", "process": process}},
            "limits": {"rules": rules},
            "redis": redis,
        }
    )
    control = Control(config, Telemetry(), SystemClock())
    await control.start()
    for number in range(TARGETS):
        control.board.obtain(f"llama/m{number}")
    breaker = control.board.obtain("llama/open")
    assert breaker is not None
    control.board.operate(breaker, breaker.step(machine.force_open, 3600.0, "bench"), "bench", "bench")
    KEPT.append(control)
    if spans:
        KEPT.append(asyncio.create_task(take_spans(control)))
    assert control.http is not None
    return control.http.port


async def take_spans(control: Control) -> None:
    """What the data path does with spans of a service that is well, and nothing else of it."""
    columns = PlanBuilder()
    tap = control.tap(columns)
    assert tap is not None
    codec, plan = choose_codec("auto")[0], columns.build()
    now = time.time_ns()
    data = trace_request(
        [
            {
                "trace_id": number.to_bytes(16, "big"),
                "start_time_unix_nano": now - 1_000_000,
                "end_time_unix_nano": now,
                "attributes": {"gen_ai.request.model": f"m{number % TARGETS}", "url.path": "/v1/chat"},
            }
            for number in range(1, 1001)
        ],
        resource={"service.name": "llama"},
    )
    while True:
        tap.process(codec.scan(data, plan))
        await asyncio.sleep(SPANS_INTERVAL)


async def serve_bare() -> int:
    """A server that does nothing."""

    async def answer(_request: web.BaseRequest) -> web.Response:
        return web.Response(status=204)

    server = await asyncio.get_running_loop().create_server(
        web.Server(answer, access_log=None), "127.0.0.1", 0
    )
    KEPT.append(server)
    return int(server.sockets[0].getsockname()[1])


KEPT: list[object] = []
SERVERS: dict[str, Callable[[], Awaitable[int]]] = {
    "bare": serve_bare,
    "control": serve_control,
    "limited": partial(serve_control, limited=True),
    "cut_off": partial(serve_control, cut_off=True),
    "spans": partial(serve_control, spans=True),
    "own": partial(serve_control, spans=True, process="own"),
}


OWN_CORE = frozenset({"bare", "control", "limited", "cut_off"})
"""These run before all else on their core."""


async def serve(kind: str) -> None:
    """Run one server until killed; its port goes to standard output."""
    configure_logging(level="error")
    prepare_to_serve()
    if kind in OWN_CORE and os.geteuid() == 0:
        go_first(CLIENTS)
    port = await SERVERS[kind]()
    gc.collect()
    gc.freeze()  # as the service does after its start
    print(port, flush=True)
    await asyncio.Event().wait()


class Connection(asyncio.Protocol):
    """One kept connection; answers come in the order of the requests."""

    def __init__(self, took: list[float]) -> None:
        self._took = took
        self._due: list[float] = []
        self._head = 0
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def ask(self, request: bytes, due: float) -> None:
        """Send a request that was due at a time."""
        self._due.append(due)
        self.transport.write(request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        now = time.perf_counter()
        # No answer of either server has a body to a question at /v1/nginx.
        *answers, self._rest = data.split(b"\r\n\r\n")
        for _ in answers:
            self._took.append(now - self._due[self._head])
            self._head += 1


def request(number: int) -> bytes:
    """As nginx asks, with what a client sent along."""
    model = "open" if number % 10 == 0 else f"m{number % TARGETS}"
    return (
        f"GET /v1/nginx?service=llama HTTP/1.1\r\nHost: otel_bridge\r\nx-otel-bridge-model: {model}\r\n"
        f"x-otel-bridge-user: user-{number % USERS}\r\n"
        f"traceparent: 00-{number + 1:032x}-b7ad6b7169203331-01\r\nUser-Agent: OpenAI/Python 1.51.0\r\n"
        "Authorization: Bearer sk-0123456789abcdef\r\nAccept: application/json\r\n\r\n"
    ).encode()


class Measured(NamedTuple):
    """One round: milliseconds of answers, and of the client's own lateness; CPU µs a decision."""

    p50: float
    p99: float
    late: float
    cpu: float


async def load(port: int, seconds: float) -> tuple[np.ndarray, np.ndarray]:
    """Ask at the rate; how long each answer took, and how late its question left, in seconds."""
    loop = asyncio.get_running_loop()
    took: list[float] = []
    late: list[float] = []
    connections = [
        (await loop.create_connection(lambda: Connection(took), "127.0.0.1", port))[1]
        for _ in range(CONNECTIONS)
    ]
    requests = [request(number) for number in range(RATE)]
    gc.collect()
    gc.freeze()  # a pause of the client would count as one of the server
    total = int(RATE * (WARM_UP + seconds))
    start = time.perf_counter()
    sent = 0
    while sent < total:
        while sent < total and (due := start + sent / RATE) <= (now := time.perf_counter()):
            late.append(now - due)
            connections[sent % CONNECTIONS].ask(requests[sent % RATE], due)
            sent += 1
        # The loop's own timers are too coarse. Whoever never sleeps loses the CPU to others, or as the first
        # of all to the kernel's limit on such processes, for many milliseconds.
        time.sleep(NAP)  # noqa: ASYNC251
        await asyncio.sleep(0)
    while len(took) < total:  # noqa: ASYNC110 (the answers come in callbacks that have better to do)
        await asyncio.sleep(0.01)
    skip = int(RATE * WARM_UP)
    return np.array(took[skip:]), np.array(late[skip:])


def measure(kind: str, seconds: float) -> Measured:
    """One round."""
    cores = sorted(os.sched_getaffinity(0))
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.decision_api", "--serve", kind],
        stdout=subprocess.PIPE,
        preexec_fn=lambda: os.sched_setaffinity(0, {cores[0]}),  # noqa: PLW1509 (no threads yet)
    )
    assert server.stdout is not None
    try:
        port = int(server.stdout.readline())
        os.sched_setaffinity(0, {cores[-1]})
        if os.geteuid() == 0:
            go_first(INSTRUMENT)
        before = _cpu(server.pid)
        took, late = asyncio.run(load(port, seconds))
        cpu = (_cpu(server.pid) - before) / (RATE * (WARM_UP + seconds))
    finally:
        go_as_others()
        os.sched_setaffinity(0, cores)
        server.terminate()
        server.wait()
        server.stdout.close()
    p50, p99 = np.percentile(took, [50, 99]) * 1e3
    return Measured(float(p50), float(p99), float(np.percentile(late, 99)) * 1e3, cpu * 1e6)


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measure both, print, and keep the figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", choices=SERVERS)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-results", action="store_true")
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve(options.serve))
        return
    console = Console()
    found: dict[str, list[Measured]] = {kind: [] for kind in SERVERS}
    for _ in range(options.rounds):
        for kind, rounds in found.items():
            rounds.append(measure(kind, options.seconds))
    median = {kind: Measured(*np.median(np.array(rounds), axis=0)) for kind, rounds in found.items()}
    for kind, told in (
        ("bare", "a bare server"),
        ("control", "the decision API"),
        ("limited", "the same with a rate limit"),
        ("cut_off", "without, Redis being silent"),
        ("spans", "the same while spans come"),
        ("own", "and in a process of its own"),
    ):
        figure = median[kind]
        # The CPU of the others is that of spans as well.
        used = f", {figure.cpu:.0f} µs of CPU each" if kind in OWN_CORE else ""
        console.print(
            f"{told:>28}: P50 {figure.p50:.3f} ms, P99 {figure.p99:.3f} ms (the client itself: "
            f"{figure.late:.3f} ms late){used}"
        )
    ratio = median["control"].cpu / median["bare"].cpu
    limited = median["limited"].cpu / median["control"].cpu
    console.print(
        f"{RATE} decisions a second; {ratio:.2f} of the bare server's CPU; with a rate limit {limited:.2f} "
        "times as much as without"
    )
    if os.geteuid() != 0:
        console.print("[yellow]without root, what else runs on the two cores is in these figures[/yellow]")
    if not options.no_results:
        figures.merge(
            {
                "decision_api.p99_ms": median["control"].p99,
                "decision_api.cpu_ratio": ratio,
                "decision_api.limited_p99_ms": median["limited"].p99,
                "decision_api.limited_cpu_ratio": limited,
                "decision_api.cut_off_p99_ms": median["cut_off"].p99,
                "decision_api.with_spans_p99_ms": median["spans"].p99,
                "decision_api.own_with_spans_p99_ms": median["own"].p99,
            }
        )


if __name__ == "__main__":
    main()
