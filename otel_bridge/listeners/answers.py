"""Answers over HTTP to requests that were not taken; those to OTLP are `receivers/otlp/status.py`'s."""

from __future__ import annotations

from aiohttp import web

from otel_bridge.errors import RequestTooLargeError, UnauthenticatedError


def refused(error: Exception) -> web.Response:
    """The answer to a request that was not taken."""
    status = 400
    if isinstance(error, UnauthenticatedError):
        status = 401
    elif isinstance(error, RequestTooLargeError):
        status = 413
    return problem(status, str(error))


def problem(status: int, message: str) -> web.Response:
    """An answer that says what is wrong."""
    # Whoever is told 401 is told what would be taken (RFC 9110, 15.5.2).
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}  # noqa: PLR2004 (Unauthorized)
    return web.json_response({"error": message}, status=status, headers=headers)
