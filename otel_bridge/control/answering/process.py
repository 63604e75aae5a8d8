"""The process that answers gateways, started by the bridge as a module.

Its order comes pickled on standard input, which it then watches: when that ends, the bridge has. On standard
output it says its port, and each second what it has answered since.
"""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import select
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import aiohttp
import orjson
from aiohttp import web

from otel_bridge.contracts import SystemClock
from otel_bridge.control.answering.copies import CopyDecider
from otel_bridge.control.answering.snapshot import Reader
from otel_bridge.control.answering.tally import Tally, TallyOf
from otel_bridge.control.http_decisions import HttpDecisions
from otel_bridge.control.limits.claims import Claims
from otel_bridge.control.questions import Questions
from otel_bridge.control.strategies import Strategies
from otel_bridge.errors import BridgeError
from otel_bridge.listeners.answers import problem, refused
from otel_bridge.memory import prepare_to_serve
from otel_bridge.telemetry import configure_logging

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from otel_bridge.control.config import ControlConfig

_REPORT_INTERVAL = 1.0
_TIMEOUT = 5.0
_OF_ONE_HOP = frozenset(
    {"connection", "keep-alive", "transfer-encoding", "upgrade", "te", "trailer", "content-length", "date"}
)


@dataclass(frozen=True)
class Order:
    """What it is to do.

    Attributes:
        config: all of `control`.
        snapshot: the file that the bridge shows its breakers in.
        bridge: the Unix socket at which the bridge answers what cannot be told from that.
    """

    config: ControlConfig
    snapshot: Path
    bridge: Path


class Answering(HttpDecisions):
    """The decision API: from copies where that can be, else as the bridge says."""

    def __init__(self, order: Order) -> None:
        config = order.config
        claims = Claims(config.limits, config.targets) if config.limits.rules else None
        strategies = Strategies(config.strategies) if config.strategies.enabled else None
        decider = CopyDecider(Reader(order.snapshot), config, SystemClock())
        questions = Questions(config.targets, claims)
        self.tally = Tally()
        super().__init__(
            config.decisions.http,
            decider,
            questions,
            lambda interface: TallyOf(self.tally, interface),
            strategies,
        )
        self._bridge = order.bridge
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Listen; raises StartError."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(str(self._bridge), limit=0),
            timeout=aiohttp.ClientTimeout(total=_TIMEOUT),
            auto_decompress=False,
        )
        await super().start()

    async def stop(self, deadline: float) -> None:
        """Stop listening."""
        await super().stop(deadline)
        if self._session is not None:
            await self._session.close()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Hand the question on as it came, and the answer back."""
        assert self._session is not None
        try:
            if self._listener.auth is not None:
                self._listener.auth.check(request.headers.get("Authorization"))
            body = await self._listener.read(request) if request.can_read_body else b""
        except BridgeError as error:
            return refused(error)
        try:
            async with self._session.request(
                request.method,
                "http://bridge" + request.raw_path,
                headers=_passed_on(request.headers),
                data=body or None,
            ) as answer:
                data = await answer.read()
                return web.Response(status=answer.status, body=data, headers=_passed_on(answer.headers))
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            return problem(503, f"the bridge does not answer: {error or type(error).__name__}")


def _passed_on(headers: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(name, value) for name, value in headers.items() if name.lower() not in _OF_ONE_HOP]


def say(**words: object) -> None:
    """A line for the bridge, short enough to be written at once; nothing where the bridge has ended."""
    with suppress(BrokenPipeError):
        os.write(sys.stdout.fileno(), orjson.dumps(words) + b"\n")


def report(tally: Tally) -> None:
    """Tell what was answered, unless the bridge is too busy to be told: then next time, and nobody waits."""
    _, writable, _ = select.select([], [sys.stdout], [], 0)
    if writable:
        say(answered=tally.take())


async def main() -> None:
    """Answer until the bridge has ended."""
    # The bridge decides when this ends, also when everybody is sent a signal.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    order: Order = pickle.load(sys.stdin.buffer)  # noqa: S301 (from the bridge that started this)
    answering = Answering(order)
    try:
        await answering.start()
    except BridgeError as error:
        say(error=str(error))
        return
    gc.collect()
    gc.freeze()
    say(port=answering.port)
    ended = asyncio.create_task(asyncio.to_thread(sys.stdin.buffer.read))
    while not ended.done():
        await asyncio.wait([ended], timeout=_REPORT_INTERVAL)
        report(answering.tally)
    await answering.stop(1.0)
    report(answering.tally)


if __name__ == "__main__":
    configure_logging(level="warning")
    prepare_to_serve()
    asyncio.run(main())
