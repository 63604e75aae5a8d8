"""Keeps the process that answers gateways, shows it the breakers, and answers what it must ask."""

from __future__ import annotations

import asyncio
import os
import pickle
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
import structlog

from otel_bridge import catalog
from otel_bridge.control.answering import tally
from otel_bridge.control.answering.copies import Mirror
from otel_bridge.control.answering.process import Order
from otel_bridge.control.answering.snapshot import Writer
from otel_bridge.control.http_decisions import SETTING, HttpDecisions
from otel_bridge.errors import StartError
from otel_bridge.units import Endpoint

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Callable

    from otel_bridge.control.board import Board
    from otel_bridge.control.config import ControlConfig
    from otel_bridge.telemetry import Telemetry

log = structlog.get_logger(__name__)

_LOOK_INTERVAL = 0.25
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0
"""Seconds before a process that ended is started again; doubled each time until one has served a while."""
_SERVED_A_WHILE = 60.0


class OwnProcess:
    """The decision API over HTTP, in a process of its own (contracts.Component).

    Args:
        config: all of `control`.
        board: the breakers.
        telemetry: for metrics.
        inner: makes the part that answers here, at a Unix socket.

    Attributes:
        port: the one that is served, once started.
    """

    def __init__(
        self,
        config: ControlConfig,
        board: Board,
        telemetry: Telemetry,
        inner: Callable[[Path], HttpDecisions],
    ) -> None:
        self.port = config.decisions.http.endpoint.port
        self._config = config
        self._board = board
        self._telemetry = telemetry
        self._make_inner = inner
        self._restarts = telemetry.counter(catalog.CONTROL_ANSWERING_RESTARTS)
        self._inner: HttpDecisions | None = None
        self._directory: Path | None = None
        self._writer: Writer | None = None
        self._mirror: Mirror | None = None
        self._process: Process | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Begin to answer.

        Raises:
            StartError: the process cannot serve; it says why.
        """
        try:
            # A socket's path must be short, so this is not the user's choice.
            self._directory = Path(
                tempfile.mkdtemp(prefix="otel-bridge-", dir=os.environ.get("RUNTIME_DIRECTORY"))
            )
            self._writer = Writer(self._directory / "breakers")
        except OSError as error:
            raise StartError(
                f"no temporary folder for the process that answers gateways: {error}; point TMPDIR at one "
                f"that can be written, or set {SETTING}.process: shared"
            ) from error
        self._mirror = Mirror(self._writer, self._board)
        self._inner = self._make_inner(self._directory / "s")
        await self._inner.start()
        self._process = await self._spawn()
        self._tasks = [asyncio.create_task(self._keep()), asyncio.create_task(self._look())]

    async def stop(self, deadline: float) -> None:
        """Answer nobody any more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        if self._process is not None:
            await self._end(self._process, deadline)
            self._process = None
        if self._inner is not None:
            await self._inner.stop(deadline)
        if self._mirror is not None:
            self._mirror.close()
        if self._writer is not None:
            self._writer.close()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    @property
    def pid(self) -> int | None:
        """The process that answers."""
        return self._process.pid if self._process is not None else None

    async def _spawn(self) -> Process:
        assert self._directory is not None
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "otel_bridge.control.answering.process"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        endpoint = Endpoint(self._config.decisions.http.endpoint.host, self.port)
        http = self._config.decisions.http.model_copy(update={"endpoint": endpoint})
        decisions = self._config.decisions.model_copy(update={"http": http})
        config = self._config.model_copy(update={"decisions": decisions})
        process.stdin.write(pickle.dumps(Order(config, self._directory / "breakers", self._directory / "s")))
        line = await process.stdout.readline()
        if not line:
            raise StartError(
                f"the process that answers gateways ended with {await process.wait()}; its log says why, or "
                f"set {SETTING}.process: shared"
            )
        words = orjson.loads(line)
        if "error" in words:
            await self._end(process, 1.0)
            raise StartError(words["error"])
        self.port = words["port"]  # the same again after a restart, also where any was asked for
        return process

    async def _keep(self) -> None:
        """Count what it answers; start it again when it ends."""
        loop = asyncio.get_running_loop()
        pause = _FIRST_PAUSE
        while True:
            began = loop.time()
            if self._process is not None:
                await self._follow(self._process)
                log.error(
                    "the process that answers gateways ended and is started again",
                    code=await self._process.wait(),
                    pid=self._process.pid,
                )
                self._process = None
            if loop.time() - began > _SERVED_A_WHILE:
                pause = _FIRST_PAUSE
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
            try:
                self._process = await self._spawn()
            except (StartError, OSError) as error:
                log.error("gateways are not answered", error=str(error))  # noqa: TRY400
            else:
                self._restarts.inc()

    async def _follow(self, process: Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            tally.add(orjson.loads(line)["answered"], self._telemetry)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_INTERVAL)
            if self._mirror is not None:
                self._mirror.look()

    async def _end(self, process: Process, deadline: float) -> None:
        assert process.stdin is not None
        process.stdin.close()
        try:
            await asyncio.wait_for(self._follow_to_end(process), max(1.0, deadline))
        except TimeoutError:
            process.kill()
        await process.wait()

    async def _follow_to_end(self, process: Process) -> None:
        await self._follow(process)
        await process.wait()
