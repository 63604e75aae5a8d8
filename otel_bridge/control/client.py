"""Asks a running bridge what operators ask it (operators.py is the other side)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import aiohttp

from otel_bridge.errors import BridgeError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_bridge.control.config import OperatorsConfig

_TIMEOUT = 10.0


class OperatorError(BridgeError):
    """The bridge could not be asked, or refused."""


def ask(
    config: OperatorsConfig,
    method: str,
    path: str,
    *,
    query: Mapping[str, str] | None = None,
    order: Any = None,
) -> dict[str, Any]:
    """One question or order, and its answer.

    Raises:
        OperatorError: nobody answered, or the answer is a refusal.
    """
    return asyncio.run(_ask(config, method, path, query or {}, order))


async def _ask(
    config: OperatorsConfig, method: str, path: str, query: Mapping[str, str], order: Any
) -> dict[str, Any]:
    headers = {}
    if config.socket is not None:
        connector: aiohttp.BaseConnector = aiohttp.UnixConnector(str(config.socket))
        base, where = "http://bridge", str(config.socket)
    elif config.endpoint is not None:
        connector = aiohttp.TCPConnector()
        base = where = f"http://{config.endpoint}"
        if config.auth is not None and config.auth.bearer_tokens:
            headers["Authorization"] = f"Bearer {config.auth.bearer_tokens[0].get_secret_value()}"
        elif config.auth is not None and config.auth.bearer_token_file is not None:
            text = await asyncio.to_thread(config.auth.bearer_token_file.read_text)
            headers["Authorization"] = f"Bearer {text.split()[0]}"
    else:
        raise OperatorError("the bridge serves no operators; set control.operators.socket")
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT)
    try:
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout, headers=headers) as session,
            session.request(method, base + path, params=query, json=order) as response,
        ):
            answer: dict[str, Any] = await response.json()
            status = response.status
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
        raise OperatorError(
            f"no bridge answers at {where}: {error or type(error).__name__}; is it running with "
            "control.enabled: true, with this configuration, and may this user open the socket?"
        ) from error
    if status != 200:  # noqa: PLR2004 (OK)
        raise OperatorError(str(answer.get("error", status)))
    return answer
