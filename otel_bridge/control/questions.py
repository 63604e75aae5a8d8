"""What a gateway asks about one request: its target and its trace, from headers, a query or a body."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qs

import orjson

from otel_bridge.errors import MalformedRequestError
from otel_bridge.targets import key_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_bridge.control.config import TargetsConfig
    from otel_bridge.control.limits.claims import Claim, Claims

_HEX = frozenset("0123456789abcdef")
_TRACE_LENGTH = 32
_MOST_KEYS = 10_000
_COUNTS = frozenset({"prompt_len", "max_tokens"})


class Question(NamedTuple):
    """What is asked.

    Attributes:
        key: the target's; empty when none was named.
        trace: the trace id in hex; empty when there is none.
        claim: what the request wants of rate limits; None: none concerns it.
    """

    key: str
    trace: str
    claim: Claim | None = None


class Questions:
    """Reads questions; what a query or a body names goes before headers, which a client may have sent.

    Args:
        config: what makes a target.
        claims: reads what concerns rate limits; None: there are none.
    """

    def __init__(self, config: TargetsConfig, claims: Claims | None = None) -> None:
        self._claims = claims
        self._names = tuple(config.key)
        self._headers = tuple(config.field(name).header.lower() for name in config.key)
        self._keys: dict[tuple[str, ...], str] = {}

    @property
    def limited(self) -> bool:
        """Whether there are rate limits, so that a request's size matters."""
        return self._claims is not None

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
        """The target's key and the trace id alone; as `ask`."""
        return self.ask(headers, query, body, extra)[:2]

    def ask(
        self,
        headers: Mapping[str, str],
        query: str = "",
        body: bytes = b"",
        extra: Mapping[str, str] | None = None,
    ) -> Question:
        """What is asked.

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
        return Question(key, trace, self._claims.read(told, headers) if self._claims is not None else None)


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
    told = (
        {name: _text(name, value) for name, value in document.items()} if isinstance(document, dict) else None
    )
    if told is None or not all(isinstance(value, str) for value in told.values()):
        raise MalformedRequestError(
            'the body is a JSON object of texts, like {"service": "llama", "trace_id": "4bf92f…"}; only '
            "prompt_len and max_tokens may be numbers"
        )
    return told


def _text(name: str, value: Any) -> Any:
    return str(value) if name in _COUNTS and type(value) is int else value
