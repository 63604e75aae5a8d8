"""Alertmanager's webhook, taken in: authenticated, acknowledged, then acted on; and renewed from its API."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import ssl
import time
from typing import TYPE_CHECKING, Any

import aiohttp
import orjson
import structlog
from aiohttp import web

from otel_bridge import catalog
from otel_bridge.control.alerts import make_alert, read_payload
from otel_bridge.control.serving import Listener
from otel_bridge.errors import BridgeError, StartError, UnauthenticatedError
from otel_bridge.listeners.answers import problem, refused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_bridge.contracts import Clock
    from otel_bridge.control.alerts import Alert, AlertBook, Payload
    from otel_bridge.control.config import AlertmanagerConfig, BasicUser
    from otel_bridge.telemetry import Telemetry

log = structlog.get_logger(__name__)

SETTING = "control.alertmanager"
PATH = "/v1/alertmanager"
_OFF_LOOP = 256 << 10
"""Bytes from which on JSON leaves the event loop to others."""
_SLICE = 0.0005
"""Seconds after which others get a turn."""
_CODES = ("200", "400", "401", "404", "405", "413", "503")
_MOST_BYTES = 64 << 20
"""Of an answer of Alertmanager's API."""


class BasicAuth:
    """Lets in who shows one of the users' passwords."""

    def __init__(self, users: Sequence[BasicUser]) -> None:
        self._known = [f"{user.username}:{user.password.get_secret_value()}".encode() for user in users]

    def check(self, authorization: str) -> None:
        """Look at the value of an Authorization header.

        Raises:
            UnauthenticatedError: it shows none of the users.
        """
        try:
            shown = base64.b64decode(authorization.partition(" ")[2].strip(), validate=True)
        except (binascii.Error, ValueError):
            shown = b""
        # Each is compared to its end, so that the time taken tells nothing.
        if not sum([hmac.compare_digest(shown, known) for known in self._known]):
            raise UnauthenticatedError("user and password are not among those configured")


class AlertmanagerWebhook:
    """The receiver, and the worker behind it.

    A webhook is acknowledged once it is queued: Alertmanager's other notifications do not wait for ours. When
    the queue is full the answer is 503, which Alertmanager sends again; any 4xx it would drop.
    """

    def __init__(
        self, config: AlertmanagerConfig, book: AlertBook, telemetry: Telemetry, clock: Clock
    ) -> None:
        self._config = config
        self._book = book
        self._listener = Listener(config.endpoint, config, SETTING, self._handle)
        self._basic = BasicAuth(config.basic_auth)
        self._queue: asyncio.Queue[tuple[Payload, int]] = asyncio.Queue(config.queue_size)
        self._requests = telemetry.counter(catalog.CONTROL_WEBHOOKS_IN)
        self._worker: asyncio.Task[None] | None = None
        self._renewal = Renewal(config, book, clock) if config.api is not None else None
        for code in _CODES:
            self._requests.labels(code)

    @property
    def port(self) -> int:
        """The port that is served."""
        return self._listener.port

    async def start(self) -> None:
        """Listen; raises StartError."""
        await self._listener.start()
        self._worker = asyncio.create_task(self._work())
        if self._renewal is not None:
            await self._renewal.start()

    async def stop(self, deadline: float) -> None:
        """Stop listening; what is queued is applied."""
        await self._listener.stop(deadline)
        if self._renewal is not None:
            await self._renewal.stop()
        if self._worker is not None:
            try:
                await asyncio.wait_for(self._queue.join(), max(0.1, deadline))
            except TimeoutError:
                log.warning("webhooks were left unapplied", count=self._queue.qsize())
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)
            self._worker = None

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        response = await self._take(request)
        self._requests.labels(str(response.status)).inc()
        return response

    async def _take(self, request: web.BaseRequest) -> web.Response:
        event = time.monotonic_ns()
        if request.path != PATH:
            return problem(404, f"nothing is served here but {PATH}")
        if request.method != "POST":
            return problem(405, f"Alertmanager sends with POST, not with {request.method[:20]}")
        try:
            self._authenticate(request.headers.get("Authorization"))
            if self._queue.full():
                return self._busy()
            body = await self._listener.read(request)
            payload = (
                await asyncio.to_thread(read_payload, body) if len(body) > _OFF_LOOP else read_payload(body)
            )
        except BridgeError as error:
            return refused(error)
        try:
            self._queue.put_nowait((payload, event))
        except asyncio.QueueFull:
            return self._busy()
        return web.json_response({"alerts": len(payload.alerts)})

    def _authenticate(self, authorization: str | None) -> None:
        if self._config.basic_auth and authorization and authorization.lower().startswith("basic "):
            self._basic.check(authorization)
        elif self._listener.auth is not None:
            self._listener.auth.check(authorization)
        elif self._config.basic_auth:
            raise UnauthenticatedError(
                "no credentials; expected a user and a password (Authorization: Basic)"
            )

    def _busy(self) -> web.Response:
        response = problem(503, "too many webhooks wait; send it again")
        response.headers["Retry-After"] = "1"
        return response

    async def _work(self) -> None:
        while True:
            payload, event = await self._queue.get()
            try:
                await self._apply(payload, event)
            except Exception:
                # A bug met by one payload must not end the worker, and with it all others.
                log.exception("a webhook could not be applied")
            finally:
                self._queue.task_done()

    async def _apply(self, payload: Payload, event: int) -> None:
        self._book.note_incomplete(payload)
        await apply_all(self._book, payload.alerts, event)
        if payload.truncated and self._renewal is not None:
            await self._renewal.look(payload.receiver)


