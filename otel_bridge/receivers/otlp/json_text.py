"""JSON read quickly, and read again with care where its text is not Unicode."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

import orjson

from otel_bridge.errors import MalformedRequestError

_SURROGATE = re.compile("[\ud800-\udfff]")
_NOT_A_BYTE = re.compile("[\ud800-\udc7f\udd00-\udfff]")
"""Surrogates that `surrogateescape` does not use: they stood in the document as lone escapes."""


def parse(body: bytes) -> tuple[Any, int]:
    r"""A document, and how many of its strings were mended.

    A string cut inside a character, in its bytes or between the two halves of an escaped surrogate pair
    ("\ud83d"), must not cost the whole request: what is not Unicode becomes U+FFFD.

    Raises:
        MalformedRequestError: not JSON, or nested hundreds of levels deep.
    """
    try:
        return orjson.loads(body), 0
    except orjson.JSONDecodeError:
        return _parse_mending(body)


def _parse_mending(body: bytes) -> tuple[Any, int]:
    try:
        text = body.decode("utf-8", "surrogateescape")
        return _mend(json.loads(text, parse_constant=_refuse_constant))
    except json.JSONDecodeError as error:
        message = f"the body is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        raise MalformedRequestError(message) from None
    except ValueError as error:
        raise MalformedRequestError(f"the body is not JSON: {error}") from None
    except RecursionError:
        raise MalformedRequestError("the body is nested too deeply") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f'{name} is written as a string, "{name}"')


def _mend(value: Any) -> tuple[Any, int]:
    if isinstance(value, str):
        if _SURROGATE.search(value) is None:
            return value, 0
        data = _NOT_A_BYTE.sub("\ufffd", value).encode("utf-8", "surrogateescape")
        return data.decode("utf-8", "replace"), 1
    if isinstance(value, list):
        items = [_mend(item) for item in value]
        return [item for item, _ in items], sum(count for _, count in items)
    if isinstance(value, dict):
        pairs = {name: _mend(item) for name, item in value.items()}
        return {name: item for name, (item, _) in pairs.items()}, sum(count for _, count in pairs.values())
    return value, 0
