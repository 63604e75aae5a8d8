"""Signed webhooks: one message a change, and a circuit on whoever does not take them.

Signed as the Standard Webhooks specification says: HMAC-SHA256 over "id.timestamp.body", so that a receiver
tells forged and replayed messages with a kept library. The id is the idempotency key: tries of one change
share it.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import ssl
from hashlib import blake2b, sha256
from typing import TYPE_CHECKING

import aiohttp

from otel_bridge import catalog
from otel_bridge.breakers import State
from otel_bridge.control import machine
from otel_bridge.control.actions.templates import TEMPLATES
from otel_bridge.control.machine import Cause, Record, Rules, Verdict
from otel_bridge.errors import PermanentError, RetryableError, StartError

if TYPE_CHECKING:
    from otel_bridge.breakers import Change
    from otel_bridge.contracts import Clock
    from otel_bridge.control.actions.config import CircuitConfig, WebhookConfig
    from otel_bridge.telemetry import Telemetry

_RETRYABLE = frozenset({408, 425, 429, 500, 502, 503, 504})
_SUCCESS = range(200, 300)
_WHILE_PROBING = 1.0
"""Seconds to wait while another message tries whether the receiver is back."""
_MOST_WAIT = 3600.0


class Webhook:
    """Tells one receiver (breakers.Action)."""

    def __init__(self, name: str, config: WebhookConfig, telemetry: Telemetry, clock: Clock) -> None:
        self.name = name
        self._config = config
        self._clock = clock
        self._render = TEMPLATES[config.template]
        self._key = signing_key(config.secret.get_secret_value()) if config.secret is not None else None
        self._circuit = _Circuit(config.circuit)
        self._tries = telemetry.counter(catalog.CONTROL_DELIVERY_TRIES)
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Open the session.

        Raises:
            StartError: the file of authorities cannot be used.
        """
        config = self._config
        try:
            trust = ssl.create_default_context(cafile=config.ca_file)
        except OSError as error:
            raise StartError(
                f"cannot use {config.ca_file}: {error}; change control.actions.webhooks.{self.name}.ca_file"
            ) from error
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=trust),
            timeout=aiohttp.ClientTimeout(total=config.timeout),
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def stop(self) -> None:
        """Close the session."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def apply(self, change: Change) -> None:
        """Try once.

        Raises:
            RetryableError: it was not taken now.
            PermanentError: it was refused for good.
        """
        circuit, who = self._circuit, idempotency_key(self.name, change)
        if (rest := circuit.rest(who, self._clock.monotonic())) > 0:
            raise RetryableError("its receiver's circuit is open", retry_after=rest)
        try:
            await self._send(change)
        except RetryableError:
            circuit.failed(who, self._clock.monotonic())
            raise
        except PermanentError:
            # An answer, if not the one hoped for: the receiver is there.
            circuit.succeeded(who, self._clock.monotonic())
            raise
        circuit.succeeded(who, self._clock.monotonic())

    async def _send(self, change: Change) -> None:
        assert self._session is not None
        lease = max(0.0, change.until - self._clock.monotonic()) if change.until else 0.0
        message = self._render(change, self._config, lease)
        # The time of a try counts: a receiver refuses what is old, and a retry is not.
        headers = self._headers(change, message.body)
        try:
            async with self._session.request(
                message.method, message.url, data=message.body, headers=headers, allow_redirects=False
            ) as response:
                status, retry_after = response.status, response.headers.get("Retry-After", "")
        except TimeoutError:
            self._tries.labels(self.name, "timeout").inc()
            raise RetryableError(f"no answer within {self._config.timeout:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            self._tries.labels(self.name, "connection").inc()
            raise RetryableError(f"{type(error).__name__}: {error}") from error
        self._tries.labels(self.name, str(status)).inc()
        if status in _SUCCESS:
            return
        if status in _RETRYABLE:
            asked = min(float(retry_after), _MOST_WAIT) if retry_after.isdecimal() else None
            raise RetryableError(f"the receiver answered {status}", retry_after=asked)
        raise PermanentError(f"the receiver answered {status}")

    def _headers(self, change: Change, body: bytes) -> dict[str, str]:
        message_id = idempotency_key(self.name, change)
        timestamp = str(self._clock.time_ns() // 1_000_000_000)
        headers = {name: value.get_secret_value() for name, value in self._config.headers.items()}
        headers |= {
            "Content-Type": "application/json",
            "User-Agent": "otel-bridge",
            "Idempotency-Key": message_id,
            "webhook-id": message_id,
            "webhook-timestamp": timestamp,
        }
        if self._key is not None:
            headers["webhook-signature"] = sign(self._key, message_id, timestamp, body)
        return headers


def signing_key(secret: str) -> bytes:
    """The key of a secret: base64 behind "whsec_", or a text as it is."""
    if not secret.startswith("whsec_"):
        return secret.encode()
    try:
        return base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except binascii.Error as error:
        raise StartError(f'a webhook secret begins with "whsec_" and is no base64: {error}') from None


def sign(key: bytes, message_id: str, timestamp: str, body: bytes) -> str:
    """The signature header's value."""
    signed = b".".join((message_id.encode(), timestamp.encode(), body))
    return "v1," + base64.b64encode(hmac.digest(key, signed, sha256)).decode()


def idempotency_key(name: str, change: Change) -> str:
    """The same for each try of one change, and for no other change."""
    text = f"{name}\n{change.target}\n{change.before.value}\n{change.state.value}\n{change.time}"
    return "msg_" + blake2b(text.encode(), digest_size=16).hexdigest()


class _Circuit:
    """The same state machine on the receiver: opens after failures in a row, then lets one try through."""

    def __init__(self, config: CircuitConfig) -> None:
        self._failures_allowed = config.failures
        self._rules = Rules(open_time=config.open_time, probes=1, probe_timeout=60.0)
        self._record = Record()
        self._failures = 0

    def rest(self, who: str, now: float) -> float:
        """Seconds for which a message is not to be sent; 0 allows a try."""
        record = self._record = machine.acquire(self._record, self._rules, now, who)
        if record.state is State.OPEN:
            return record.until - now
        return _WHILE_PROBING if record.state is State.HALF_OPEN and who not in record.permits else 0.0

    def failed(self, who: str, now: float) -> None:
        """A try failed."""
        self._failures += 1
        self._record = machine.judge(self._record, self._rules, now, who, Verdict.FAILED)
        if self._record.state is State.CLOSED and self._failures >= self._failures_allowed:
            self._record = machine.trip(self._record, self._rules, now, Cause.ERROR_RATE, "no delivery")

    def succeeded(self, who: str, now: float) -> None:
        """A try was answered."""
        self._failures = 0
        self._record = machine.judge(self._record, self._rules, now, who, Verdict.PASSED)
