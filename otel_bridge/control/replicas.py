"""Breakers shared by several bridges, through Redis.

Each replica decides by its own copy. A change is made to the shared record as well: read, stepped by the
same state machine, and put back by a script only if nobody was faster; else once more from what they left.
A message tells the others. Times in Redis are on Redis's clock, and each copy goes on by its own monotonic
clock.

A replica that is cut off goes on by itself, and says so. Back again, of two records the one that changed
last counts; what Redis has forgotten is written back.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import orjson
import structlog
from redis.exceptions import RedisError

from otel_bridge import catalog
from otel_bridge.breakers import State
from otel_bridge.control import codec
from otel_bridge.control.audit import Entry
from otel_bridge.control.redis_link import RedisLink, Saying

if TYPE_CHECKING:
    from otel_bridge.contracts import Clock
    from otel_bridge.control.board import Board
    from otel_bridge.control.breaker import Step
    from otel_bridge.control.config import RedisConfig
    from otel_bridge.control.machine import Record
    from otel_bridge.telemetry import Telemetry

log = structlog.get_logger(__name__)

_TRIES = 50
"""How often a change is tried against others' before replicas count as cut off."""
_IDLE_TTL = 3_600_000
_BUSY_TTL = 7 * 86_400_000
"""Milliseconds for which Redis keeps a record that nobody touches."""
_NEARLY = 0.25
"""Seconds by which copies of one record may differ, by the way that their times took."""

_READ = """
local now = redis.call('TIME')
local found = redis.call('HMGET', KEYS[1], 'version', 'record')
return {now[1], now[2], found[1], found[2]}
"""
_WRITE = """
local now = redis.call('TIME')
local current = redis.call('HGET', KEYS[1], 'version') or ''
if current ~= ARGV[1] then return '' end
local version = now[1] * 1000000 + now[2]
if current ~= '' and version <= tonumber(current) then version = tonumber(current) + 1 end
version = string.format('%.0f', version)
redis.call('HSET', KEYS[1], 'version', version, 'record', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
redis.call('SADD', KEYS[2], ARGV[4])
if ARGV[6] ~= '' then redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[7], '*', 'entry', ARGV[6]) end
redis.call('PUBLISH', KEYS[4], cjson.encode({ARGV[4], version, ARGV[5]}))
return version
"""


