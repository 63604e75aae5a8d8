"""JSON over HTTP to one server: authenticated, one try at a time, failures told apart."""

from __future__ import annotations

import base64
import ssl
from typing import TYPE_CHECKING, Any

import aiohttp
import orjson

from otel_bridge.errors import PermanentError, RetryableError, StartError

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_bridge.rules.outputs.config import ClientConfig, ClientTlsConfig

RETRYABLE = frozenset({408, 425, 429, 500, 502, 503, 504})
_SUCCESS = range(200, 300)
_LARGEST_ANSWER = 1 << 16


class JsonClient:
    """Speaks to one server.

    Args:
        url: its base URL.
        config: how.
        setting: the key path of the configuration, for messages.
        on_answer: told of each try's outcome: an HTTP status, "timeout" or "connection".
    """

    def __init__(
        self, url: str, config: ClientConfig, setting: str, on_answer: Callable[[str], None]
    ) -> None:
        self.url = url.rstrip("/")
        self._config = config
        self._setting = setting
        self._on_answer = on_answer
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Open the session.

        Raises:
            StartError: a TLS file cannot be used.
        """
        context = _context(self._config.tls, self._setting)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context),
            timeout=aiohttp.ClientTimeout(total=self._config.timeout),
            headers=_headers(self._config),
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def stop(self) -> None:
        """Close the session."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def send(self, method: str, path: str, content: Any) -> bytes:
        """Try once; returns the beginning of the answer's body.

        Raises:
            RetryableError: it was not taken now.
            PermanentError: it was refused for good.
        """
        assert self._session is not None
        try:
            async with self._session.request(
                method, self.url + path, data=orjson.dumps(content), allow_redirects=False
            ) as response:
                status, asked = response.status, response.headers.get("Retry-After", "")
                body = await response.content.read(_LARGEST_ANSWER)
        except TimeoutError:
            self._on_answer("timeout")
            raise RetryableError(f"no answer within {self._config.timeout:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            # ValueError: bytes that are no HTTP can surface as one from the parser.
            self._on_answer("connection")
            raise RetryableError(f"{type(error).__name__}: {error}") from error
        self._on_answer(str(status))
        if status in _SUCCESS:
            return body
        said = body[:200].decode(errors="replace").strip()
        if status in RETRYABLE:
            raise RetryableError(
                f"answered {status}: {said}", retry_after=float(asked) if asked.isdecimal() else None
            )
        raise PermanentError(f"answered {status}: {said}")


def _headers(config: ClientConfig) -> dict[str, str]:
    headers = {name: value.get_secret_value() for name, value in config.headers.items()}
    headers |= {"Content-Type": "application/json", "User-Agent": "otel-bridge"}
    if config.bearer_token is not None:
        headers["Authorization"] = f"Bearer {config.bearer_token.get_secret_value()}"
    if config.basic_auth is not None:
        pair = f"{config.basic_auth.username}:{config.basic_auth.password.get_secret_value()}"
        headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
    return headers


def _context(tls: ClientTlsConfig, setting: str) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=tls.ca_file)
    except OSError as error:
        raise StartError(f"cannot use {tls.ca_file}: {error}; change {setting}.tls.ca_file") from error
    if tls.cert_file is not None:
        try:
            context.load_cert_chain(tls.cert_file, tls.key_file)
        except OSError as error:
            raise StartError(
                f"cannot use {tls.cert_file}: {error}; change {setting}.tls.cert_file"
            ) from error
    return context
