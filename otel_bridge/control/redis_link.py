"""The connection to Redis of one part of the control plane: whether it holds, and that it is said once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

import redis.asyncio

from otel_bridge.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from prometheus_client import Gauge

    from otel_bridge.control.config import RedisConfig

    Say = Callable[[str, str], None]
    Work = Callable[[], Coroutine[Any, Any, None]]


class Saying(NamedTuple):
    """A word for the audit log, and what is said with it."""

    word: str
    text: str


class RedisLink:
    """One client of Redis, with the tasks that use it.

    A Redis that is not there yet is waited for while the bridge works: whoever uses the link tries, and tells
    it what came of that.

    Args:
        config: where.
        up: 1 while Redis is reached.
        say: takes a word and a sentence for the log and the audit log.
        lost: said when Redis cannot be reached, the text behind the reason.
        reached: said when it is again.

    Attributes:
        cut_off: whether Redis cannot be reached.
    """

    def __init__(self, config: RedisConfig, up: Gauge, *, say: Say, lost: Saying, reached: Saying) -> None:
        self.cut_off = True
        self._config = config
        self._up = up
        self._say = say
        self._saying_lost = lost
        self._saying_reached = reached
        self._said: bool | None = None
        self._client: Any = None
        self._tasks: list[asyncio.Task[None]] = []

    def connect(self) -> Any:
        """The client; it connects when it is first used.

        Raises:
            StartError: the URL is none.
        """
        config = self._config
        try:
            self._client = redis.asyncio.Redis.from_url(
                config.url.get_secret_value(),
                socket_timeout=config.timeout,
                socket_connect_timeout=config.timeout,
                retry_on_timeout=False,
                retry=None,
            )
        except ValueError as error:
            raise StartError(f"control.redis.url is no Redis URL: {error}") from None
        return self._client

    def run(self, *work: Work) -> None:
        """Have this done until `end`."""
        self._tasks = [asyncio.create_task(one()) for one in work]

    async def end(self) -> None:
        """Stop what runs."""
        running = set(self._tasks)
        while running:
            # Again, since redis-py may take a cancellation that meets its own time-out for that time-out.
            for task in running:
                task.cancel()
            _, running = await asyncio.wait(running, timeout=0.1)
        self._tasks = []

    async def disconnect(self) -> None:
        """Let go of the client."""
        if self._client is not None:
            await self._client.aclose()

    def lost(self, error: Exception) -> None:
        """Redis could not be asked."""
        self.cut_off = True
        self._up.set(0)
        if self._said is not False:
            self._said = False
            word, text = self._saying_lost
            self._say(word, f"Redis cannot be reached ({type(error).__name__}: {error}){text}")

    def found(self) -> None:
        """Redis has answered."""
        self.cut_off = False
        self._up.set(1)
        if self._said is False:
            self._say(*self._saying_reached)
        self._said = True