class RedisReplicas:
    """The other bridges, seen through Redis (board.Replicas).

    Args:
        config: where.
        board: this bridge's breakers.
        clock: for time.
        telemetry: for metrics.
        replica: this bridge's name.
    """

    def __init__(
        self, config: RedisConfig, board: Board, clock: Clock, telemetry: Telemetry, replica: str
    ) -> None:
        self._config = config
        self._board = board
        self._clock = clock
        self._replica = replica
        self._link = RedisLink(
            config,
            telemetry.gauge(catalog.CONTROL_STORE_UP).labels("redis"),
            say=self._say,
            lost=Saying("cut_off", f"; {_MEANS[config.when_cut_off]}"),
            reached=Saying("reached", "Redis is reached again; the breakers are compared"),
        )
        self._versions: dict[str, int] = {}
        self._pending: deque[tuple[str, Step, Entry | None]] = deque()
        self._outstanding: Counter[str] = Counter()
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._locks: dict[str, asyncio.Lock] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._redis: Any = None
        self._read: Any = None
        self._write: Any = None
        prefix = config.prefix
        self._targets_key = f"{prefix}:targets"
        self._audit_key = f"{prefix}:audit"
        self._channel = f"{prefix}:changes"

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
        self._read = self._redis.register_script(_READ)
        self._write = self._redis.register_script(_WRITE)
        self._loop = asyncio.get_running_loop()
        await self._sync()
        self._link.run(self._share, self._sync_for_ever, self._listen_for_ever)

    async def stop(self, deadline: float) -> None:
        """Tell the others what waits, and disconnect."""
        if not self._link.cut_off:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), min(deadline, 1.0))
        await self._link.end()
        self._loop = None
        await self._link.disconnect()

    def submit(self, key: str, step: Step, entry: Entry | None) -> None:
        """Do to the shared record what was done here."""
        if self._loop is None or self._link.cut_off:
            return  # `_sync` compares the records once Redis is back
        self._outstanding[key] += 1
        self._pending.append((key, step, entry))
        self._loop.call_soon_threadsafe(self._work)

    async def settle(self, key: str, step: Step) -> Record | None:
        """Do it to the shared record first, and take over what comes of it; None: nobody could be asked."""
        async with self._locks.setdefault(key, asyncio.Lock()):
            breaker = self._board.find(key)
            if breaker is not None and step(breaker.record, self._clock.monotonic()) is breaker.record:
                return breaker.record  # already known to come to nothing
            return await self._change(key, step, None)

    async def history(self, target: str | None, limit: int) -> list[Entry] | None:
        """The newest entries of all replicas, the newest first; None when they cannot be read."""
        try:
            found = await self._redis.xrevrange(self._audit_key)
        except (RedisError, OSError):
            return None
        entries = [Entry(**orjson.loads(fields[b"entry"])) for _, fields in found]
        return [entry for entry in entries if not target or entry.target == target][:limit]

    # One record

    async def _change(self, key: str, step: Step, entry: Entry | None) -> Record | None:
        try:
            for _ in range(_TRIES):
                version, shared, offset = await self._fetch(key)
                now = self._clock.monotonic()
                base = shared if shared is not None else self._own(key)
                record = base
                if base is not None:
                    if base.state is State.OPEN and now < base.until < now + _NEARLY:
                        now = base.until
                    record = step(base, now)
                if record is None or (record is base and shared is not None):
                    self._take(key, version, record)
                    return record
                if await self._put(key, version, record, offset, entry):
                    self._board.adopt(key, record)
                    return record
        except (RedisError, OSError, ValueError) as error:
            self._lost(error)
            return None
        self._lost(RedisError(f"{_TRIES} others were faster"))
        return None

    async def _fetch(self, key: str) -> tuple[str, Record | None, float]:
        """Version, record on this process's clock, and how far Redis's clock is ahead of it."""
        seconds, micros, version, data = await self._read(keys=[self._record_key(key)])
        offset = int(seconds) + int(micros) / 1e6 - self._clock.monotonic()
        if data is None:
            return "", None, offset
        return version.decode(), codec.load(orjson.loads(data)).shifted(-offset), offset

    async def _put(self, key: str, version: str, record: Record, offset: float, entry: Entry | None) -> bool:
        done = await self._write(
            keys=[self._record_key(key), self._targets_key, self._audit_key, self._channel],
            args=[
                version,
                orjson.dumps(codec.dump(record.shifted(offset))),
                _IDLE_TTL if record.idle else _BUSY_TTL,
                key,
                self._replica,
                orjson.dumps(entry.as_dict()) if entry is not None else b"",
                self._config.max_audit_entries,
            ],
        )
        if done:
            self._versions[key] = int(done)
        return bool(done)

    def _own(self, key: str) -> Record | None:
        breaker = self._board.find(key)
        return breaker.record if breaker is not None else None

    def _take(self, key: str, version: str, record: Record | None) -> None:
        if record is not None and version and self._outstanding[key] <= 1:
            self._versions[key] = int(version)
            self._board.adopt(key, record)

    def _record_key(self, key: str) -> str:
        return f"{self._config.prefix}:breaker:{key}"

    # Going on

    def _work(self) -> None:
        self._idle.clear()
        self._wake.set()

    async def _share(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._pending:
                key, step, entry = self._pending.popleft()
                try:
                    if not self._link.cut_off:
                        async with self._locks.setdefault(key, asyncio.Lock()):
                            await self._change(key, step, entry)
                finally:
                    self._outstanding[key] -= 1
                    if self._outstanding[key] <= 0:
                        del self._outstanding[key]
            self._idle.set()

    async def _sync_for_ever(self) -> None:
        while True:
            await self._clock.sleep(self._config.sync_interval)
            await self._sync()

    async def _sync(self) -> None:
        """Compare all records; the first after a loss ends it."""
        try:
            shared = {name.decode() for name in await self._redis.smembers(self._targets_key)}
            own = {breaker.key for breaker in self._board.breakers() if not breaker.record.idle}
            written = [key for key in sorted(shared | own) if await self._compare(key)]
        except (RedisError, OSError, ValueError) as error:
            self._lost(error)
            return
        if written and not self._link.cut_off:
            self._say("written_back", f"Redis had forgotten {', '.join(written[:10])}; written back")
        self._link.found()

    async def _compare(self, key: str) -> bool:
        """Bring the own and the shared record of one target together; True when Redis had forgotten it."""
        if self._outstanding[key]:
            return False
        version, shared, offset = await self._fetch(key)
        own = self._own(key)
        if shared is None:
            if own is None or own.idle:
                await self._redis.srem(self._targets_key, key)
                return False
            return await self._put(key, "", own, offset, None)
        known = self._versions.get(key, 0)
        if int(version) == known and not self._link.cut_off:
            return False
        if (
            own is not None
            and self._link.cut_off
            and own.since > shared.since + _NEARLY
            and own.until > shared.until
        ):
            await self._put(key, version, own, offset, None)
        else:
            self._take(key, version, shared)
        return False

    async def _listen_for_ever(self) -> None:
        while True:
            try:
                async with self._redis.pubsub(ignore_subscribe_messages=True) as channel:
                    await channel.subscribe(self._channel)
                    await self._sync()  # what was said before is not heard
                    while True:
                        message = await channel.get_message(timeout=None)
                        if message is not None:
                            await self._hear(message["data"])
            except (RedisError, OSError, ValueError):
                await self._clock.sleep(self._config.sync_interval)

    async def _hear(self, data: bytes) -> None:
        key, version, replica = orjson.loads(data)
        if replica == self._replica or int(version) <= self._versions.get(key, 0) or self._outstanding[key]:
            return
        found, shared, _ = await self._fetch(key)
        self._take(key, found, shared)

    # Saying so

    def _lost(self, error: Exception) -> None:
        self._pending.clear()
        self._outstanding.clear()
        self._link.lost(error)

    def _say(self, word: str, reason: str) -> None:
        log.warning("replicas", event_word=word, reason=reason)
        self._board.audit("", "store", word, reason)


_MEANS = {
    "local": "this bridge decides by its own breakers",
    "closed": "all requests are let through",
    "open": "all requests are refused",
}
