"""The engine's clients: as many as it bears, more than it bears, and more than it bears at a given rate.

Commands come as lines of JSON; see `Load`. Every request is a connection of its own.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
import time
from typing import Any

import numpy as np

from tests.bench.breaker.children import say
from tests.bench.scheduling import CLIENTS, go_first

TOKENS = 24
"""Of each answer: the end of a text is never chosen, so that all requests are alike."""
BODY = json.dumps(
    {
        "model": "tiny",
        "messages": [{"role": "user", "content": "What is slow?"}],
        "max_tokens": TOKENS,
        "logit_bias": [[2, False]],
    }
)
OK, REFUSED = 200, 429
PATIENCE = 4.0
"""Objectives that a client waits before it gives up."""


async def ask(port: int, kind: str = "") -> int:
    """One request, of a type that it names; its status, 0 where the connection was refused or broken off."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return 0
    try:
        writer.write(
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: engine\r\nContent-Type: application/json\r\n"
            f"traceparent: 00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01\r\n"
            f"X-Otel-Bridge-Request-Type: {kind}\r\n"
            f"Connection: close\r\nContent-Length: {len(BODY)}\r\n\r\n{BODY}".encode()
        )
        answer = await reader.read()
        return int(answer[9:12]) if answer else 0
    except OSError:
        return 0
    finally:
        writer.close()


class Load:
    """Does one thing at a time, as it is told."""

    def __init__(self) -> None:
        self._going = False
        self._workers: asyncio.Task[Any] | None = None

    async def calibrate(self, port: int, workers: int, seconds: float) -> None:
        """How many requests a second so many clients get answered, and how long each takes."""
        took: list[float] = []
        end = time.monotonic() + seconds

        async def client() -> None:
            while (began := time.monotonic()) < end:
                status = await ask(port)
                assert status == OK, status
                took.append(time.monotonic() - began)

        began = time.monotonic()
        await asyncio.gather(*(client() for _ in range(workers)))
        p50, p95 = np.percentile(took, [50, 95])
        say(calibrated=len(took) / (time.monotonic() - began), p50=p50, p95=p95)

    async def overload(self, ports: list[int], workers: int) -> None:
        """So many clients that ask again as soon as they are answered, until told to stop.

        One that is refused tries again a little later.
        """
        self._going = True

        async def client(port: int) -> None:
            while self._going:
                if await ask(port) != OK:
                    await asyncio.sleep(0.01)

        self._workers = asyncio.gather(*(client(ports[n % len(ports)]) for n in range(workers)))

    async def stop(self) -> None:
        """The overload ends; says when, and when the last of what was under way is answered."""
        self._going = False
        say(load="stopped", at=time.monotonic_ns())
        assert self._workers is not None
        await self._workers
        say(load="drained", at=time.monotonic_ns())

    async def rate(self, port: int, kind: str, rate: float, seconds: float, slo: float) -> None:
        """Requests at a rate, whatever becomes of earlier ones; a client gives up after some objectives."""
        counts = dict.fromkeys(("good", "late", "refused", "failed"), 0)

        async def one(due: float) -> None:
            try:
                async with asyncio.timeout(PATIENCE * slo):
                    status = await ask(port, kind)
            except TimeoutError:
                counts["late"] += 1
                return
            if status == OK:
                counts["good" if time.monotonic() - due <= slo else "late"] += 1
            else:
                counts["refused" if status == REFUSED else "failed"] += 1

        start = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for number in range(int(rate * seconds)):
                due = start + number / rate
                await asyncio.sleep(due - time.monotonic())
                group.create_task(one(due))
        say(rated=counts, seconds=seconds)

    async def until_idle(self, port: int, slo: float) -> None:
        """Wait until the engine answers within the objective again, some times in a row."""
        calm = 0
        while calm < 3:
            began = time.monotonic()
            calm = calm + 1 if await ask(port) == OK and time.monotonic() - began <= slo else 0
            await asyncio.sleep(0.05)
        say(load="idle")


async def main() -> None:
    """Follow commands until the input ends."""
    # Real clients have machines of their own.
    go_first(CLIENTS)
    load = Load()
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    async for line in reader:
        words = json.loads(line)
        await getattr(load, words.pop("do"))(**words)


if __name__ == "__main__":
    asyncio.run(main())
