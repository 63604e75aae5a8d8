"""A real HTTP server that keeps what it gets and answers as told; and firings to send it."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Self

from aiohttp import web

from otel_bridge.firings import Firing

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_bridge.testing import FakeClock

START = 1_700_000_000_000_000_000
SECOND = 1_000_000_000
TRACE = bytes(range(16))


class Receiver:
    """Answers each request with the next of `statuses`, 200 when they are used up."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.requests: list[tuple[str, str, dict[str, str], Any]] = []
        self.answer: Any = {"message": "Annotation added", "id": 7}
        self.retry_after = ""

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._take)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self._runner.cleanup()

    async def _take(self, request: web.Request) -> web.Response:
        content = json.loads(await request.read())
        self.requests.append((request.method, request.path, dict(request.headers), content))
        status = self.statuses.pop(0) if self.statuses else 200
        headers = {"Retry-After": self.retry_after} if self.retry_after else None
        return web.json_response(self.answer, status=status, headers=headers)

    @property
    def contents(self) -> list[Any]:
        return [content for *_, content in self.requests]


async def until(check: Callable[[], Any], clock: FakeClock | None = None) -> None:
    """Let real requests come and go until something is true; a fake clock goes on by a second each time."""
    async with asyncio.timeout(60):
        while not check():
            await asyncio.sleep(0.01)
            if clock is not None:
                await clock.advance(1)


def firing(*, active: bool = True, at: float = 0.0, rule: str = "GpuLost", **labels: str) -> Firing:
    """One, some seconds after START."""
    return Firing(
        rule=rule,
        labels={"severity": "critical", **labels},
        active=active,
        since=START + round(at * SECOND),
        annotations={"summary": "a GPU is lost", "runbook_url": "runbook.md#gpulost"},
        evidence=[TRACE],
    )
