"""Who may look at the pages."""

from __future__ import annotations

import base64
import binascii
import ipaddress
from typing import TYPE_CHECKING

from otel_bridge.errors import UnauthenticatedError

if TYPE_CHECKING:
    from aiohttp import web

    from otel_bridge.listeners.auth import BearerAuth


class ForbiddenError(Exception):
    """Somebody who may not look; the text says why, and what would let them."""


def admit(request: web.Request, auth: BearerAuth | None) -> None:
    """Let in who shows a token, or where there are none, who is on this machine.

    Browsers cannot send bearer tokens by themselves, so a token is taken as the password of basic
    authentication too.

    Raises:
        UnauthenticatedError: no token, or another one.
        ForbiddenError: a stranger, and there are no tokens to tell strangers apart by.
    """
    if auth is not None:
        auth.check(_as_bearer(request.headers.get("Authorization")))
        return
    if not _is_here(request):
        raise ForbiddenError(
            "These pages are for visitors from this machine: set service.telemetry.metrics.auth (and tls) to "
            "let in others, who give the token as the password; or use an SSH tunnel or kubectl port-forward."
        )
    if not _is_address(request.headers.get("Host", "")):
        # Else a page from elsewhere could have its own name lead here, and read these in a visitor's browser.
        raise ForbiddenError(
            "Ask for these pages by address, such as http://127.0.0.1:9464/ui, or as localhost."
        )


def _as_bearer(authorization: str | None) -> str | None:
    if authorization is None:
        return None
    scheme, _, rest = authorization.partition(" ")
    if scheme.lower() != "basic":
        return authorization
    try:
        _, _, password = base64.b64decode(rest, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError) as error:
        raise UnauthenticatedError("these credentials are not understood") from error
    return f"Bearer {password}"


def _is_here(request: web.Request) -> bool:
    """Whether the visitor is on this machine, and no proxy speaks for somebody else."""
    if "Forwarded" in request.headers or "X-Forwarded-For" in request.headers:
        return False
    peer = request.transport.get_extra_info("peername") if request.transport is not None else None
    if not peer:
        return False
    address = ipaddress.ip_address(peer[0].partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def _is_address(host: str) -> bool:
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    if name == "localhost":
        return True
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
