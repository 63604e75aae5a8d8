"""What a gateway asks about one request: its target and its trace, from headers, a query or a body."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

import orjson

from otel_bridge.errors import MalformedRequestError
from otel_bridge.targets import key_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_bridge.control.config import TargetsConfig

_HEX = frozenset("0123456789abcdef")
_TRACE_LENGTH = 32
_MOST_KEYS = 10_000


class Questions:
    """Reads questions; what a query or a body names goes before headers, which a client may have sent."""

    def __init__(self, config: TargetsConfig) -> None:
        self._names = tuple(config.key)
        self._headers = tuple(config.field(name).header.lower() for name in config.key)
        self._keys: dict[tuple[str, ...], str] = {}

    @property
    def headers(self) -> tuple[str, ...]:
        """The headers that name parts of a target, in lower case."""
        return self._headers

    def read(
        self,
        headers: Mapping[str, str],
        query: str = "",
        body: bytes = b"",
        extra: Mapping[str, str] | None = None,
    ) -> tuple[str, str]:
        """The target's key and the trace id in hex; either may be empty.

        Args:
            headers: the request's; names in lower case, or case-insensitive.
            query: without "?".
            body: JSON, or empty.
            extra: what the gateway's own configuration names.

        Raises:
            MalformedRequestError: the body is no JSON object of texts.
        """
        told: Mapping[str, str] = _fields(query) if query else {}
        if extra:
            told = {**extra, **told}
        if body:
            told = {**told, **_object(body)}
        get = headers.get
        if told:
            parts = tuple(
                told.get(name) or get(header, "")
                for name, header in zip(self._names, self._headers, strict=True)
            )
            trace = told.get("trace_id", "").lower()
            if not _is_trace(trace):
                trace = trace_of(told.get("traceparent") or get("traceparent", ""))
        else:
            parts = tuple([get(header, "") for header in self._headers])
            trace = trace_of(get("traceparent", ""))
        key = self._keys.get(parts)
        if key is None:
            if len(self._keys) >= _MOST_KEYS:
                self._keys.clear()
            key = self._keys[parts] = key_of(parts)
        return key, trace


@lru_cache(maxsize=1000)
def _fields(query: str) -> Mapping[str, str]:
    """A query's parameters; gateways send the same few queries over and over."""
    return {name: values[0] for name, values in parse_qs(query).items()}


def trace_of(traceparent: str) -> str:
    """The trace id in a W3C traceparent; empty when there is none."""
    trace = traceparent[3:35]
    return trace if _is_trace(trace) and traceparent[2:3] == "-" and traceparent[35:36] == "-" else ""


def _is_trace(text: str) -> bool:
    return len(text) == _TRACE_LENGTH and _HEX.issuperset(text) and text != "0" * _TRACE_LENGTH


def _object(body: bytes) -> dict[str, str]:
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise MalformedRequestError(f"the body is no JSON: {error}") from error
    if not isinstance(document, dict) or not all(isinstance(value, str) for value in document.values()):
        raise MalformedRequestError(
            'the body is a JSON object of texts, like {"service": "llama", "trace_id": "4bf92f…"}'
        )
    return document
