"""Buckets that replicas share: kept in Redis, reckoned there by a script, on Redis's own clock.

Questions that come together go together, down one connection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import structlog
from redis.exceptions import NoScriptError, RedisError

from otel_bridge import catalog
from otel_bridge.control.limits.local import MOST_OF_A_TRACE, Drawn, Settled
from otel_bridge.control.limits.scripts import CLOCK, SETTLE, TAKE
from otel_bridge.control.redis_link import RedisLink, Saying

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_bridge.contracts import Clock
    from otel_bridge.control.config import RedisConfig
    from otel_bridge.control.limits.local import Draw
    from otel_bridge.control.redis_link import Say
    from otel_bridge.telemetry import Telemetry

    Told = Callable[[str, list[Settled] | None], None]

log = structlog.get_logger(__name__)

_MOST_WAITING = 100_000
"""Settlements that wait to be brought to Redis."""
_AT_ONCE = 100
_NS_IN_US = 1000


class _Call(NamedTuple):
    """A script to be run; None comes of it when Redis cannot be asked."""

    script: Any
    keys: list[str]
    arguments: list[Any]
    answer: asyncio.Future[Any]


class SharedBuckets:
    """Token buckets in Redis.

    Args:
        config: where.
        clock: for time between tries.
        telemetry: for metrics.
        settle_within: seconds for which a reservation may be settled.
        say: takes a word and a sentence for the log and the audit log.
        told: hears how each settlement ended: the trace, and what it did; None: there was no reservation.
    """

    def __init__(
        self,
        config: RedisConfig,
        clock: Clock,
        telemetry: Telemetry,
        settle_within: float,
        *,
        say: Say,
        told: Told,
    ) -> None:
        self._config = config
        self._clock = clock
        self._settle_ms = max(1, round(settle_within * 1000))
        self._told = told
        self._link = RedisLink(
            config,
            telemetry.gauge(catalog.CONTROL_STORE_UP).labels("redis-limits"),
            say=say,
            lost=Saying("limits_cut_off", ""),
            reached=Saying("limits_reached", "Redis is reached again; limits are shared"),
        )
        self._dropped = telemetry.counter(catalog.LIMIT_SETTLEMENTS).labels("dropped")
        self._redis: Any = None
        self._take: Any = None
        self._settle: Any = None
        self._calls: deque[_Call] = deque()
        self._called = asyncio.Event()
        self._waiting: deque[tuple[str, float, int]] = deque()
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._loop: asyncio.AbstractEventLoop | None = None
        # The braces make them one slot of a Redis cluster, so that a script may touch all of them.
        self._prefix = f"{{{config.prefix}:limits}}"

    @property
    def cut_off(self) -> bool:
        """Whether Redis cannot be reached."""
        return self._link.cut_off

    async def start(self) -> None:
        """Connect; a Redis that is not there yet is waited for while the bridge works.

        Raises:
            StartError: the URL is none.
        """
        self._redis = self._link.connect()
        self._take = self._redis.register_script(CLOCK + TAKE)
        self._settle = self._redis.register_script(CLOCK + SETTLE)
        self._loop = asyncio.get_running_loop()
        await self._look()
        self._link.run(self._look_for_ever, self._call_for_ever, self._bring_for_ever)

    async def stop(self, deadline: float) -> None:
        """Bring what waits, and disconnect."""
        if not self._link.cut_off:
            try:
                await asyncio.wait_for(self._idle.wait(), min(deadline, 1.0))
            except TimeoutError:
                log.warning("settlements of limits were left", count=len(self._waiting))
        await self._link.end()
        self._loop = None
        self._give_up()
        await self._link.disconnect()

    async def take(self, draws: Sequence[Draw], trace: str) -> list[Drawn] | None:
        """As `LocalBuckets.take`; None when Redis cannot be asked."""
        keys = [f"{self._prefix}:number", self._reservations(trace)]
        arguments: list[Any] = [self._settle_ms, int(bool(trace)), MOST_OF_A_TRACE]
        for limit, key, amount in draws:
            bucket = f"{self._prefix}:{limit.name}:{key}"
            keys += [bucket, f"{bucket}:claims"]
            arguments += [
                limit.name,
                repr(limit.capacity),
                repr(limit.rate),
                repr(amount),
                int(not limit.config.dry_run),
                int(limit.settles),
            ]
        answer = await self._call(self._take, keys, arguments)
        if answer is None:
            return None
        return [
            Drawn(float(wait), float(level)) for wait, level in zip(answer[::2], answer[1::2], strict=True)
        ]

    def settle(self, trace: str, used: float, end: int) -> None:
        """As `LocalBuckets.settle`, a little later; from any thread."""
        loop = self._loop
        if loop is None or self._link.cut_off or len(self._waiting) >= _MOST_WAITING:
            self._dropped.inc()
            return
        self._waiting.append((trace, used, end))
        loop.call_soon_threadsafe(self._work)

    def _reservations(self, trace: str) -> str:
        return f"{self._prefix}:reserved:{trace}"

    def _work(self) -> None:
        self._idle.clear()
        self._wake.set()

    async def _bring_for_ever(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), _AT_ONCE))]
                if not await self._bring(batch):
                    self._dropped.inc(len(batch))
            self._idle.set()

    async def _bring(self, batch: Sequence[tuple[str, float, int]]) -> bool:
        if self._link.cut_off:
            return False
        arguments: list[Any] = []
        for _, used, end in batch:
            arguments += [repr(used), end // _NS_IN_US]
        keys = [self._reservations(trace) for trace, _, _ in batch]
        answers = await self._call(self._settle, keys, arguments)
        if answers is None:
            return False
        for (trace, _, _), answer in zip(batch, answers, strict=True):
            parts = zip(answer[::2], answer[1::2], strict=True)
            settled = [Settled(limit.decode(), float(change)) for limit, change in parts]
            self._told(trace, settled or None)
        return True

    async def _call(self, script: Any, keys: list[str], arguments: list[Any]) -> Any:
        if self._loop is None:
            return None
        call = _Call(script, keys, arguments, self._loop.create_future())
        self._calls.append(call)
        self._called.set()
        return await call.answer

    async def _call_for_ever(self) -> None:
        while True:
            await self._called.wait()
            self._called.clear()
            while self._calls:
                calls = [self._calls.popleft() for _ in range(min(len(self._calls), _AT_ONCE))]
                try:
                    answers = await self._run(calls)
                except (RedisError, OSError) as error:
                    self._link.lost(error)
                    answers = [None] * len(calls)
                    self._give_up()
                except asyncio.CancelledError:
                    self._calls.extend(calls)  # for `_give_up`
                    raise
                for call, answer in zip(calls, answers, strict=True):
                    if not call.answer.done():  # whoever asked may have left
                        call.answer.set_result(answer)

    async def _run(self, calls: Sequence[_Call]) -> list[Any]:
        """The answers, in order; None for one that Redis refused.

        Raises:
            RedisError: Redis cannot be asked.
        """
        answers = await self._send(calls)
        unknown = [number for number, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
        if unknown:  # Redis is new, or was started again
            for script in (self._take, self._settle):
                await self._redis.script_load(script.script)
            again = await self._send([calls[number] for number in unknown])
            for number, answer in zip(unknown, again, strict=True):
                answers[number] = answer
        for number, answer in enumerate(answers):
            if isinstance(answer, RedisError):
                self._link.lost(answer)
                answers[number] = None
        return answers

    async def _send(self, calls: Sequence[_Call]) -> list[Any]:
        pipeline = self._redis.pipeline(transaction=False)
        for call in calls:
            pipeline.evalsha(call.script.sha, len(call.keys), *call.keys, *call.arguments)
        answers: list[Any] = await pipeline.execute(raise_on_error=False)
        return answers

    def _give_up(self) -> None:
        """Tell those who wait that nobody can be asked."""
        while self._calls:
            call = self._calls.popleft()
            if not call.answer.done():
                call.answer.set_result(None)

    async def _look_for_ever(self) -> None:
        while True:
            await self._clock.sleep(self._config.sync_interval)
            await self._look()

    async def _look(self) -> None:
        """Whether Redis answers, and takes writes."""
        try:
            await self._redis.incr(f"{self._prefix}:number")
        except (RedisError, OSError) as error:
            self._link.lost(error)
            return
        self._link.found()
