"""Bearer tokens."""

from __future__ import annotations

import hmac
import time
from typing import TYPE_CHECKING

import structlog

from otel_bridge.errors import StartError, UnauthenticatedError

if TYPE_CHECKING:
    from pathlib import Path

    from otel_bridge.listeners.config import AuthConfig

log = structlog.get_logger(__name__)

_LOOK_INTERVAL = 1.0
"""Seconds between looks at the token file."""


class BearerAuth:
    """Lets in who shows one of the tokens."""

    def __init__(self, config: AuthConfig, setting: str) -> None:
        """Read the tokens; `setting` is the key path of `auth`.

        Raises:
            StartError: the token file cannot be read, or has no token in it.
        """
        self._fixed = tuple(token.get_secret_value().encode() for token in config.bearer_tokens)
        self._file = config.bearer_token_file
        self._looked = time.monotonic()
        self._tokens = self._fixed
        if self._file is not None:
            try:
                self._read(self._file)
            except (OSError, ValueError) as error:
                raise StartError(
                    f"cannot read bearer tokens from {self._file}: {error}; put one token a line there, "
                    f"or change {setting}.bearer_token_file"
                ) from error

    def check(self, authorization: str | None) -> None:
        """Look at the value of an Authorization header.

        Raises:
            UnauthenticatedError: it shows none of the tokens.
        """
        if authorization is None:
            raise UnauthenticatedError("no credentials; expected the header Authorization: Bearer TOKEN")
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer":
            raise UnauthenticatedError(
                "these credentials are not understood; expected Authorization: Bearer TOKEN"
            )
        self._look()
        shown = token.strip().encode("utf-8", "surrogateescape")
        # Each is compared to its end, so that the time taken tells nothing.
        if not sum([hmac.compare_digest(shown, known) for known in self._tokens]):
            raise UnauthenticatedError("the bearer token is not one of those configured")

    def _look(self) -> None:
        now = time.monotonic()
        if self._file is None or now - self._looked < _LOOK_INTERVAL:
            return
        self._looked = now
        try:
            if _identity(self._file) != self._seen:
                self._read(self._file)
                log.info("bearer tokens read again", file=str(self._file))
        except (OSError, ValueError) as error:
            log.warning(
                "bearer tokens not read again; the old ones stay", file=str(self._file), error=str(error)
            )

    def _read(self, file: Path) -> None:
        seen = _identity(file)
        tokens = tuple(line.strip() for line in file.read_bytes().splitlines() if line.strip())
        if not tokens:
            raise ValueError("no token in it")
        self._seen = seen
        self._tokens = (*self._fixed, *tokens)


def _identity(file: Path) -> tuple[int, int, int]:
    stat = file.stat()
    return stat.st_ino, stat.st_size, stat.st_mtime_ns
