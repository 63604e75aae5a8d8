"""Who a request is for limits, and how much it is taken for: from headers, a query or a body."""

from __future__ import annotations

import hashlib
import math
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple, get_args

import orjson

from otel_bridge.control.config import FieldName
from otel_bridge.control.limits.config import SECRET_FIELDS
from otel_bridge.control.limits.local import Draw, Limit
from otel_bridge.targets import NAMELESS, part

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_bridge.control.config import TargetsConfig
    from otel_bridge.control.limits.config import LimitsConfig

_SIZES = ("prompt_len", "max_tokens")
_MOST_TOKENS_KEYS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
_MOST_DIGITS = 15
_DIGEST_BYTES = 16
ONE_FOR_ALL = "*"


class TooLarge(NamedTuple):
    """A request that is more than a limit ever admits."""

    limit: Limit
    amount: float


class Claim(NamedTuple):
    """What a request wants of the limits that concern it.

    Attributes:
        draws: of each bucket.
        too_large: limits that can never admit it.
    """

    draws: tuple[Draw, ...]
    too_large: tuple[TooLarge, ...] = ()


class Claims:
    """Reads claims; users and API keys are digests from here on.

    Args:
        config: the limits.
        targets: where the parts of a target's name come from.
    """

    def __init__(self, config: LimitsConfig, targets: TargetsConfig) -> None:
        self.limits = tuple(
            Limit(number, name, found, found.capacity, found.rate)
            for number, (name, found) in enumerate(config.rules.items())
        )
        self._estimate = config.estimate
        key = config.digest_key
        self._digest_key = (
            hashlib.blake2b(key.get_secret_value().encode(), digest_size=32).digest()
            if key is not None
            else b""
        )
        headers = config.headers.model_dump()
        headers |= {name: targets.field(name).header for name in get_args(FieldName)}
        wanted = {name for limit in self.limits for name in (*limit.config.by, *limit.config.match)}
        self._headers = {str(name): headers[name].lower() for name in sorted(wanted)}
        self._size_headers = {name: headers[name].lower() for name in _SIZES}

    def read(self, told: Mapping[str, str], headers: Mapping[str, str]) -> Claim | None:
        """What a request wants; None when no limit concerns it.

        Args:
            told: what a query, a body or the gateway's configuration names.
            headers: the request's; names in lower case, or case-insensitive.
        """
        get = headers.get
        values = {name: told.get(name) or get(header, "") for name, header in self._headers.items()}
        tokens = 0.0
        draws = []
        too_large = []
        for limit in self.limits:
            key = self._key(limit, values)
            if key is None:
                continue
            amount = 1.0
            if limit.config.unit == "tokens":
                amount = tokens = tokens or self._tokens(told, headers)
            if amount > limit.capacity:
                too_large.append(TooLarge(limit, amount))
            else:
                draws.append(Draw(limit, key, amount))
        return Claim(tuple(draws), tuple(too_large)) if draws or too_large else None

    def _key(self, limit: Limit, values: Mapping[str, str]) -> str | None:
        """The bucket of a request; None when the limit does not concern it."""
        config = limit.config
        if config.match and not all(
            fnmatchcase(values[name], pattern) for name, pattern in config.match.items()
        ):
            return None
        if config.nameless == "skip" and not all(values[name] for name in config.by):
            return None
        return (
            ",".join(f"{name}={self._shown(name, values[name])}" for name in config.by)
            if config.by
            else ONE_FOR_ALL
        )

    def _shown(self, name: str, value: str) -> str:
        if not value:
            return NAMELESS
        if name not in SECRET_FIELDS:
            return part(value)
        digest = hashlib.blake2b(
            value.encode("utf-8", "replace"),
            digest_size=_DIGEST_BYTES,
            key=self._digest_key,
            person=name.encode(),
        )
        return digest.hexdigest()

    def _tokens(self, told: Mapping[str, str], headers: Mapping[str, str]) -> float:
        """How many tokens a request is taken for, before it has used any; at least 1."""
        estimate = self._estimate
        length, most = (
            _whole(told.get(name) or headers.get(header, "")) for name, header in self._size_headers.items()
        )
        prompt = estimate.prompt_tokens if length is None else math.ceil(length / estimate.bytes_per_token)
        answer = estimate.max_tokens if most is None else most
        return float(max(1, prompt + answer))


def _whole(text: str) -> int | None:
    """A count; None for what is none."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS else None


def sizes_of(body: bytes, size: int = -1) -> dict[str, str]:
    """What the body of an LLM request says of its size; of one that is cut or no JSON only its length.

    Args:
        body: as far as it is known; empty when it is not.
        size: of the whole of it in bytes, where known.
    """
    length = max(len(body), size)
    if length <= 0:
        return {}
    found = {"prompt_len": str(length)}
    try:
        document = orjson.loads(body) if body else None
    except orjson.JSONDecodeError:
        return found
    if isinstance(document, dict):
        for key in _MOST_TOKENS_KEYS:
            value = document.get(key)
            if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
                found["max_tokens"] = str(value)
                break
    return found
