"""Firings as annotations in Grafana: one a firing, which becomes a region when it ends."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any

import orjson
import structlog

from otel_bridge import catalog
from otel_bridge.backoff import RetryPolicy
from otel_bridge.errors import PermanentError, RetryableError
from otel_bridge.rules.outputs.active import identity, links
from otel_bridge.rules.outputs.client import JsonClient

if TYPE_CHECKING:
    from otel_bridge.contracts import Clock
    from otel_bridge.firings import Firing
    from otel_bridge.rules.outputs.active import Labels
    from otel_bridge.rules.outputs.config import GrafanaConfig
    from otel_bridge.telemetry import Telemetry

log = structlog.get_logger(__name__)

SETTING = "rules.grafana_annotations"
PATH = "/api/annotations"
_MILLISECOND = 1_000_000


class GrafanaAnnotations:
    """A FiringSink with a queue, and a Component."""

    def __init__(self, config: GrafanaConfig, telemetry: Telemetry, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._policy = RetryPolicy(config.retry)
        attempts = telemetry.counter(catalog.ANNOTATIONS_ATTEMPTS)
        self._client = JsonClient(config.url, config, SETTING, lambda code: attempts.labels(code).inc())
        self._sent = telemetry.counter(catalog.ANNOTATIONS_SENT)
        self._dropped = telemetry.counter(catalog.ANNOTATIONS_DROPPED)
        for reason in ("full", "refused", "stopped"):
            self._dropped.labels(reason)
        self._waiting: deque[Firing] = deque()
        self._ids: OrderedDict[Labels, int] = OrderedDict()
        self._arrived = asyncio.Event()
        self._all_sent = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._worker: asyncio.Task[None] | None = None

    def take_firing(self, firing: Firing) -> None:
        """See `firings.FiringSink`."""
        if len(self._waiting) >= self._config.queue_size:
            self._dropped.labels("full").inc()
            return
        self._waiting.append(firing)
        loop = self._loop
        if loop is None:
            return
        try:
            loop.call_soon_threadsafe(self._arrived.set)
        except RuntimeError:  # The loop closed between two lines: nobody is left to be woken.
            return

    async def start(self) -> None:
        """Begin to send; raises StartError when a TLS file cannot be used."""
        await self._client.start()
        self._loop = asyncio.get_running_loop()
        self._arrived.set()
        self._worker = asyncio.create_task(self._run())

    async def stop(self, deadline: float) -> None:
        """Send what waits, as long as there is time."""
        self._loop = None
        if self._worker is not None:
            self._all_sent.clear()
            self._arrived.set()
            try:
                async with asyncio.timeout(deadline):
                    await self._all_sent.wait()
            except TimeoutError:
                log.warning("annotations were left unsent", count=len(self._waiting))
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)
            self._worker = None
        self._dropped.labels("stopped").inc(len(self._waiting))
        self._waiting.clear()
        await self._client.stop()

    async def _run(self) -> None:
        failures = 0
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._waiting:
                firing = self._waiting[0]
                try:
                    await self._send(firing)
                    self._sent.inc()
                except RetryableError as error:
                    failures += 1
                    if failures == 1:
                        log.warning("Grafana takes no annotations", url=self._client.url, error=str(error))
                    await self._clock.sleep(self._policy.delay(failures, error.retry_after or 0.0))
                    continue
                except PermanentError as error:
                    self._dropped.labels("refused").inc()
                    log.error("Grafana refuses an annotation", url=self._client.url, error=str(error))  # noqa: TRY400 (no bug of ours)
                failures = 0
                self._waiting.popleft()
            self._all_sent.set()

    async def _send(self, firing: Firing) -> None:
        labels = identity(firing)
        milliseconds = firing.since // _MILLISECOND
        known = self._ids.get(labels)
        if not firing.active and known is not None:
            await self._client.send("PATCH", f"{PATH}/{known}", {"timeEnd": milliseconds})
            del self._ids[labels]
            return
        answer = await self._client.send("POST", PATH, self._as_json(firing, labels, milliseconds))
        number = _id_in(answer)
        if firing.active and number is not None:
            self._ids[labels] = number
            if len(self._ids) > self._config.queue_size:
                self._ids.popitem(last=False)

    def _as_json(self, firing: Firing, labels: Labels, milliseconds: int) -> dict[str, Any]:
        text = [firing.annotations.get("summary", firing.rule)]
        if not firing.active:
            text.append("(ended)")
        text += links(firing, self._config.trace_url).values()
        tags = [*self._config.tags, firing.rule, firing.labels.get("severity", "")]
        tags += [f"{name}:{value}" for name, value in labels if name not in ("alertname", "severity")]
        out: dict[str, Any] = {
            "time": milliseconds,
            "tags": [tag for tag in tags if tag],
            "text": "\n".join(text),
        }
        if self._config.dashboard_uid is not None:
            out["dashboardUID"] = self._config.dashboard_uid
        return out


def _id_in(answer: bytes) -> int | None:
    """The id of the annotation made; None where the answer has none, and its end is noted on its own."""
    try:
        content = orjson.loads(answer)
    except orjson.JSONDecodeError:
        return None
    number = content.get("id") if isinstance(content, dict) else None
    return number if isinstance(number, int) else None
