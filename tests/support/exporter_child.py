"""A process to be killed: forwards numbered requests and prints each number once it is acknowledged."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from otel_bridge.errors import RetryableError
from otel_bridge.testing import trace_request
from tests.support.exporter_stubs import exporting, send


async def main(port: str, directory: str, first: str) -> None:
    config = {
        "endpoint": f"127.0.0.1:{port}",
        "retry_on_failure": {"initial_interval": 0.1, "max_interval": 0.2},
        "sending_queue": {"hold": 0.1, "batch_size": 2000},
    }
    numbers = iter(range(int(first), int(first) + 1_000_000))

    async with exporting({"otlp": config}, Path(directory), fsync=False) as exporter:

        async def client() -> None:
            for number in numbers:
                try:
                    await send(exporter, trace_request([{"name": str(number)}]))
                except RetryableError:
                    await asyncio.sleep(0.01)
                else:
                    print(number, flush=True)  # noqa: T201 (the parent reads it)

        print("ready", flush=True)  # noqa: T201 (the parent reads it)
        if int(first) >= 0:
            await asyncio.gather(*(client() for _ in range(8)))
        await asyncio.Event().wait()


asyncio.run(main(*sys.argv[1:]))