async def apply_all(book: AlertBook, alerts: Sequence[Alert], event: int) -> None:
    """Apply many, letting others have their turn."""
    end = time.perf_counter() + _SLICE
    for alert in alerts:
        book.apply(alert, event)
        if time.perf_counter() > end:
            await asyncio.sleep(0)
            end = time.perf_counter() + _SLICE


class Renewal:
    """Asks Alertmanager which alerts still fire.

    Silenced and inhibited ones do not count as firing: their hold ends with its lease.
    """

    def __init__(self, config: AlertmanagerConfig, book: AlertBook, clock: Clock) -> None:
        assert config.api is not None
        self._config = config.api
        self._interval = config.api.interval or config.lease / 3
        self._book = book
        self._clock = clock
        self._session: aiohttp.ClientSession | None = None
        self._task: asyncio.Task[None] | None = None
        self._failing = False

    async def start(self) -> None:
        """Begin to ask.

        Raises:
            StartError: the file of authorities cannot be used.
        """
        token = self._config.bearer_token
        try:
            trust = ssl.create_default_context(cafile=self._config.ca_file)
        except OSError as error:
            raise StartError(
                f"cannot use {self._config.ca_file}: {error}; change {SETTING}.api.ca_file"
            ) from error
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=trust),
            timeout=aiohttp.ClientTimeout(total=self._config.timeout),
            headers={"Authorization": f"Bearer {token.get_secret_value()}"} if token else None,
        )
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop asking."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    async def look(self, receiver: str = "") -> bool:
        """Renew, and apply, all alerts that fire; False when Alertmanager could not be asked.

        Args:
            receiver: only those that Alertmanager routes to this receiver; empty: all.
        """
        assert self._session is not None
        event = time.monotonic_ns()
        query = {"active": "true", "silenced": "false", "inhibited": "false", "unprocessed": "false"}
        try:
            url = f"{self._config.url.rstrip('/')}/api/v2/alerts"
            async with self._session.get(url, params=query, allow_redirects=False) as response:
                response.raise_for_status()
                listed = _alerts_in(await _read_up_to(response, _MOST_BYTES))
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            if not self._failing:
                log.warning(
                    "Alertmanager cannot be asked; leases run out", url=self._config.url, error=str(error)
                )
            self._failing = True
            return False
        if self._failing:
            log.warning("Alertmanager can be asked again", url=self._config.url)
        self._failing = False
        routed = [item for item in listed if isinstance(item, dict) and _goes_to(item, receiver)]
        alerts = [make_alert(item, firing=True) for item in routed]
        await apply_all(self._book, [alert for alert in alerts if alert is not None], event)
        return True

    async def _run(self) -> None:
        while True:
            await self._clock.sleep(self._interval)
            await self.look()


async def _read_up_to(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """The body; raises ValueError when it is longer than `limit`."""
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > limit:
            raise ValueError(f"an answer of more than {limit} bytes")
    return bytes(body)


def _alerts_in(body: bytes) -> list[Any]:
    listed = orjson.loads(body)
    if not isinstance(listed, list):
        raise ValueError(f"expected a list of alerts, found {type(listed).__name__}")  # noqa: TRY004 (as JSON's)
    return listed


def _goes_to(item: dict[str, object], receiver: str) -> bool:
    receivers = item.get("receivers")
    if not receiver or not isinstance(receivers, list):
        return True
    return any(isinstance(found, dict) and found.get("name") == receiver for found in receivers)
