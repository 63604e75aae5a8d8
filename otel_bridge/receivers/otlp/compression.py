"""Bodies inflated up to a limit and no further."""

from __future__ import annotations

import sys
import zlib
from typing import TYPE_CHECKING, Protocol

from otel_bridge.errors import MalformedRequestError, RequestTooLargeError, UnsupportedMediaTypeError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

if TYPE_CHECKING:
    from collections.abc import Callable

ENCODINGS = "gzip, deflate, zstd"
"""For an Accept-Encoding header."""

_ZSTD_WINDOW_LOG = 27
"""The largest zstd window taken: 128 MiB, what the reference decoder takes unless it is told otherwise."""

_MAX_MEMBERS = 64
"""gzip and zstd bodies may be several members in a row; each costs a copy of what follows it."""


class _Inflater(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


def _gzip() -> _Inflater:
    return zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)


def _deflate() -> _Inflater:
    return zlib.decompressobj(wbits=zlib.MAX_WBITS)


def _zstd() -> _Inflater:
    return zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _ZSTD_WINDOW_LOG})


_INFLATERS: dict[str, Callable[[], _Inflater]] = {
    "gzip": _gzip,
    "x-gzip": _gzip,
    "deflate": _deflate,
    "zlib": _deflate,
    "zstd": _zstd,
}


def coding_of(header: str) -> str:
    """The one content coding that a Content-Encoding header names; "" for none.

    Raises:
        UnsupportedMediaTypeError: a coding that is not spoken, or several.
    """
    name = header.strip().lower()
    if name in ("", "identity"):
        return ""
    if name not in _INFLATERS:
        message = f"Content-Encoding {header!r} is not spoken here; expected {ENCODINGS} or none"
        raise UnsupportedMediaTypeError(message)
    return name


def inflate(data: bytes, coding: str, limit: int) -> bytes:
    """A body without its content coding; never more than `limit` + 1 bytes are held.

    Raises:
        RequestTooLargeError: it would be more than `limit` bytes.
        MalformedRequestError: it is damaged or cut off.
    """
    pieces: list[bytes] = []
    room = limit + 1
    for _ in range(_MAX_MEMBERS):
        inflater = _INFLATERS[coding]()
        try:
            piece = inflater.decompress(data, room)
        except (zlib.error, zstd.ZstdError) as error:
            raise MalformedRequestError(f"the body is not {coding}: {error}") from error
        room -= len(piece)
        if room <= 0:
            raise RequestTooLargeError(f"the request is more than {limit} bytes after decompression")
        if not inflater.eof:
            raise MalformedRequestError(f"the {coding} body is cut off")
        pieces.append(piece)
        data = inflater.unused_data
        if not data:
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)
    raise MalformedRequestError(f"the {coding} body has more than {_MAX_MEMBERS} members")
