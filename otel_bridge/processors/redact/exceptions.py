"""Exceptions that quote a prompt: what could be one is hidden, the rest still explains the failure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import orjson
import re2

from otel_bridge.vocabulary import HARMLESS_LEAVES

if TYPE_CHECKING:
    import re
    from collections.abc import Iterable, Iterator

HIDDEN = "[redacted]"
SHORTEST = 8
"""Characters of content that are looked for in a message; shorter ones occur by chance."""
_HEAD = 24
"""Characters that a shortened quotation must share with the content's beginning."""
_LONGEST_WORD = 80
_NO_CONTENT = HARMLESS_LEAVES | {"model", "object", "name"}
"""Members of a request or a message whose text explains an error and gives no content away."""
MOST_COMPARISONS = 20_000
"""Pieces of content times messages of one span; beyond it messages are removed unread."""

_QUOTED: tuple[re.Pattern[str], ...] = tuple(
    re2.compile(expression)
    for expression in (
        r'(")((?:[^"\\\n]|\\.)*)("|\n|\z)',
        r"((?:\A|[^\w])')((?:[^'\\\n]|\\.)*)('|\n|\z)",
        r"(`)((?:[^`\\\n]|\\.)*)(`|\n|\z)",
    )
)


def masked(text: bytes, pieces: Iterable[str]) -> bytes:
    """A message without what it repeats of `pieces`, and without quoted prose; `text` itself for no change.

    Quoted identifiers (paths, names of models) stay: prose has spaces or letters beyond ASCII, or is long.
    """
    message = before = text.decode(errors="replace")
    for piece in pieces:
        for form in _forms(piece):
            message = _without(message, form)
    for expression in _QUOTED:
        message = expression.sub(_hide, message)
    return text if message == before else message.encode()


def pieces_of(content: Iterable[bytes]) -> list[str]:
    """The texts in content that a message might repeat, longest first: strings in JSON, or all of it."""
    found = {piece for text in content for piece in _texts(text) if len(piece) >= SHORTEST}
    return sorted(found, key=len, reverse=True)


def _hide(match: re.Match[str]) -> str:
    before, quoted, after = match.groups()
    prose = len(quoted) > _LONGEST_WORD or not quoted.isascii() or any(map(str.isspace, quoted))
    return f"{before}{HIDDEN}{after}" if prose else match.group()


def _without(message: str, piece: str) -> str:
    message = message.replace(piece, HIDDEN)
    head = piece[:_HEAD]
    start = message.find(head) if len(piece) > _HEAD else -1
    while start >= 0:
        end = start + _HEAD
        limit = min(len(message), start + len(piece))
        while end < limit and message[end] == piece[end - start]:
            end += 1
        message = f"{message[:start]}{HIDDEN}{message[end:]}"
        start = message.find(head, start + len(HIDDEN))
    return message


def _forms(piece: str) -> set[str]:
    """A text as it is, and as Python and JSON quote it."""
    return {piece, repr(piece)[1:-1], json.dumps(piece)[1:-1]}


def _texts(content: bytes) -> Iterator[str]:
    if content.lstrip()[:1] in (b"{", b"[", b'"'):
        try:
            value = orjson.loads(content)
        except orjson.JSONDecodeError:
            pass
        else:
            yield from _strings(value)
            return
    yield content.decode(errors="replace")


def _strings(value: Any) -> Iterator[str]:
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, list):
            waiting += item
        elif isinstance(item, dict):
            waiting += (inner for name, inner in item.items() if name not in _NO_CONTENT)
